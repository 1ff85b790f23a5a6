//! The receiving ring: one owner, whose memory is lent to the reactor and kept by readers.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use super::pins::{HolderCounts, Pins};
use super::pool::{Lease, RingPool};
use super::raw::Mirror;

/// Pins that are counted each by itself. More are counted together with the last.
const PINS: usize = 64;

struct Shared {
    memory: Lease,
    holders: HolderCounts,
    /// A space is out.
    lent: AtomicBool,
}

/// A ring to receive into. Its memory lives until the last part of it is dropped.
pub struct RecvRing {
    shared: Arc<Shared>,
    pins: Pins,
    /// The first byte not consumed, and the first not received; counted for ever, but both begin
    /// anew when the ring is empty.
    read: u64,
    write: u64,
    capacity: usize,
}

impl RecvRing {
    /// An empty ring with memory of `pool`.
    ///
    /// # Errors
    /// When the kernel has no memory, mappings or descriptors left.
    pub fn new(pool: &RingPool) -> io::Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared {
                memory: pool.lease()?,
                holders: HolderCounts::new(PINS),
                lent: AtomicBool::new(false),
            }),
            pins: Pins::new(PINS),
            read: 0,
            write: 0,
            capacity: pool.capacity(),
        })
    }

    /// Lends up to `max` free bytes, those behind what is readable. `None` while a space is lent,
    /// or without room.
    pub fn lend(&mut self, max: usize) -> Option<RecvSpace> {
        // Acquire: partner of the drop of a space; its writes end before the next begin.
        if self.shared.lent.load(Ordering::Acquire) {
            return None;
        }
        let oldest = self.pins.oldest(&self.shared.holders);
        if oldest.is_none() && self.read == self.write {
            // A quiet ring then uses its first few pages only.
            (self.read, self.write) = (0, 0);
        }
        let len = self.free_behind(oldest).min(max);
        if len == 0 {
            return None;
        }
        self.shared.lent.store(true, Ordering::Relaxed);
        Some(RecvSpace {
            shared: Arc::clone(&self.shared),
            start: self.write,
            len,
            filled: 0,
        })
    }

    /// Takes a space back, of which the first `filled` bytes are readable from now on.
    ///
    /// # Panics
    /// If the space is another ring's, or fewer bytes of it were filled.
    pub fn give_back(&mut self, space: RecvSpace, filled: usize) {
        assert!(
            Arc::ptr_eq(&self.shared, &space.shared),
            "a space of another ring"
        );
        assert!(
            filled <= space.filled,
            "only {} bytes were filled, not {filled}",
            space.filled
        );
        self.write += filled as u64;
    }

    /// Drops the first `count` readable bytes. Those that are kept stay where they are.
    ///
    /// # Panics
    /// If fewer are readable.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "consumed more than there is");
        self.read += count as u64;
    }

    /// Pins `range` of [`RecvRing::readable`]: those bytes stay valid and fixed until the result
    /// and all its clones are dropped.
    ///
    /// # Panics
    /// If `range` is not within what is readable.
    pub fn keep(&self, range: Range<usize>) -> Kept {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "range {range:?} is not within {} readable bytes",
            self.len()
        );
        let start = self.read + range.start as u64;
        Kept {
            pin: self.pins.pin(&self.shared.holders, start),
            shared: Arc::clone(&self.shared),
            start,
            len: range.len(),
        }
    }

    /// Bytes that are readable.
    fn len(&self) -> usize {
        (self.write - self.read) as usize
    }

    /// Bytes from the oldest [`Kept`] to the end of what is received; 0 when nothing is kept.
    pub fn pinned(&self) -> usize {
        let oldest = self.pins.oldest(&self.shared.holders);
        oldest.map_or(0, |start| (self.write - start) as usize)
    }

    /// Bytes that could be lent, or are.
    pub fn free(&self) -> usize {
        self.free_behind(self.pins.oldest(&self.shared.holders))
    }

    fn free_behind(&self, oldest: Option<u64>) -> usize {
        let first = oldest.map_or(self.read, |oldest| oldest.min(self.read));
        self.capacity - (self.write - first) as usize
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Wakes `waker` once, when the last holder of some [`Kept`] drops it. Ask [`RecvRing::free`]
    /// after this call: a drop before it does not count.
    pub fn on_release(&self, waker: Waker) {
        self.shared.holders.on_release(waker);
    }

    #[inline]
    pub(super) fn mirror(&self) -> &Mirror {
        self.shared.memory.mirror()
    }

    #[inline]
    pub(super) fn readable_range(&self) -> (usize, usize) {
        (self.read as usize, self.len())
    }
}

impl fmt::Debug for RecvRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecvRing({} of {})", self.len(), self.capacity)
    }
}

/// Free memory of a [`RecvRing`], lent to be filled from its start. Dropping it gives it back with
/// nothing in it.
pub struct RecvSpace {
    shared: Arc<Shared>,
    start: u64,
    len: usize,
    /// How much may have been written.
    filled: usize,
}

impl RecvSpace {
    /// Bytes lent.
    #[expect(clippy::len_without_is_empty, reason = "nothing is never lent")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The memory. All of it counts as filled from now on; its content at first is unspecified:
    /// zeros, or what this ring received earlier.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.filled = self.len;
        self.memory()
    }

    /// Counts the first `filled` bytes as filled.
    pub(crate) fn fill_to(&mut self, filled: usize) {
        assert!(filled <= self.len, "filled beyond the space");
        self.filled = self.filled.max(filled);
    }

    #[inline]
    pub(super) fn mirror(&self) -> &Mirror {
        self.shared.memory.mirror()
    }

    #[inline]
    pub(super) fn range(&self) -> (usize, usize) {
        (self.start as usize, self.len)
    }
}

impl Drop for RecvSpace {
    fn drop(&mut self) {
        self.shared.memory.touch(self.start as usize + self.filled);
        // Release: partner of `lend`.
        self.shared.lent.store(false, Ordering::Release);
    }
}

impl fmt::Debug for RecvSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecvSpace({} of {} bytes)", self.filled, self.len)
    }
}

/// Received bytes that stay valid and fixed until it and all its clones are dropped, on whatever
/// thread. The ring cannot receive into them, nor into what came after them, meanwhile.
pub struct Kept {
    shared: Arc<Shared>,
    pin: u32,
    start: u64,
    len: usize,
}

impl Kept {
    #[inline]
    pub(super) fn mirror(&self) -> &Mirror {
        self.shared.memory.mirror()
    }

    #[inline]
    pub(super) fn range(&self) -> (usize, usize) {
        (self.start as usize, self.len)
    }
}

impl Clone for Kept {
    fn clone(&self) -> Self {
        self.shared.holders.hold(self.pin);
        Self {
            shared: Arc::clone(&self.shared),
            pin: self.pin,
            start: self.start,
            len: self.len,
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.shared.holders.release(self.pin);
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({} bytes)", self.len)
    }
}
