//! Panics of the user's code.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the user; a panic in it ends nothing else.
pub(super) fn catch_panic(run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        tracing::error!("a handler, its destructor or a waker panicked while its session ended");
    }
}
