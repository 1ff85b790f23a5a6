//! The one place where the model checker replaces what the hardware gives.

#[cfg(loom)]
pub(crate) use loom::{hint::spin_loop, sync::atomic::fence};
#[cfg(not(loom))]
pub(crate) use std::{hint::spin_loop, sync::atomic::fence};
