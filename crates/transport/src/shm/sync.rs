//! The fence and the lock of the standard library, or those of loom when that model checker runs.

#[cfg(loom)]
pub(super) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{Ordering, fence},
};
pub(super) use std::sync::PoisonError;
#[cfg(not(loom))]
pub(super) use std::sync::{
    Mutex, MutexGuard,
    atomic::{Ordering, fence},
};
