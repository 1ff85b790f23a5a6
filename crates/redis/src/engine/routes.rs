//! A client's table of routes: which node serves which slot, and which replicas each node has.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use super::node::Node;
use super::schedule::Schedule;
use crate::command::Class;
use crate::endpoint::Endpoint;
use crate::slot::SLOTS;
use crate::topology::Topology;

/// Stands for "no node" in the table.
const NO_NODE: u16 = u16::MAX;

/// Which node serves which slot. The set of nodes never changes, but a slot may move between them.
pub(crate) struct Routes {
    pub nodes: Vec<Arc<Node>>,
    slots: Box<[AtomicU16]>,
    /// The replicas of each node, by their places in `nodes`.
    replicas: Vec<Vec<u16>>,
}

thread_local! {
    /// The node whose turn it is for commands that any node can execute. Each thread counts by itself,
    /// from a random number on.
    static TURN: Cell<usize> = Cell::new(fastrand::u16(..).into());
}

impl Routes {
    /// One node serves all slots.
    pub fn single(node: Arc<Node>) -> Self {
        Self {
            nodes: vec![node],
            slots: (0..SLOTS).map(|_| AtomicU16::new(0)).collect(),
            replicas: vec![Vec::new()],
        }
    }

    /// Nodes to ask, before the client knows which slots they serve.
    pub fn unknown(nodes: Vec<Arc<Node>>) -> Self {
        let replicas = nodes.iter().map(|_| Vec::new()).collect();
        Self {
            nodes,
            slots: (0..SLOTS).map(|_| AtomicU16::new(NO_NODE)).collect(),
            replicas,
        }
    }

    /// The routes of a topology. Nodes that `old` has keep their connections; `make` makes the others.
    pub fn of(topology: &Topology, old: &Self, make: &dyn Fn(Endpoint) -> Arc<Node>) -> Self {
        let mut new = Self::unknown(Vec::new());
        for shard in topology.shards() {
            let primary = new.place(&shard.primary, old, make);
            for range in &shard.ranges {
                for slot in range.clone() {
                    new.slots[usize::from(slot)] = AtomicU16::new(primary);
                }
            }
            for replica in &shard.replicas {
                let replica = new.place(replica, old, make);
                new.replicas[usize::from(primary)].push(replica);
            }
        }
        new
    }

    /// The same routes with one more node, which serves no slot yet.
    pub fn with(&self, node: Arc<Node>) -> Self {
        let mut nodes = self.nodes.clone();
        nodes.push(node);
        let mut replicas = self.replicas.clone();
        replicas.push(Vec::new());
        let slots = self.slots.iter();
        Self {
            nodes,
            slots: slots
                .map(|slot| AtomicU16::new(slot.load(Ordering::Relaxed)))
                .collect(),
            replicas,
        }
    }

    /// The place of a node, which it adds if it is new.
    fn place(
        &mut self,
        endpoint: &Endpoint,
        old: &Self,
        make: &dyn Fn(Endpoint) -> Arc<Node>,
    ) -> u16 {
        if let Some(place) = self.find(endpoint) {
            return place;
        }
        let known = old
            .find(endpoint)
            .map(|place| &old.nodes[usize::from(place)]);
        let node = match known.filter(|node| !node.is_retired()) {
            Some(node) => Arc::clone(node),
            None => make(endpoint.clone()),
        };
        self.nodes.push(node);
        self.replicas.push(Vec::new());
        (self.nodes.len() - 1) as u16
    }

    /// The place of a node in `nodes`.
    pub fn find(&self, endpoint: &Endpoint) -> Option<u16> {
        let place = self
            .nodes
            .iter()
            .position(|node| node.endpoint == *endpoint);
        place.map(|place| place as u16)
    }

    /// The primary of a slot.
    #[inline]
    pub fn primary(&self, slot: u16) -> Option<&Arc<Node>> {
        let place = self.slots[usize::from(slot)].load(Ordering::Relaxed);
        self.nodes.get(usize::from(place))
    }

    /// A node for a command that any node can execute: the nodes take turns, and connected ones come
    /// before those that may be dead.
    pub fn any(&self, class: Class) -> Option<&Arc<Node>> {
        match &*self.nodes {
            [only] => Some(only),
            _ => self.nearest(TURN.replace(TURN.get().wrapping_add(1)), class),
        }
    }

    /// As [`Routes::any`]; of equally good nodes it takes the first one from this number on.
    pub fn nearest(&self, number: usize, class: Class) -> Option<&Arc<Node>> {
        let count = self.nodes.len();
        let all = (0..count).map(|place| (number % count + place) % count);
        let rank = |place: &usize| {
            let distance = self.nodes[*place].distance();
            let is_replica = u8::from(self.is_replica(*place));
            match class {
                Class::Read => (distance, is_replica),
                // A replica would refuse to change data.
                Class::Write => (is_replica, distance),
            }
        };
        // Mostly the first one is the best there can be.
        let best = all.clone().find(|place| rank(place) == (0, 0));
        let best = best.or_else(|| all.min_by_key(rank));
        best.map(|place| &self.nodes[place])
    }

    /// The first node from this number on to which connecting did not fail just now, or the one with this number.
    pub fn reachable(&self, number: usize) -> Option<&Arc<Node>> {
        let count = self.nodes.len();
        let first = number.checked_rem(count)?;
        let mut all = (0..count).map(|place| &self.nodes[(first + place) % count]);
        let is_reachable =
            |node: &&Arc<Node>| !node.connection(0).is_backing_off() && !node.is_retired();
        all.find(is_reachable).or(self.nodes.get(first))
    }

    /// Whether the node at this place in `nodes` is a replica.
    pub fn is_replica(&self, place: usize) -> bool {
        let mut replicas = self.replicas.iter().flatten();
        replicas.any(|replica| usize::from(*replica) == place)
    }

    /// One slot of each primary that serves any.
    pub fn slot_of_each_primary(&self) -> Vec<u16> {
        let mut seen = vec![false; self.nodes.len()];
        let mut first = |slot: &u16| {
            let place = self.slots[usize::from(*slot)].load(Ordering::Relaxed);
            let seen = seen.get_mut(usize::from(place));
            seen.is_some_and(|seen| !std::mem::replace(seen, true))
        };
        (0..SLOTS).filter(|slot| first(slot)).collect()
    }

    /// How many slots each node serves.
    pub fn slots_of_each(&self) -> Vec<u16> {
        let mut counts = vec![0; self.nodes.len()];
        for place in &*self.slots {
            if let Some(count) = counts.get_mut(usize::from(place.load(Ordering::Relaxed))) {
                *count += 1;
            }
        }
        counts
    }

    /// The replicas of a slot's primary, without those that are about to leave.
    pub fn replicas(&self, slot: u16) -> impl Iterator<Item = &Arc<Node>> {
        let place = self.slots[usize::from(slot)].load(Ordering::Relaxed);
        let replicas = self.replicas.get(usize::from(place)).into_iter().flatten();
        let replicas = replicas.map(|place| &self.nodes[usize::from(*place)]);
        replicas.filter(|node| !node.is_retired())
    }

    /// The slot has moved to the node at this place.
    pub fn move_slot(&self, slot: u16, place: u16) {
        self.slots[usize::from(slot)].store(place, Ordering::Relaxed);
    }

    /// The slots that another node serves by these routes than by `old`.
    pub fn moved_since(&self, old: &Self) -> impl Iterator<Item = u16> {
        let served_by = |routes: &Self, slot| routes.primary(slot).map(|node| node.id);
        (0..SLOTS).filter(move |slot| served_by(self, *slot) != served_by(old, *slot))
    }

    /// How many slots have no known node.
    pub fn uncovered(&self) -> usize {
        let has_no_node = |slot: &&AtomicU16| slot.load(Ordering::Relaxed) == NO_NODE;
        self.slots.iter().filter(has_no_node).count()
    }

    /// Retires the nodes that `new` does not have.
    pub fn retire_nodes_not_in(&self, new: &Self, schedule: &Schedule) {
        for node in &self.nodes {
            if !new.nodes.iter().any(|kept| Arc::ptr_eq(kept, node)) {
                node.retire(schedule);
            }
        }
    }
}
