//! How far one topic is on its disks, as this broker knows it, and how much is not.

use std::ops::Range;
use std::sync::Arc;

use embar_wire::isolation::Isolation;

use super::undurable::{Totals, Undurable};
use crate::topics::Topic;

/// A topic's disks; there may be none.
pub(super) struct OnDisks {
    /// A bit for each of them.
    pub disks: u8,
    /// Those that others took the place of.
    former: u8,
    /// From where on they have it, as far as is known.
    first: u64,
    /// Up to where all of them have it, as far as is known.
    durable: u64,
    /// What is not.
    undurable: Undurable,
}

impl OnDisks {
    /// All disks of `topic` have it up to `durable`, at least.
    pub fn new(topic: &Topic, durable: u64, totals: &Arc<Totals>) -> Self {
        Self {
            disks: topic.disks,
            former: topic.former_disks,
            first: 0,
            durable,
            undurable: Undurable::of(totals),
        }
    }

    /// Whether there are any.
    pub fn is_some(&self) -> bool {
        self.disks != 0
    }

    /// All that may have something of it.
    pub fn all(&self) -> u8 {
        self.disks | self.former
    }

    /// The topic has other disks from now on, and memory has it from `first` on: before they say that they have that too, it stays.
    /// `held` says of each batch in memory where it ends and its bytes.
    pub fn replace(&mut self, topic: &Topic, first: u64, held: impl Iterator<Item = (u64, u64)>) {
        (self.disks, self.former) = (topic.disks, topic.former_disks);
        self.durable = first;
        self.undurable.clear();
        for (end, bytes) in held {
            self.add(end, 1, bytes);
        }
    }

    /// Up to where all have a topic that memory has from `first` on: what was evicted was on them. The end of all positions if it
    /// is in memory alone.
    pub fn durable(&self, first: u64) -> u64 {
        match self.disks {
            0 => u64::MAX,
            _ => self.durable.max(first),
        }
    }

    /// The first position that they have of a topic that memory has from `first` on; that one if there are none.
    pub fn first(&self, first: u64) -> u64 {
        match self.disks {
            0 => first,
            _ => self.first,
        }
    }

    /// They have it from this position on.
    pub fn set_first(&mut self, first: u64) {
        self.first = first;
    }

    /// All have it up to this position. Of each batch that some did not have, `lacking` says where it ends and its bytes, in order.
    pub fn raise(&mut self, next: u64, lacking: impl Iterator<Item = (u64, u64)>) {
        for (end, bytes) in lacking.take_while(|(end, _)| *end <= next) {
            self.remove(end, bytes);
        }
        self.durable = next;
    }

    /// Up to where a subscriber may read a topic of which this is in memory.
    pub fn readable(&self, kept: Range<u64>, isolation: Isolation) -> u64 {
        match isolation {
            Isolation::Latest => kept.end,
            _ => self.durable(kept.start).min(kept.end),
        }
    }

    /// Whether some do not have a batch that ends there.
    pub fn lack(&self, end: u64) -> bool {
        self.is_some() && end > self.durable
    }

    /// So many batches more end there, with so many bytes in this broker's memory.
    pub fn add(&mut self, end: u64, batches: u64, bytes: u64) {
        if self.lack(end) {
            self.undurable.add(batches, bytes);
        }
    }

    /// A batch that ends there is gone, or all disks have it from now on.
    pub fn remove(&mut self, end: u64, bytes: u64) {
        if self.lack(end) {
            self.undurable.subtract(1, bytes);
        }
    }
}
