//! A broker that stands still for a part of the time: stopped and continued, again and again.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long it stands still and runs together.
const PERIOD: Duration = Duration::from_millis(20);

/// Stops and continues a process until it is dropped; then the process runs on.
pub struct Stalls {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Stalls {
    /// Has the process `pid` stand still for so many percent of the time. Should end with this one even if that is killed:
    /// see [`kill_with_parent`](embar_supervise::ClusterPlan::kill_with_parent).
    pub fn start(pid: u32, percent: u32) -> Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.context("no such process")?;
        // The number may go to another process as soon as somebody has waited for this one.
        let process =
            pidfd_open(pid, PidfdFlags::empty()).context("cannot stop and continue a process")?;
        let (stop, stopped) = channel();
        let still = PERIOD * percent.min(95) / 100;
        let thread = thread::Builder::new()
            .name("stalls".into())
            .spawn(move || stall(&process, still, &stopped))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

fn stall(process: &OwnedFd, still: Duration, stopped: &Receiver<()>) {
    let over = |limit| stopped.recv_timeout(limit) != Err(RecvTimeoutError::Timeout);
    loop {
        if pidfd_send_signal(process, Signal::STOP).is_err() {
            return;
        }
        let end = over(still);
        if pidfd_send_signal(process, Signal::CONT).is_err() || end || over(PERIOD - still) {
            return;
        }
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _joined = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// Whether it stands still, as the kernel says.
    fn stands_still(pid: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is our child");
        let state = stat.rsplit(')').next().map(str::trim_start);
        state.is_some_and(|it| it.starts_with('T'))
    }

    #[test]
    fn a_process_stands_still_again_and_again_and_runs_on_in_the_end() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("it starts");
        let stalls = Stalls::start(child.id(), 95).expect("it runs");
        while !stands_still(child.id()) {
            thread::yield_now();
        }
        drop(stalls);
        assert!(!stands_still(child.id()));
        // One that somebody has waited for is signalled no more, whoever has its number then.
        let stalls = Stalls::start(child.id(), 95).expect("it runs");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        let stalling = stalls.thread.as_ref().expect("it was started");
        while !stalling.is_finished() {
            thread::yield_now();
        }
        assert!(Stalls::start(child.id(), 95).is_err());
    }
}
