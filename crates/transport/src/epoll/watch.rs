//! Waits for a reactor from outside, so that two threads may drive it by turns: one of them waits here without it, and
//! is not disturbed while the other one drives.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::Epoll;
use crate::socket::timespec;

/// Waits for one [`Epoll`] to have something to do, without borrowing it.
///
/// Whoever drives the reactor calls [`Epoll::rest`], or [`Epoll::rest_unasked`], before another thread may wait here, and [`Epoll::rouse`] before it polls
/// again. Who cannot let it rest calls [`Watch::end`].
#[derive(Debug)]
pub struct Watch {
    outer: OwnedFd,
    inner: OwnedFd,
    ended: OwnedFd,
}

impl Watch {
    /// Watches `reactor`.
    ///
    /// # Errors
    /// When the process or the system has no file descriptors left.
    pub fn new(reactor: &Epoll) -> io::Result<Self> {
        let outer = epoll::create(CreateFlags::CLOEXEC)?;
        let inner = reactor.epoll.try_clone()?;
        epoll::add(&outer, &inner, EventData::new_u64(0), EventFlags::IN)?;
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Each write to it is an edge, so its count never has to be read back.
        let edges = EventFlags::IN | EventFlags::ET;
        epoll::add(&outer, &ended, EventData::new_u64(1), edges)?;
        Ok(Self {
            outer,
            inner,
            ended,
        })
    }

    /// Waits until the reactor has something to do, unless it is hidden, and at most for `limit`. It may return early.
    ///
    /// # Errors
    /// Only when the kernel is out of memory.
    pub fn wait(&self, limit: Option<Duration>) -> io::Result<()> {
        let mut events = [const { MaybeUninit::uninit() }; 2];
        let limit = limit.map(timespec);
        match epoll::wait(&self.outer, &mut events, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the current wait or the next one, whatever the reactor does.
    pub fn end(&self) {
        // The only failures are a full counter (then an end is pending) and a bad descriptor, which ownership rules out.
        let _ = rustix::io::write(&self.ended, &1u64.to_ne_bytes());
    }

    /// Whether waits end when the reactor has something to do.
    pub fn show(&self, on: bool) {
        let events = match on {
            true => EventFlags::IN,
            false => EventFlags::empty(),
        };
        // It can only fail for descriptors that are not there.
        let _ = epoll::modify(&self.outer, &self.inner, EventData::new_u64(0), events);
    }
}

impl Epoll {
    /// From now on a [`Watch`], or whoever else waits for this reactor to become readable, misses nothing: no wake, and
    /// nothing that an outstanding operation waits for. False: something is there already, or is to be tried; poll first.
    ///
    /// Listeners that rest after a failure are not waited for.
    pub fn rest(&mut self) -> bool {
        let nothing = !self.has_ready() && self.done.is_empty();
        nothing && self.doze() && self.sleeper.try_sleep()
    }

    /// As [`Epoll::rest`], but what peers publish in shared memory ends no wait: none of them is asked to wake this side. So
    /// whoever waits looks for that by itself, after a while.
    pub fn rest_unasked(&mut self) -> bool {
        !self.has_ready() && self.done.is_empty() && self.sleeper.try_sleep()
    }

    /// The rest is over. A wake that came meanwhile is not reported: its reason is to be looked for now.
    pub fn rouse(&mut self) {
        self.sleeper.take();
        self.heat_again();
    }
}
