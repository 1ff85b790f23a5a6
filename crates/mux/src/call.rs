//! A command that was submitted, as its caller sees it.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use embar_transport::park;

use crate::clock;
use crate::conn::Shared;
use crate::error::CallError;
use crate::profile::{Laps, Stage};
use crate::slots::Seat;

/// Waits for the reply to one command. Dropped before that, the reply is thrown away when it comes,
/// and nobody else ever sees it; the command itself cannot be taken back.
#[must_use = "dropping it throws the reply away"]
pub struct Call {
    shared: Arc<Shared>,
    seat: Seat,
    /// When it was submitted.
    since: u64,
    hasty: bool,
    taken: bool,
}

impl Call {
    pub(crate) fn new(shared: Arc<Shared>, seat: Seat, since: u64, hasty: bool) -> Self {
        Self {
            shared,
            seat,
            since,
            hasty,
            taken: false,
        }
    }

    /// How long ago it was submitted.
    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_nanos(clock::now().saturating_sub(self.since))
    }

    /// Ready once the reply is there, or none will come: `read` sees all of its frames, one behind
    /// the other. It may take the memory; what it leaves is used for another reply.
    ///
    /// # Errors
    /// [`CallError`].
    ///
    /// # Panics
    /// If it was ready before.
    pub fn poll_reply<R>(
        &mut self,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> Poll<Result<R, CallError>> {
        assert!(!self.taken, "a reply is taken once");
        let (slots, taken) = (&self.shared.slots, &mut self.taken);
        slots
            .poll(self.seat, cx, |reply| {
                // Also if reading panics.
                *taken = true;
                let mut laps = Laps::start(&[Stage::Complete]);
                let result = read(reply);
                laps.lap(Stage::Complete);
                result
            })
            .map(|outcome| {
                self.taken = true;
                self.shared.alarm.gather.came();
                outcome
            })
    }

    /// The reply, for async code.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn reply<R>(mut self, read: impl FnOnce(&mut Vec<u8>) -> R) -> Result<R, CallError> {
        let mut read = Some(read);
        poll_fn(|cx| {
            self.poll_reply(cx, |reply| {
                let read = read.take().expect("a reply is taken once");
                read(reply)
            })
        })
        .await
    }

    /// Blocks the thread until the reply is there.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn wait<R>(mut self, read: impl FnOnce(&mut Vec<u8>) -> R) -> Result<R, CallError> {
        let mut read = Some(read);
        block_on(|cx| {
            self.poll_reply(cx, |reply| {
                let read = read.take().expect("a reply is taken once");
                read(reply)
            })
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.hasty {
            self.shared.hasty.fetch_sub(1, Ordering::Relaxed);
        }
        if !self.taken {
            self.shared.slots.forget(self.seat);
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call(#{})", self.seat.ticket)
    }
}

/// Blocks the thread until `poll` is ready.
pub fn block_on<R>(poll: impl FnMut(&mut Context<'_>) -> Poll<R>) -> R {
    park::block_on(None, poll).expect("without a deadline it ends when it is ready")
}
