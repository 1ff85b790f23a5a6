//! The memory of a send ring, which leaves before the ring does: handles of it may live for long after its end.

use std::cell::UnsafeCell;
use std::panic::RefUnwindSafe;

use super::pool::Lease;
use super::raw::Mirror;

/// Memory until it is given back, once, when nobody can use it any more.
pub(super) struct RingMemory(UnsafeCell<Lease>);

// SAFETY: shared references are used only as `mirror` and `give_back` say, whose callers vouch that the two never
// overlap; a lease itself may be used and dropped by any thread.
unsafe impl Sync for RingMemory {}

// It changes in one step, in which nothing panics.
impl RefUnwindSafe for RingMemory {}

impl RingMemory {
    pub(super) fn new(lease: Lease) -> Self {
        Self(UnsafeCell::new(lease))
    }

    /// The memory.
    ///
    /// # Safety
    /// It was not given back, and is not while the reference lives.
    #[inline]
    pub(super) unsafe fn mirror(&self) -> &Mirror {
        // SAFETY: nobody gives it back meanwhile, as our caller vouches, and nothing else changes it.
        unsafe { (*self.0.get()).mirror() }
    }

    /// Gives the memory back to its pool; bytes of it up to `touched` were written.
    ///
    /// # Safety
    /// Nobody else uses it, now or later, by this method or the other.
    pub(super) unsafe fn give_back(&self, touched: usize) {
        // SAFETY: as our caller vouches, this is the only access.
        let lease = unsafe { &mut *self.0.get() };
        lease.touch(touched);
        lease.give_back();
    }

    /// For the ring's only owner: bytes up to `touched` were written.
    pub(super) fn touch(&mut self, touched: usize) {
        self.0.get_mut().touch(touched);
    }
}
