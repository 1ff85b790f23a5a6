//! What a client did so far, as numbers: to look at ([`Client::metrics`]), or for Prometheus
//! ([`Exporter`]).
//!
//! Reading takes a snapshot of counters that the threads at work write without a lock, so it can be
//! done as often as anybody likes. Numbers read together may be a moment apart. Connections for one
//! caller alone and those of subscribers are not counted, as what takes long there says nothing
//! about the server.

use embar_mux::{Distribution, Stats};

use super::Client;
use crate::command::Class;

mod export;
mod tally;

pub use export::Exporter;
pub(crate) use tally::{Counted, Journal, NodeTally, Tally};

/// Why a command was sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It was never written in full to a connection that broke, or could not be made.
    NotSent,
    /// The connection broke after it was written, and repeating it is allowed.
    Unknown,
    /// Nobody knew who serves its slot.
    NoNode,
    /// Nodes sent it back and forth, or to one that has left.
    Redirects,
    /// `TRYAGAIN`: its keys are on their way to another node.
    TryAgain,
    /// `CLUSTERDOWN`: the slot has no node for now.
    ClusterDown,
    /// `LOADING`: the server reads its data from disk.
    Loading,
    /// `MASTERDOWN`: the replica has lost its primary.
    MasterDown,
    /// `READONLY`: the node is no primary any more.
    ReadOnly,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::NotSent,
        Self::Unknown,
        Self::NoNode,
        Self::Redirects,
        Self::TryAgain,
        Self::ClusterDown,
        Self::Loading,
        Self::MasterDown,
        Self::ReadOnly,
    ];

    /// Its value as a label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotSent => "not_sent",
            Self::Unknown => "unknown",
            Self::NoNode => "no_node",
            Self::Redirects => "redirects",
            Self::TryAgain => "try_again",
            Self::ClusterDown => "cluster_down",
            Self::Loading => "loading",
            Self::MasterDown => "master_down",
            Self::ReadOnly => "read_only",
        }
    }
}

/// What a client did so far.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Metrics {
    /// Of each node that is known now.
    pub nodes: Vec<NodeMetrics>,
    /// Of all nodes together that are not any more, if there are any; its name is `departed`.
    pub departed: Option<NodeMetrics>,
    /// `MOVED` answers: a slot has another node for good.
    pub moved: u64,
    /// `ASK` answers: a key may be with another node.
    pub asked: u64,
    /// Commands that ended with [`Error::UnknownOutcome`](crate::Error::UnknownOutcome).
    pub unknown_outcomes: u64,
    /// Commands that ended with [`Error::Unavailable`](crate::Error::Unavailable).
    pub unavailable: u64,
    /// How often the topology was read.
    pub refreshes: u64,
    /// How often no node told it.
    pub refreshes_failed: u64,
    /// Replicas that were seen to have taken over from their primary.
    pub failovers: u64,
    retries: [u64; Cause::ALL.len()],
}

impl Metrics {
    /// How often commands were sent again, for this cause.
    #[must_use]
    pub fn retries(&self, cause: Cause) -> u64 {
        self.retries[cause as usize]
    }

    /// All nodes together, those that are gone included.
    #[must_use]
    pub fn total(&self) -> NodeMetrics {
        let mut total = NodeMetrics::of("all".to_owned(), &NodeTally::default(), 0);
        for node in self.nodes.iter().chain(&self.departed) {
            total.merge(node);
        }
        total
    }
}

/// What a client did with a node so far.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeMetrics {
    /// Where it listens, as in URLs.
    pub node: String,
    /// What its connections counted, together. A pipeline is one command here for each node that
    /// takes part.
    pub stats: Stats,
    /// Connections that were made.
    pub connects: u64,
    /// Of these, how many replaced one that was lost.
    pub reconnects: u64,
    /// Attempts to connect that failed.
    pub connects_failed: u64,
    /// How many commands left with one write.
    pub commands_per_write: Distribution,
    /// How many replies came with one read.
    pub replies_per_read: Distribution,
    latency: [Distribution; 2],
}

impl NodeMetrics {
    fn of(node: String, tally: &NodeTally, in_flight: u64) -> Self {
        let meters = &tally.meters;
        Self {
            node,
            stats: meters.stats(in_flight),
            connects: tally.connects.value(),
            reconnects: tally.reconnects.value(),
            connects_failed: tally.connects_failed.value(),
            commands_per_write: meters.commands_per_write(),
            replies_per_read: meters.replies_per_read(),
            latency: [Class::Read, Class::Write].map(|class| meters.latency(class as u8)),
        }
    }

    /// Nanoseconds from a command's submission to the reading of its reply, of commands of a class
    /// that were answered.
    #[must_use]
    pub fn latency(&self, class: Class) -> &Distribution {
        &self.latency[class as usize]
    }

    fn merge(&mut self, other: &Self) {
        let (sum, more) = (&mut self.stats, &other.stats);
        sum.replies += more.replies;
        sum.pushes += more.pushes;
        sum.writes += more.writes;
        sum.reads += more.reads;
        sum.bytes_sent += more.bytes_sent;
        sum.bytes_received += more.bytes_received;
        sum.timeouts += more.timeouts;
        sum.in_flight += more.in_flight;
        self.connects += other.connects;
        self.reconnects += other.reconnects;
        self.connects_failed += other.connects_failed;
        self.commands_per_write.merge(&other.commands_per_write);
        self.replies_per_read.merge(&other.replies_per_read);
        for (sum, more) in self.latency.iter_mut().zip(&other.latency) {
            sum.merge(more);
        }
    }
}

impl Client {
    /// What it did so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.inner.metrics()
    }
}

impl super::Inner {
    fn metrics(&self) -> Metrics {
        let routes = self.routes.load();
        let of_node = |node: &std::sync::Arc<super::node::Node>| {
            let conns = node.links().iter().filter_map(|link| link.current());
            let in_flight: usize = conns.map(|conn| conn.in_flight()).sum();
            let name = node.endpoint.to_string();
            NodeMetrics::of(name, &node.counted.node, in_flight as u64)
        };
        let tally = &self.keeper.tally;
        Metrics {
            nodes: routes.nodes.iter().map(of_node).collect(),
            departed: tally.departed(),
            moved: tally.moved.value(),
            asked: tally.asked.value(),
            unknown_outcomes: tally.unknown_outcomes.value(),
            unavailable: tally.unavailable.value(),
            refreshes: tally.refreshes.value(),
            refreshes_failed: tally.refreshes_failed.value(),
            failovers: tally.failovers.value(),
            retries: tally.retries(),
        }
    }
}
