//! Bytes that wait in sessions without a connection, of one keeper.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How much waits, and how much may.
pub(crate) struct SuspendedBytes {
    used: AtomicUsize,
    limit: usize,
}

impl SuspendedBytes {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            limit,
        }
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Adds what is there anyway.
    pub(crate) fn add(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether so many more may come. Another thread may be faster, so the limit is exceeded by a message or two.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.used().saturating_add(bytes) <= self.limit
    }

    pub(crate) fn sub(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// By how much the limit is exceeded.
    pub(crate) fn excess(&self) -> usize {
        self.used().saturating_sub(self.limit)
    }
}
