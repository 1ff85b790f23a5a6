//! The answer to a call with one reply.

use std::marker::PhantomData;

use buffa::{Message, ViewEncode};

use super::call::is_cancelled;
use super::ticket::Ticket;
use crate::Status;
use crate::outgoing::{Owned, Viewed};

/// Answers one call: now, or later and from any thread. Nothing of it blocks. Dropped without an
/// answer, it answers [`Internal`](crate::Code::Internal).
#[must_use = "dropped, it fails the call"]
pub struct Reply<R> {
    ticket: Ticket,
    message: PhantomData<fn(R)>,
}

impl<R> Reply<R> {
    pub(super) fn new(ticket: Ticket) -> Self {
        Self {
            ticket,
            message: PhantomData,
        }
    }

    /// Fails the call.
    pub fn fail(self, status: Status) {
        self.ticket.fail(status);
    }

    /// Whether nobody waits for the reply any more; as [`Call::is_cancelled`](crate::Call::is_cancelled).
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        is_cancelled(self.ticket.calls(), self.ticket.number())
    }
}

impl<R: Message> Reply<R> {
    /// Answers with this message, which is encoded straight into the send ring. Where the ring is full,
    /// a copy waits.
    pub fn send(self, message: &R) {
        self.ticket.end(Ok(Owned(message)));
    }

    /// Answers with a view of the message, whose fields are borrowed.
    pub fn send_view<'v, V: ViewEncode<'v, Owned = R>>(self, view: &V) {
        self.ticket.end(Ok(Viewed::new(view)));
    }

    /// Answers with the outcome of something.
    pub fn finish(self, outcome: Result<R, Status>) {
        match outcome {
            Ok(message) => self.send(&message),
            Err(status) => self.fail(status),
        }
    }
}
