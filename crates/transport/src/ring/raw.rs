//! The memory of a ring: mapped twice, back to back, so that a range that wraps is contiguous.

#[cfg(all(test, loom))]
pub(super) mod tracked;

use std::io;
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Memory of which each byte has two addresses, `capacity` apart: a range of at most `capacity`
/// bytes that begins in the first half is contiguous.
pub(super) struct Mirror {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: the mapping is owned and lives as long as the value. Its bytes are reached only through
// the unsafe methods below, whose callers vouch for who uses which.
unsafe impl Send for Mirror {}
// SAFETY: as above.
unsafe impl Sync for Mirror {}

impl Mirror {
    /// Maps `capacity` fresh bytes, all zero; a multiple of the page size. No page is backed by
    /// memory before it is touched.
    pub(super) fn new(capacity: usize) -> io::Result<Self> {
        let file = memfd_create(c"embar-ring", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, capacity as u64)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint lets the kernel choose unused addresses; nothing can be accessed
        // there yet.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), 2 * capacity, ProtFlags::empty(), flags)? };
        let start = NonNull::new(start.cast::<u8>()).expect("mmap never returns null");
        // From here on, dropping it gives the addresses back.
        let mirror = Self { start, capacity };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        for half in [0, capacity] {
            // SAFETY: within the 2 × capacity bytes reserved above, which nothing uses yet.
            unsafe {
                let at = mirror.start.as_ptr().add(half);
                mmap(
                    at.cast(),
                    capacity,
                    prot,
                    MapFlags::SHARED | MapFlags::FIXED,
                    &file,
                    0,
                )?;
            }
        }
        Ok(mirror)
    }

    /// Makes the first `len` bytes zero again, at most all of them.
    pub(super) fn clear(&mut self, len: usize) {
        let len = len.min(self.capacity);
        // SAFETY: in bounds; by `&mut self` no other thread has any part of it.
        unsafe { ptr::write_bytes(self.start.as_ptr(), 0, len) };
    }

    /// Where the byte at `position` is, positions being counted for ever, modulo the capacity.
    ///
    /// # Panics
    /// If `len` bytes from there are not contiguous.
    #[inline]
    fn pointer(&self, position: usize, len: usize) -> *mut u8 {
        assert!(len <= self.capacity, "longer than the ring");
        // The capacity is a power of two.
        let at = position & (self.capacity - 1);
        // SAFETY: at + len < 2 × capacity, which is what is mapped.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// The `len` bytes from `position` on.
    ///
    /// # Safety
    /// No thread writes them while the slice lives.
    #[inline]
    pub(super) unsafe fn bytes(&self, position: usize, len: usize) -> &[u8] {
        // SAFETY: mapped and initialised by the kernel; our caller vouches that they stay still.
        unsafe { std::slice::from_raw_parts(self.pointer(position, len), len) }
    }

    /// The `len` bytes from `position` on, for their only user.
    ///
    /// # Safety
    /// No other thread reads or writes them while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive use is what the caller vouches for"
    )]
    #[inline]
    pub(super) unsafe fn bytes_mut(&self, position: usize, len: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`; our caller vouches for exclusive use.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(position, len), len) }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: the range is the one `new` mapped, and no borrow of it outlives this value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), 2 * self.capacity) };
        debug_assert!(unmapped.is_ok(), "unmapping our own mapping cannot fail");
    }
}
