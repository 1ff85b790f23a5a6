//! Messages to channels, patterns and sharded channels:
//! <https://redis.io/docs/latest/develop/interact/pubsub/>.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll};

use embar_mux::block_on;

use crate::client::{Client, Feed};
use crate::error::Error;
use crate::resp::ServerError;

/// What is subscribed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A channel: `SUBSCRIBE`.
    Channel,
    /// All channels whose names fit a pattern such as `news.*`: `PSUBSCRIBE`.
    Pattern,
    /// A channel that belongs to a slot, and of which only the shard of that slot knows:
    /// `SSUBSCRIBE`, since Redis 7.0.
    Sharded,
}

/// What a subscriber hears.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Somebody published something.
    Message(Message),
    /// So many messages were thrown away here, because nobody took those before in time.
    Lost(u64),
    /// A connection broke or moved: what was published until its subscriptions were made anew did
    /// not come, and nobody knows whether there was anything.
    Interrupted,
    /// A subscription is over: its connection broke or moved, and the server does not allow it any
    /// more, for example because the user's permissions have changed. Subscribe again to try again.
    Refused {
        /// What was subscribed to.
        kind: Kind,
        /// The channel or pattern.
        name: Vec<u8>,
        /// What the server said.
        error: ServerError,
    },
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Why it came.
    pub kind: Kind,
    /// Where it was published.
    pub channel: Vec<u8>,
    /// The pattern that the channel's name fits, if it came because of one.
    pub pattern: Option<Vec<u8>>,
    /// What was published.
    pub payload: Vec<u8>,
}

/// Hears what is published. It has connections of its own, makes its subscriptions again after they
/// break, and follows slots that move. Dropped, it hears nothing any more.
///
/// Redis keeps messages for nobody: what is published while a connection is down is gone, which
/// [`Event::Interrupted`] tells. When more messages wait than fit, the newest are thrown away and
/// counted ([`Event::Lost`]). A subscription that the server does not allow to be made again ends
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
    feed: Arc<Feed>,
    /// Keeps the connections' owner alive.
    _client: Client,
}

impl Subscriber {
    pub(crate) fn new(client: Client, capacity: usize) -> Self {
        let feed = Feed::new(Arc::clone(&client.inner.keeper), capacity);
        Self {
            feed,
            _client: client,
        }
    }

    /// Subscribes, and waits until the server has confirmed it. Messages may come from then on.
    /// What is subscribed to already is confirmed at once. Dropped before it is confirmed, it is not
    /// subscribed to.
    ///
    /// # Errors
    /// The server's; [`Error::Unavailable`] when none confirms it in time. It is not subscribed to
    /// then, unless it was before.
    pub async fn subscribe(&self, kind: Kind, name: impl AsRef<[u8]>) -> Result<(), Error> {
        let mut asking = self.feed.want(kind, name.as_ref());
        poll_fn(|cx| asking.poll(cx)).await
    }

    /// As [`Subscriber::subscribe`], for code without an executor.
    ///
    /// # Errors
    /// As [`Subscriber::subscribe`].
    pub fn subscribe_blocking(&self, kind: Kind, name: impl AsRef<[u8]>) -> Result<(), Error> {
        let mut subscribe = std::pin::pin!(self.subscribe(kind, name));
        block_on(|cx| subscribe.as_mut().poll(cx))
    }

    /// Ends a subscription. Messages that are on their way may still come.
    pub fn unsubscribe(&self, kind: Kind, name: impl AsRef<[u8]>) {
        self.feed.forget(kind, name.as_ref());
    }

    /// The next thing that happens.
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
        self.feed.poll_next(cx)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.feed.end();
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscriber")
    }
}
