//! Letting what callers submit next gather.
//!
//! Callers who are given replies together mostly submit something together. Writes cost far more
//! than commands, so the driver waits until those callers have run, if not for long, and then sends
//! all of it.

use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

/// So many callers, or more, are waited for.
const SEVERAL: usize = 4;

/// Whether callers gather. In a cache line of its own, as each of them writes to it.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Gather {
    on: AtomicBool,
    /// Callers that were woken and did not take their replies yet, roughly: those of earlier
    /// replies are not told apart.
    awaited: AtomicIsize,
}

impl Gather {
    /// For the driver, before it wakes so many callers.
    pub fn begin(&self, callers: usize) {
        if callers >= SEVERAL {
            self.awaited.store(callers as isize, Ordering::Relaxed);
            self.on.store(true, Ordering::Relaxed);
        } else if self.is_on() {
            self.on.store(false, Ordering::Relaxed);
        }
    }

    /// Whether those who submit leave the writing to the driver.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// A caller took its reply.
    #[inline]
    pub fn came(&self) {
        if self.is_on() {
            self.awaited.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether nobody is waited for any more.
    #[cfg(feature = "tokio")]
    pub fn is_complete(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) <= 0
    }
}
