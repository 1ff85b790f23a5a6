//! The trait by which all code uses shared memory. That code is generic over it, so the simulator runs, on simulated
//! memory, the code that production runs on mapped files.

use crate::damage::Damage;
use crate::file_id::FileId;

/// Bytes that are copied before they are shown: they fit into a first-level cache.
const SEEN_BYTES: usize = 8 << 10;

/// One host's view of one shared file of bytes.
///
/// Offsets count bytes from the start of the file. Words are 64 bits, little-endian, 8-aligned.
/// An offset out of bounds or out of alignment is a bug of the caller and panics: validate an
/// offset that was found in shared memory before following it.
///
/// Publishing takes `store`, `write_back`, `fence`, in this order; observing takes `invalidate`,
/// then `load`. On coherent memory the extra calls cost next to nothing.
pub trait Memory: Send + Sync + 'static {
    /// Length of the file in bytes, a multiple of 64.
    fn len(&self) -> u64;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file whose bytes these are, which others may map, too; `None` for memory without a file.
    fn file(&self) -> Option<FileId> {
        None
    }

    /// Whether all processes see stores in the order in which they were made, fenced or not.
    fn is_coherent(&self) -> bool;

    /// Loads the word at `at`. Acquire: partner of [`Memory::store`] of the same word.
    fn load(&self, at: u64) -> u64;

    /// Stores the word at `at`. Release: partner of [`Memory::load`] of the same word.
    fn store(&self, at: u64, value: u64);

    /// Copies bytes out, word by word and unordered: another process may write them meanwhile.
    ///
    /// `at` is 8-aligned; the length may be any.
    fn read(&self, at: u64, into: &mut [u8]);

    /// As [`Memory::read`], for bytes that this processor does not read soon again: `see` is shown all that was copied, in
    /// parts, one after the other, while they are in its cache. What it is shown is what is in `into`, whatever others write.
    fn read_seen(&self, at: u64, into: &mut [u8], see: &mut dyn FnMut(&[u8])) {
        for (at, part) in (at..).step_by(SEEN_BYTES).zip(into.chunks_mut(SEEN_BYTES)) {
            self.read(at, part);
            see(part);
        }
    }

    /// Copies bytes in, word by word and unordered.
    ///
    /// `at` is 8-aligned. When the length is not a multiple of 8, the rest of the last word is
    /// stored back as it was read, so the whole word must belong to the caller.
    fn write(&self, at: u64, from: &[u8]);

    /// Starts to write back every line that `at..at + len` touches.
    fn write_back(&self, at: u64, len: u64);

    /// Completes all write-backs that were started before any later store becomes visible.
    fn fence(&self);

    /// Makes later loads of the lines that `at..at + len` touches see what others wrote back before.
    fn invalidate(&self, at: u64, len: u64);

    /// Shows `len` bytes at `at` as a plain slice.
    ///
    /// # Safety
    ///
    /// No thread, in this process or another, writes these bytes until `f` returns.
    unsafe fn with_bytes<R>(&self, at: u64, len: usize, f: impl FnOnce(&[u8]) -> R) -> R;

    /// Shows `len` bytes at `at` as a plain slice that may be written.
    ///
    /// # Safety
    ///
    /// No other thread, in this process or another, reads or writes these bytes until `f` returns.
    unsafe fn with_bytes_mut<R>(&self, at: u64, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R;

    /// A reader reports that it found the record at `at` damaged. A memory need not remember that.
    fn note_damage(&self, _at: u64, _damage: Damage) {}

    /// The offsets at which readers reported damage, each with the worst report.
    fn damage(&self) -> Vec<(u64, Damage)> {
        Vec::new()
    }
}

/// Memory whose methods show copies of its bytes, never the bytes themselves.
///
/// Its owner may therefore store into it while others hold a view of the same bytes.
///
/// # Safety
///
/// What [`Memory::with_bytes`] and [`Memory::with_bytes_mut`] show is a copy, or memory that nothing
/// but the value itself can reach.
pub unsafe trait ShowsCopies: Memory {}

/// Panics unless `at..at + len` lies inside a file of `total` bytes.
#[inline]
pub(crate) fn check_range(at: u64, len: u64, total: u64) {
    assert!(
        at.checked_add(len).is_some_and(|end| end <= total),
        "bytes {at}+{len} are outside of a file of {total} bytes"
    );
}

/// Panics unless `at` is the offset of a word that lies inside a file of `total` bytes.
#[inline]
pub(crate) fn check_word(at: u64, total: u64) {
    assert!(
        at.is_multiple_of(8) && at < total,
        "no word at {at} in a file of {total} bytes"
    );
}
