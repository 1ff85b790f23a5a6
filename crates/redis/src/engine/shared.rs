//! What the connections, subscriptions and requests of one client share: its configuration, its
//! dialer, the work for the manager's thread, and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::dialer::Dialer;
use super::pool::Pool;
use super::schedule::Schedule;
use crate::command::NodeId;
use crate::config::Config;
use crate::metrics::ClientCounters;

/// What connections, subscriptions and requests of one client share.
pub(crate) struct Shared {
    pub config: Arc<Config>,
    pub dialer: Dialer,
    pub schedule: Arc<Schedule>,
    pub counters: Arc<ClientCounters>,
    /// Connections for commands that block.
    pub pool: Arc<Pool>,
    nodes: AtomicU32,
}

impl Shared {
    pub fn new(config: Config, dialer: Dialer) -> Arc<Self> {
        let config = Arc::new(config);
        let schedule = Arc::new(Schedule::new(Arc::clone(&config)));
        Arc::new(Self {
            pool: Pool::new(config.max_blocking, config.blocking_idle, &schedule),
            schedule,
            dialer,
            counters: Arc::default(),
            nodes: AtomicU32::new(0),
            config,
        })
    }

    /// A number that no node of the client has had.
    pub fn next_node_id(&self) -> NodeId {
        NodeId(self.nodes.fetch_add(1, Ordering::Relaxed))
    }
}
