//! A process whose threads do nothing but compute: what else may run on a machine.

use std::hint::black_box;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result};
use embar_console::interrupt::on_parent_exit;
use serde::{Deserialize, Serialize};

/// The command of the program that runs one; the specification is its argument.
pub const COMMAND: &str = "cpu-hog";

/// One such process, as its parent wants it.
#[derive(Debug, Serialize, Deserialize)]
pub struct HogSpec {
    /// Threads that compute.
    pub threads: u32,
}

/// Computes until standard input ends. `spec` is a [`HogSpec`] in JSON.
pub fn run(spec: &str) -> Result<()> {
    let spec: HogSpec = serde_json::from_str(spec).context("this is no specification of a hog")?;
    on_parent_exit(|| std::process::exit(0)).context("cannot watch the parent process")?;
    let spin = || {
        let mut number = 1_u64;
        loop {
            for _ in 0..1 << 20 {
                number = black_box(number.wrapping_mul(6_364_136_223_846_793_005) + 1);
            }
        }
    };
    for _ in 1..spec.threads {
        thread::Builder::new().name("hog".into()).spawn(spin)?;
    }
    spin()
}

/// A hog that runs. Dropping it ends it.
pub struct Hog(Child);

impl Hog {
    /// Starts one.
    pub fn start(program: &Path, threads: u32) -> Result<Self> {
        let spec = serde_json::to_string(&HogSpec { threads })?;
        let child = Command::new(program)
            .args([COMMAND, &spec])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a process that computes")?;
        Ok(Self(child))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        // It ends by itself when the pipe to it closes; killing is faster, and it has nothing to put away.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}
