//! Which node a command goes to: follows redirects, and takes over topologies.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};
use embar_mux::{ConnectionState, Stats};

use super::first_topology::FirstTopology;
use super::lasting::lasting;
use super::node::{Node, NodeInfo};
use super::node_connection::NodeConnection;
use super::routes::Routes;
use super::shared::Shared;
use super::topology_changes::log_changes;
use crate::command::{Class, NodeId, Route};
use crate::config::{Mode, ReadFrom};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::metrics::{Metrics, NodeMetrics};
use crate::resp::Address;
use crate::topology::Topology;

/// The most nodes of a client: clusters are made for a thousand. Redirects to more are not followed.
const MAX_NODES: usize = 4096;

/// A client's routes, and what all parts of the client share.
pub(crate) struct Router {
    pub shared: Arc<Shared>,
    routes: ArcSwap<Routes>,
    pub first_topology: FirstTopology,
    /// Held while routes are replaced.
    replacing: Mutex<()>,
    /// How many topologies were taken over.
    generation: AtomicU64,
}

impl Router {
    /// Begins with the seeds of the configuration, of which there is at least one.
    pub fn new(shared: Arc<Shared>) -> Self {
        let seeds = shared.config.seeds.iter();
        let mut seeds = seeds.map(|seed| Node::new(seed.clone(), &shared));
        let routes = match shared.config.mode {
            Mode::Standalone => Routes::single(seeds.next().expect("it has a server")),
            Mode::Cluster | Mode::Replicated => Routes::unknown(seeds.collect()),
            // Its seeds are the sentinels.
            Mode::Sentinel => Routes::unknown(Vec::new()),
        };
        Self {
            shared,
            routes: ArcSwap::from_pointee(routes),
            first_topology: FirstTopology::default(),
            replacing: Mutex::new(()),
            generation: AtomicU64::new(0),
        }
    }

    /// The routes of this moment.
    pub fn routes(&self) -> Guard<Arc<Routes>> {
        self.routes.load()
    }

    /// The connection for a command; `None` when no known node serves its slot.
    #[inline]
    pub fn connection(&self, route: Route, class: Class) -> Option<Arc<NodeConnection>> {
        self.connection_in(&self.routes.load(), route, class)
            .cloned()
    }

    /// As [`Router::connection`], by routes that the caller loaded once for many commands.
    #[inline]
    pub fn connection_in<'r>(
        &self,
        routes: &'r Routes,
        route: Route,
        class: Class,
    ) -> Option<&'r Arc<NodeConnection>> {
        let node = match route {
            // Others than `Any` go out so only where one shard has all keys.
            Route::Any | Route::CrossSlot | Route::AllPrimaries | Route::AllNodes => {
                match self.shared.config.mode.is_one_shard() {
                    // A replica is behind its primary also in what has no key.
                    true => self.by_slot(routes, 0, class)?,
                    false => routes.any(class)?,
                }
            }
            Route::Node(id) => routes.nodes.iter().find(|node| node.id == id)?,
            Route::Slot(slot) => self.by_slot(routes, slot, class)?,
        };
        let hint = match route {
            Route::Slot(slot) => slot,
            _ => 0,
        };
        Some(node.connection(hint))
    }

    /// The node that serves a slot to commands of this class.
    #[inline]
    fn by_slot<'r>(&self, routes: &'r Routes, slot: u16, class: Class) -> Option<&'r Arc<Node>> {
        match (self.shared.config.read_from, class) {
            (ReadFrom::Primary, _) | (_, Class::Write) => routes.primary(slot),
            _ => self.reader(routes, slot),
        }
    }

    /// Why the client must not send a command with this route.
    #[inline]
    pub fn refused(&self, route: Route) -> Option<Error> {
        match (self.shared.config.mode, route) {
            (Mode::Standalone, _) => None,
            (_, Route::Slot(_) | Route::Any | Route::Node(_)) => None,
            (_, Route::AllNodes) => Some(Error::SeveralNodes),
            // One primary has all keys.
            (Mode::Replicated | Mode::Sentinel, _) => None,
            (Mode::Cluster, Route::CrossSlot) => Some(Error::CrossSlot),
            (Mode::Cluster, Route::AllPrimaries) => Some(Error::SeveralNodes),
        }
    }

    /// All nodes of a route: a route to each, and its address.
    ///
    /// # Errors
    /// When not all of them are known.
    pub fn targets(&self, route: Route) -> Result<Vec<(Route, String)>, Error> {
        let routes = self.routes.load();
        if route == Route::AllNodes {
            let all = routes.nodes.iter();
            let target = |node: &Arc<Node>| (Route::Node(node.id), node.endpoint.to_string());
            return Ok(all.map(target).collect());
        }
        let uncovered = routes.uncovered();
        if uncovered > 0 {
            self.shared.schedule.request_refresh();
            let why = format!("{uncovered} slots of the cluster have no node that is known");
            return Err(Error::Unavailable { why });
        }
        // By a slot, so that they go to the new primary after a failover.
        let slots = routes.slot_of_each_primary().into_iter();
        let target = |slot| {
            let primary = routes.primary(slot)?;
            Some((Route::Slot(slot), primary.endpoint.to_string()))
        };
        Ok(slots.filter_map(target).collect())
    }

    /// The nodes that are known.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        let routes = self.routes.load();
        let slots = routes.slots_of_each();
        let info = |(node, slots): (&Arc<Node>, u16)| NodeInfo {
            id: node.id,
            address: node.endpoint.to_string(),
            slots,
        };
        routes.nodes.iter().zip(slots).map(info).collect()
    }

    /// Why there is no known node for a command.
    pub fn why_no_node(&self, route: Route) -> Cow<'static, str> {
        if self.awaits_topology() {
            return self.first_topology.why_not(self.shared.config.mode).into();
        }
        self.why_none_serves(route).into()
    }

    fn why_none_serves(&self, route: Route) -> &'static str {
        let slot = match route {
            Route::Slot(slot) => slot,
            Route::Node(_) => return "the node has left the cluster",
            _ if self.shared.config.mode.is_one_shard() => 0,
            _ => return "no node is known",
        };
        let replica = self.shared.config.read_from == ReadFrom::Replica;
        if replica && self.primary_of(slot).is_some() {
            return "the slot's shard has no replica, and read_from allows nothing else";
        }
        if self.shared.config.mode.is_one_shard() {
            return "no primary is known";
        }
        "no node is known that serves the slot"
    }

    /// The node that answers reads of a slot, by the policy `read_from`: of the nodes that it allows
    /// one that seems alive, or any if none does.
    #[cold]
    fn reader<'r>(&self, routes: &'r Routes, slot: u16) -> Option<&'r Arc<Node>> {
        let primary = routes.primary(slot);
        let count = routes.replicas(slot).count();
        // Neighbouring slots have different readers; a key has the same one as long as that lives. If a replica leaves
        // meanwhile, it is the primary.
        let nth = |number: usize, count: usize| {
            let number = (usize::from(slot) + number) % count;
            routes.replicas(slot).nth(number).or(primary)
        };
        let alive = |count: usize| {
            let mut nodes = (0..count).filter_map(|number| nth(number, count));
            nodes.find(|node| node.connection(slot).seems_alive())
        };
        match self.shared.config.read_from {
            ReadFrom::Primary => primary,
            ReadFrom::Replica if count == 0 => None,
            ReadFrom::Replica => {
                let found = alive(count).or_else(|| nth(0, count));
                found.filter(|node| !primary.is_some_and(|primary| Arc::ptr_eq(primary, node)))
            }
            ReadFrom::PreferReplica => alive(count).or(primary),
            ReadFrom::Any => alive(count + 1).or(primary),
        }
    }

    /// Follows `MOVED`: changes the slot's route at once, and requests a refresh for what else has
    /// moved. `None` when the node that answered does not know where the slot is.
    pub fn moved(
        &self,
        slot: u16,
        address: &Address,
        answered_by: &NodeConnection,
    ) -> Option<Arc<NodeConnection>> {
        self.shared.counters.moved.add(1);
        tracing::debug!(node = %answered_by.endpoint, slot, to = %address, "MOVED");
        self.shared.schedule.request_refresh();
        let endpoint = Endpoint::announced(&address.host, address.port, &answered_by.endpoint)?;
        let node = self.node(&endpoint)?;
        let routes = self.routes.load();
        if let Some(place) = routes.find(&endpoint) {
            routes.move_slot(slot, place);
            if let Some(cache) = &self.shared.cache {
                cache.slots_moved([slot]);
            }
        }
        Some(Arc::clone(node.connection(slot)))
    }

    /// Follows `ASK`: the node to which a slot is moving.
    pub fn asked(
        &self,
        slot: u16,
        address: &Address,
        answered_by: &NodeConnection,
    ) -> Option<Arc<NodeConnection>> {
        self.shared.counters.asked.add(1);
        tracing::debug!(node = %answered_by.endpoint, slot, to = %address, "ASK");
        let endpoint = Endpoint::announced(&address.host, address.port, &answered_by.endpoint)?;
        Some(Arc::clone(self.node(&endpoint)?.connection(slot)))
    }

    /// The node that serves a slot.
    pub fn primary_of(&self, slot: u16) -> Option<Endpoint> {
        let routes = self.routes.load();
        Some(routes.primary(slot)?.endpoint.clone())
    }

    /// The primary and the replicas of the only shard, as far as they are known.
    pub fn only_shard(&self) -> (Option<Endpoint>, Vec<Endpoint>) {
        let routes = self.routes.load();
        let primary = routes.primary(0).map(|node| node.endpoint.clone());
        let replicas = routes.replicas(0).map(|node| node.endpoint.clone());
        (primary, replicas.collect())
    }

    /// A slot of each primary that serves any: those first that will probably answer, others at random.
    pub fn slots_by_distance(&self) -> Vec<u16> {
        let routes = self.routes.load();
        let mut slots = routes.slot_of_each_primary();
        fastrand::shuffle(&mut slots);
        slots.sort_by_cached_key(|slot| routes.primary(*slot).map(|node| node.distance()));
        slots
    }

    /// One of the nodes, also a replica, which is not known to be gone if there is any such; another number gives another node.
    pub fn some_node(&self, number: usize) -> Option<Endpoint> {
        let routes = self.routes.load();
        Some(routes.reachable(number)?.endpoint.clone())
    }

    /// Changes when a topology is taken over, and so which node serves which slot. A slot that moves by itself (`MOVED`) does not count.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether there is a node at this endpoint.
    pub fn has_node(&self, endpoint: &Endpoint) -> bool {
        self.routes.load().find(endpoint).is_some()
    }

    /// The node that is known at one of these endpoints, or else a new one at the first of them. `None` as for
    /// a redirect to too many nodes, or without endpoints.
    pub fn node_at(&self, endpoints: &[Endpoint]) -> Option<NodeId> {
        let known = endpoints.iter().find(|endpoint| self.has_node(endpoint));
        let node = self.node(known.or(endpoints.first())?)?;
        Some(node.id)
    }

    /// The node at this endpoint, which it adds if it is new. `None` when there are so many already
    /// that a server seems to make them up.
    fn node(&self, endpoint: &Endpoint) -> Option<Arc<Node>> {
        let find = |routes: &Routes| {
            let place = routes.find(endpoint)?;
            Some(Arc::clone(&routes.nodes[usize::from(place)]))
        };
        if let Some(node) = find(&self.routes.load()) {
            return Some(node);
        }
        let _replacing = self.replacing();
        let routes = self.routes.load();
        let known = find(&routes);
        if known.is_some() || routes.nodes.len() >= MAX_NODES {
            return known;
        }
        let node = Node::new(endpoint.clone(), &self.shared);
        self.routes.store(Arc::new(routes.with(Arc::clone(&node))));
        Some(node)
    }

    /// Takes over a topology that a node told. Nodes that are new to the routes may be among those that the client is
    /// `acquainted` with, and so have connections already.
    pub fn adopt(&self, topology: &Topology, acquainted: &[Arc<Node>]) {
        let _replacing = self.replacing();
        let old = self.routes.load_full();
        let new = Routes::of(topology, &old, &|endpoint| {
            let is_it = |node: &&Arc<Node>| node.endpoint == endpoint && !node.is_retired();
            let known = acquainted.iter().find(is_it);
            known.map_or_else(|| Node::new(endpoint, &self.shared), Arc::clone)
        });
        let uncovered = new.uncovered();
        if uncovered > 0 {
            tracing::warn!("{uncovered} slots of the cluster have no node");
        }
        let new = Arc::new(new);
        let one_shard = self.shared.config.mode.is_one_shard();
        log_changes(&old, &new, one_shard, &self.shared.counters);
        for (place, node) in new.nodes.iter().enumerate() {
            node.set_breaks_once(one_shard && new.is_replica(place));
        }
        self.routes.store(Arc::clone(&new));
        self.generation.fetch_add(1, Ordering::Release);
        if let Some(cache) = &self.shared.cache {
            cache.slots_moved(new.moved_since(&old));
        }
        old.retire_nodes_not_in(&new, &self.shared.schedule);
    }

    fn replacing(&self) -> MutexGuard<'_, ()> {
        self.replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Why there is no open connection to the first node, if there is none.
    pub fn unreachable(&self) -> Option<Error> {
        let routes = self.routes.load();
        let connection = routes.nodes.first()?.connection(0);
        let state = connection.current().map(|conn| conn.state());
        let why = connection
            .last_failure()
            .filter(|_| state != Some(ConnectionState::Open))?;
        let why = why.to_string();
        Some(Error::Unavailable { why })
    }

    /// Whether it does not know the nodes of its cluster yet, as it has not connected before.
    pub fn awaits_topology(&self) -> bool {
        self.shared.config.mode != Mode::Standalone && !self.first_topology.is_known()
    }

    /// Why no server will accept the client, as long as none has.
    #[cold]
    pub fn first_refusal(&self) -> Option<Error> {
        if self.shared.is_settled() {
            return None;
        }
        let refusal = self.first_topology.refusal();
        refusal.or_else(|| self.lasting_failure())
    }

    /// Why connecting fails with every node, for reasons that last: TLS, or a refused greeting. `None` if it
    /// may yet succeed.
    pub fn lasting_failure(&self) -> Option<Error> {
        let has_provider = self.shared.credentials.is_some();
        let mut why = None;
        for node in &*self.routes.load().nodes {
            let connection = node.connection(0);
            // One that was open once has no lasting reason.
            let failed = connection.failures() > 0;
            why = Some(lasting(
                connection.last_failure().filter(|_| failed)?,
                has_provider,
            )?);
        }
        why
    }

    /// What happened so far on the connections to each node that has any.
    pub fn stats(&self) -> Vec<(String, Stats)> {
        let routes = self.routes.load();
        let of_node = |node: &Arc<Node>| {
            let mut conns = node.connections().iter().filter_map(|one| one.current());
            // The meters are the node's; commands in flight are each connection's own.
            let mut stats = conns.next()?.stats();
            stats.in_flight += conns.map(|conn| conn.in_flight() as u64).sum::<u64>();
            Some((node.endpoint.to_string(), stats))
        };
        routes.nodes.iter().filter_map(of_node).collect()
    }

    /// What the client did so far.
    pub fn metrics(&self) -> Metrics {
        let of_node = |node: &Arc<Node>| {
            let conns = node.connections().iter().filter_map(|one| one.current());
            let in_flight: usize = conns.map(|conn| conn.in_flight()).sum();
            let name = node.endpoint.to_string();
            NodeMetrics::new(name, &node.counted.node, in_flight as u64)
        };
        let nodes = self.routes.load().nodes.iter().map(of_node).collect();
        let cache = self.shared.cache.as_ref().map(|cache| cache.metrics());
        Metrics::new(nodes, &self.shared.counters, cache)
    }
}
