//! Why a broker is not removed from its cluster.

use std::time::Duration;

use crate::node::{LeaveRefused, Retained};

/// Why a broker was not removed from its cluster.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// Only brokers that run and take data can be removed.
    #[error("no broker {id} runs here that takes data")]
    NotThere {
        /// The id asked for.
        id: u16,
    },
    /// It has what no other broker has.
    #[error(
        "broker {id} retains messages of orders 0 and 1 that no other broker has, of {} topic(s): delete these topics if they are read, or force it", .retained.len()
    )]
    Retains {
        /// The broker.
        id: u16,
        /// What would be missing.
        retained: Vec<Retained>,
    },
    /// It is the only one.
    #[error(
        "broker {id} is the last one that takes data, or the others are just leaving, too: add another first, or force it"
    )]
    Last {
        /// The broker.
        id: u16,
    },
    /// It leaves, and has not left yet.
    #[error("broker {id} leaves and has not left after {waited:?}: its log says what it waits for")]
    Slow {
        /// The broker.
        id: u16,
        /// How long it was waited for.
        waited: Duration,
    },
}

impl RemoveError {
    pub(super) fn refused(id: u16, why: LeaveRefused) -> Self {
        match why {
            LeaveRefused::Retains(retained) => Self::Retains { id, retained },
            LeaveRefused::Last => Self::Last { id },
        }
    }
}
