//! An allocator that counts, for programs that report what their work allocates.
//!
//! It is the system's allocator, and costs one relaxed load more for each allocation while
//! [counting](set_counting) is off. It counts for each thread, so that a thread that looks before
//! and after some work knows what that work allocated; and for the process.

#![expect(unsafe_code, reason = "an allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The allocator, for one line in a program:
///
/// ```
/// use embar_transport::alloc::Counting;
///
/// #[global_allocator]
/// static ALLOCATOR: Counting = Counting;
/// # fn main() {}
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Counting;

/// What was allocated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allocated {
    /// How often memory was asked for, also to make an allocation larger or smaller.
    pub times: u64,
    /// Bytes asked for; of an allocation that changed its size, all of the new one.
    pub bytes: u64,
}

impl Allocated {
    /// What was allocated after `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            times: self.times.wrapping_sub(earlier.times),
            bytes: self.bytes.wrapping_sub(earlier.bytes),
        }
    }
}

static ON: AtomicBool = AtomicBool::new(false);
static TIMES: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // Made without an allocation and never dropped, so it is there whenever something is allocated.
    static OWN: Cell<Allocated> = const { Cell::new(Allocated { times: 0, bytes: 0 }) };
}

/// Starts or stops counting, in all threads. Nothing is ever counted in a program whose allocator is
/// another one than [`Counting`].
pub fn set_counting(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// What this thread allocated so far while counting was on.
#[must_use]
pub fn of_thread() -> Allocated {
    OWN.get()
}

/// What all threads allocated so far while counting was on.
#[must_use]
pub fn of_process() -> Allocated {
    Allocated {
        times: TIMES.load(Ordering::Relaxed),
        bytes: BYTES.load(Ordering::Relaxed),
    }
}

#[inline]
fn asked_for(bytes: usize) {
    if ON.load(Ordering::Relaxed) {
        count(bytes as u64);
    }
}

#[cold]
fn count(bytes: u64) {
    let own = OWN.get();
    OWN.set(Allocated {
        times: own.times.wrapping_add(1),
        bytes: own.bytes.wrapping_add(bytes),
    });
    TIMES.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(bytes, Ordering::Relaxed);
}

// SAFETY: all calls go to the system's allocator unchanged; what is done beside that allocates
// nothing and cannot panic.
unsafe impl GlobalAlloc for Counting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        asked_for(layout.size());
        // SAFETY: our caller's promises about the layout are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        asked_for(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        asked_for(size);
        // SAFETY: as in `alloc`, and the pointer came from `System`, as all that this gives out do.
        unsafe { System.realloc(pointer, layout, size) }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System`, with this layout, as our caller vouches.
        unsafe { System.dealloc(pointer, layout) }
    }
}
