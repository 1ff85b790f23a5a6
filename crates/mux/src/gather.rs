//! Whether the driver waits for callers that it has just woken, to send their next commands together.
//!
//! Callers whose replies come together mostly submit their next commands together. A write costs far
//! more than a command, so the driver waits a short time for those callers to run, and then sends all
//! that they submitted.

use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

/// The driver waits for so many callers or more.
const SEVERAL: usize = 4;

/// The state that callers and the driver share. It has a cache line of its own, as every caller
/// writes to it.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Gather {
    on: AtomicBool,
    /// Woken callers that did not take their replies yet. An estimate: a caller that takes an earlier
    /// reply counts, too.
    awaited: AtomicIsize,
}

impl Gather {
    /// The driver calls this before it wakes so many callers.
    pub fn begin(&self, callers: usize) {
        if callers >= SEVERAL {
            self.awaited.store(callers as isize, Ordering::Relaxed);
            self.on.store(true, Ordering::Relaxed);
        } else if self.is_on() {
            self.on.store(false, Ordering::Relaxed);
        }
    }

    /// Whether callers leave the writing to the driver.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// A caller calls this when it took its reply.
    #[inline]
    pub fn reply_taken(&self) {
        if self.is_on() {
            self.awaited.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether all woken callers took their replies.
    #[cfg(feature = "tokio")]
    pub fn is_complete(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) <= 0
    }
}
