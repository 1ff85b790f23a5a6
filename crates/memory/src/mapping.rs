//! A file's pages in this process, whoever else maps them: what [`Mapped`](crate::Mapped) and
//! [`sealed`](crate::sealed) memory are made of.

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::copy::copy;
use crate::memory::{check_range, check_word};
use crate::streaming::copy_shared_seen;

/// Bytes of a page: the unit in which files are sized and mapped.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Bytes of a large page, in whose size such pages begin in a file and in a process.
pub(crate) const LARGE_PAGE_BYTES: u64 = 2 << 20;

/// Advice that rustix has no name for: gather the range into large pages (Linux 6.1).
const COLLAPSE: libc::c_int = 25;

/// A file mapped shared, from its start, for the life of this value.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: u64,
}

// SAFETY: the mapping is owned, lives as long as the value and is reached through atomics and opaque copies, except for
// byte ranges whose exclusive use the callers of the unsafe methods vouch for.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Where a mapping goes, if it is to begin where a large page may.
struct Place {
    /// Null if the kernel is to choose.
    start: *mut c_void,
    /// What was reserved around it.
    reserved: (*mut c_void, usize),
}

impl Place {
    fn of(bytes: usize) -> io::Result<Self> {
        let large = LARGE_PAGE_BYTES as usize;
        if bytes < large {
            return Ok(Self {
                start: ptr::null_mut(),
                reserved: (ptr::null_mut(), 0),
            });
        }
        let room = bytes.checked_add(large).ok_or(Errno::NOMEM)?;
        // SAFETY: a null hint lets the kernel choose unused addresses, and nobody can reach anything there.
        let reserved = unsafe {
            mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE)?
        };
        let start = reserved.map_addr(|at| at.next_multiple_of(large));
        Ok(Self {
            start,
            reserved: (reserved, room),
        })
    }

    fn flags(&self) -> MapFlags {
        match self.start.is_null() {
            true => MapFlags::empty(),
            false => MapFlags::FIXED,
        }
    }

    /// Gives back what was reserved beside a mapping of so many bytes.
    fn give_back_beside(self, bytes: usize) {
        let (reserved, room) = self.reserved;
        if room > 0 {
            let before = self.start.addr() - reserved.addr();
            give_back(reserved, before);
            let behind = self
                .start
                .map_addr(|at| at + bytes.next_multiple_of(PAGE_BYTES as usize));
            give_back(behind, reserved.addr() + room - behind.addr());
        }
    }
}

fn give_back(start: *mut c_void, bytes: usize) {
    if bytes > 0 {
        // SAFETY: these addresses were reserved for a `Place`, and nothing else was mapped there.
        let _ = unsafe { munmap(start, bytes) };
    }
}

impl Mapping {
    /// Maps the first `len` bytes.
    pub fn new(fd: impl AsFd, len: u64, protection: ProtFlags) -> io::Result<Self> {
        let bytes =
            usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let place = Place::of(bytes)?;
        // SAFETY: the kernel chooses unused addresses, or the place is ours alone and is replaced where it was mapped.
        let start = unsafe {
            mmap(
                place.start,
                bytes,
                protection,
                MapFlags::SHARED | place.flags(),
                fd.as_fd(),
                0,
            )
        };
        // Also after a failure: by then the kernel may have taken the place away, and put something else there.
        place.give_back_beside(bytes);
        let start = NonNull::new(start?.cast::<u8>()).expect("mmap never returns null");
        // Larger pages make faults and translations cheaper; many kernels refuse, which is fine.
        // SAFETY: the range was mapped just above; this advice changes no content.
        let _refused = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        Ok(Self { start, len })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Keeps the mapping out of processes that this one forks: they have nothing there, and what the mapping keeps of its file ends with
    /// this process's own.
    pub fn stay_here(&self) -> io::Result<()> {
        let (start, len) = (self.start.as_ptr().cast(), self.len as usize);
        // SAFETY: the range is our mapping; the advice changes nothing in this process.
        unsafe { madvise(start, len, Advice::LinuxDontFork) }.map_err(io::Error::from)
    }

    /// Asks the kernel for large pages where there are small ones, or none; where it cannot, all stays as it was.
    pub fn collapse(&self, at: u64, len: u64) {
        check_range(at, len, self.len);
        // SAFETY: the range lies in our mapping; gathering changes no content.
        let _refused = unsafe { libc::madvise(self.pointer(at).cast(), len as usize, COLLAPSE) };
    }

    /// Makes the pages of a range present in this process: for reading, or, where the mapping is writable, for writing.
    pub fn populate(&self, at: u64, len: u64, writable: bool) -> io::Result<()> {
        check_range(at, len, self.len);
        let advice = match writable {
            true => Advice::LinuxPopulateWrite,
            false => Advice::LinuxPopulateRead,
        };
        // SAFETY: the range lies in our mapping; populating changes no content.
        match unsafe { madvise(self.pointer(at).cast(), len as usize, advice) } {
            Err(Errno::INVAL) => {
                // Kernels before 5.14. A load is enough: a fault on a shared page maps it
                // writable, and unlike a store it cannot lose what another process writes.
                for page in (at..at + len).step_by(PAGE_BYTES as usize) {
                    std::hint::black_box(self.word(page).load(Ordering::Relaxed));
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Address of the byte at `at`; the caller has checked the bounds.
    pub fn pointer(&self, at: u64) -> *mut u8 {
        // SAFETY: every caller checked `at <= len`, and the mapping is `len` bytes long.
        unsafe { self.start.as_ptr().add(at as usize) }
    }

    /// The word at `at`, which may be stored to only where the mapping is writable.
    #[inline]
    pub fn word(&self, at: u64) -> &AtomicU64 {
        check_word(at, self.len);
        // SAFETY: in bounds and aligned by the check; the mapping outlives the borrow. Words that others may touch are only
        // accessed as 64-bit atomics and by opaque copies. A load of 64 bits is allowed where memory is read-only.
        unsafe { AtomicU64::from_ptr(self.pointer(at).cast()) }
    }

    /// The words that `at..at + len` touches; `at` is a word's offset.
    #[inline]
    pub fn words(&self, at: u64, len: usize) -> &[AtomicU64] {
        assert!(at.is_multiple_of(8), "no word at {at}");
        check_range(at, len as u64, self.len);
        let count = len.div_ceil(8);
        // SAFETY: aligned and in bounds by the checks (the mapping is whole words long); as in
        // `word` for the rest. `AtomicU64` has the layout of `u64`.
        unsafe { std::slice::from_raw_parts(self.pointer(at).cast::<AtomicU64>(), count) }
    }

    /// Copies bytes out while others may be writing them.
    #[inline]
    pub fn copy_out(&self, at: u64, into: &mut [u8]) {
        check_range(at, into.len() as u64, self.len);
        // SAFETY: in bounds by the check; `into` is borrowed exclusively, and is no part of a mapping that only opaque
        // copies reach.
        unsafe { copy(self.pointer(at), into.as_mut_ptr(), into.len()) }
    }

    /// As [`Mapping::copy_out`], past the caches; `see` is shown what was copied, part by part.
    #[inline]
    pub fn copy_out_seen(&self, at: u64, into: &mut [u8], see: &mut dyn FnMut(&[u8])) {
        check_range(at, into.len() as u64, self.len);
        // SAFETY: as in `copy_out`.
        unsafe { copy_shared_seen(self.pointer(at), into, see) }
    }

    /// Copies bytes in while others may be reading them. The mapping is writable.
    #[inline]
    pub fn copy_in(&self, at: u64, from: &[u8]) {
        check_range(at, from.len() as u64, self.len);
        // SAFETY: in bounds by the check, as in `copy_out` for the rest.
        unsafe { copy(from.as_ptr(), self.pointer(at), from.len()) }
    }

    /// # Safety
    ///
    /// By this mapping no one writes these bytes while the slice lives; what others write by theirs does not concern the
    /// holder.
    #[inline]
    pub unsafe fn slice(&self, at: u64, len: usize) -> &[u8] {
        check_range(at, len as u64, self.len);
        // SAFETY: in bounds by the check, initialised because it is file memory; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.pointer(at), len) }
    }

    /// # Safety
    ///
    /// The mapping is writable, and by it no one else reads or writes these bytes while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive use is what the caller vouches for"
    )]
    #[inline]
    pub unsafe fn slice_mut(&self, at: u64, len: usize) -> &mut [u8] {
        check_range(at, len as u64, self.len);
        // SAFETY: as in `slice`; the caller vouches for exclusive use.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(at), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the one that `new` mapped, and no borrow of it outlives this value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len as usize) };
        debug_assert!(unmapped.is_ok(), "unmapping our own mapping cannot fail");
    }
}
