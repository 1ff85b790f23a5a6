//! A process of a drill, which its parent talks with by lines.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use embar_console::interrupt::Interrupt;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How often Ctrl-C is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A process that this one started. Dropping it ends it.
pub(super) struct Child {
    name: &'static str,
    process: process::Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Child {
    /// Starts `program` with a hidden command, and its specification as JSON.
    pub(super) fn start(
        program: &Path,
        command: &'static str,
        spec: &impl Serialize,
    ) -> Result<Self> {
        let mut process = Command::new(program)
            .args([command, &serde_json::to_string(spec)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command}"))?;
        let input = process.stdin.take();
        let output = process.stdout.take().context("it has a pipe")?;
        let (say, lines) = channel();
        thread::Builder::new()
            .name("child's lines".into())
            .spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if say.send(line).is_err() {
                        return;
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(Self {
            name: command,
            process,
            input,
            lines,
        })
    }

    /// Asks it for a line.
    pub(super) fn ask(&mut self) -> Result<()> {
        let input = self.input.as_mut().context("it was told to end")?;
        writeln!(input).with_context(|| format!("{} has ended", self.name))
    }

    /// Tells it to end.
    pub(super) fn tell_to_end(&mut self) {
        self.input = None;
    }

    /// Its next line.
    pub(super) fn hear<T: DeserializeOwned>(
        &mut self,
        within: Duration,
        interrupt: &Interrupt,
    ) -> Result<T> {
        let deadline = Instant::now() + within;
        loop {
            interrupt.check()?;
            match self.lines.recv_timeout(LOOK_EVERY) {
                Ok(line) => {
                    let read = serde_json::from_str(&line);
                    return read.with_context(|| format!("{} said {line:?}", self.name));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.process.wait()?;
                    bail!(
                        "{} ended ({status}); what it wrote to standard error says why",
                        self.name
                    );
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} did not answer within {} s", self.name, within.as_secs());
                }
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It ends by itself when the pipe to it closes; killing is faster, and it has nothing to put away.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}
