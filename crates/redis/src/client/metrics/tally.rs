//! What is counted as it happens, beside what connections count themselves: only what is rare, so
//! that a command that goes well counts nothing here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use embar_mux::{CloseReason, Meters};

use super::{Cause, NodeMetrics};
use crate::config::Endpoint;

/// A number that grows; any thread may add to it.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Of a client.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub moved: Count,
    pub asked: Count,
    retries: [Count; Cause::ALL.len()],
    pub unknown_outcomes: Count,
    pub unavailable: Count,
    pub refreshes: Count,
    pub refreshes_failed: Count,
    pub failovers: Count,
    /// What was counted of nodes that are gone, if any are.
    departed: Mutex<Option<NodeMetrics>>,
}

impl Tally {
    pub fn retried(&self, cause: Cause) {
        self.retries[cause as usize].add(1);
    }

    pub fn retries(&self) -> [u64; Cause::ALL.len()] {
        Cause::ALL.map(|cause| self.retries[cause as usize].value())
    }

    pub fn refreshed(&self, went_well: bool) {
        match went_well {
            true => self.refreshes.add(1),
            false => self.refreshes_failed.add(1),
        }
    }

    pub fn departed(&self) -> Option<NodeMetrics> {
        let departed = self.departed.lock();
        departed.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Of all connections to a node, one after the other and at the same time.
#[derive(Debug, Default)]
pub(crate) struct NodeTally {
    pub meters: Arc<Meters>,
    pub connects: Count,
    pub reconnects: Count,
    pub connects_failed: Count,
}

/// Keeps a node's tally for the client's when the node is gone.
#[derive(Debug)]
pub(crate) struct Counted {
    pub node: Arc<NodeTally>,
    client: Arc<Tally>,
}

impl Counted {
    pub fn new(client: &Arc<Tally>) -> Self {
        Self {
            node: Arc::default(),
            client: Arc::clone(client),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let last = NodeMetrics::of("departed".to_owned(), &self.node, 0);
        let departed = self.client.departed.lock();
        let mut departed = departed.unwrap_or_else(PoisonError::into_inner);
        match &mut *departed {
            Some(departed) => departed.merge(&last),
            // One that was only looked at.
            None if last.connects + last.connects_failed == 0 => {}
            None => *departed = Some(last),
        }
    }
}

/// Tells of a link's connections: counts them, and writes to the log.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    node: Arc<NodeTally>,
    began: Mutex<Option<Instant>>,
    was_up: AtomicBool,
}

impl Journal {
    pub fn new(node: &Arc<NodeTally>) -> Self {
        Self {
            node: Arc::clone(node),
            ..Self::default()
        }
    }

    pub fn meters(&self) -> Arc<Meters> {
        Arc::clone(&self.node.meters)
    }

    /// A connection is about to be made.
    pub fn begin(&self) {
        *self.began() = Some(Instant::now());
    }

    /// It stands.
    pub fn up(&self, node: &Endpoint) {
        self.node.connects.add(1);
        let took = self.took();
        if self.was_up.swap(true, Ordering::Relaxed) {
            self.node.reconnects.add(1);
            tracing::info!(%node, ?took, "connected again");
        } else {
            tracing::debug!(%node, ?took, "connected");
        }
    }

    /// It could not be made, after so many others in a row that could not.
    pub fn failed(&self, node: &Endpoint, reason: &CloseReason, before: u32) {
        self.node.connects_failed.add(1);
        let took = self.took();
        // Said once, as it is tried again and again.
        if before == 0 {
            tracing::warn!(%node, ?took, %reason, "not connected");
        } else {
            tracing::debug!(%node, ?took, %reason, before, "still not connected");
        }
    }

    /// It stood, and is over.
    pub fn down(&self, node: &Endpoint, reason: &CloseReason) {
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
    fn what_a_node_counted_outlives_it() {
        let tally = Arc::new(Tally::default());
        // Nodes that are only made to be asked something, and never were.
        drop(Counted::new(&tally));
        assert!(tally.departed().is_none());
        for connects in [1, 2] {
            let counted = Counted::new(&tally);
            counted.node.connects.add(connects);
            counted.node.connects_failed.add(1);
        }
        let departed = tally.departed().expect("two nodes were connected");
        assert_eq!((departed.connects, departed.connects_failed), (3, 2));
        assert_eq!(departed.node, "departed");
    }
}
