//! A Redis Cluster for a test: starts its nodes, kills and restarts them, and waits until the cluster is well.

mod form;
mod health;
mod slots;
mod view;

pub(crate) use health::wait;
pub use slots::MoveState;

use crate::error::{CommandError, StartError, WaitError};
use crate::net::Host;
use crate::server::{Options, Server, TlsFiles};
use std::net::SocketAddr;
use std::time::Duration;

/// The options of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// How many masters share the slots, in ranges of about equal length. A failover needs three: most masters must agree
    /// that a replica takes over.
    pub masters: usize,
    /// How many replicas each master has.
    pub replicas: usize,
    /// The port of the first node; the others have the ports behind it. Free ports when `None`.
    pub ports: Option<u16>,
    /// The hosts of the nodes, by index; nodes beyond its end run on this machine. See [`Options::host`].
    pub hosts: Vec<Host>,
    /// `cluster-node-timeout` in milliseconds: how long a node may be silent before the others call it failed. A short one
    /// makes failovers quick; but a machine that is busy for longer causes a failover by mistake.
    pub node_timeout_ms: u32,
    /// The password of all nodes, none when `None`.
    pub password: Option<String>,
    /// Files for TLS, also between the nodes: they take no plain connection then.
    pub tls: Option<TlsFiles>,
    /// `cluster-require-full-coverage`: whether the whole cluster stops while a slot has no master.
    pub require_full_coverage: bool,
    /// More arguments for each node, see [`Options::extra`].
    pub extra: Vec<String>,
}

impl Default for ClusterOptions {
    /// Three masters on free ports without replicas, and a node timeout of two seconds.
    fn default() -> Self {
        Self {
            masters: 3,
            replicas: 0,
            ports: None,
            hosts: Vec::new(),
            node_timeout_ms: 2000,
            password: None,
            tls: None,
            require_full_coverage: true,
            extra: Vec::new(),
        }
    }
}

impl ClusterOptions {
    /// The options of the node with this index.
    fn of_node(&self, index: usize) -> Result<Options, StartError> {
        let port = |first: u16| u16::try_from(index).ok().and_then(|i| first.checked_add(i));
        let port = match self.ports {
            None => None,
            Some(first) => Some(port(first).ok_or_else(|| {
                StartError::Options(format!("no port is left from {first} on: begin lower"))
            })?),
        };
        let coverage = if self.require_full_coverage {
            "yes"
        } else {
            "no"
        };
        let mut extra = vec![
            format!("--cluster-node-timeout {}", self.node_timeout_ms),
            format!("--cluster-require-full-coverage {coverage}"),
            // Replicas stay with their master, and take over however long they were without it.
            "--cluster-allow-replica-migration no".to_owned(),
            "--cluster-replica-validity-factor 0".to_owned(),
        ];
        extra.extend(self.extra.iter().cloned());
        Ok(Options {
            port,
            host: self.hosts.get(index).cloned(),
            cluster: true,
            password: self.password.clone(),
            tls: self.tls.clone(),
            extra,
            ..Options::default()
        })
    }
}

/// A cluster whose nodes are processes of this machine, which end when this value is dropped.
///
/// An index names a node: the masters come first, then the replicas of the first master, those of the second, and so on.
/// The index stays when roles change.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    /// The cluster's names of the nodes, by index.
    ids: Vec<String>,
    masters: usize,
    password: Option<String>,
}

impl Cluster {
    /// Starts the servers, makes them a cluster, and waits until every node says that the cluster is well, all agree which
    /// node has which slots, and all replicas are in sync.
    ///
    /// It takes a little more than two seconds: no Redis server serves slots earlier after its start
    /// (`CLUSTER_WRITABLE_DELAY` in cluster.c).
    ///
    /// # Errors
    /// A server does not start, or the servers do not become a cluster within three minutes.
    pub fn start(options: &ClusterOptions) -> Result<Self, StartError> {
        form::start(options)
    }

    /// All nodes, by index.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// All nodes, by index, to kill or restart.
    pub fn nodes_mut(&mut self) -> &mut [Server] {
        &mut self.nodes
    }

    /// The nodes that began as masters.
    pub fn masters(&self) -> &[Server] {
        &self.nodes[..self.masters]
    }

    /// The nodes that began as replicas.
    pub fn replicas(&self) -> &[Server] {
        &self.nodes[self.masters..]
    }

    /// Addresses of the nodes that began as masters.
    pub fn seeds(&self) -> Vec<SocketAddr> {
        self.masters().iter().map(Server::address).collect()
    }

    /// The cluster's name of a node: 40 hexadecimal digits.
    pub fn node_id(&self, index: usize) -> &str {
        &self.ids[index]
    }

    /// The node with this port.
    pub fn index_of(&self, port: u16) -> Option<usize> {
        self.nodes.iter().position(|node| node.port() == port)
    }

    /// Kills a node (SIGKILL).
    pub fn kill(&mut self, index: usize) {
        self.nodes[index].kill();
    }

    /// Starts a node again with its port and name; its data are gone.
    ///
    /// # Errors
    /// The server does not start.
    pub fn restart(&mut self, index: usize) -> Result<(), StartError> {
        self.nodes[index].restart()
    }

    /// Waits until all nodes that run (neither killed nor paused) say that the cluster is well, know each other, agree
    /// which node has which slots, and are in sync with their masters. It waits for a failover that is still to come, and
    /// accepts a failed master without replicas only when the cluster does not require full coverage.
    ///
    /// # Errors
    /// What was wrong when the time was over.
    pub fn wait_ok(&self, timeout: Duration) -> Result<(), WaitError> {
        health::wait(timeout, || health::problem(self))
    }

    /// The node that has a slot: of the running nodes that claim it, the one with the newest claim.
    ///
    /// # Errors
    /// A node does not answer, or none has the slot.
    pub fn owner_of(&self, slot: u16) -> Result<usize, CommandError> {
        slots::owner_of(self, slot)
    }

    /// The indexes of running nodes.
    fn running(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|index| self.nodes[*index].is_running())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &self.nodes {
            node.ask_to_end();
        }
    }
}
