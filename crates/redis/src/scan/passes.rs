//! Which node to scan next, and which slots are done: the rules of [`Scan`](super::Scan), without I/O.
//!
//! A *pass* is a scan of one server process from cursor 0 to cursor 0. Each of its steps runs in one
//! transaction with `CLUSTER NODES`, so it is known which slots the node had while it looked at keys. Redis
//! looks at each key's place in at least one step of a pass, whatever else comes and goes meanwhile. So a
//! pass has found all keys of a slot if the node had all of them at each step:
//! - it served the slot, and was not giving it to another node;
//! - or it served the slot and was giving it to one other node. The keys that the pass did not find had gone there by
//!   then. A pass of that node finds them, if it begins afterwards and that node, at each step, was taking
//!   the slot over or served it. (Keys go only forward while a slot moves. An operator who cancels the move and
//!   takes keys back by hand hides those from us that move to and fro between two steps.)
//!
//! Slots for which neither holds are scanned again at the node that has them then. Each pass that
//! achieves anything leaves fewer slots, so a scan ends; if [`MAX_VAIN`] passes in a row achieve nothing, the caller gets an error.

use std::collections::BTreeMap;

use super::node_view::{NodeView, Peer};
use super::slot_set::SlotSet;

/// Most passes one after the other that bring no slot to an end.
pub(super) const MAX_VAIN: u32 = 16;

/// The node of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// The node that serves this slot.
    Owner(u16),
    /// The node that is taking over this slot.
    Importer(u16, Peer),
}

/// What a step has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The pass goes on.
    Step,
    /// Some slots are done.
    Done,
    /// The pass is over or begins again, and has brought nothing: the topology may be another one.
    Vain,
}

/// The passes of a scan.
#[derive(Debug)]
pub(super) struct Passes {
    /// The slots that are not done.
    left: SlotSet,
    /// Those of them of which only keys are left that have gone to this node.
    moved_on: BTreeMap<u16, Peer>,
    pass: Option<Pass>,
    /// Where to look for the next slot, so that one whose node is of no use does not hold up all others.
    next_slot: u16,
    /// How many passes in a row brought nothing.
    vain: u32,
}

#[derive(Debug)]
struct Pass {
    target: Target,
    /// The node that answered the first step.
    node: Option<String>,
    cursor: u64,
    /// Slots of which the node had all keys that are left, at each step.
    held: SlotSet,
    /// Slots of which it had these keys but for those that had gone to this other node.
    moving: BTreeMap<u16, Peer>,
}

impl Passes {
    pub fn new(slots: SlotSet) -> Self {
        Self {
            left: slots,
            moved_on: BTreeMap::new(),
            pass: None,
            next_slot: 0,
            vain: 0,
        }
    }

    pub fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Whether keys of this slot are still to be reported.
    pub fn wants(&self, slot: u16) -> bool {
        self.left.contains(slot)
    }

    pub fn slots_left(&self) -> usize {
        self.left.len()
    }

    /// The first slot that is left.
    pub fn first_left(&self) -> Option<u16> {
        self.left.from(self.next_slot).next()
    }

    /// The node to scan, and the cursor. `None` when no slot that is left has a node, as `has_node` says.
    pub fn next(&mut self, has_node: impl Fn(u16) -> bool) -> Option<(Target, u64)> {
        if self.pass.is_none() {
            let moved_on = self.moved_on.first_key_value();
            let target = match moved_on {
                Some((slot, peer)) => Target::Importer(*slot, peer.clone()),
                None => {
                    let slot = self
                        .left
                        .from(self.next_slot)
                        .find(|slot| has_node(*slot))?;
                    self.next_slot = (slot + 1) % crate::slot::SLOTS;
                    Target::Owner(slot)
                }
            };
            self.pass = Some(Pass {
                target,
                node: None,
                cursor: 0,
                held: self.left.clone(),
                moving: BTreeMap::new(),
            });
        }
        let pass = self.pass.as_ref()?;
        Some((pass.target.clone(), pass.cursor))
    }

    /// Whether the running pass has had a step, so that the next one must be answered by the same process.
    pub fn has_begun(&self) -> bool {
        self.pass.as_ref().is_some_and(|pass| pass.node.is_some())
    }

    /// Whether so many passes in a row brought nothing that the caller should know. Then further ones may follow.
    pub fn give_up(&mut self) -> bool {
        let over = self.vain >= MAX_VAIN;
        if over {
            self.vain = 0;
        }
        over
    }

    pub fn vain(&self) -> u32 {
        self.vain
    }

    /// A node has answered a step: this is how it sees itself, and its next cursor.
    pub fn answered(&mut self, view: &NodeView, cursor: u64) -> Progress {
        let Some(pass) = &mut self.pass else {
            return Progress::Vain;
        };
        if pass.node.get_or_insert_with(|| view.id.clone()) != &view.id {
            // It took over from the node of the first step: the cursor meant nothing to it.
            return self.restart();
        }
        pass.hold(view, &self.moved_on);
        if pass.held.is_empty() && pass.moving.is_empty() {
            return self.abandon();
        }
        pass.cursor = cursor;
        if cursor == 0 {
            return self.pass_is_over();
        }
        Progress::Step
    }

    /// Another process than that of the first step has answered, or one that cannot be told from it.
    pub fn restart(&mut self) -> Progress {
        if let Some(pass) = &mut self.pass {
            pass.node = None;
            pass.cursor = 0;
            pass.held = self.left.clone();
            pass.moving.clear();
        }
        self.vain += 1;
        Progress::Vain
    }

    /// The node of the running pass is of no use.
    pub fn abandon(&mut self) -> Progress {
        if let Some(Pass {
            target: Target::Importer(_, peer),
            ..
        }) = self.pass.take()
        {
            self.forget(&peer.id);
        }
        self.vain += 1;
        Progress::Vain
    }

    /// No slot that is left has a node: nobody has keys of them.
    pub fn end(&mut self) {
        self.left = SlotSet::empty();
    }

    fn pass_is_over(&mut self) -> Progress {
        let Some(pass) = self.pass.take() else {
            return Progress::Vain;
        };
        if let Target::Importer(_, peer) = &pass.target {
            self.forget(&peer.id);
        }
        self.moved_on.extend(pass.moving);
        self.moved_on.retain(|slot, _| !pass.held.contains(*slot));
        if pass.held.is_empty() {
            self.vain += 1;
            return Progress::Vain;
        }
        self.left.remove_all(&pass.held);
        self.vain = 0;
        Progress::Done
    }

    /// What has moved to this node was scanned, or is to be looked for elsewhere.
    fn forget(&mut self, importer: &str) {
        self.moved_on.retain(|_, peer| peer.id != importer);
    }
}

impl Pass {
    /// Keeps the slots of which the node has all keys that are left.
    fn hold(&mut self, view: &NodeView, moved_on: &BTreeMap<u16, Peer>) {
        // Slots that it is taking over, and of which their former node has nothing that was not found there.
        let mut has = view.owned.clone();
        for slot in view.importing.keys() {
            if moved_on.get(slot).is_some_and(|peer| peer.id == view.id) {
                has.insert(*slot);
            }
        }
        self.moving.retain(|slot, to| {
            has.contains(*slot) && view.migrating.get(slot).is_none_or(|now| now.id == to.id)
        });
        self.held.keep(&has);
        for (slot, to) in &view.migrating {
            if self.held.contains(*slot) {
                self.held.remove(*slot);
                self.moving.insert(*slot, to.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
