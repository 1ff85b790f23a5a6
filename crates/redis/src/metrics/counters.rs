//! Counters of rare events, beside the meters of connections. A command that goes well counts nothing
//! here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use embar_mux::{CloseReason, Meters};

use super::{NodeMetrics, RetryCause};
use crate::endpoint::Endpoint;

/// A number to which any thread may add.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of a client.
#[derive(Debug, Default)]
pub(crate) struct ClientCounters {
    pub moved: Counter,
    pub asked: Counter,
    retries: [Counter; RetryCause::ALL.len()],
    pub unknown_outcomes: Counter,
    pub unavailable: Counter,
    pub refreshes: Counter,
    pub refreshes_failed: Counter,
    pub failovers: Counter,
    /// The counters of nodes that have left, together, if there are any.
    departed: Mutex<Option<NodeMetrics>>,
}

impl ClientCounters {
    pub fn retried(&self, cause: RetryCause) {
        self.retries[cause as usize].add(1);
    }

    pub fn retries(&self) -> [u64; RetryCause::ALL.len()] {
        RetryCause::ALL.map(|cause| self.retries[cause as usize].value())
    }

    pub fn refreshed(&self, succeeded: bool) {
        match succeeded {
            true => self.refreshes.add(1),
            false => self.refreshes_failed.add(1),
        }
    }

    pub fn departed(&self) -> Option<NodeMetrics> {
        let departed = self.departed.lock();
        departed.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The counters of a node: of all connections to it, one after the other and at the same time.
#[derive(Debug, Default)]
pub(crate) struct NodeCounters {
    pub meters: Arc<Meters>,
    pub connects: Counter,
    pub reconnects: Counter,
    pub connects_failed: Counter,
    pub left: Counter,
}

/// The counters of a node, which the client's counters take over when the node leaves.
#[derive(Debug)]
pub(crate) struct CountedNode {
    pub node: Arc<NodeCounters>,
    client: Arc<ClientCounters>,
}

impl CountedNode {
    pub fn new(client: &Arc<ClientCounters>) -> Self {
        Self {
            node: Arc::default(),
            client: Arc::clone(client),
        }
    }
}

impl Drop for CountedNode {
    fn drop(&mut self) {
        let last = NodeMetrics::new("departed".to_owned(), &self.node, 0);
        let departed = self.client.departed.lock();
        let mut departed = departed.unwrap_or_else(PoisonError::into_inner);
        match &mut *departed {
            Some(departed) => departed.merge(&last),
            // The client never connected to it.
            None if last.connects + last.connects_failed == 0 => {}
            None => *departed = Some(last),
        }
    }
}

/// Counts and logs the connections of one [`NodeConnection`](crate::engine::NodeConnection).
#[derive(Debug, Default)]
pub(crate) struct ConnectionLog {
    node: Arc<NodeCounters>,
    began: Mutex<Option<Instant>>,
    was_up: AtomicBool,
}

impl ConnectionLog {
    pub fn new(node: &Arc<NodeCounters>) -> Self {
        Self {
            node: Arc::clone(node),
            ..Self::default()
        }
    }

    pub fn meters(&self) -> Arc<Meters> {
        Arc::clone(&self.node.meters)
    }

    /// An attempt to connect begins.
    pub fn connecting(&self) {
        *self.began() = Some(Instant::now());
    }

    /// The connection is open.
    pub fn opened(&self, node: &Endpoint) {
        self.node.connects.add(1);
        let took = self.took();
        if self.was_up.swap(true, Ordering::Relaxed) {
            self.node.reconnects.add(1);
            tracing::info!(%node, ?took, "connected again");
        } else {
            tracing::debug!(%node, ?took, "connected");
        }
    }

    /// The attempt failed, after `before` others in a row.
    pub fn failed(&self, node: &Endpoint, reason: &CloseReason, before: u32) {
        self.node.connects_failed.add(1);
        let took = self.took();
        // One warning is enough for all further attempts.
        if before == 0 {
            tracing::warn!(%node, ?took, %reason, "not connected");
        } else {
            tracing::debug!(%node, ?took, %reason, before, "still not connected");
        }
    }

    /// The client leaves the connection because of what its server answered.
    pub fn left(&self, node: &Endpoint, answer: &str) {
        self.node.left.add(1);
        tracing::warn!(%node, answer, "the server does not serve here any more: connecting again");
    }

    /// The connection was open, and is over.
    pub fn lost(&self, node: &Endpoint, reason: &CloseReason) {
        match reason {
            CloseReason::Closed => tracing::debug!(%node, "connection closed"),
            _ => tracing::warn!(%node, %reason, "connection lost"),
        }
    }

    fn took(&self) -> std::time::Duration {
        let began = self.began().take();
        began.map_or_else(Default::default, |began| began.elapsed())
    }

    fn began(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.began.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_a_node_outlive_it() {
        let counters = Arc::new(ClientCounters::default());
        // A node to which the client never connected.
        drop(CountedNode::new(&counters));
        assert!(counters.departed().is_none());
        for connects in [1, 2] {
            let counted = CountedNode::new(&counters);
            counted.node.connects.add(connects);
            counted.node.connects_failed.add(1);
        }
        let departed = counters.departed().expect("two nodes were connected");
        assert_eq!((departed.connects, departed.connects_failed), (3, 2));
        assert_eq!(departed.node, "departed");
    }
}
