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
