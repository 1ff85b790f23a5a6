//! What can go wrong, one type for each operation: [`OpenError`], [`PublishError`], [`ReadError`] and [`AdminError`].
//!
//! What may end any client, whatever it does, is a [`ClientError`] inside of them. All are cheap to clone, so that
//! everyone who waits for the same thing gets one.

use std::any::Any;

use embar_wire::control::{ErrorCode, ErrorReply};

use crate::connection::ConnectionError;
use crate::io_error::IoError;

mod admin;
mod open;
mod publish;
mod read;

pub use self::admin::AdminError;
pub use self::open::OpenError;
pub use self::publish::PublishError;
pub use self::read::ReadError;

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} = {value}: {rule}")]
#[non_exhaustive]
pub struct SettingError {
    /// The builder's method.
    pub setting: &'static str,
    /// The value that the caller gave.
    pub value: String,
    /// What is allowed.
    pub rule: String,
}

impl SettingError {
    pub(crate) fn new(
        setting: &'static str,
        value: impl ToString,
        rule: impl Into<String>,
    ) -> Self {
        Self {
            setting,
            value: value.to_string(),
            rule: rule.into(),
        }
    }
}

/// A bootstrap address that is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{address:?} is not an address ({source}): give HOST:PORT, for instance 127.0.0.1:9400")]
#[non_exhaustive]
pub struct AddressError {
    /// What the caller gave.
    pub address: String,
    /// What the resolver reported.
    pub source: IoError,
}

/// What may end any client, whatever it does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No broker answered at any known address.
    #[error(
        "no broker answers at {addresses} ({source}): start one, or give other bootstrap addresses"
    )]
    Unreachable {
        /// The addresses that the client tried, separated by commas.
        addresses: String,
        /// How the last attempt ended.
        source: ConnectionError,
    },
    /// The cluster answers, but no broker in it takes data.
    #[error(
        "no broker of the cluster takes data yet: start data brokers, or wait until they are ready"
    )]
    NoDataBrokers,
    /// A broker refused a request.
    #[error("refused ({code:?}): {message}")]
    Refused {
        /// Why, for programs.
        code: ErrorCode,
        /// Why, and what to do, in the broker's words.
        message: String,
    },
    /// A peer sent what the protocol does not allow, so the client closed the connection.
    #[error("{peer} broke the protocol: {what}; check that both sides run the same version")]
    Protocol {
        /// The peer.
        peer: String,
        /// What it did.
        what: String,
    },
    /// The topic does not exist, or somebody deleted it.
    #[error("topic {topic:?} does not exist: create it, or publish to it first")]
    UnknownTopic {
        /// Its name.
        topic: String,
    },
    /// Somebody deleted the topic and created it again while this client used it.
    #[error("topic {topic:?} was deleted and created again: open it anew to use the new one")]
    TopicReplaced {
        /// Its name.
        topic: String,
    },
    /// Another publisher, which knows the secret, has this one's identity.
    #[error(
        "another publisher opened topic {topic:?} as producer {producer}: what was not acknowledged may be stored or not; give each publisher a producer_id of its own"
    )]
    SessionTaken {
        /// The topic.
        topic: String,
        /// The identity.
        producer: u64,
    },
    /// This publisher had no connection for a while, and the cluster gave its place to another. The cluster forgot how
    /// far it was, so nothing that is not acknowledged can be sent again without the risk that it is stored twice.
    #[error(
        "producer {producer} of topic {topic:?} had no connection, and gave up its place to another: how far it was is not known any more, and what was not acknowledged may be stored or not; read the topic to find out, and open a new publisher"
    )]
    SessionGivenUp {
        /// The topic.
        topic: String,
        /// The identity.
        producer: u64,
    },
    /// Somebody uses the identity, and opened it with another secret.
    #[error(
        "producer {producer} of topic {topic:?} was opened with another secret: pass the producer_secret of the publisher before this one, or another producer_id"
    )]
    WrongSecret {
        /// The topic.
        topic: String,
        /// The identity.
        producer: u64,
    },
    /// The cluster knows nothing of this publisher: it is another cluster than before, or is damaged.
    #[error(
        "the cluster does not know producer {producer} of topic {topic:?}: what was not acknowledged may be stored or not; open a new publisher"
    )]
    SessionLost {
        /// The topic.
        topic: String,
        /// The identity.
        producer: u64,
    },
    /// The cluster lost its memory, and what was acknowledged to this publisher was not all on the disks.
    #[error(
        "the cluster lost its memory, and up to {batches} acknowledged batches of producer {producer} of topic {topic:?} with it: acks 1 does not survive that; read the topic to find out what is there, and open a new publisher, with acks 2 for what must not be lost"
    )]
    AcknowledgedLost {
        /// The topic.
        topic: String,
        /// The identity.
        producer: u64,
        /// How many batches, at most. At order 5 these are all lost.
        batches: u64,
    },
    /// This process could not get what it needs from the system.
    #[error("{what}: {source}")]
    System {
        /// What it needs.
        what: &'static str,
        /// What the system reported.
        source: IoError,
    },
    /// A thread of this client panicked, which is a bug; what was not acknowledged by then may be stored or not.
    #[error("a thread of the {what} panicked ({message}): open a new {what}, and report this")]
    Panicked {
        /// Whose thread.
        what: &'static str,
        /// The panic's message.
        message: String,
    },
    /// The client is closed.
    #[error("closed: open a new one")]
    Closed,
}

impl ClientError {
    /// Whether the same may succeed later: with this client, or with a new one if this error ended it.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::NoDataBrokers
            | Self::SessionGivenUp { .. }
            | Self::SessionLost { .. }
            | Self::AcknowledgedLost { .. }
            | Self::System { .. }
            | Self::Panicked { .. } => true,
            Self::Refused { code, .. } => code.is_retryable(),
            Self::Protocol { .. }
            | Self::UnknownTopic { .. }
            | Self::TopicReplaced { .. }
            | Self::SessionTaken { .. }
            | Self::WrongSecret { .. }
            | Self::Closed => false,
        }
    }

    /// Whether a message that a call or a receipt reports this for may be stored. Says nothing of others that were on
    /// their way: so only [`PublishError`] answers that to users.
    fn may_be_stored(&self) -> bool {
        matches!(
            self,
            Self::SessionTaken { .. }
                | Self::SessionGivenUp { .. }
                | Self::SessionLost { .. }
                | Self::AcknowledgedLost { .. }
                | Self::Panicked { .. }
        )
    }

    pub(crate) fn system(what: &'static str, source: impl Into<IoError>) -> Self {
        Self::System {
            what,
            source: source.into(),
        }
    }

    /// From what [`catch_unwind`](std::panic::catch_unwind) caught.
    pub(crate) fn panicked(what: &'static str, payload: &(dyn Any + Send)) -> Self {
        Self::Panicked {
            what,
            message: panic_text(payload).to_string(),
        }
    }
}

impl From<ErrorReply> for ClientError {
    fn from(refusal: ErrorReply) -> Self {
        Self::Refused {
            code: refusal.code,
            message: refusal.message,
        }
    }
}

/// The message of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    match (
        payload.downcast_ref::<&'static str>(),
        payload.downcast_ref::<String>(),
    ) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "it did not say why",
    }
}
