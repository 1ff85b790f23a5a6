//! What can go wrong, each with what to do about it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use embar_fabric::error::RegionError;
use embar_fabric::geometry::Geometry;
use embar_transport::socket::SocketError;
use embar_wire::control::ErrorCode;
use embar_wire::error::NameError;

use crate::node::{Retained, Stays};

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Settings that contradict each other.
    #[error("{0}")]
    Config(String),
    /// The shared memory could not be created or joined.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The address is taken or not ours.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A region is there, of another size or for another number of brokers.
    #[error("{} holds the region of another cluster, with {found_mib} MiB for {found_topics} topics, {found_brokers} brokers, {found_spares} spares and {found_standbys} standbys: start with these numbers to take over its data, or, when nobody uses it, with --fresh to discard it", .dir.display())]
    OtherShape {
        /// The region's directory.
        dir: PathBuf,
        /// Its size in MiB.
        found_mib: u64,
        /// Its brokers, the head included and the standbys not.
        found_brokers: u16,
        /// Its standbys.
        found_standbys: u16,
        /// The places it keeps for brokers that join.
        found_spares: u16,
        /// Its topics.
        found_topics: u16,
    },
    /// Nobody orders what a broker that takes data is given.
    #[error(
        "no sequencer has been active for {waited:?}: start the head or a standby; one that runs says in its log why it does not take over"
    )]
    NoSequencer {
        /// How long one was waited for.
        waited: Duration,
    },
    /// The head did not let this broker in.
    #[error("cannot join the cluster at {head}: {why}")]
    Join {
        /// The head's address.
        head: SocketAddr,
        /// What it, or the kernel, said.
        why: String,
    },
    /// A thread, an epoll set or an event counter could not be made.
    #[error("cannot start the network threads: {0}")]
    Io(#[from] io::Error),
}

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
    /// As this broker said.
    pub(crate) fn stays(id: u16, why: Stays) -> Self {
        match why {
            Stays::Retains(retained) => Self::Retains { id, retained },
            Stays::Last => Self::Last { id },
        }
    }
}

/// Why a topic could not be created, found or deleted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// The name breaks a rule.
    #[error("that is no topic name: {why}")]
    InvalidName {
        /// Which one.
        why: NameError,
    },
    /// No batch could carry such a message.
    #[error(
        "messages of {asked} bytes do not fit a batch here: ask for at most {largest}, or start the brokers with a larger --max-batch-bytes"
    )]
    MessageLimit {
        /// Bytes asked for.
        asked: u32,
        /// Bytes that fit.
        largest: u32,
    },
    /// Taken.
    #[error("topic {name} exists already")]
    Exists {
        /// Its name.
        name: String,
    },
    /// Not there.
    #[error("no topic is called {name}: create it with `embar topic create {name}`")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// Nobody can tell.
    #[error(
        "no topic is called {name} among those whose records can be read, and {damaged} cannot, as memory is damaged: it may be one of them; start with a fresh region (`embar up --fresh`) if it is"
    )]
    Damaged {
        /// The name asked for.
        name: String,
        /// How many cannot be read.
        damaged: usize,
    },
    /// There is no such order level.
    #[error(
        "order {order} is not served: choose 0 (none across connections), 1 (arrival order on each broker), 2 (one total order) or 5 (one total order that keeps each publisher's)"
    )]
    UnsupportedOrder {
        /// The level asked for.
        order: u32,
    },
    /// The region has a fixed number of cells.
    #[error(
        "the cluster holds its limit of {limit} topics: delete some, or start a fresh cluster with more --topics"
    )]
    TableFull {
        /// That number.
        limit: usize,
    },
}

impl TopicError {
    /// How the wire names it.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::InvalidName { .. } => ErrorCode::InvalidName,
            Self::Exists { .. } => ErrorCode::TopicExists,
            Self::Unknown { .. } => ErrorCode::UnknownTopic,
            Self::Damaged { .. } => ErrorCode::Damaged,
            Self::UnsupportedOrder { .. } | Self::MessageLimit { .. } => ErrorCode::InvalidArgument,
            Self::TableFull { .. } => ErrorCode::ClusterFull,
        }
    }
}

/// Why nobody can join, and what to do about it.
pub(crate) fn no_place(geometry: &Geometry, takes_data: bool) -> String {
    if !takes_data {
        return format!(
            "all {} places of standbys are taken: start the cluster with more --standbys",
            geometry.standbys
        );
    }
    let places = geometry.data_rows().count();
    format!(
        "all {places} places of brokers that take data are taken, spares included: let one leave with `embar drain ID`, or start the cluster with more --spares"
    )
}
