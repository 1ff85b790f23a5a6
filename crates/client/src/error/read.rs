//! Why a subscriber delivers no next message.

use std::time::Duration;

use super::{ClientError, SettingError};
use crate::connection::ConnectionError;

/// Why there is no next message. Each but [`ReadError::TimedOut`] ends the subscription.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No message came within the limit of the call. There may be none; ask again.
    #[error("the next message took longer than {limit:?}: there may be none, ask again")]
    TimedOut {
        /// The limit of the call.
        limit: Duration,
    },
    /// The next messages were evicted before they were read.
    #[error(
        "broker {broker}: offset {position} was evicted, {first_available} is the first available: start there, or open with on_evicted(SkipToFirst)"
    )]
    Evicted {
        /// The broker.
        broker: u32,
        /// The next offset to be read.
        position: u64,
        /// Where reading can go on.
        first_available: u64,
    },
    /// A broker stayed away for longer than the loss timeout.
    #[error(
        "broker {broker} has not answered for {limit:?} ({source}): restart it, or raise loss_timeout"
    )]
    BrokerLost {
        /// The broker.
        broker: u32,
        /// The limit that passed.
        limit: Duration,
        /// How the last attempt ended.
        source: ConnectionError,
    },
    /// No broker served a topic with a total order for longer than the loss timeout.
    #[error(
        "no data broker has served the topic for {limit:?} ({source}): start data brokers, or raise loss_timeout"
    )]
    AllBrokersLost {
        /// The limit that passed.
        limit: Duration,
        /// How the last attempt ended.
        source: ConnectionError,
    },
    /// A batch is damaged, and stays damaged when the subscriber asks for it again.
    #[error(
        "broker {broker}: the batch with offset {offset} is damaged ({cause}): skip it by starting behind it, and check the broker's memory"
    )]
    Corrupt {
        /// The broker.
        broker: u32,
        /// The first offset that cannot be read.
        offset: u64,
        /// What is wrong.
        cause: String,
    },
    /// A broker sent other offsets than the ones that come next.
    #[error(
        "broker {broker} sent offset {found} where {expected} comes next: messages are missing or repeated; report this"
    )]
    BrokenOrder {
        /// The broker.
        broker: u32,
        /// The offset that comes next.
        expected: u64,
        /// The offset that came.
        found: u64,
    },
    /// The positions to start at are of the other kind of topic. Only while the subscriber opens.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The cluster, the topic or this process is at fault.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl ReadError {
    /// Whether reading may go on later at the same position: by the next call after [`ReadError::TimedOut`], by a new
    /// subscriber after any other error.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::TimedOut { .. } | Self::BrokerLost { .. } | Self::AllBrokersLost { .. } => true,
            Self::Client(error) => error.is_retryable(),
            Self::Evicted { .. }
            | Self::Corrupt { .. }
            | Self::BrokenOrder { .. }
            | Self::Setting(_) => false,
        }
    }
}
