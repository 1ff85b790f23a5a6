//! A subscriber as a `futures` stream.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::{OwnedMessage, Positions, Subscriber};
use crate::error::ReadError;

/// Owned messages, in order. Ends after the end of the subscription or after an error.
#[derive(Debug)]
pub struct MessageStream {
    subscriber: Subscriber,
    done: bool,
}

impl MessageStream {
    pub(super) fn new(subscriber: Subscriber) -> Self {
        Self {
            subscriber,
            done: false,
        }
    }

    /// As [`Subscriber::position`].
    pub fn position(&self) -> Positions {
        self.subscriber.position()
    }

    /// The subscriber, where the stream stands.
    #[must_use]
    pub fn into_inner(self) -> Subscriber {
        self.subscriber
    }
}

impl Stream for MessageStream {
    type Item = Result<OwnedMessage, ReadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.done {
            return Poll::Ready(None);
        }
        let item = match this.subscriber.poll_load(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(false)) => None,
            Poll::Ready(Ok(true)) => Some(this.subscriber.read().map(|message| message.to_owned())),
            Poll::Ready(Err(error)) => Some(Err(error)),
        };
        this.done = !matches!(item, Some(Ok(_)));
        Poll::Ready(item)
    }
}
