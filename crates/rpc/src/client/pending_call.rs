//! A call with one reply.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use embar_transport::park;

use super::response::Response;
use super::start::{Poller, Start, set_waker};
use crate::block::may_block;
use crate::{MetadataError, Outgoing, Status};

/// A call with one reply: a future, or [waited for](PendingCall::wait). Nothing is sent before it is polled or
/// waited for, unless [`PendingCall::start`] does. Dropping it gives the call up, and the server learns that.
#[must_use = "nothing is sent before it is awaited or waited for"]
pub struct PendingCall<Q: Outgoing, R> {
    start: Start<Q>,
    reply: PhantomData<fn() -> R>,
}

impl<Q: Outgoing, R> PendingCall<Q, R> {
    pub(super) fn new(start: Start<Q>) -> Self {
        Self {
            start,
            reply: PhantomData,
        }
    }

    /// How long it may take, counted from when it is first polled, waited for or started. The server
    /// learns what is left of it. When it is over, the call fails with
    /// [`DeadlineExceeded`](crate::Code::DeadlineExceeded). Of a call that was started it is counted from now, and the server
    /// learns of it when it is over.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.start.set_timeout(timeout);
        self
    }

    /// Adds metadata.
    ///
    /// # Errors
    /// [`MetadataError`]; [`MetadataError::Started`] once the call was started.
    pub fn metadata(mut self, key: &str, value: impl AsRef<[u8]>) -> Result<Self, MetadataError> {
        self.start.metadata()?.add(key, value)?;
        Ok(self)
    }

    /// Sends the request now, if that needs no wait: so one thread has several calls in flight.
    ///
    /// # Errors
    /// Why the call failed.
    pub fn start(&mut self) -> Result<(), Status> {
        match self.start.poll_sent(None, Poller::Thread) {
            Poll::Ready(sent) => sent.map(drop),
            Poll::Pending => Ok(()),
        }
    }

    /// Blocks until the reply is there. Not for handlers of sessions, which must not block.
    ///
    /// # Errors
    /// Why the call failed.
    pub fn wait(mut self) -> Result<Response<R>, Status> {
        may_block().map_err(|status| self.start.failed(status))?;
        // Fixes the deadline.
        self.start()?;
        let deadline = self.start.deadline();
        let reply = park::block_on(deadline, |cx| self.poll_reply(cx, Poller::Thread));
        if let Some(reply) = reply {
            return reply;
        }
        // Its time is over: this look says so, unless the reply came just now.
        let looked = self.poll_reply(
            &mut Context::from_waker(std::task::Waker::noop()),
            Poller::Thread,
        );
        match looked {
            Poll::Ready(reply) => reply,
            Poll::Pending => Err(Status::deadline_exceeded("the call's time is over")),
        }
    }

    fn poll_reply(
        &mut self,
        cx: &mut Context<'_>,
        poller: Poller,
    ) -> Poll<Result<Response<R>, Status>> {
        let call = ready!(self.start.poll_sent(Some(cx), poller))?;
        let table = self.start.table();
        let Some(mut slot) = table.slot(call.slot) else {
            return Poll::Ready(Err(Status::internal("there is no such slot")));
        };
        let Some((end, free)) = slot.take_end() else {
            let before = set_waker(&mut slot.waker, cx);
            drop(slot);
            drop(before);
            self.start.wait(call, cx, poller)?;
            return Poll::Pending;
        };
        let waker = slot.waker.take();
        drop(slot);
        // Its destructor is anybody's code.
        drop(waker);
        if free {
            table.give_back(call.slot);
        }
        let table = Arc::clone(table);
        self.start.done();
        Poll::Ready(end.map(|bytes| Response::new(bytes, &table, call.slot)))
    }
}

impl<Q: Outgoing + Unpin, R> Future for PendingCall<Q, R> {
    type Output = Result<Response<R>, Status>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_reply(cx, Poller::Task)
    }
}
