//! Bytes at an address that a disk can write from and read into by itself.

use std::ops::{Deref, DerefMut};

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
}
