//! Calls code of the library's user where a panic in it must end nothing else: catches the panic,
//! and logs it.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the user; a panic in it ends nothing else.
pub(super) fn catch_panic(run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        tracing::error!("a handler, its destructor or a waker panicked while its session ended");
    }
}
