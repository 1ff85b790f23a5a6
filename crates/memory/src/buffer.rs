//! Bytes with one owner, in private memory or in memory that other processes may read.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::file_id::FileId;
use crate::sealed::SealedRange;

/// Bytes that are filled once and then shared, by an [`Arc`](std::sync::Arc) in this process. Those of a sealed memory can
/// also be named to a process that maps it, instead of being copied for it.
pub enum Buffer {
    /// Private memory.
    Heap(Vec<u8>),
    /// A range of a sealed memory. It does not grow beyond its capacity.
    Sealed(SealedRange),
}

impl Buffer {
    /// Where the first byte lies in a sealed memory; `None` for private memory.
    pub fn place(&self) -> Option<(FileId, u64)> {
        match self {
            Self::Heap(_) => None,
            Self::Sealed(range) => Some(range.place()),
        }
    }

    /// Leaves the first `len` bytes, if there are more.
    pub fn truncate(&mut self, len: usize) {
        match self {
            Self::Heap(bytes) => bytes.truncate(len),
            Self::Sealed(range) => range.set_len(len.min(range.len())),
        }
    }

    /// Makes it `len` bytes long; those that are added are `value`.
    ///
    /// # Panics
    /// When a range of a sealed memory has fewer.
    pub fn resize(&mut self, len: usize, value: u8) {
        match self {
            Self::Heap(bytes) => bytes.resize(len, value),
            Self::Sealed(range) => {
                let before = range.len();
                range.set_len(len);
                if let Some(added) = range.get_mut(before..) {
                    added.fill(value);
                }
            }
        }
    }

    /// Makes room for `additional` bytes more, and for no others.
    ///
    /// # Panics
    /// When a range of a sealed memory has fewer.
    pub fn reserve_exact(&mut self, additional: usize) {
        match self {
            Self::Heap(bytes) => bytes.reserve_exact(additional),
            Self::Sealed(range) => {
                let (len, capacity) = (range.len(), range.capacity());
                assert!(
                    additional <= capacity - len,
                    "{additional} bytes more than {len} in a range of {capacity}"
                );
            }
        }
    }
}

impl Default for Buffer {
    /// Without bytes, and without an allocation.
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Heap(bytes)
    }
}

impl From<SealedRange> for Buffer {
    fn from(range: SealedRange) -> Self {
        Self::Sealed(range)
    }
}

impl From<Buffer> for Vec<u8> {
    /// Copies what is in sealed memory.
    fn from(buffer: Buffer) -> Self {
        match buffer {
            Buffer::Heap(bytes) => bytes,
            Buffer::Sealed(range) => range.to_vec(),
        }
    }
}

/// The same bytes, wherever they lie.
impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Buffer {}

impl PartialEq<Buffer> for Vec<u8> {
    fn eq(&self, other: &Buffer) -> bool {
        **self == **other
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Sealed(range) => range,
        }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Sealed(range) => range,
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Heap(_) => "heap",
            Self::Sealed(_) => "sealed",
        };
        write!(f, "Buffer({kind}, {} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::Buffer;
    use crate::memory::Memory;
    use crate::sealed::{Sealed, SealedView};
    use std::os::fd::AsFd;

    #[test]
    fn both_kinds_fill_shorten_and_grow_alike() {
        let sealed = Sealed::new(8192).unwrap();
        let range = sealed.into_ranges(4096).remove(1);
        for mut buffer in [Buffer::from(Vec::new()), Buffer::from(range)] {
            buffer.resize(100, 7);
            buffer[99] = 8;
            buffer.truncate(200);
            buffer.resize(120, 9);
            assert_eq!(buffer[..99], [7; 99], "{buffer:?}");
            assert_eq!(buffer[99..], [&[8_u8][..], &[9; 20]].concat());
            buffer.truncate(1);
            buffer.resize(4, 1);
            assert_eq!(*buffer, [7, 1, 1, 1]);
            buffer.reserve_exact(4092);
            buffer.resize(4096, 0);
        }
        assert_eq!(Buffer::default().place(), None);
    }

    #[test]
    #[should_panic(expected = "4097 bytes in a range of 4096")]
    fn a_range_does_not_grow_beyond_its_memory() {
        let range = Sealed::new(4096).unwrap().into_ranges(4096).remove(0);
        Buffer::from(range).resize(4097, 0);
    }

    #[test]
    fn each_range_is_handed_out_once_and_shows_where_it_lies() {
        let sealed = Sealed::new(8192).unwrap();
        let file = sealed.handle();
        let mut ranges = sealed.into_ranges(1024);
        assert_eq!(ranges.len(), 8);
        for (range, value) in ranges.iter_mut().zip(1_u8..) {
            assert_eq!(range.place(), (file.id(), u64::from(value - 1) * 1024));
            range.set_len(1024);
            range.fill(value);
        }
        // Readers see them where they say that they are, and the memory lasts as long as one of them.
        let fd = file.as_fd().try_clone_to_owned().unwrap();
        let view = SealedView::map(fd, 8192).unwrap();
        for (range, value) in ranges.iter().zip(1_u8..) {
            let mut into = [0; 1024];
            view.copy_to(range.place().1, &mut into);
            assert_eq!(into, [value; 1024]);
        }
        let last = ranges.pop().unwrap();
        drop((ranges, file));
        assert_eq!(*last, [8; 1024]);
        assert_eq!(view.load(8184), u64::from_le_bytes([8; 8]));
    }
}
