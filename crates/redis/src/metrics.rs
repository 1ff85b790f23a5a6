//! What a client did so far, as numbers: [`Client::metrics`](crate::Client::metrics).
//!
//! Reading takes a snapshot of counters that the client's threads write without a lock, so a program
//! may read as often as it likes. Numbers read together may be a moment apart. Dedicated connections
//! and those of subscribers do not count: a slow command there says nothing about the server.
//!
//! With the feature `prometheus`, `embar_redis::prometheus` exports the numbers.

pub use embar_mux::{Distribution, Stats};

use crate::command::Class;

mod cache;
mod counters;

pub use cache::CacheMetrics;
pub(crate) use counters::{ClientCounters, ConnectionLog, CountedNode, NodeCounters};

/// Why the client sent a command again, after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RetryCause {
    /// The connection broke, or failed to open, before it took all of the command.
    NotSent,
    /// The connection broke after it took the command, which may be repeated.
    Unknown,
    /// The client knew no node that serves the command's slot.
    NoNode,
    /// Nodes sent the command back and forth, or to a node that has left.
    Redirects,
    /// `TRYAGAIN`: the command's keys are moving to another node.
    TryAgain,
    /// `CLUSTERDOWN`: the slot has no node for now.
    ClusterDown,
    /// `LOADING`: the server reads its data from disk.
    Loading,
    /// `MASTERDOWN`: the replica has lost its primary.
    MasterDown,
    /// `READONLY`: the node is not a primary any more.
    ReadOnly,
    /// Another error of [`reconnect_on`](crate::Config::reconnect_on), which comes before execution.
    ReconnectOn,
}

impl RetryCause {
    /// All causes.
    pub const ALL: [Self; 10] = [
        Self::NotSent,
        Self::Unknown,
        Self::NoNode,
        Self::Redirects,
        Self::TryAgain,
        Self::ClusterDown,
        Self::Loading,
        Self::MasterDown,
        Self::ReadOnly,
        Self::ReconnectOn,
    ];

    /// The cause as the value of a label.
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
            Self::ReconnectOn => "reconnect_on",
        }
    }
}

/// What a client did so far.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Metrics {
    /// Each node that the client knows now.
    pub nodes: Vec<NodeMetrics>,
    /// All nodes that have left, together, if there are any; its name is `departed`.
    pub departed: Option<NodeMetrics>,
    /// `MOVED` answers: another node serves a slot from now on.
    pub moved: u64,
    /// `ASK` answers: a key may be on another node.
    pub asked: u64,
    /// Commands that ended with [`Error::UnknownOutcome`](crate::Error::UnknownOutcome).
    pub unknown_outcomes: u64,
    /// Commands that ended with [`Error::Unavailable`](crate::Error::Unavailable).
    pub unavailable: u64,
    /// How often the client read the topology.
    pub refreshes: u64,
    /// How often no node could tell the topology.
    pub refreshes_failed: u64,
    /// How often the client saw that a replica has taken over from its primary.
    pub failovers: u64,
    /// What the cache did, if the configuration has one.
    pub cache: Option<CacheMetrics>,
    retries: [u64; RetryCause::ALL.len()],
}

impl Metrics {
    pub(crate) fn new(
        nodes: Vec<NodeMetrics>,
        counters: &ClientCounters,
        cache: Option<CacheMetrics>,
    ) -> Self {
        Self {
            nodes,
            cache,
            departed: counters.departed(),
            moved: counters.moved.value(),
            asked: counters.asked.value(),
            unknown_outcomes: counters.unknown_outcomes.value(),
            unavailable: counters.unavailable.value(),
            refreshes: counters.refreshes.value(),
            refreshes_failed: counters.refreshes_failed.value(),
            failovers: counters.failovers.value(),
            retries: counters.retries(),
        }
    }

    /// How often the client sent commands again for this cause. Each command of a pipeline counts.
    #[must_use]
    pub fn retries(&self, cause: RetryCause) -> u64 {
        self.retries[cause as usize]
    }

    /// All nodes together, including those that have left.
    #[must_use]
    pub fn total(&self) -> NodeMetrics {
        let mut total = NodeMetrics::new("all".to_owned(), &NodeCounters::default(), 0);
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
    /// What its connections counted, together. Each batch of a pipeline counts as one command.
    pub stats: Stats,
    /// Connections that opened.
    pub connects: u64,
    /// How many of these replaced a lost one.
    pub reconnects: u64,
    /// Attempts to connect that failed.
    pub connects_failed: u64,
    /// Connections that the client left for others because of what the server answered
    /// ([`reconnect_on`](crate::Config::reconnect_on)).
    pub left: u64,
    /// How many commands left with each write.
    pub commands_per_write: Distribution,
    /// How many replies came with each read.
    pub replies_per_read: Distribution,
    latency: [Distribution; 2],
}

impl NodeMetrics {
    pub(crate) fn new(node: String, counters: &NodeCounters, in_flight: u64) -> Self {
        let meters = &counters.meters;
        Self {
            node,
            stats: meters.stats(in_flight),
            connects: counters.connects.value(),
            reconnects: counters.reconnects.value(),
            connects_failed: counters.connects_failed.value(),
            left: counters.left.value(),
            commands_per_write: meters.commands_per_write(),
            replies_per_read: meters.replies_per_read(),
            latency: [Class::Read, Class::Write].map(|class| meters.latency(class as u8)),
        }
    }

    /// Nanoseconds from a command's submission to the reading of its reply, of the answered commands
    /// of a class.
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
        self.left += other.left;
        self.commands_per_write.merge(&other.commands_per_write);
        self.replies_per_read.merge(&other.replies_per_read);
        for (sum, more) in self.latency.iter_mut().zip(&other.latency) {
            sum.merge(more);
        }
    }
}
