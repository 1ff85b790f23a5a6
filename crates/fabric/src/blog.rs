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
//!
//! # Who reaches the bytes of a mapping
//!
//! A slice promises that its bytes stand still, or are nobody else's. Every safe way to bytes of a
//! mapping is here, with what keeps that promise. Where one changes, this list is read again.
//!
//! *Words.* The tables of the control file are read and written as atomic words ([`Memory::load`] and
//! the like) by however many mappings there are; no function shows a slice of them, so `Region` may be
//! opened and cloned at will, and claims may be made up. What is wrong with a record costs data, never
//! soundness. The control file is no payload file: [`Region::open`](crate::Region::open) refuses two
//! names of one file.
//!
//! *The memory itself.* A [`Mapped`](crate::Mapped) of a region's file is made by the region and never
//! handed out. One that a caller has ([`Mapped::anonymous`](crate::Mapped::anonymous)) is in no region:
//! what takes memory from its caller takes only what [shows copies](crate::ShowsCopies).
//!
//! *One blog.* [`Region::blog`](crate::Region::blog) makes slices possible. Within a process an
//! `Exclusive` for the file (device and inode, so also for a second `open`, a second name, a second
//! claim) is taken first, and held by all that comes of the blog. From other processes the row's lock
//! keeps it, which the claim has and the blog then has, too; the claim must be one on the very file that
//! is mapped, not on a copy of it. One who ignores locks, or truncates files, can be kept away by
//! nobody: a region's directory is its user's alone.
//!
//! *One way of seeing.* [`Foreign`] bytes are copied word by word ([`Foreign::copy_to`]) or read by the
//! kernel ([`Foreign::as_ptr`] is an address, and no more), as their owner may write them. Beside a slice
//! of the same mapping even that would be a race, so a region value shows a row either as its own or as
//! foreign, for good ([`Region::foreign`](crate::Region::foreign)). Another mapping is other memory,
//! whichever process has it: so brokers in one process read each other's payload.
//!
//! *Blocks.* `Buddy` gives each block to one [`Extent`], which has its bytes until the last handle on
//! the block is gone; [`Blog::allocate_at`] takes numbers from shared memory and gives only what is free.
//!
//! *Ranges.* [`Extent::reserve`] hands out each range above the cursor once;
//! [`Extent::give_back`] lowers the cursor only by the last one, consumes it, and knows its own block
//! by address, which the reservation keeps from being another's. [`Extent::set_cursor`] raises the cursor
//! only before the first reservation, and [`Extent::span`] shows only what lies below that: memory on
//! which no reservation exists or will.
//!
//! *Slices.* A [`Reservation`] is not cloned; [`Reservation::with_bytes_mut`], [`Reservation::write`] and
//! [`Reservation::as_mut_slice`] borrow it exclusively, [`Reservation::with_bytes`] and
//! [`Reservation::as_slice`] keep those away meanwhile. [`Reservation::commit`] and
//! [`Reservation::seal`] consume it, so a [`Span`] has no writer; [`Span::slice`] and [`Span::join`] stay
//! within bytes of spans. [`Reservation::write_back`] lets other hosts see bytes before they are sealed:
//! to those they are foreign.
//!
//! *Presence.* [`Region::prefault`](crate::Region::prefault) touches pages of a payload file, on old
//! kernels by loads, which no writer of slices expects: it takes the `Exclusive` for as long as it runs.

mod buddy;
mod exclusive;
mod extent;
mod foreign;
mod span;

pub use buddy::ORDER_MAX;
pub use extent::Extent;
pub use foreign::Foreign;
pub use span::{Reservation, Span};

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::geometry::UNIT_BYTES;
use crate::memory::Memory;
use buddy::Buddy;
pub(crate) use exclusive::Exclusive;

/// The payload memory of one row, for its owner.
pub struct Blog<M: Memory> {
    store: Arc<Store<M>>,
}

impl<M: Memory> Blog<M> {
    /// The lock keeps other processes away for as long as anything of the blog lives.
    pub(crate) fn over(memory: Exclusive<M>, bytes: u64, lock: Option<Arc<File>>) -> Self {
        let store = Store {
            memory,
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

    /// How large a block must be for so many bytes; `None` when there are none so large.
    pub fn block_bytes(bytes: u32) -> Option<u32> {
        Some((UNIT_BYTES << Buddy::order_for(bytes)?) as u32)
    }

    /// Bytes in free blocks that lie in these places.
    pub fn free_bytes_in(&self, places: Range<u64>) -> u64 {
        self.store.buddy().free_bytes_in(places)
    }

    /// Bytes in free blocks.
    pub fn free_bytes(&self) -> u64 {
        self.store.buddy().free_bytes()
    }

    /// Blocks that were given back so far: another number when there may be room where there was none.
    pub fn freed_blocks(&self) -> u64 {
        self.store.buddy().freed()
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
    memory: Exclusive<M>,
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
        self.store.memory.get()
    }
}

impl<M: Memory> Drop for Block<M> {
    fn drop(&mut self) {
        self.store.buddy().free(self.at, self.order);
    }
}
