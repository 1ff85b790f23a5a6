//! A server, and the client's connections to it.

use std::sync::Arc;

use embar_mux::ConnectionState;

use super::node_connection::NodeConnection;
use super::schedule::Schedule;
use super::shared::Shared;
use crate::command::NodeId;
use crate::endpoint::Endpoint;
use crate::metrics::CountedNode;

/// A node that a client knows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInfo {
    /// Names it in [`Route::Node`](crate::command::Route::Node).
    pub id: NodeId,
    /// Its host and port, or the path of its socket.
    pub address: String,
    /// How many slots it serves as a primary; 0: it is a replica, or has none.
    pub slots: u16,
}

/// A server.
#[derive(Debug)]
pub(crate) struct Node {
    pub id: NodeId,
    pub endpoint: Endpoint,
    pub counted: CountedNode,
    connections: Box<[Arc<NodeConnection>]>,
}

impl Node {
    pub fn new(endpoint: Endpoint, shared: &Arc<Shared>) -> Arc<Self> {
        let counted = CountedNode::new(&shared.counters);
        let connect = |_| NodeConnection::shared(endpoint.clone(), shared, &counted.node);
        let count = shared.config.mux_per_node.max(1);
        let connections = (0..count).map(connect).collect();
        Arc::new(Self {
            id: shared.next_node_id(),
            endpoint,
            counted,
            connections,
        })
    }

    /// One of its connections, always the same for the same `hint`: so a caller's commands for one key
    /// stay in order, without a counter of turns.
    #[inline]
    pub fn connection(&self, hint: u16) -> &Arc<NodeConnection> {
        match &*self.connections {
            [only] => only,
            several => &several[usize::from(hint) % several.len()],
        }
    }

    pub fn connections(&self) -> &[Arc<NodeConnection>] {
        &self.connections
    }

    /// A replica without a cluster: a connection to it that broke is not made again, because the server may come back
    /// without its data, or as something else. It is asked first, as a new node.
    pub fn set_breaks_once(&self, breaks_once: bool) {
        for connection in &*self.connections {
            connection.set_breaks_once(breaks_once);
        }
    }

    /// Whether it has left the topology, or is about to, as a connection to it broke.
    pub fn is_retired(&self) -> bool {
        let mut connections = self.connections.iter();
        connections.any(|connection| connection.is_retired())
    }

    /// The node has left the cluster. Commands that are in flight there get their replies.
    pub fn retire(&self, schedule: &Schedule) {
        for connection in &*self.connections {
            if let Some(conn) = connection.retire() {
                schedule.close_when_idle(conn);
            }
        }
    }

    /// How good a choice the node is for a command that any node can execute: the lower, the better.
    pub fn distance(&self) -> u8 {
        let connection = self.connection(0);
        match connection.current().map(|conn| conn.state()) {
            Some(ConnectionState::Open) => 0,
            Some(ConnectionState::Connecting) => 1,
            _ if connection.is_backing_off() => 3,
            _ => 2,
        }
    }
}
