//! One host's view of one shared file.
//!
//! [`Mapped`] is the real thing, [`Simulated`] a private cache over a shared device that
//! misbehaves exactly as memory without coherence may. Everything above is generic over the
//! trait, so the simulator runs the code that production runs.

mod cache_line;
mod damage;
mod file_id;
mod interruption;
mod mapped;
mod power;
mod random;
mod simulated;

pub use cache_line::LINE_BYTES;
pub use damage::Damage;
pub use file_id::FileId;
pub use interruption::interrupt_after;
pub use mapped::{Coherence, Mapped};
pub use power::{Outage, Power};
pub use simulated::{Device, Faults, Simulated};

/// One host's view of one shared file of bytes.
///
/// Offsets count bytes from the start of the file. Words are 64 bits, little-endian, 8-aligned.
/// An offset out of bounds or out of alignment is a bug of the caller and panics: whoever follows
/// an offset found in shared memory validates it first.
///
/// Publishing takes `store`, `write_back`, `fence`, in this order; observing takes `invalidate`,
/// then `load`. On coherent memory the extra calls cost next to nothing.
pub trait Memory: Send + Sync + 'static {
    /// Length of the file in bytes, a multiple of 64.
    fn len(&self) -> u64;

    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file that it shows, as others may map it; `None` for memory that is not of a file.
    fn file(&self) -> Option<FileId> {
        None
    }

    /// Whether what was stored first is seen first by everybody, and not only what was fenced.
    fn is_coherent(&self) -> bool;

    /// Loads the word at `at`. Acquire: partner of [`Memory::store`] of the same word.
    fn load(&self, at: u64) -> u64;

    /// Stores the word at `at`. Release: partner of [`Memory::load`] of the same word.
    fn store(&self, at: u64, value: u64);

    /// Copies bytes out, word by word and unordered: another process may write them meanwhile.
    ///
    /// `at` is 8-aligned; the length may be any.
    fn read(&self, at: u64, into: &mut [u8]);

    /// Copies bytes in, word by word and unordered.
    ///
    /// `at` is 8-aligned. When the length is not a multiple of 8, the rest of the last word is
    /// stored back as it was read, so the whole word must belong to the caller.
    fn write(&self, at: u64, from: &[u8]);

    /// Starts to write back every line that `at..at + len` touches.
    fn write_back(&self, at: u64, len: u64);

    /// All write-backs started before are complete before any later store is visible to anybody.
    fn fence(&self);

    /// Later loads of the lines that `at..at + len` touches see what others wrote back before.
    fn invalidate(&self, at: u64, len: u64);

    /// Shows `len` bytes at `at` as a plain slice.
    ///
    /// # Safety
    ///
    /// Nobody, in this process or another, writes these bytes until `f` returns.
    unsafe fn with_bytes<R>(&self, at: u64, len: usize, f: impl FnOnce(&[u8]) -> R) -> R;

    /// Shows `len` bytes at `at` as a plain slice that may be written.
    ///
    /// # Safety
    ///
    /// Nobody else, in this process or another, reads or writes these bytes until `f` returns.
    unsafe fn with_bytes_mut<R>(&self, at: u64, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R;

    /// Whoever read the record at `at` found it damaged. A memory remembers that, or does not.
    fn note_damage(&self, _at: u64, _damage: Damage) {}

    /// Where damage was found, by offset, and the worst that it was.
    fn damage(&self) -> Vec<(u64, Damage)> {
        Vec::new()
    }
}

/// Memory of which nobody ever sees the bytes themselves.
///
/// So whoever keeps it may store into it while a region is made of it.
///
/// # Safety
///
/// What [`Memory::with_bytes`] and [`Memory::with_bytes_mut`] show is a copy, or memory that nothing
/// but the value itself can reach.
pub unsafe trait ShowsCopies: Memory {}

/// Panics unless `at..at + len` lies inside a file of `total` bytes.
#[inline]
fn check_range(at: u64, len: u64, total: u64) {
    assert!(
        at.checked_add(len).is_some_and(|end| end <= total),
        "bytes {at}+{len} are outside of a file of {total} bytes"
    );
}

/// Panics unless `at` is the offset of a word that lies inside a file of `total` bytes.
#[inline]
fn check_word(at: u64, total: u64) {
    assert!(
        at.is_multiple_of(8) && at < total,
        "no word at {at} in a file of {total} bytes"
    );
}
