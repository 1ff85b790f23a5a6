//! Bytes at an address that a disk can write from and read into by itself.

use std::ops::{Deref, DerefMut, Range};

use crate::format::ALIGN_BYTES;

/// Bytes that begin at a multiple of [`ALIGN_BYTES`] in memory. They are allocated once, and zero at first.
#[derive(Debug)]
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// Room for `capacity` bytes, rounded up to a multiple of [`ALIGN_BYTES`]; all of it in use.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let len = capacity.next_multiple_of(ALIGN_BYTES);
        let bytes = vec![0; len + ALIGN_BYTES];
        let start = bytes.as_ptr().align_offset(ALIGN_BYTES);
        Self { bytes, start, len }
    }

    /// The same memory with so many bytes in use, rounded up to a multiple of [`ALIGN_BYTES`], whatever they are. Where it has no
    /// room for them it is allocated anew.
    #[must_use]
    pub fn with_len(mut self, len: usize) -> Self {
        let len = len.next_multiple_of(ALIGN_BYTES);
        match self.start + len <= self.bytes.len() {
            true => self.len = len,
            false => self = Self::new(len),
        }
        self
    }

    /// The bytes in use, as a range of the memory that they lie in.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u8>, Range<usize>) {
        (self.bytes, self.start..self.start + self.len)
    }
}

impl From<Vec<u8>> for AlignedBuffer {
    /// As much of this memory as lies where a disk can use it.
    fn from(bytes: Vec<u8>) -> Self {
        let start = bytes.as_ptr().align_offset(ALIGN_BYTES).min(bytes.len());
        let len = (bytes.len() - start) / ALIGN_BYTES * ALIGN_BYTES;
        Self { bytes, start, len }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_where_a_disk_can_write_from() {
        for capacity in [1, ALIGN_BYTES, ALIGN_BYTES + 1, 1 << 20] {
            let buffer = AlignedBuffer::new(capacity);
            assert!(buffer.len() >= capacity && buffer.len().is_multiple_of(ALIGN_BYTES));
            assert!(buffer.as_ptr().addr().is_multiple_of(ALIGN_BYTES));
        }
    }

    #[test]
    fn its_memory_is_used_again() {
        let mut buffer = AlignedBuffer::new(3 * ALIGN_BYTES);
        buffer[0] = 7;
        let (bytes, range) = buffer.into_parts();
        assert_eq!((bytes[range.start], range.len()), (7, 3 * ALIGN_BYTES));
        let (place, capacity) = (bytes.as_ptr(), bytes.len());
        let buffer = AlignedBuffer::from(bytes).with_len(1);
        assert_eq!((buffer.len(), buffer[0]), (ALIGN_BYTES, 7));
        let (bytes, _) = buffer.with_len(3 * ALIGN_BYTES).into_parts();
        assert_eq!((bytes.as_ptr(), bytes.len()), (place, capacity));
        let buffer = AlignedBuffer::from(bytes).with_len(5 * ALIGN_BYTES);
        assert_eq!(buffer.len(), 5 * ALIGN_BYTES);
        let buffer = AlignedBuffer::from(Vec::new()).with_len(1);
        assert_eq!(*buffer, [0; ALIGN_BYTES]);
    }
}
