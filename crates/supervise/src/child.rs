//! One child process, in most cases a broker: starts it, passes its reports on, signals it, and says how it ended.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::protocol::ProcessReport;

/// Longest part of a log that is quoted in an error.
const TAIL_BYTES: u64 = 4096;
/// Lines of a log that are quoted in an error.
const TAIL_LINES: usize = 5;

/// The log of a process cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the log {}", path.display())]
pub struct LogError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub source: std::io::Error,
}

/// What happens to child processes. `generation` distinguishes a process from its predecessors in the same slot.
#[derive(Debug)]
pub enum ChildEvent {
    /// A process reported something.
    Said {
        /// Its place in the cluster.
        slot: usize,
        /// Which process of that place.
        generation: u32,
        /// Its report.
        report: ProcessReport,
    },
    /// A process closed its standard output, which it does when it ends.
    Ended {
        /// Its place in the cluster.
        slot: usize,
        /// Which process of that place.
        generation: u32,
    },
    /// A signal asks this process to stop.
    Interrupted,
    /// Work that a thread waits for is done.
    Wake,
}

/// A child process. Dropping it kills and reaps it.
pub struct Child {
    process: std::process::Child,
    /// The process stops when this closes.
    _stdin: Option<ChildStdin>,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Child {
    /// Starts `exe args...`; standard error is appended to `log`, standard output is read as [`ProcessReport`]s.
    pub fn start(
        (exe, args): (&Path, &[String]),
        log: &Path,
        (slot, generation): (usize, u32),
        events: Sender<ChildEvent>,
    ) -> Result<Self> {
        let log_file = open_log(log)?;
        let mut process = Command::new(exe)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", exe.display()))?;
        let stdin = process.stdin.take();
        let output = process
            .stdout
            .take()
            .context("a piped standard output is there")?;
        thread::Builder::new()
            .name("broker-output".into())
            .spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Ok(report) = line.parse() {
                        // The cluster reads no more events once it is being dropped.
                        let _delivered = events.send(ChildEvent::Said {
                            slot,
                            generation,
                            report,
                        });
                    }
                }
                let _delivered = events.send(ChildEvent::Ended { slot, generation });
            })?;
        Ok(Self {
            process,
            _stdin: stdin,
            log: log.to_owned(),
            ended: None,
        })
    }

    /// Its log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Asks it to drain and end.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Ends it.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    fn signal(&mut self, signal: Signal) {
        if self.try_wait().is_none() {
            // It was not waited for, so its id is still its own. That it has ended is no error: the signal is to end it.
            let _ended_meanwhile = kill_process(Pid::from_child(&self.process), signal);
        }
    }

    /// How it ended, if it did.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.process.try_wait().ok().flatten();
        }
        self.ended
    }

    /// How it ended, in words.
    pub fn how_it_ended(&mut self) -> String {
        match self.try_wait() {
            None => "closed its standard output".into(),
            Some(status) => match (status.signal(), status.code()) {
                (Some(9), _) => "was killed (SIGKILL; out of memory?)".into(),
                (Some(signal), _) => format!("was killed by signal {signal}"),
                (None, Some(code)) => format!("exited with code {code}"),
                (None, None) => "ended".into(),
            },
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        // Reaps it; a killed process ends at once.
        let _reaped = self.process.wait();
    }
}

fn open_log(log: &Path) -> Result<File> {
    if let Some(dir) = log.parent() {
        fs::create_dir_all(dir)
            .with_context(|| format!("cannot create the log directory {}", dir.display()))?;
    }
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(log)
        .map_err(|source| {
            let path = log.to_owned();
            LogError { path, source }.into()
        })
}

/// The last lines of a log, indented; empty when there are none.
pub fn tail(log: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..]
        .iter()
        .map(|line| format!("\n    {line}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    fn shell(script: &str, dir: &Path) -> (Child, std::sync::mpsc::Receiver<ChildEvent>) {
        let (send, receive) = channel();
        let args = ["-c".to_owned(), script.to_owned()];
        let child = Child::start(
            (Path::new("/bin/sh"), &args),
            &dir.join("log"),
            (3, 1),
            send,
        )
        .expect("started");
        (child, receive)
    }

    fn next(events: &std::sync::mpsc::Receiver<ChildEvent>) -> ChildEvent {
        events
            .recv_timeout(Duration::from_secs(10))
            .expect("an event in time")
    }

    #[test]
    fn reports_come_in_order_and_the_end_last() {
        let dir = tempfile::tempdir().expect("a directory");
        let script = "echo prefault done=1 total=2; echo noise; echo ouch >&2; exit 7";
        let (mut child, events) = shell(script, dir.path());
        assert!(matches!(
            next(&events),
            ChildEvent::Said {
                slot: 3,
                report: ProcessReport::Prefault { done: 1, .. },
                ..
            }
        ));
        assert!(matches!(
            next(&events),
            ChildEvent::Ended {
                slot: 3,
                generation: 1
            }
        ));
        while child.try_wait().is_none() {
            thread::yield_now();
        }
        assert_eq!(child.how_it_ended(), "exited with code 7");
        assert_eq!(tail(child.log()), "\n    ouch");
    }

    #[test]
    fn a_dropped_child_is_dead() {
        let dir = tempfile::tempdir().expect("a directory");
        let (child, events) = shell("exec sleep 1000", dir.path());
        let pid = child.process.id();
        drop(child);
        assert!(matches!(next(&events), ChildEvent::Ended { .. }));
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_child_sees_the_end_of_its_input() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut child, events) = shell("cat; exit 5", dir.path());
        child._stdin = None;
        assert!(matches!(next(&events), ChildEvent::Ended { .. }));
        while child.try_wait().is_none() {
            thread::yield_now();
        }
        assert_eq!(child.how_it_ended(), "exited with code 5");
    }
}
