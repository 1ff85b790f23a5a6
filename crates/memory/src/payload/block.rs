//! Allocated blocks. Each has any number of handles, and goes back to the allocator with the last one.
//!
//! What the handles of a block share is kept for the blocks to come: a log that is full takes a block for each that it
//! gives back, and asks for no memory meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Store;
use super::unit::UNIT_BYTES;
use crate::memory::Memory;

/// How many blocks' shared parts are kept at most: as many as the largest block has smallest ones, four times.
const IDLE_MAX: usize = 1024;

/// A handle on one allocated block.
pub(super) struct Block<M: Memory> {
    shared: Arc<Shared<M>>,
}

/// What the handles of a block share.
struct Shared<M: Memory> {
    /// None once the block is given back.
    store: Option<Arc<Store<M>>>,
    at: u64,
    order: u8,
    /// Loans on the block. Who makes the first one counts the block as lent, who ends the last one does not any more: both have
    /// the allocator's lock meanwhile.
    loans: AtomicUsize,
}

/// Shared parts of blocks that were given back.
pub(super) struct Idle<M: Memory> {
    parts: Vec<Arc<Shared<M>>>,
}

impl<M: Memory> Block<M> {
    /// The first handle on a block that the allocator of `store` has just given.
    pub fn new(store: &Arc<Store<M>>, at: u64, order: u8) -> Self {
        let idle = store.idle().parts.pop();
        let taken = Shared {
            store: Some(Arc::clone(store)),
            at,
            order,
            loans: AtomicUsize::new(0),
        };
        let shared = match idle {
            // Whoever put it there may hold it for a moment longer.
            Some(mut idle) => match Arc::get_mut(&mut idle) {
                Some(shared) => {
                    *shared = taken;
                    idle
                }
                None => Arc::new(taken),
            },
            None => Arc::new(taken),
        };
        Self { shared }
    }

    /// Offset of the block in the payload file.
    pub fn at(&self) -> u64 {
        self.shared.at
    }

    /// The block has 64 KiB << order.
    pub fn order(&self) -> u8 {
        self.shared.order
    }

    /// Bytes of the block.
    pub fn len(&self) -> u32 {
        (UNIT_BYTES << self.shared.order) as u32
    }

    /// Handles on the block, this one included.
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.shared)
    }

    /// Whether both are handles on one block.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The memory that the block is a part of.
    pub fn memory(&self) -> &M {
        self.store().memory.get()
    }

    fn store(&self) -> &Store<M> {
        let store = self.shared.store.as_ref();
        store.expect("a block with a handle")
    }

    /// Counts one more loan on the block, which [`Block::end_loan`] takes back. False if too much would be lent: then none
    /// was counted. (The counters order nothing: what is lent is kept by handles.)
    pub fn lend(&self) -> bool {
        let loans = &self.shared.loans;
        if change(loans, |count| (count > 0).then(|| count + 1)) {
            return true;
        }
        let mut buddy = self.store().buddy();
        if loans.load(Ordering::Acquire) == 0 && !buddy.kept.lend(self.at(), self.order()) {
            return false;
        }
        loans.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Ends a loan.
    pub fn end_loan(&self) {
        let loans = &self.shared.loans;
        if change(loans, |count| (count > 1).then(|| count - 1)) {
            return;
        }
        let store = self.store();
        let mut buddy = store.buddy();
        if loans.fetch_sub(1, Ordering::AcqRel) == 1 {
            buddy.kept.end_loan(self.at(), self.order());
            store.returned.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The block's extent is dropped, and there are other handles.
    pub fn outlive_extent(&self) {
        self.store().buddy().kept.outlive(self.at(), self.order());
    }

    /// From now on the block is held: its loans are over, and a reader may still have what was lent.
    pub fn hold(&self) {
        let store = self.store();
        let mut buddy = store.buddy();
        buddy.hold_of(self.at(), self.order());
        store.held.store(buddy.kept.held_bytes(), Ordering::Relaxed);
    }

    /// Where the block lies in the file.
    pub fn bytes(&self) -> Range<u64> {
        self.at()..self.at() + u64::from(self.len())
    }

    /// Whether something of the block is lent or held.
    pub fn is_lent(&self) -> bool {
        self.shared.loans.load(Ordering::Relaxed) > 0 || self.is_held()
    }

    /// Whether some of the block is held for readers that nobody hears of any more.
    pub fn is_held(&self) -> bool {
        let store = self.store();
        store.held.load(Ordering::Relaxed) > 0 && store.buddy().kept.holds(self.at(), self.order())
    }
}

/// Changes a count as `next` says; false if that says nothing.
fn change(count: &AtomicUsize, next: impl Fn(usize) -> Option<usize>) -> bool {
    let order = (Ordering::AcqRel, Ordering::Acquire);
    count.fetch_update(order.0, order.1, next).is_ok()
}

impl<M: Memory> Clone for Block<M> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<M: Memory> Drop for Block<M> {
    fn drop(&mut self) {
        // The count alone is cheap, and says of most handles that they are not the last. Of two that are dropped at
        // once, both may find that. Then what they share gives the block back, and is not kept.
        if self.handles() > 1 {
            return;
        }
        let Some(shared) = Arc::get_mut(&mut self.shared) else {
            return;
        };
        if let Some(store) = shared.give_back() {
            let mut idle = store.idle();
            if idle.parts.len() < IDLE_MAX {
                idle.parts.push(Arc::clone(&self.shared));
            }
        }
    }
}

impl<M: Memory> Shared<M> {
    /// Gives the block back, if that was not done. Returns the store it was given back to.
    fn give_back(&mut self) -> Option<Arc<Store<M>>> {
        let store = self.store.take()?;
        store.buddy().free(self.at, self.order);
        Some(store)
    }
}

impl<M: Memory> Drop for Shared<M> {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl<M: Memory> Default for Idle<M> {
    fn default() -> Self {
        Self { parts: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use crate::payload::PayloadFile;
    use crate::simulated::Device;
    use std::sync::Arc;

    #[test]
    fn blocks_that_follow_each_other_share_memory_and_nothing_else() {
        let device = Device::new(1 << 20, 1);
        let payload = PayloadFile::over_copies(&Arc::new(device.host(1)));
        let mut first = payload.allocate(1).expect("all free");
        let span = first.reserve(64).expect("fresh").commit();
        let place = Arc::as_ptr(&first.block().shared);
        drop(first);
        assert_eq!(payload.free_bytes(), (1 << 20) - (64 << 10), "it is pinned");
        let beside = payload.allocate(1).expect("more is free");
        assert_ne!(Arc::as_ptr(&beside.block().shared), place);
        drop(span);
        assert_eq!(payload.free_bytes(), (1 << 20) - (64 << 10));
        let mut second = payload.allocate(128 << 10).expect("more is free");
        assert_eq!(Arc::as_ptr(&second.block().shared), place);
        assert_eq!((second.len(), second.pins()), (128 << 10, 0));
        let reserved = second.reserve(64).expect("fresh");
        assert_eq!((second.pins(), reserved.at()), (1, second.at()));
        drop((second, reserved, beside));
        assert_eq!(payload.free_bytes(), 1 << 20);
    }

    #[test]
    fn threads_that_drop_the_last_handles_at_once_give_the_block_back_once() {
        let device = Device::new(1 << 20, 1);
        let payload = PayloadFile::over_copies(&Arc::new(device.host(1)));
        for _ in 0..500 {
            let mut extent = payload.allocate(1).expect("all free");
            let span = extent.reserve(64).expect("fresh").commit();
            let others = [span.clone(), span.clone(), span];
            let start = std::sync::Barrier::new(others.len() + 1);
            std::thread::scope(|scope| {
                for span in others {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        drop(span);
                    });
                }
                start.wait();
                drop(extent);
            });
            assert_eq!(payload.free_bytes(), 1 << 20);
        }
    }
}
