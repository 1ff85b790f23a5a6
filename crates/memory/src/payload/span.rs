//! Ranges of a block: a reservation is written by its one holder, and once committed it is a span, which any number
//! read and nobody writes.

use crate::canary::{Canary, injected};
use std::fmt;
use std::ops::Range;

use super::block::Block;
use crate::file_id::FileId;
use crate::mapped::Mapped;
use crate::memory::Memory;

/// The exclusive right to write a range of payload memory.
///
/// Dropped without [`Reservation::commit`], it leaves nothing that others can see.
pub struct Reservation<M: Memory> {
    block: Block<M>,
    at: u64,
    len: usize,
}

impl<M: Memory> Reservation<M> {
    /// The extent hands out every range of its block once; this is the only handle on this one.
    pub(super) fn new(block: Block<M>, at: u64, len: usize) -> Self {
        Self { block, at, len }
    }

    /// Where it starts in `block`; `None` if it lies in another one.
    pub(super) fn start_in(&self, block: &Block<M>) -> Option<u64> {
        self.block.is(block).then(|| self.at - block.at())
    }

    /// Offset in the payload file, a multiple of 64.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Bytes reserved; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes bytes at offset `off` of the range. Panics when they do not fit.
    pub fn write(&mut self, off: usize, bytes: &[u8]) {
        let end = off.checked_add(bytes.len()).expect("an offset in memory");
        self.with_bytes_mut(off..end, |into| into.copy_from_slice(bytes));
    }

    /// Shows what was written so far in a part of the range. Panics when it is out of bounds.
    pub fn with_bytes<R>(&self, range: Range<usize>, f: impl FnOnce(&[u8]) -> R) -> R {
        let (at, len) = part(self.at, self.len, &range);
        // SAFETY: this is the only handle on the range, and writing takes `&mut self`.
        unsafe { self.block.memory().with_bytes(at, len, f) }
    }

    /// Shows a part of the range for writing. Panics when it is out of bounds.
    pub fn with_bytes_mut<R>(&mut self, range: Range<usize>, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let (at, len) = part(self.at, self.len, &range);
        // SAFETY: this is the only handle on the range, and it is borrowed exclusively.
        unsafe { self.block.memory().with_bytes_mut(at, len, f) }
    }

    /// As [`Reservation::write`], and lets the lines written go to memory while they are in the cache. Of
    /// all lines it is still [`Reservation::write_back`] that says when they are there.
    pub fn write_through(&mut self, off: usize, bytes: &[u8]) {
        self.write(off, bytes);
        if !injected(Canary::CommitWriteBack) {
            let memory = self.block.memory();
            memory.write_back(self.at + off as u64, bytes.len() as u64);
        }
    }

    /// When this returns, the caller may publish a record that points here. After that it may write
    /// on only when no reader may follow that record any more.
    pub fn write_back(&self) {
        let memory = self.block.memory();
        if !injected(Canary::CommitWriteBack) {
            memory.write_back(self.at, self.len as u64);
        }
        if !injected(Canary::CommitFence) {
            memory.fence();
        }
    }

    /// Ends the writing of what was written back.
    pub fn seal(self) -> Span<M> {
        Span::new(self.block, self.at, self.len)
    }

    /// Ends the writing: when this returns, a record that points here may be published.
    pub fn commit(self) -> Span<M> {
        self.write_back();
        self.seal()
    }
}

impl Reservation<Mapped> {
    /// The range itself.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: this is the only handle on the range, and writing takes `&mut self`.
        unsafe { self.block.memory().slice(self.at, self.len) }
    }

    /// The range itself, for the kernel or a copy to write into.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: this is the only handle on the range, and the slice borrows it exclusively.
        unsafe { self.block.memory().slice_mut(self.at, self.len) }
    }
}

/// Committed bytes: they are not written while a span on them lives.
pub struct Span<M: Memory> {
    block: Block<M>,
    at: u64,
    len: usize,
}

impl<M: Memory> Clone for Span<M> {
    fn clone(&self) -> Self {
        Self::new(self.block.clone(), self.at, self.len)
    }
}

impl<M: Memory> Span<M> {
    /// The range was committed, or recovered: no reservation on it exists or will.
    pub(super) fn new(block: Block<M>, at: u64, len: usize) -> Self {
        Self { block, at, len }
    }

    /// Offset in the payload file.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Bytes of the span.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes: only an empty slice of another span.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it. Panics when the range is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let (at, len) = part(self.at, self.len, &range);
        Self::new(self.block.clone(), at, len)
    }

    /// This span and the one that follows it without a gap in the same extent, as one.
    pub fn join(&self, next: &Self) -> Option<Self> {
        let adjacent = self.at + self.len as u64 == next.at && self.block.is(&next.block);
        adjacent.then(|| Self::new(self.block.clone(), self.at, self.len + next.len))
    }

    /// The file in which it lies; `None` for memory without a file.
    pub fn file(&self) -> Option<FileId> {
        self.block.memory().file()
    }

    pub(super) fn block(&self) -> &Block<M> {
        &self.block
    }

    /// Shows the bytes.
    pub fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: committed bytes are not written again while their block is held, and we hold it.
        unsafe { self.block.memory().with_bytes(self.at, self.len, f) }
    }
}

impl Span<Mapped> {
    /// The bytes themselves.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: committed bytes are not written again while their block is held, and we hold it.
        unsafe { self.block.memory().slice(self.at, self.len) }
    }
}

/// Offset and length of a part of `at..at + len`.
fn part(at: u64, len: usize, range: &Range<usize>) -> (u64, usize) {
    assert!(
        range.start <= range.end && range.end <= len,
        "bytes {}..{} of a range of {len}",
        range.start,
        range.end
    );
    (at + range.start as u64, range.end - range.start)
}

impl<M: Memory> fmt::Debug for Reservation<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("at", &self.at)
            .field("len", &self.len)
            .finish()
    }
}

impl<M: Memory> fmt::Debug for Span<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span")
            .field("at", &self.at)
            .field("len", &self.len)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::payload::PayloadFile;
    use crate::simulated::Device;
    use std::sync::Arc;

    /// Commits a page under some seed and says whether another host then reads it.
    fn seen_elsewhere(seed: u64, flushed: bool) -> bool {
        let device = Device::new(64 << 10, 1);
        let payload = |seed| PayloadFile::over_copies(&Arc::new(device.host(seed)));
        let here = payload(seed);
        let mut extent = here.allocate(1).expect("all free");
        let mut reservation = extent.reserve(4096).expect("fresh");
        reservation.write(0, &[7; 4096]);
        let span = if flushed {
            reservation.commit()
        } else {
            reservation.seal()
        };
        span.with_bytes(|bytes| assert_eq!(bytes, [7; 4096], "its own host always reads it"));
        let there = payload(seed + 1);
        let mut extent = there.allocate_at(0, 0).expect("all free");
        extent.set_cursor(4096);
        let span = extent.span(0, 4096).expect("below the cursor");
        span.with_bytes(|bytes| bytes == [7; 4096])
    }

    #[test]
    fn a_commit_without_write_back_is_noticed() {
        for seed in 0..20 {
            assert!(seen_elsewhere(seed, true), "seed {seed}");
            assert!(!seen_elsewhere(seed, false), "seed {seed}: the canary sang");
        }
    }
}
