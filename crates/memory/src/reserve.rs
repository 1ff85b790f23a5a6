//! Gives a file its memory before it is used: in pages of 2 MiB where the kernel can, in small ones elsewhere.
//!
//! A process that maps a file of small pages has each of them entered into its tables, half a microsecond for 4 KiB, and
//! a processor looks up one address in 4 KiB. Both are 512 times less with large pages. The kernel makes them of a file in
//! memory when it is asked to gather a range (`MADV_COLLAPSE`, Linux 6.1), whatever the machine's settings say of files that
//! nobody asks for, unless they forbid it. A range that has one page is gathered as fast as one large page is cleared.
//! Where the kernel has to make room for large pages first, that takes longer than small ones cost: gathering ends after a
//! time that goes with the size of the file.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate, fstatfs, ftruncate};
use rustix::mm::ProtFlags;

use crate::mapping::{LARGE_PAGE_BYTES, Mapping, PAGE_BYTES};

/// `f_type` of a tmpfs, whose pages are memory.
pub(crate) const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Reserves the first `len` bytes of a fresh file, part by part: `added` is told how many bytes came with each, which has
/// `part` bytes at most. The file then has that length.
///
/// # Errors
/// What the kernel says: `StorageFull` when the file system has no more room. Then the file has a part of its memory.
pub fn reserve(file: &File, len: u64, part: u64, added: &dyn Fn(u64)) -> io::Result<()> {
    let mut large = LargePages::of(file.as_fd(), len);
    let mut at = 0;
    while at < len {
        let bytes = part.min(len - at);
        if let Some(pages) = &mut large {
            let started = Instant::now();
            pages.gather(file.as_fd(), at, bytes)?;
            if !pages.time.spend(started.elapsed()) {
                large = None;
            }
        }
        allocate(file.as_fd(), at, bytes)?;
        at += bytes;
        added(bytes);
    }
    Ok(())
}

/// Allocates what is missing of a range.
fn allocate(file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::empty(), at, len) {
            // A signal undoes a whole call.
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// A file that may get large pages.
struct LargePages {
    mapping: Mapping,
    time: Time,
}

/// How long gathering may take in all.
struct Time(Duration);

impl Time {
    /// For so many bytes: as long as small pages take to be allocated and touched, half a second for a GiB, and no less than
    /// what one slow part may need.
    fn of(len: u64) -> Self {
        Self(Duration::from_millis(100) + Duration::from_nanos(len / 2))
    }

    /// Whether there is some left after this.
    fn spend(&mut self, time: Duration) -> bool {
        self.0 = self.0.saturating_sub(time);
        !self.0.is_zero()
    }
}

impl LargePages {
    /// `None` of a file that is too short, or not in memory. It has its length from here on.
    fn of(file: BorrowedFd<'_>, len: u64) -> Option<Self> {
        let in_memory = fstatfs(file).is_ok_and(|it| it.f_type as u64 == TMPFS_MAGIC);
        if len < LARGE_PAGE_BYTES || !in_memory {
            return None;
        }
        ftruncate(file, len).ok()?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Mapping::new(file, len, protection).ok()?;
        Some(Self {
            mapping,
            time: Time::of(len),
        })
    }

    /// Has large pages of a range that has no memory yet, as many as the kernel gives. What is missing is to be
    /// [allocated](allocate).
    fn gather(&self, file: BorrowedFd<'_>, at: u64, len: u64) -> io::Result<()> {
        let begin = at.next_multiple_of(LARGE_PAGE_BYTES);
        let end = (at + len) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
        // The kernel gathers where there is something already.
        for page in (begin..end).step_by(LARGE_PAGE_BYTES as usize) {
            allocate(file, page, PAGE_BYTES)?;
        }
        if begin < end {
            self.mapping.collapse(begin, end - begin);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn gathering_ends_when_it_takes_longer_than_small_pages() {
        let mut time = Time::of(2 << 30);
        assert!(time.spend(Duration::from_millis(1000)));
        assert!(!time.spend(Duration::from_millis(1000)));
        assert!(!time.spend(Duration::ZERO));
    }

    #[test]
    fn all_of_a_file_is_reserved_whatever_its_length() {
        for len in [4096, 3 << 20, (5 << 20) + 4096] {
            let file = File::from(memfd_create(c"test", MemfdFlags::CLOEXEC).expect("a file"));
            let added = Cell::new(0);
            let tell = |bytes| added.set(added.get() + bytes);
            reserve(&file, len, 2 << 20, &tell).expect("room");
            let metadata = file.metadata().expect("metadata");
            assert_eq!((metadata.len(), added.get()), (len, len));
            let stat = rustix::fs::fstat(&file).expect("metadata");
            assert_eq!(stat.st_blocks as u64 * 512, len, "none of it is missing");
            let mapping = Mapping::new(&file, len, ProtFlags::READ).expect("mapped");
            let begins = (mapping.pointer(0) as u64).is_multiple_of(LARGE_PAGE_BYTES);
            assert!(begins || len < LARGE_PAGE_BYTES, "no large page fits there");
            let mut bytes = vec![1; len as usize];
            mapping.copy_out(0, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
}
