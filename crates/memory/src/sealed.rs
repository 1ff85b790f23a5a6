//! Sealed memory: one process writes it, and others to whom it hands the descriptor may only read it.
//!
//! [`Sealed`] is the owner's: a memfd, mapped writable once and sealed then, so that nobody can write it by another way,
//! shorten it, or punch holes into it, not even the owner. [`SealedView`] is what a process has that was given a
//! descriptor: it trusts none of it, checks what the kernel says of the file, and maps it for reading only.
//!
//! # Who reaches the bytes of sealed memory
//!
//! The counterpart of the list in [`payload`](crate::payload): every safe way to these bytes, and what makes it sound. If
//! you change one, read this list again.
//!
//! *The owner's words and copies.* [`Sealed`] is a [`Memory`]: it loads and stores atomic words, and copies bytes in and
//! out by instructions that the compiler does not see through. No safe function of it shows a slice.
//!
//! *The owner's ranges.* [`Sealed::into_ranges`] consumes the memory, so its words are out of reach from then on, and hands
//! out each range once. A [`SealedRange`] is not cloned. It shows slices of its own bytes: shared ones while it is
//! borrowed, an exclusive one while it is borrowed exclusively.
//!
//! *Other mappings.* There is no other writable one: the seal forbids it to everybody from the moment at which
//! [`Sealed::new`] returns. Before that nobody else has the descriptor. Who reads, reads by a mapping of its own, in this
//! process too, and that is other memory to the compiler. A descriptor lets nobody write either: the seal forbids `write`,
//! and shared mappings that may ever become writable.
//!
//! *The reader's words and copies.* [`SealedView`] is a [`Memory`], of which only what reads may be used: atomic loads,
//! and the same opaque copies. Its owner may write at any moment. So there is no slice of it, and what was copied may be
//! anything: a reader checks the copy, never the memory.
//!
//! *Faults.* A mapping of a file that was shortened ends its readers by `SIGBUS`. A view is of a file that is sealed
//! against that, whose pages are all there, and it is no longer than the file. It maps no huge pages of `hugetlbfs`, which can be missing although
//! the file is long enough.

mod range;
mod view;

pub use range::SealedRange;
pub use view::{SealedError, SealedView};

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::file_id::FileId;
use crate::mapping::{Mapping, PAGE_BYTES};
use crate::memory::Memory;
use crate::reserve::reserve;

/// As much is reserved at a time.
const RESERVE_BYTES: u64 = 32 << 20;

/// Bytes of a page: the unit in which sealed memory is sized.
pub const SEALED_PAGE_BYTES: u64 = PAGE_BYTES;

/// What the owner promises by sealing, and a reader asks for.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE)
    .union(SealFlags::SEAL);

/// The descriptor of sealed memory, for handing it to another process. Who has it may read the memory, and no more.
#[derive(Debug, Clone)]
pub struct SealedFile {
    file: Arc<File>,
    id: FileId,
    len: u64,
}

impl SealedFile {
    /// Which file it is.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Bytes of the memory.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes, which it never has.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Of the same file.
impl PartialEq for SealedFile {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for SealedFile {}

impl AsFd for SealedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Memory that this process writes, and others may read.
#[derive(Debug)]
pub struct Sealed {
    mapping: Mapping,
    file: SealedFile,
}

impl Sealed {
    /// `len` zero bytes, all of them present.
    ///
    /// # Errors
    /// When the kernel has no memory or descriptors, or knows no such seals (before Linux 5.1).
    ///
    /// # Panics
    /// When `len` is no positive multiple of [`SEALED_PAGE_BYTES`].
    pub fn new(len: u64) -> io::Result<Self> {
        assert!(
            len > 0 && len.is_multiple_of(SEALED_PAGE_BYTES),
            "sealed memory of {len} bytes"
        );
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match memfd_create(c"embar-sealed", flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3.
            Err(Errno::INVAL) => memfd_create(c"embar-sealed", flags)?,
            made => made?,
        };
        // Otherwise the file would have holes, which take memory when they are read.
        let file = File::from(fd);
        reserve(&file, len, RESERVE_BYTES, &|_| {})?;
        let mapping = Mapping::new(&file, len, ProtFlags::READ | ProtFlags::WRITE)?;
        mapping.populate(0, len, true)?;
        fcntl_add_seals(&file, SEALS)?;
        let id = FileId::of(&file.metadata()?);
        let file = Arc::new(file);
        let file = SealedFile { file, id, len };
        Ok(Self { mapping, file })
    }

    /// The descriptor, for handing it over.
    pub fn handle(&self) -> SealedFile {
        self.file.clone()
    }

    /// Divides the memory into ranges of `bytes` each, every one of which has one owner at a time.
    ///
    /// # Panics
    /// When `bytes` is no positive multiple of 64, or more than there are.
    pub fn into_ranges(self, bytes: usize) -> Vec<SealedRange> {
        range::divide(self.mapping, self.file, bytes)
    }
}

impl Memory for Sealed {
    #[inline]
    fn len(&self) -> u64 {
        self.mapping.len()
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn file(&self) -> Option<FileId> {
        Some(self.file.id)
    }

    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.mapping.word(at).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, at: u64, value: u64) {
        self.mapping.word(at).store(value, Ordering::Release);
    }

    #[inline]
    fn read(&self, at: u64, into: &mut [u8]) {
        self.mapping.copy_out(at, into);
    }

    #[inline]
    fn write(&self, at: u64, from: &[u8]) {
        self.mapping.copy_in(at, from);
    }

    #[inline]
    fn write_back(&self, _at: u64, _len: u64) {}

    #[inline]
    fn fence(&self) {
        // Partner: the acquire load of whatever word is stored next.
        fence(Ordering::Release);
    }

    #[inline]
    fn invalidate(&self, _at: u64, _len: u64) {}

    unsafe fn with_bytes<R>(&self, at: u64, len: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: our caller vouches that the bytes stay still until `f` returns.
        f(unsafe { self.mapping.slice(at, len) })
    }

    unsafe fn with_bytes_mut<R>(&self, at: u64, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        // SAFETY: our caller vouches for exclusive use until `f` returns; the mapping is writable.
        f(unsafe { self.mapping.slice_mut(at, len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, fallocate};

    #[test]
    fn nobody_can_write_shorten_or_punch_what_is_sealed() {
        let sealed = Sealed::new(2 * SEALED_PAGE_BYTES).unwrap();
        let fd = sealed.handle();
        let refused = rustix::io::pwrite(&fd, b"x", 0).unwrap_err();
        assert_eq!(refused, Errno::PERM);
        assert_eq!(rustix::fs::ftruncate(&fd, 0).unwrap_err(), Errno::PERM);
        let longer = rustix::fs::ftruncate(&fd, 3 * SEALED_PAGE_BYTES);
        assert_eq!(longer.unwrap_err(), Errno::PERM);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = fallocate(&fd, punch, 0, SEALED_PAGE_BYTES);
        assert_eq!(punched.unwrap_err(), Errno::PERM);
        let writable = Mapping::new(&fd, SEALED_PAGE_BYTES, ProtFlags::READ | ProtFlags::WRITE);
        let error = writable.map(|_| ()).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::PERM));
        let more = fcntl_add_seals(&fd, SealFlags::WRITE).unwrap_err();
        assert_eq!(more, Errno::PERM);
        // The mapping that was there before goes on.
        sealed.store(8, 7);
        assert_eq!(sealed.load(8), 7);
    }

    #[test]
    fn what_was_written_is_read_from_any_place_in_any_length() {
        let sealed = Sealed::new(SEALED_PAGE_BYTES).unwrap();
        let pattern: Vec<u8> = (0..4096_u32).map(|at| (at * 31 % 251) as u8).collect();
        for len in [0, 1, 7, 8, 63, 64, 65, 127, 128, 200, 1000, 4096] {
            for at in [0, 8, 64, 72] {
                let Some(bytes) = pattern.get(at..at + len) else {
                    continue;
                };
                sealed.write(at as u64, bytes);
                let mut into = vec![0; len];
                sealed.read(at as u64, &mut into);
                assert_eq!(into, bytes, "{at} {len}");
            }
        }
        let mut all = vec![0; 4096];
        sealed.read(0, &mut all);
        assert_eq!(all, pattern, "a write goes no further than its bytes");
    }

    #[test]
    #[should_panic(expected = "are outside of a file of 4096 bytes")]
    fn a_copy_ends_where_the_memory_does() {
        Sealed::new(SEALED_PAGE_BYTES).unwrap().write(4088, &[0; 9]);
    }
}
