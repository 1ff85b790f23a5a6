//! What becomes of the bytes of a log.

use embar_memory::Memory;

use super::Log;

/// What becomes of the bytes of a log: they add up to [`Use::total_bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
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
    pub claimed_bytes: u64,
    /// Not among these: what batches that are being received have beside the log.
    pub aside_bytes: u64,
}

impl<M: Memory> Log<M> {
    /// What becomes of the bytes of this log. A pass over all topics.
    pub fn use_of(&self) -> Use {
        let kept = self.chains.values().map(|c| (c.bytes, &c.extents));
        let ordered = self.ordered.values().map(|c| (c.bytes, &c.extents));
        let mut all = Use {
            total_bytes: self.blog.total_bytes(),
            claimed_bytes: self.intake.claimed_bytes(),
            aside_bytes: self.intake.aside_bytes(),
            ..Use::default()
        };
        let mut occupied = 0;
        for (readable, extents) in kept.chain(ordered) {
            all.readable_bytes += readable;
            all.pending_bytes += extents.pending_bytes();
            all.dead_bytes += extents.dead_bytes();
            all.unfilled_bytes += extents.unfilled_bytes();
            occupied += extents.occupied_bytes();
        }
        all.free_bytes = all.total_bytes - occupied;
        all
    }
}
