//! The fence of the standard library, or that of loom when that model checker runs.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{Ordering, fence};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{Ordering, fence};
