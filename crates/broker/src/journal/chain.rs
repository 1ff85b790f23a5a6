//! One chain on its way to the disk: what is ordered and not in the journal yet.

use std::collections::VecDeque;

use embar_fabric::GoiRecord;
use embar_fabric::region::Region;
use embar_memory::Memory;
use embar_order::follower::Found;
use embar_order::{Follower, Term};

/// Records that are read at once.
const RECORDS: usize = 64;

/// A chain that is written to the disk.
pub(super) struct Chain<M: Memory> {
    follower: Follower<M>,
    /// What comes next.
    ahead: VecDeque<GoiRecord>,
    /// Kept for its memory.
    read: Vec<GoiRecord>,
    /// It waits for its turn.
    pub is_queued: bool,
    /// What comes next cannot be had: nothing more is written in this term.
    pub is_stuck: bool,
}

/// Whether a chain has something to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    /// The next record.
    Some,
    /// Nothing, for now.
    None,
    /// What comes next is not kept any more: the first position that is.
    Gone(u64),
}

impl<M: Memory> Chain<M> {
    /// The chain from `next` on.
    pub fn new(region: &Region<M>, chain: u32, next: u64) -> Self {
        Self {
            follower: Follower::new(region, chain, next),
            ahead: VecDeque::new(),
            read: Vec::new(),
            is_queued: false,
            is_stuck: false,
        }
    }

    /// Looks what comes next. It counts only if the term lasts afterwards.
    pub fn look(&mut self, term: Term) -> Ahead {
        if !self.ahead.is_empty() {
            return Ahead::Some;
        }
        let found = self.follower.read(term, RECORDS, &mut self.read);
        self.ahead.extend(self.read.drain(..));
        match found {
            _ if !self.ahead.is_empty() => Ahead::Some,
            Found::Gone { first } => Ahead::Gone(first),
            Found::End | Found::More => Ahead::None,
        }
    }

    /// Whether the order of the chain cannot be followed any further, at least in this term.
    pub fn is_damaged(&self) -> bool {
        self.follower.is_damaged()
    }

    /// The next record.
    pub fn first(&self) -> Option<&GoiRecord> {
        self.ahead.front()
    }

    /// The next record is in the journal.
    pub fn pass(&mut self) {
        self.ahead.pop_front();
    }
}
