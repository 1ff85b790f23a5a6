//! A submitted command: its caller waits here for the reply.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use embar_transport::park;

use crate::clock;
use crate::error::CallError;
use crate::profile::{Laps, Stage};
use crate::reply_slots::CommandId;
use crate::shared::Shared;

/// Waits for the reply to one command. A dropped call throws its reply away; the command itself cannot
/// be taken back.
#[must_use = "dropping it throws the reply away"]
pub struct Call {
    pub(crate) shared: Arc<Shared>,
    id: CommandId,
    /// When the caller submitted it, in nanoseconds of `clock::now`.
    since: u64,
    /// The command has a timeout of its own.
    has_own_timeout: bool,
    /// The caller has its reply.
    taken: bool,
}

impl Call {
    pub(crate) fn new(
        shared: Arc<Shared>,
        id: CommandId,
        since: u64,
        has_own_timeout: bool,
    ) -> Self {
        Self {
            shared,
            id,
            since,
            has_own_timeout,
            taken: false,
        }
    }

    /// How long ago the command was submitted.
    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_nanos(clock::now().saturating_sub(self.since))
    }

    /// Whether the command of another call went to the same connection.
    #[must_use]
    pub fn shares_connection_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Ready once the reply is complete, or no reply will come. `read` gets all frames of the reply,
    /// one behind the other. It may take the memory; what it leaves serves another reply.
    ///
    /// # Errors
    /// [`CallError`].
    ///
    /// # Panics
    /// If the call was ready before.
    pub fn poll_reply<R>(
        &mut self,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> Poll<Result<R, CallError>> {
        self.poll_partial(cx, |outcome, reply| outcome.map(|()| read(reply)))
    }

    /// As [`Call::poll_reply`], but `read` also sees what came of a reply that is not complete, and why:
    /// all frames that came, and perhaps a part of the next one. So a caller whose command is several in
    /// one learns what became of the first of them. Of a reply of one frame there is nothing.
    ///
    /// # Panics
    /// If the call was ready before.
    pub fn poll_partial<R>(
        &mut self,
        cx: &mut Context<'_>,
        read: impl FnOnce(Result<(), CallError>, &mut Vec<u8>) -> R,
    ) -> Poll<R> {
        assert!(!self.taken, "a reply is taken once");
        let (slots, taken) = (&self.shared.slots, &mut self.taken);
        slots
            .poll(self.id, cx, |outcome, reply| {
                // Before reading, which may panic.
                *taken = true;
                let mut laps = Laps::start(&[Stage::Complete]);
                let result = read(outcome, reply);
                laps.lap(Stage::Complete);
                result
            })
            .map(|result| {
                self.shared.notifier.gather.reply_taken();
                result
            })
    }

    /// Waits for the reply in async code.
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

    /// Blocks the thread until the reply is complete.
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
        if self.has_own_timeout {
            self.shared.own_timeouts.fetch_sub(1, Ordering::Relaxed);
        }
        if !self.taken {
            self.shared.slots.forget(self.id);
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call(#{})", self.id.ticket)
    }
}

/// Blocks the thread until `poll` is ready.
pub fn block_on<R>(poll: impl FnMut(&mut Context<'_>) -> Poll<R>) -> R {
    park::block_on(None, poll).expect("without a deadline it returns when `poll` is ready")
}
