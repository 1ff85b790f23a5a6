//! Moves slots from one node to another, as <https://redis.io/docs/latest/commands/cluster-setslot/> says.

use super::view::view;
use super::{Cluster, health};
use crate::control::Reply;
use crate::error::{CommandError, WaitError};
use std::time::Duration;

/// How many keys move with one command.
const KEYS_PER_MOVE: &str = "100";

/// How long such a command may take, milliseconds.
const MOVE_MS: &str = "5000";

/// How long all nodes may take to learn of a new owner.
const NEW_OWNER_TIMEOUT: Duration = Duration::from_secs(60);

/// How far [`Cluster::move_slot`] goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveState {
    /// The nodes have marked the slot as migrating and importing, and no key has moved. The old owner answers for keys that
    /// it has, and says ASK for others.
    Migrating,
    /// The new owner has all keys, and the old owner still has the slot: it says ASK for all keys.
    KeysMoved,
    /// The new owner has the slot, and all nodes know: the old one says MOVED.
    Done,
}

impl Cluster {
    /// Moves a slot with its keys from one node to another, as far as `leave` says. [`Cluster::move_keys`] and
    /// [`Cluster::finish_move`] do the rest, or [`Cluster::cancel_move`] undoes it.
    ///
    /// # Errors
    /// A node refuses it (`from` does not have the slot, say), or not all nodes know the new owner after a minute.
    pub fn move_slot(
        &self,
        slot: u16,
        from: usize,
        to: usize,
        leave: MoveState,
    ) -> Result<(), CommandError> {
        self.begin_move(slot, from, to)?;
        if leave == MoveState::Migrating {
            return Ok(());
        }
        self.move_keys(slot, from, to)?;
        if leave == MoveState::KeysMoved {
            return Ok(());
        }
        self.finish_move(slot, from, to)
    }

    /// Marks a slot as importing and migrating.
    ///
    /// # Errors
    /// A node refuses it or does not answer.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) -> Result<(), CommandError> {
        self.set_slot(to, slot, &["IMPORTING", self.node_id(from)])?;
        self.set_slot(from, slot, &["MIGRATING", self.node_id(to)])
    }

    /// Moves all keys of a slot; how many there were.
    ///
    /// # Errors
    /// A node refuses it or does not answer.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) -> Result<usize, CommandError> {
        let mut moved = 0;
        loop {
            let keys = self.keys_of(slot, from)?;
            if keys.is_empty() {
                return Ok(moved);
            }
            moved += keys.len();
            self.migrate(from, to, keys)?;
        }
    }

    /// Moves one key of a slot, whichever it is.
    ///
    /// # Errors
    /// A node refuses it or does not answer.
    pub fn move_key(&self, key: &[u8], from: usize, to: usize) -> Result<(), CommandError> {
        self.migrate(from, to, vec![key.to_vec()])
    }

    /// Gives the slot to the new owner, and waits until all running nodes know.
    ///
    /// # Errors
    /// A node refuses it (the old owner still has keys, say), or not all nodes know the new owner after a minute.
    pub fn finish_move(&self, slot: u16, from: usize, to: usize) -> Result<(), CommandError> {
        let owner = self.node_id(to);
        // The new owner first: while neither has the slot, the old one would send clients in circles.
        self.set_slot(to, slot, &["NODE", owner])?;
        self.set_slot(from, slot, &["NODE", owner])?;
        for index in self.running().filter(|index| ![from, to].contains(index)) {
            // Replicas refuse the command: they learn it from the others.
            if view(&self.nodes[index])?.myself()?.is("master") {
                self.set_slot(index, slot, &["NODE", owner])?;
            }
        }
        health::wait(NEW_OWNER_TIMEOUT, || self.uninformed(slot, to)).map_err(late)
    }

    /// Lets the old owner keep a slot. Clients do not find keys that have moved until they move back.
    ///
    /// # Errors
    /// A node refuses it or does not answer.
    pub fn cancel_move(&self, slot: u16, from: usize, to: usize) -> Result<(), CommandError> {
        self.set_slot(from, slot, &["STABLE"])?;
        self.set_slot(to, slot, &["STABLE"])
    }

    fn set_slot(&self, node: usize, slot: u16, what: &[&str]) -> Result<(), CommandError> {
        let slot = slot.to_string();
        let arguments = [&["CLUSTER", "SETSLOT", slot.as_str()], what].concat();
        self.nodes[node].call(&arguments).map(drop)
    }

    /// Some keys of a slot that a node has.
    fn keys_of(&self, slot: u16, node: usize) -> Result<Vec<Vec<u8>>, CommandError> {
        let slot = slot.to_string();
        let node = &self.nodes[node];
        match node.call(&["CLUSTER", "GETKEYSINSLOT", &slot, KEYS_PER_MOVE])? {
            Reply::Array(keys) => keys.into_iter().map(key).collect(),
            other => Err(unexpected(&other)),
        }
    }

    fn migrate(&self, from: usize, to: usize, keys: Vec<Vec<u8>>) -> Result<(), CommandError> {
        let (ip, port) = (self.nodes[to].address().ip(), self.nodes[to].port());
        let (ip, port) = (ip.to_string(), port.to_string());
        // An empty key says that the list of keys is at the end; with `REPLACE` a key may move twice.
        let mut arguments = ["MIGRATE", &ip, &port, "", "0", MOVE_MS, "REPLACE"]
            .map(Vec::from)
            .to_vec();
        if let Some(password) = &self.password {
            arguments.extend(["AUTH", password].map(Vec::from));
        }
        arguments.push(b"KEYS".to_vec());
        arguments.extend(keys);
        self.nodes[from].call(&arguments).map(drop)
    }

    /// A node that does not know the slot's new owner.
    fn uninformed(&self, slot: u16, owner: usize) -> Result<Option<String>, CommandError> {
        for index in self.running() {
            let view = view(&self.nodes[index])?;
            if !view
                .node(self.node_id(owner))
                .is_some_and(|node| node.has(slot))
            {
                return Ok(Some(format!(
                    "node {index} does not know that node {owner} has slot {slot}"
                )));
            }
        }
        Ok(None)
    }
}

/// The node that has a slot; [`Cluster::owner_of`] describes it.
pub fn owner_of(cluster: &Cluster, slot: u16) -> Result<usize, CommandError> {
    let mut newest = None;
    for index in cluster.running() {
        let view = view(&cluster.nodes[index])?;
        let myself = view.myself()?;
        if myself.has(slot) {
            newest = newest.max(Some((myself.epoch, index)));
        }
    }
    let none = || CommandError::Server(format!("no node that runs has slot {slot}"));
    newest.map(|(_, index)| index).ok_or_else(none)
}

fn key(reply: Reply) -> Result<Vec<u8>, CommandError> {
    match reply {
        Reply::Bytes(key) => Ok(key),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(reply: &Reply) -> CommandError {
    CommandError::Malformed(format!("CLUSTER GETKEYSINSLOT: {reply:?}"))
}

fn late(error: WaitError) -> CommandError {
    CommandError::Server(error.to_string())
}
