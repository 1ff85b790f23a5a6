//! The locks and atomics of rings: those of the standard library, or those of loom when that model
//! checker runs.

#[cfg(loom)]
pub(super) use loom::hint::spin_loop;
#[cfg(loom)]
pub(super) use loom::sync::Mutex;
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(super) use std::hint::spin_loop;
#[cfg(not(loom))]
pub(super) use std::sync::Mutex;
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Keeps what one thread writes out of the cache lines that others write.
#[repr(align(64))]
pub(super) struct CacheLine<T>(pub T);

/// So many words that are 0. The kernel gives them pages when they are first written, so a ring
/// that sends little has slots that take little.
#[cfg(not(loom))]
pub(super) fn zeros(count: usize) -> Box<[AtomicU64]> {
    use zerocopy::FromZeros;
    <[AtomicU64]>::new_box_zeroed_with_elems(count).expect("slots are a quarter of their ring")
}

#[cfg(loom)]
pub(super) fn zeros(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}
