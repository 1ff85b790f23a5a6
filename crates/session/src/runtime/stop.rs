//! How a thread waits for a socket until somebody ends that.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// A request to stop, which ends every wait for it, also those that begin later.
pub(super) struct Stop(OwnedFd);

/// How a wait ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Waited {
    Ready,
    TimedOut,
    Stopped,
}

impl Stop {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    pub(super) fn request(&self) {
        // It fails only for a counter that is full, which is as good.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Whether somebody requested it.
    pub(super) fn is_requested(&self) -> bool {
        let now = Some(Instant::now());
        matches!(self.wait(None, PollFlags::IN, now), Ok(Waited::Stopped))
    }

    /// Waits until `socket` is ready for `interest`, at most until `deadline`.
    pub(super) fn wait(
        &self,
        socket: Option<&dyn AsFd>,
        interest: PollFlags,
        deadline: Option<Instant>,
    ) -> io::Result<Waited> {
        loop {
            let mut fds = vec![PollFd::new(&self.0, PollFlags::IN)];
            fds.extend(socket.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), interest)));
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec {
                tv_sec: left.as_secs().min(i32::MAX as u64) as i64,
                tv_nsec: left.subsec_nanos().into(),
            });
            match poll(&mut fds, left.as_ref()) {
                Ok(0) => return Ok(Waited::TimedOut),
                Ok(_) if !fds[0].revents().is_empty() => return Ok(Waited::Stopped),
                Ok(_) => return Ok(Waited::Ready),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
