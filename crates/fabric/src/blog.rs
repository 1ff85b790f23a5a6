//! A broker's payload memory: blocks from a buddy allocator, handed out as handles that keep
//! their bytes from being used again.
//!
//! [`Blog`] gives [`Extent`]s; an extent gives [`Reservation`]s, each the exclusive right to write
//! a range; a reservation that is committed becomes a [`Span`], which is never written again. A
//! block returns to the allocator when its extent and everything on it are dropped, so bytes that
//! somebody holds neither move nor change.
//!
//! What is free and what is not lives in the owner's private memory only; a successor rebuilds it
//! from the records that it finds, with [`Blog::allocate_at`].

mod buddy;
mod extent;
mod foreign;
mod span;

pub use buddy::ORDER_MAX;
pub use extent::Extent;
pub use foreign::Foreign;
pub use span::{Reservation, Span};

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::geometry::UNIT_BYTES;
use crate::memory::Memory;
use buddy::Buddy;

/// The payload memory of one row, for its owner.
pub struct Blog<M: Memory> {
    store: Arc<Store<M>>,
}

impl<M: Memory> Blog<M> {
    /// Panics when the memory is in use by another blog of this process.
    pub(crate) fn over(memory: &Arc<M>, bytes: u64, lock: Option<Arc<File>>) -> Self {
        assert!(
            held().insert(address(memory)),
            "this blog is in use already: drop it, and all that was allocated from it, first"
        );
        let store = Store {
            memory: Arc::clone(memory),
            buddy: Mutex::new(Buddy::new(bytes)),
            _lock: lock,
        };
        Self {
            store: Arc::new(store),
        }
    }

    /// A free block of at least `bytes`, at least 64 KiB, rounded up to a power of two.
    ///
    /// `None` when no block of that size is free, or `bytes` exceed 16 MiB.
    pub fn allocate(&self, bytes: u32) -> Option<Extent<M>> {
        let order = Buddy::order_for(bytes)?;
        let at = self.store.buddy().allocate(order)?;
        Some(self.extent(at, order))
    }

    /// The block of `order` at `at`, for recovery: both may come from shared memory.
    ///
    /// `None` when there is no such block, or some of it is not free.
    pub fn allocate_at(&self, at: u64, order: u8) -> Option<Extent<M>> {
        self.store
            .buddy()
            .allocate_at(at, order)
            .then(|| self.extent(at, order))
    }

    /// Recovery: the block of `order` that holds `len` bytes at `at`, as its start and the end of
    /// those bytes within it, for [`Blog::allocate_at`] and [`Extent::set_cursor`].
    ///
    /// All numbers may come from shared memory: `None` for an order that no block has, or bytes
    /// that lie in no single block.
    pub fn locate(at: u64, len: u32, order: u8) -> Option<(u64, u32)> {
        let block_bytes = (order <= ORDER_MAX).then_some(UNIT_BYTES << order)?;
        let start = at & !(block_bytes - 1);
        let end = at - start + u64::from(len);
        (end <= block_bytes).then_some((start, end as u32))
    }

    /// Bytes in free blocks.
    pub fn free_bytes(&self) -> u64 {
        self.store.buddy().free_bytes()
    }

    /// Bytes in all.
    pub fn total_bytes(&self) -> u64 {
        self.store.buddy().total_bytes()
    }

    fn extent(&self, at: u64, order: u8) -> Extent<M> {
        Extent::new(Block {
            store: Arc::clone(&self.store),
            at,
            order,
        })
    }
}

impl<M: Memory> fmt::Debug for Blog<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (free, total) = (self.free_bytes(), self.total_bytes());
        f.debug_struct("Blog")
            .field("free_bytes", &free)
            .field("total_bytes", &total)
            .finish()
    }
}

/// What all handles on one blog share.
struct Store<M: Memory> {
    memory: Arc<M>,
    buddy: Mutex<Buddy>,
    /// The owner's lock on the row: nobody else takes the memory over while a handle lives.
    _lock: Option<Arc<File>>,
}

impl<M: Memory> Store<M> {
    fn buddy(&self) -> MutexGuard<'_, Buddy> {
        // The allocator panics only before it changes anything.
        self.buddy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Memory> Drop for Store<M> {
    fn drop(&mut self) {
        held().remove(&address(&self.memory));
    }
}

/// Addresses of the memories that have a blog in this process. A `Store` holds its memory, so an
/// address in the set is never another memory's.
fn held() -> MutexGuard<'static, BTreeSet<usize>> {
    static HELD: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn address<M>(memory: &Arc<M>) -> usize {
    Arc::as_ptr(memory).addr()
}

/// One allocated block. Whoever holds an `Arc` of it keeps it from being allocated again.
struct Block<M: Memory> {
    store: Arc<Store<M>>,
    at: u64,
    order: u8,
}

impl<M: Memory> Block<M> {
    fn len(&self) -> u32 {
        (UNIT_BYTES << self.order) as u32
    }

    fn memory(&self) -> &M {
        &self.store.memory
    }
}

impl<M: Memory> Drop for Block<M> {
    fn drop(&mut self) {
        self.store.buddy().free(self.at, self.order);
    }
}
