//! This program once more, for one of them, and not for ever.

use crate::arguments::{Peer, Test};
use crate::single::Report;
use anyhow::{Context, bail, ensure};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

/// How long one of them may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(10);

/// Measures it in a process of its own.
pub fn measure(peer: Peer, test: Test, messages: u64) -> anyhow::Result<Report> {
    let mut command = Command::new(env::current_exe()?);
    command
        .arg(format!("--peer={peer}"))
        .arg(format!("--test={test}"));
    let plural = if test == Test::RoundTrip { "s" } else { "" };
    command.arg(format!("--{test}{plural}={messages}"));
    command.arg("--json").stdin(Stdio::null());
    // It says a line or two, so neither pipe can be full before it ends.
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(command.spawn()?);
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = running.0.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            bail!("it was killed after {PATIENCE:?}");
        }
        thread::sleep(LOOK);
    };
    let (mut said, mut report) = (String::new(), String::new());
    if let Some(mut stderr) = running.0.stderr.take() {
        stderr.read_to_string(&mut said)?;
    }
    ensure!(status.success(), "{status}: {}", said.trim());
    if let Some(mut stdout) = running.0.stdout.take() {
        stdout.read_to_string(&mut report)?;
    }
    serde_json::from_str(&report).context("its report")
}

/// It ends when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}
