//! How the bytes of a log are used.

use embar_memory::{Held, Memory};

use super::Log;

/// How the bytes of a log are used. All but the last four fields add up to [`LogUsage::total_bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogUsage {
    /// All of the log.
    pub total_bytes: u64,
    /// Of batches that can be read.
    pub readable_bytes: u64,
    /// Of batches that are being received, or wait for their place in the order.
    pub pending_bytes: u64,
    /// Of batches that can be read no more, or never came to be, beside others that can.
    pub dead_bytes: u64,
    /// The ends of extents, where nothing is yet or fits no more.
    pub unfilled_bytes: u64,
    /// In no extent; or in one that was evicted while it is still being sent from.
    pub free_bytes: u64,
    /// Not among these: what batches that are being received have in the log, also those of topics
    /// that were deleted since.
    pub receiving_bytes: u64,
    /// Not among these: staging memory.
    pub staged_bytes: u64,
    /// Not among these: of blocks that are lent to readers of this machine, whether they are still in the log or not.
    pub lent_bytes: u64,
    /// Among the ones that are lent: to readers of connections that have ended, also with earlier incarnations of this broker.
    pub held_bytes: u64,
}

/// Bytes of the payload file, as [`Log::space`] knows them at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogSpace {
    /// All of it.
    pub total_bytes: u64,
    /// In free blocks.
    pub free_bytes: u64,
    /// As [`LogUsage::lent_bytes`].
    pub lent_bytes: u64,
    /// As [`LogUsage::held_bytes`].
    pub held_bytes: u64,
}

/// How full the lanes are in which batches wait for their place in an order, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneSpace {
    /// Batches that wait.
    pub used: u64,
    /// Of these, batches that wait for an earlier one of their publisher.
    pub held: u64,
    /// Batches that may wait.
    pub capacity: u64,
}

impl<M: Memory> Log<M> {
    /// What is held for readers of whom nobody hears any more: it needs no lock of the log.
    pub fn held(&self) -> Held<M> {
        self.payload_file.held()
    }

    /// How the bytes of this log are used. A pass over all topics.
    pub fn usage(&self) -> LogUsage {
        let local = self.local.values().map(|it| (it.bytes, &it.extents));
        let ordered = self.ordered.values().map(|it| (it.bytes, &it.extents));
        let mut usage = LogUsage {
            total_bytes: self.payload_file.total_bytes(),
            receiving_bytes: self.admission.receiving_bytes(),
            staged_bytes: self.admission.staged_bytes(),
            lent_bytes: self.payload_file.lent_bytes(),
            held_bytes: self.payload_file.held_bytes(),
            ..LogUsage::default()
        };
        let mut occupied = 0;
        for (readable, extents) in local.chain(ordered) {
            usage.readable_bytes += readable;
            usage.pending_bytes += extents.pending_bytes();
            usage.dead_bytes += extents.dead_bytes();
            usage.unfilled_bytes += extents.unfilled_bytes();
            occupied += extents.occupied_bytes();
        }
        usage.free_bytes = usage.total_bytes - occupied;
        usage
    }
}
