//! What subscribers receive: messages, and reports about the subscriptions.

use crate::resp::ServerError;

/// What a subscription is to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A channel: `SUBSCRIBE`.
    Channel,
    /// All channels whose names fit a pattern such as `news.*`: `PSUBSCRIBE`.
    Pattern,
    /// A channel that belongs to a slot and exists only on the shard of that slot: `SSUBSCRIBE`, since
    /// Redis 7.0.
    Sharded,
}

/// What a subscriber receives.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A client published a message.
    Message(Message),
    /// The subscriber threw away so many messages, because the program did not take earlier ones in
    /// time.
    Lost(u64),
    /// A connection broke or moved: messages from before the subscriptions were renewed did not come,
    /// and nothing tells whether there were any.
    Interrupted,
    /// A subscription is over: its connection broke or moved, and the server refuses to renew it, for
    /// example because the user's permissions have changed. Subscribe again to try again.
    Refused {
        /// What the subscription was to.
        kind: Kind,
        /// The channel or pattern.
        name: Vec<u8>,
        /// The server's answer.
        error: ServerError,
    },
}

/// A published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Which kind of subscription it came for.
    pub kind: Kind,
    /// The channel that it was published to.
    pub channel: Vec<u8>,
    /// The subscription's pattern, if it was to a pattern.
    pub pattern: Option<Vec<u8>>,
    /// Its content.
    pub payload: Vec<u8>,
}
