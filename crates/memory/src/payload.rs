//! Payload memory: blocks from a buddy allocator, handed out as handles that keep their bytes from
//! being used again.
//!
//! [`PayloadFile`] gives [`Extent`]s; an extent gives [`Reservation`]s, each the exclusive right to
//! write a range; a committed reservation becomes a [`Span`], which is never written again. A block
//! returns to the allocator when the owner has dropped its extent and everything on it, so bytes
//! that are held neither move nor change.
//!
//! Which blocks are free is known in the owner's private memory only. A successor rebuilds that from
//! the records that it finds, with [`PayloadFile::allocate_at`].
//!
//! # Who reaches the bytes of a mapping
//!
//! A slice promises that its bytes stand still, or have no other user. Every safe way to bytes of a
//! mapping is here, with what keeps that promise. If you change one, read this list again.
//!
//! *Words.* [`Memory::load`] and the like read and write atomic words, by however many mappings of a
//! file there are. No safe function of this trait shows a slice of them. So a race on words costs data,
//! never soundness.
//!
//! *The memory itself.* [`Mapped::map`] is unsafe: its caller vouches that no one uses words of a file
//! where a payload file shows slices. The mapping that every caller
//! may make, [`Mapped::anonymous`], is of a file that no one else can reach. What takes memory that its caller
//! keeps should take only what [shows copies](ShowsCopies).
//!
//! *One payload file.* [`PayloadFile::over`] makes slices possible, and is unsafe for that reason.
//! Within a process it takes an [`Exclusive`] for the file (device and inode, so also for a second
//! mapping or a second name), which everything that comes of the payload file holds. A lock,
//! which the payload file holds as long, keeps other processes away. Nothing keeps away a process that
//! ignores locks, or truncates files: the directory of such a file is its user's alone.
//!
//! *One way of seeing.* [`Foreign`] bytes are copied word by word ([`Foreign::copy_to`]) or read by the
//! kernel ([`Foreign::as_ptr`] is an address, and no more), as their owner may write them. Beside a slice
//! of the same mapping even that would be a race. So the caller of [`PayloadFile::over`] vouches that it
//! makes no [`Foreign`] of the same memory. Another mapping is other memory, whichever process has it:
//! so two owners in one process may read each other's payload.
//!
//! *Blocks.* `Buddy` gives each block to one [`Extent`], which has its bytes until the last handle on
//! the block is gone; [`PayloadFile::allocate_at`] takes numbers from shared memory and gives only what is
//! free.
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
//! *Loans.* A [`Loan`] is a span that another process reads by a mapping of its own
//! ([`LentView`](crate::LentView)), which is other memory. The loan keeps the block, so these bytes stand still
//! for that process, too, until the loan ends: when the reader says so, or once its mapping is gone. Nobody need hear of the reader for that: the lock
//! on the block lives on with the mapping ([`LentView::slice`](crate::LentView::slice) is unsafe: who calls it trusts the owner), and what is locked is [held](Held), by this owner and by the next ones. Nothing is reserved in
//! what the next ones find held, but by [`Extent::reserve_unlent`], whose callers know what was not lent.
//!
//! *Presence.* [`Mapped::populate`] touches pages, on old kernels by loads. Where there may be slices, its
//! caller holds the [`Exclusive`] meanwhile.

mod block;
mod buddy;
mod exclusive;
mod extent;
mod foreign;
mod held;
mod kept;
mod loan;
mod span;
mod unit;

pub use exclusive::Exclusive;
pub use extent::Extent;
pub use foreign::Foreign;
pub use held::Held;
pub use kept::LENT_PART;
pub use loan::Loan;
pub use span::{Reservation, Span};
pub use unit::{BLOCK_BYTES_MAX, ORDER_MAX, UNIT_BYTES};

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::lent::LentFile;
use crate::mapped::{Coherence, Mapped};
use crate::memory::{Memory, ShowsCopies};
use block::{Block, Idle};
use buddy::Buddy;

/// The payload memory of one owner.
pub struct PayloadFile<M: Memory> {
    store: Arc<Store<M>>,
}

impl PayloadFile<Mapped> {
    /// Payload memory of `bytes` that no file name leads to, and that no other process shares.
    ///
    /// `bytes` is a positive multiple of 64 KiB.
    ///
    /// # Errors
    /// When the kernel has no memory or descriptors.
    pub fn anonymous(bytes: u64, coherence: Coherence) -> io::Result<Self> {
        let memory = Arc::new(Mapped::anonymous(bytes, coherence)?);
        // SAFETY: nothing else reaches this mapping: it is new, and goes nowhere but here.
        Ok(unsafe { Self::over(Exclusive::take(&memory), bytes, None) })
    }

    /// As [`PayloadFile::anonymous`], with the descriptor by which it can be lent: for tests and benches, because who has that
    /// could write by it, too.
    ///
    /// # Errors
    /// As there.
    pub fn anonymous_lent(bytes: u64, coherence: Coherence) -> io::Result<(Self, LentFile)> {
        let (memory, file) = Mapped::anonymous_file(bytes, coherence)?;
        let memory = Arc::new(memory);
        // SAFETY: only readers are given the file, who map it for reading.
        let payload = unsafe { Self::over(Exclusive::take(&memory), bytes, None) };
        let file = LentFile::new(file)?;
        Ok((payload.lending(file.clone()), file))
    }
}

impl<M: ShowsCopies> PayloadFile<M> {
    /// Divides all of a memory that shows copies of its bytes: for simulations and tests.
    ///
    /// # Panics
    /// While there is another payload file of this memory.
    pub fn over_copies(memory: &Arc<M>) -> Self {
        // SAFETY: whatever the caller does to the memory meanwhile, no slice is of its bytes.
        unsafe { Self::over(Exclusive::take(memory), memory.len(), None) }
    }
}

impl<M: Memory> PayloadFile<M> {
    /// Divides the first `bytes` of a memory, all of them free. The lock keeps other processes away
    /// for as long as anything of the payload file lives.
    ///
    /// # Safety
    ///
    /// While anything of the payload file lives, these bytes are loaded and stored by this memory
    /// value only through it, and written by no other mapping and no other process. (Memory that
    /// [shows copies](ShowsCopies) asks nothing.)
    pub unsafe fn over(memory: Exclusive<M>, bytes: u64, lock: Option<Arc<File>>) -> Self {
        let store = Store {
            memory,
            buddy: Mutex::new(Buddy::new(bytes)),
            idle: Mutex::new(Idle::default()),
            lends: OnceLock::new(),
            held: AtomicU64::new(0),
            unasked: Mutex::default(),
            returned: AtomicU64::new(0),
            _lock: lock,
        };
        Self {
            store: Arc::new(store),
        }
    }

    /// The same, of which readers map this file. What readers of owners before keep locked is **held**: it goes to no
    /// block but those that [`PayloadFile::allocate_at`] finds, and those take nothing more.
    ///
    /// # Panics
    /// When it was called before.
    pub fn lending(self, file: LentFile) -> Self {
        let locked = file.find_locked(UNIT_BYTES);
        let mut buddy = self.store.buddy();
        for bytes in locked {
            buddy.hold(units_of(&bytes));
        }
        let held = buddy.kept.held_bytes();
        drop(buddy);
        self.store.held.store(held, Ordering::Relaxed);
        let again = self.store.lends.set(file);
        assert!(again.is_ok(), "a payload file is lent as one file");
        self
    }

    /// What is held: see [`Held`].
    pub fn held(&self) -> Held<M> {
        Held::of(&self.store)
    }

    /// Bytes that are [held](Held).
    pub fn held_bytes(&self) -> u64 {
        self.store.held.load(Ordering::Relaxed)
    }

    /// Whether so much is [held](Held) that readers cannot have it: another program has locked the file, or much of it, when this owner
    /// took it over. It is all held, because readers may have some of it, until that lock is gone.
    pub fn is_locked_by_others(&self) -> bool {
        self.held_bytes() > 0 && self.store.buddy().kept.is_more_than_lent()
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
        let taken = self.store.buddy().allocate_at(at, order);
        taken.then(|| Extent::found(Block::new(&self.store, at, order)))
    }

    /// Recovery: the block of `order` that holds `len` bytes at `at`, as its start and the end of
    /// those bytes within it, for [`PayloadFile::allocate_at`] and [`Extent::set_cursor`].
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

    /// Bytes of the blocks of which something is [lent](Span::lend), and of what is [held](Held); what is both counts once. While it is
    /// an [eighth](LENT_PART) of all, no further block is lent.
    pub fn lent_bytes(&self) -> u64 {
        self.store.buddy().kept.bytes()
    }

    /// Bytes of blocks that outlive their extents, because of reservations and spans on them, without what is lent or held: that may
    /// stay for as long as readers like.
    pub fn pinned_bytes(&self) -> u64 {
        self.store.buddy().kept.pinned_bytes()
    }

    /// How often the last loan on a block ended so far: another number when there may be a block that nobody reads any more.
    pub fn returned_blocks(&self) -> u64 {
        self.store.returned.load(Ordering::Relaxed)
    }

    /// Bytes in all.
    pub fn total_bytes(&self) -> u64 {
        self.store.buddy().total_bytes()
    }

    fn extent(&self, at: u64, order: u8) -> Extent<M> {
        Extent::new(Block::new(&self.store, at, order))
    }
}

impl<M: Memory> fmt::Debug for PayloadFile<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (free, total) = (self.free_bytes(), self.total_bytes());
        f.debug_struct("PayloadFile")
            .field("free_bytes", &free)
            .field("total_bytes", &total)
            .finish()
    }
}

/// The units that these bytes touch.
fn units_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / UNIT_BYTES..bytes.end.div_ceil(UNIT_BYTES)
}

/// What all handles on one payload file share.
struct Store<M: Memory> {
    memory: Exclusive<M>,
    buddy: Mutex<Buddy>,
    /// Memory for the handles on blocks to come.
    idle: Mutex<Idle<M>>,
    /// What readers map, if it is lent to other processes.
    lends: OnceLock<LentFile>,
    /// Bytes that are held for readers that nobody hears of any more.
    held: AtomicU64,
    /// What is held of which it is still to be found out whether somebody reads it: of a pass over all, what is left.
    unasked: Mutex<Vec<Range<u64>>>,
    /// How often a block was lent no more.
    returned: AtomicU64,
    /// The owner's lock: no other process takes the memory over while a handle lives.
    _lock: Option<Arc<File>>,
}

impl<M: Memory> Store<M> {
    fn buddy(&self) -> MutexGuard<'_, Buddy> {
        // The allocator panics only before it changes anything.
        self.buddy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> MutexGuard<'_, Idle<M>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
