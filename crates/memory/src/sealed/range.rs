//! Ranges of sealed memory that its owner fills, each by one at a time.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::SealedFile;
use crate::cache_line::LINE_BYTES;
use crate::file_id::FileId;
use crate::mapping::Mapping;

/// What the ranges of a memory share.
#[derive(Debug)]
struct Shared {
    mapping: Mapping,
    file: SealedFile,
}

/// A range of sealed memory, and how much of it is in use. It has one owner, who alone of this process reaches its bytes.
///
/// Others who map the memory read these bytes at any time, whatever is written. So an owner that told them to read what is
/// there changes nothing until they have.
pub struct SealedRange {
    shared: Arc<Shared>,
    at: u64,
    capacity: usize,
    len: usize,
}

pub(super) fn divide(mapping: Mapping, file: SealedFile, bytes: usize) -> Vec<SealedRange> {
    let ranges = mapping.len().checked_div(bytes as u64).unwrap_or(0);
    assert!(
        ranges > 0 && (bytes as u64).is_multiple_of(LINE_BYTES),
        "ranges of {bytes} bytes in a memory of {}",
        mapping.len()
    );
    let shared = Arc::new(Shared { mapping, file });
    (0..ranges)
        .map(|range| SealedRange {
            shared: Arc::clone(&shared),
            at: range * bytes as u64,
            capacity: bytes,
            len: 0,
        })
        .collect()
}

impl SealedRange {
    /// Where its first byte lies: the memory, and the offset in it.
    pub fn place(&self) -> (FileId, u64) {
        (self.shared.file.id(), self.at)
    }

    /// The memory that it is a range of, for handing that over.
    pub fn file(&self) -> &SealedFile {
        &self.shared.file
    }

    /// Bytes of the range.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many bytes are in use from now on. What was not in use before is what it last was, and zero at first.
    ///
    /// # Panics
    /// When the range has fewer.
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity,
            "{len} bytes in a range of {}",
            self.capacity
        );
        self.len = len;
    }
}

impl Deref for SealedRange {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: ranges of a mapping do not overlap, each has one value, and no other access to the mapping is left. So
        // only who borrows this value exclusively writes these bytes.
        unsafe { self.shared.mapping.slice(self.at, self.len) }
    }
}

impl DerefMut for SealedRange {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and this value is borrowed exclusively; the owner's mapping is writable.
        unsafe { self.shared.mapping.slice_mut(self.at, self.len) }
    }
}

impl fmt::Debug for SealedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedRange")
            .field("at", &self.at)
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .finish()
    }
}
