//! A call whose reply is a stream.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use embar_transport::park;
use futures_core::Stream;

use super::response::Response;
use super::slot::Next;
use super::start::{Poller, Start, set_waker};
use crate::block::may_block;
use crate::{MetadataError, Outgoing, Status};

/// The reply of a method that answers with a stream: taken item by item, by tasks or threads. The
/// server sends no more than what [`ChannelSettings`](super::ChannelSettings) allow to wait here.
/// Nothing is sent before the first item is asked for. Dropping it gives the call up, and the
/// server learns that.
#[must_use = "nothing is sent before an item is asked for"]
pub struct Items<Q: Outgoing, R> {
    start: Start<Q>,
    over: bool,
    item: PhantomData<fn() -> R>,
}

impl<Q: Outgoing, R> Items<Q, R> {
    pub(super) fn new(start: Start<Q>) -> Self {
        Self {
            start,
            over: false,
            item: PhantomData,
        }
    }

    /// How long the whole stream may take, counted from the first item that is asked for, or from now
    /// if one was: then the server learns of it when it is over.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.start.set_timeout(timeout);
        self
    }

    /// Adds metadata.
    ///
    /// # Errors
    /// [`MetadataError`]; [`MetadataError::Started`] once an item was asked for.
    pub fn metadata(mut self, key: &str, value: impl AsRef<[u8]>) -> Result<Self, MetadataError> {
        self.start.metadata()?.add(key, value)?;
        Ok(self)
    }

    /// Sends the request now, if that needs no wait.
    ///
    /// # Errors
    /// Why the call failed.
    pub fn start(&mut self) -> Result<(), Status> {
        match self.start.poll_sent(None, Poller::Thread) {
            Poll::Ready(Err(status)) => {
                self.over = true;
                Err(status)
            }
            _ => Ok(()),
        }
    }

    /// The next item; `None` at the end of a stream that ended well. After an error there is nothing.
    pub async fn next(&mut self) -> Option<Result<Response<R>, Status>> {
        poll_fn(|cx| self.poll_item(cx, Poller::Task)).await
    }

    /// As [`Items::next`], for threads: blocks until it is there. Not for handlers of sessions,
    /// which must not block: there it is an error, which ends the stream.
    pub fn wait_next(&mut self) -> Option<Result<Response<R>, Status>> {
        if self.over {
            return None;
        }
        if let Err(status) = may_block() {
            self.over = true;
            let status = self.start.failed(status);
            self.start.give_up();
            return Some(Err(status));
        }
        if let Err(status) = self.start() {
            return Some(Err(status));
        }
        let deadline = self.start.deadline();
        let item = park::block_on(deadline, |cx| self.poll_item(cx, Poller::Thread));
        if let Some(item) = item {
            return item;
        }
        let mut cx = Context::from_waker(Waker::noop());
        match self.poll_item(&mut cx, Poller::Thread) {
            Poll::Ready(item) => item,
            Poll::Pending => Some(Err(Status::deadline_exceeded("the call's time is over"))),
        }
    }

    fn poll_item(
        &mut self,
        cx: &mut Context<'_>,
        poller: Poller,
    ) -> Poll<Option<Result<Response<R>, Status>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let polled = self.poll_next_item(cx, poller);
        if !matches!(polled, Poll::Pending | Poll::Ready(Some(Ok(_)))) {
            self.over = true;
        }
        polled
    }

    fn poll_next_item(
        &mut self,
        cx: &mut Context<'_>,
        poller: Poller,
    ) -> Poll<Option<Result<Response<R>, Status>>> {
        let call = match ready!(self.start.poll_sent(Some(cx), poller)) {
            Ok(call) => call,
            Err(status) => return Poll::Ready(Some(Err(status))),
        };
        let table = self.start.table();
        let Some(mut slot) = table.slot(call.slot) else {
            return Poll::Ready(None);
        };
        match slot.next() {
            Next::Item(bytes, credit) => {
                drop(slot);
                if let Some(credit) = credit {
                    table.grant(call, credit);
                }
                Poll::Ready(Some(Ok(Response::new(bytes, table, call.slot))))
            }
            Next::End(end, free) => {
                let waker = slot.waker.take();
                drop(slot);
                // Its destructor is anybody's code.
                drop(waker);
                if free {
                    table.give_back(call.slot);
                }
                self.start.done();
                Poll::Ready(end.err().map(Err))
            }
            Next::Pending => {
                let before = set_waker(&mut slot.waker, cx);
                drop(slot);
                drop(before);
                match self.start.wait(call, cx, poller) {
                    Ok(()) => Poll::Pending,
                    Err(status) => Poll::Ready(Some(Err(status))),
                }
            }
        }
    }
}

impl<Q: Outgoing + Unpin, R> Stream for Items<Q, R> {
    type Item = Result<Response<R>, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_item(cx, Poller::Task)
    }
}
