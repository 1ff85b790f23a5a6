//! Every access to a ring's bytes, each with the reason why no other one overlaps it.
//!
//! The memory is shared by a [`Lease`](super::pool::Lease), which each of these values
//! keeps alive; that of a send ring may leave before its last handle, but not while a range or the right to send is
//! out (`queue/seal.rs`). A byte of a send ring is, in this order, free, reserved (one [`Reservation`] or
//! [`Filling`] writes it), committed (the one [`SendSpan`] reads it), and free again; `queue.rs` moves it from one to
//! the next. A byte of a receive ring is free, lent (the one [`RecvSpace`] writes it), then
//! readable or kept (shared, still), and free again once it is neither; `recv.rs` does that.

use std::ops::{Deref, DerefMut};

use super::raw::Mirror;
use super::recv::{Kept, RecvRing, RecvSpace};
use super::send::{Filling, Reservation, SendSpan, Shared};

impl Shared {
    /// Gives back the memory of a ring whose queue is sealed, bytes of which up to `touched` were written.
    pub(super) fn release_sealed(&self, touched: usize) {
        // SAFETY: the queue is sealed, which is so for one caller only: no reservation is open, no span is out, and there
        // will be none, so nobody uses the memory by the methods below.
        unsafe { self.memory.give_back(touched) };
    }
}

impl Reservation<'_> {
    #[inline]
    fn mirror(&self) -> &Mirror {
        // SAFETY: while it is open, the queue cannot be sealed, so nobody gives the memory back.
        unsafe { self.shared().memory.mirror() }
    }
}

impl Filling<'_> {
    #[inline]
    fn mirror(&self) -> &Mirror {
        // SAFETY: as for a reservation.
        unsafe { self.shared.memory.mirror() }
    }
}

impl SendSpan {
    #[inline]
    fn mirror(&self) -> &Mirror {
        // SAFETY: it has the right to send, without which the queue cannot be sealed, so nobody gives the memory back.
        unsafe { self.shared().memory.mirror() }
    }
}

impl Deref for Reservation<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (position, len) = self.range();
        // SAFETY: the queue gave this range to this reservation alone, until it is committed or
        // dropped, which ends every borrow.
        unsafe { self.mirror().bytes(position, len) }
    }
}

impl DerefMut for Reservation<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let (position, len) = self.range();
        // SAFETY: as in `deref`; `&mut self` excludes other borrows through this reservation.
        unsafe { self.mirror().bytes_mut(position, len) }
    }
}

impl Deref for Filling<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (position, len) = self.range();
        // SAFETY: as for a reservation: the queue gave this range to this value alone.
        unsafe { self.mirror().bytes(position, len) }
    }
}

impl DerefMut for Filling<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let (position, len) = self.range();
        // SAFETY: as in `deref`; `&mut self` excludes other borrows through this value.
        unsafe { self.mirror().bytes_mut(position, len) }
    }
}

impl SendSpan {
    /// What is still to send.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let (position, len) = self.range();
        // SAFETY: committed, so no thread writes them, and not free before this span moves past
        // them, which takes `&mut self`.
        unsafe { self.mirror().bytes(position, len) }
    }
}

impl RecvSpace {
    /// The memory to fill, for code that then counts what it filled with `fill_to`.
    #[inline]
    pub(crate) fn memory(&mut self) -> &mut [u8] {
        let (position, len) = self.range();
        // SAFETY: free when it was lent, lent only once at a time, and not given to readers before
        // this value is gone.
        unsafe { self.mirror().bytes_mut(position, len) }
    }

    /// What was lent, and maybe filled.
    #[inline]
    pub(crate) fn filled(&self, range: std::ops::Range<usize>) -> &[u8] {
        let (position, len) = self.range();
        // SAFETY: as in `memory`; `&self` excludes writers.
        let bytes = unsafe { self.mirror().bytes(position, len) };
        &bytes[range]
    }
}

impl RecvRing {
    /// What was received and not consumed.
    #[inline]
    pub fn readable(&self) -> &[u8] {
        let (position, len) = self.readable_range();
        // SAFETY: given back, so no thread writes them, and not free before `consume`, which takes
        // `&mut self`.
        unsafe { self.mirror().bytes(position, len) }
    }
}

impl Deref for Kept {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (position, len) = self.range();
        // SAFETY: they were readable when they were pinned, and are not free before the last
        // clone of this value is dropped.
        unsafe { self.mirror().bytes(position, len) }
    }
}
