//! The fence and the spin hint that this crate uses: the real ones, or those of `loom`, which tries all interleavings
//! of threads in the crate's models.

#[cfg(loom)]
pub(crate) use loom::{hint::spin_loop, sync::atomic::fence};
#[cfg(not(loom))]
pub(crate) use std::{hint::spin_loop, sync::atomic::fence};
