//! Subscribers: messages from channels, patterns and sharded channels,
//! <https://redis.io/docs/latest/develop/interact/pubsub/>.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use embar_mux::block_on;
use futures_core::Stream;

use crate::engine::{Router, SubscriptionSet};
use crate::error::Error;
pub use crate::pubsub_event::{Event, Kind, Message};

/// Receives published messages. It has connections of its own, subscribes again after they break, and
/// follows slots that move. Dropping it ends its subscriptions.
///
/// In a cluster each subscriber chooses a node at random for its channels and patterns, a replica perhaps, since all nodes have the messages of
/// all; so many subscribers do not meet at one node. Sharded channels are on the primaries of their slots.
///
/// Redis does not keep messages: a message that is published while a connection is down is gone, which
/// [`Event::Interrupted`] reports. When more messages wait than fit, the subscriber throws away and
/// counts the newest ([`Event::Lost`]). A subscription that the server refuses to renew ends
/// ([`Event::Refused`]).
///
/// ```no_run
/// # async fn example(client: &embar_redis::Client) -> Result<(), embar_redis::Error> {
/// use embar_redis::pubsub::{Event, Kind};
///
/// let mut subscriber = client.subscriber(1_000);
/// subscriber.subscribe(Kind::Pattern, "news.*").await?;
/// while let Event::Message(message) = subscriber.next().await? {
///     println!("{}", String::from_utf8_lossy(&message.payload));
/// }
/// # Ok(())
/// # }
/// ```
pub struct Subscriber {
    subscriptions: Arc<SubscriptionSet>,
    /// Keeps the client alive.
    _client: Box<dyn Send + Sync>,
}

impl Subscriber {
    /// A subscriber of the client that `client` keeps alive.
    pub(crate) fn new(
        router: &Arc<Router>,
        capacity: usize,
        client: impl Send + Sync + 'static,
    ) -> Self {
        Self {
            subscriptions: SubscriptionSet::new(router, capacity),
            _client: Box::new(client),
        }
    }

    /// Subscribes, and waits until the server has confirmed it; at once if it has before. Messages may
    /// come from then on. Dropping the future before that ends the subscription.
    ///
    /// # Errors
    /// The server's; [`Error::Unavailable`] when no server confirms it in time. The subscription ends
    /// then, unless a server confirmed it before.
    pub async fn subscribe(&self, kind: Kind, name: impl AsRef<[u8]>) -> Result<(), Error> {
        let mut confirmation = self.subscriptions.subscribe(kind, name.as_ref());
        poll_fn(|cx| confirmation.poll(cx)).await
    }

    /// As [`Subscriber::subscribe`], for code without an executor.
    ///
    /// # Errors
    /// As [`Subscriber::subscribe`].
    pub fn subscribe_blocking(&self, kind: Kind, name: impl AsRef<[u8]>) -> Result<(), Error> {
        let mut subscribe = std::pin::pin!(self.subscribe(kind, name));
        block_on(|cx| subscribe.as_mut().poll(cx))
    }

    /// Subscribes to many at once, and waits until the server has confirmed all: the requests of a node go together, so thousands take a few
    /// round trips. Dropping the future before that ends those that are not confirmed yet.
    ///
    /// # Errors
    /// As [`Subscriber::subscribe`], of the first one in the given order. What was confirmed by then stays.
    pub async fn subscribe_all(
        &self,
        kind: Kind,
        names: impl IntoIterator<Item: AsRef<[u8]>>,
    ) -> Result<(), Error> {
        // The caller's code runs here, and not where messages wait for it.
        let names: Vec<_> = names.into_iter().collect();
        for mut confirmation in self.subscriptions.subscribe_all(kind, &names) {
            poll_fn(|cx| confirmation.poll(cx)).await?;
        }
        Ok(())
    }

    /// As [`Subscriber::subscribe_all`], for code without an executor.
    ///
    /// # Errors
    /// As [`Subscriber::subscribe_all`].
    pub fn subscribe_all_blocking(
        &self,
        kind: Kind,
        names: impl IntoIterator<Item: AsRef<[u8]>>,
    ) -> Result<(), Error> {
        let mut subscribe = std::pin::pin!(self.subscribe_all(kind, names));
        block_on(|cx| subscribe.as_mut().poll(cx))
    }

    /// Ends a subscription. Messages that the server has sent before may still come.
    pub fn unsubscribe(&self, kind: Kind, name: impl AsRef<[u8]>) {
        self.subscriptions.unsubscribe(kind, name.as_ref());
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// [`Error::Closed`] when the client was closed.
    pub async fn next(&mut self) -> Result<Event, Error> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Subscriber::next`], for code without an executor: blocks the thread.
    ///
    /// # Errors
    /// As [`Subscriber::next`].
    pub fn next_blocking(&mut self) -> Result<Event, Error> {
        block_on(|cx| self.poll_next(cx))
    }

    /// As [`Subscriber::next`], for code that polls.
    ///
    /// # Errors
    /// As [`Subscriber::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, Error>> {
        self.subscriptions.poll_next(cx)
    }
}

/// As [`Subscriber::next`], until the client is closed.
impl Stream for Subscriber {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        Self::poll_next(self.get_mut(), cx).map(Result::ok)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.subscriptions.end();
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscriber")
    }
}
