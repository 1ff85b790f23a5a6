//! The answer to a call whose reply is a stream.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use buffa::{Message, ViewEncode};
use embar_session::{Room, SendError};
use embar_transport::park;
use thiserror::Error;

use super::call::is_cancelled;
use super::ticket::{Ticket, given_up};
use crate::Status;
use crate::block::may_block;
use crate::outgoing::{Nothing, Outgoing, Owned, Viewed};
use crate::protocol::{ITEM_START, frame};

/// Sends the items of one stream, and its end: now or later, from any thread. Dropped without an end,
/// it ends the stream with [`Internal`](crate::Code::Internal).
#[must_use = "dropped, it fails the call"]
pub struct Sink<R> {
    ticket: Ticket,
    item: PhantomData<fn(R)>,
}

/// Why an item was not sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The caller takes no more now, or the session's ring is full.
    #[error("the caller takes no more items now: wait until it does")]
    Full,
    /// Nobody waits for items any more, or this one can never be sent.
    #[error(transparent)]
    Failed(#[from] Status),
}

/// Why an item cannot be sent now.
enum Lacks {
    Credit,
    Room,
}

impl<R> Sink<R> {
    pub(super) fn new(ticket: Ticket) -> Self {
        Self {
            ticket,
            item: PhantomData,
        }
    }

    /// Ends the stream: well, or with an error. All items before it arrive before it.
    pub fn finish(self, outcome: Result<(), Status>) {
        self.ticket.end(outcome.map(|()| Nothing));
    }

    /// Whether nobody waits for items any more; as [`Call::is_cancelled`](crate::Call::is_cancelled).
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        is_cancelled(self.ticket.calls(), self.ticket.number())
    }

    fn try_send_one(&mut self, item: &impl Outgoing) -> Result<Option<Lacks>, Status> {
        let (calls, number) = (self.ticket.calls(), self.ticket.number());
        let credit = calls.with(number, |call| match call.given_up {
            Some(why) => Err(given_up(why)),
            None => Ok(call.take_credit()),
        });
        match credit {
            Some(Ok(true)) => {}
            Some(Ok(false)) => return Ok(Some(Lacks::Credit)),
            Some(Err(status)) => return Err(status),
            None => return Err(Status::internal("the stream has ended")),
        }
        let sent = item.try_send(&calls.session, frame::ITEM, &[&number.to_bytes()]);
        calls.with(number, |call| match sent {
            Ok(bytes) => call.count_bytes(bytes),
            Err(_) => call.give_credit_back(),
        });
        match sent {
            Ok(_) => Ok(None),
            Err(SendError::Full) => Ok(Some(Lacks::Room)),
            Err(error @ SendError::TooLong { .. }) => Err(Status::resource_exhausted(format!(
                "the item was not sent: {error}"
            ))),
            Err(error) => Err(Status::unavailable(format!(
                "the item was not sent: {error}"
            ))),
        }
    }

    fn poll_send(
        &mut self,
        item: &impl Outgoing,
        room: &mut Option<Room>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Status>> {
        let mut retried = false;
        loop {
            if let Some(wait) = room {
                self.watch(cx)?;
                let closed = |error| Status::unavailable(format!("the item was not sent: {error}"));
                ready!(Pin::new(wait).poll(cx)).map_err(closed)?;
                // Others may take it meanwhile: it waits again then.
                *room = None;
            }
            match self.try_send_one(item)? {
                None => return Poll::Ready(Ok(())),
                Some(Lacks::Credit) => {
                    if self.wait_for_credit(cx) {
                        return Poll::Pending;
                    }
                }
                Some(Lacks::Room) => {
                    let session = &self.ticket.calls().session;
                    *room = Some(session.room(ITEM_START + item.encoded_bytes()));
                    if mem::replace(&mut retried, true) {
                        // Room came and went meanwhile: others have their turn first.
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// For a wait for room: whoever gives the call up wakes the task, too.
    fn watch(&self, cx: &Context<'_>) -> Result<(), Status> {
        let waker = cx.waker().clone();
        let calls = self.ticket.calls();
        let before = calls.with(self.ticket.number(), |call| match call.given_up {
            Some(why) => Err(given_up(why)),
            None => Ok(call.credit_waker.replace(waker)),
        });
        // The waker from before is dropped here, without the lock.
        match before {
            Some(before) => before.map(drop),
            None => Err(Status::internal("the stream has ended")),
        }
    }

    /// False: there is no need to wait.
    fn wait_for_credit(&self, cx: &Context<'_>) -> bool {
        let waker = cx.waker().clone();
        let before = self.ticket.calls().with(self.ticket.number(), |call| {
            let waits = call.given_up.is_none() && !call.has_credit();
            let before = waits.then(|| call.credit_waker.replace(waker));
            (waits, before)
        });
        // The waker from before is dropped here, without the lock.
        before.is_some_and(|(waits, _)| waits)
    }

    async fn send_one(&mut self, item: impl Outgoing) -> Result<(), Status> {
        let mut room = None;
        poll_fn(|cx| self.poll_send(&item, &mut room, cx)).await
    }

    fn wait_send_one(&mut self, item: &impl Outgoing) -> Result<(), Status> {
        let mut room = None;
        let mut cx = Context::from_waker(Waker::noop());
        // Without a wait, handlers may do it, too.
        if let Poll::Ready(sent) = self.poll_send(item, &mut room, &mut cx) {
            return sent;
        }
        may_block()?;
        park::block_on(None, |cx| self.poll_send(item, &mut room, cx)).unwrap_or(Ok(()))
    }
}

impl<R: Message> Sink<R> {
    /// Sends an item, if the caller takes it and the ring has room.
    ///
    /// # Errors
    /// [`SinkError`]; it was not sent then.
    pub fn try_send(&mut self, item: &R) -> Result<(), SinkError> {
        match self.try_send_one(&Owned(item))? {
            None => Ok(()),
            Some(_) => Err(SinkError::Full),
        }
    }

    /// Sends an item; waits until the caller takes it.
    ///
    /// # Errors
    /// When nobody waits for items any more, or it can never be sent.
    pub async fn send(&mut self, item: &R) -> Result<(), Status> {
        self.send_one(Owned(item)).await
    }

    /// As [`Sink::send`], for a view of the item.
    ///
    /// # Errors
    /// As [`Sink::send`].
    pub async fn send_view<'v, V: ViewEncode<'v, Owned = R>>(
        &mut self,
        view: &V,
    ) -> Result<(), Status> {
        self.send_one(Viewed::new(view)).await
    }

    /// As [`Sink::send`], for threads: blocks until the caller takes it. Not for methods themselves,
    /// which run on a session's worker.
    ///
    /// # Errors
    /// As [`Sink::send`].
    pub fn wait_send(&mut self, item: &R) -> Result<(), Status> {
        self.wait_send_one(&Owned(item))
    }
}
