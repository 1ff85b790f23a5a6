//! Why a request to the cluster has no answer.

use std::time::Duration;

use super::{AddressError, ClientError};
use crate::connection::ConnectionError;

/// Why a request to the cluster has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// A bootstrap address is not one.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The cluster has no such broker.
    #[error("broker = {broker}: the cluster has {}", list(.known))]
    UnknownBroker {
        /// Its number.
        broker: u32,
        /// The numbers of those that it has.
        known: Vec<u32>,
    },
    /// The broker did not answer within the limit. It may have done what was asked.
    #[error("an answer of a broker took longer than {limit:?}: {source}, {broker}")]
    TimedOut {
        /// The broker, and its address.
        broker: String,
        /// The limit of the request.
        limit: Duration,
        /// How the attempt ended.
        source: ConnectionError,
    },
    /// The broker agreed to leave the cluster, and had not left within the limit. It still leaves.
    #[error(
        "the departure of a broker took longer than {limit:?}: broker {broker} still leaves; look at the cluster's status"
    )]
    StillLeaving {
        /// The broker.
        broker: u32,
        /// The limit of the request.
        limit: Duration,
    },
    /// The cluster, the topic or this process is at fault.
    #[error(transparent)]
    Client(#[from] ClientError),
}

fn list(brokers: &[u32]) -> String {
    let brokers: Vec<String> = brokers.iter().map(u32::to_string).collect();
    brokers.join(", ")
}

impl AdminError {
    /// Whether the same request may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::TimedOut { .. } | Self::StillLeaving { .. } => true,
            Self::Client(error) => error.is_retryable(),
            Self::Address(_) | Self::UnknownBroker { .. } => false,
        }
    }
}
