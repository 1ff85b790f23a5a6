//! Counts what is ordered of topics that are on disks, and not on all of them yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of all topics together. The log's lock guards it; the numbers are atomic so that each topic may have a part in it.
#[derive(Debug, Default)]
pub(super) struct Totals {
    batches: AtomicU64,
    bytes: AtomicU64,
}

impl Totals {
    /// Batches, wherever they lie.
    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Bytes of those in this broker's memory.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Of one topic.
#[derive(Debug)]
pub(super) struct Undurable {
    batches: u64,
    bytes: u64,
    totals: Arc<Totals>,
}

impl Undurable {
    /// Nothing, as a part of these.
    pub fn of(totals: &Arc<Totals>) -> Self {
        Self {
            batches: 0,
            bytes: 0,
            totals: Arc::clone(totals),
        }
    }

    /// So many more.
    pub fn add(&mut self, batches: u64, bytes: u64) {
        self.batches += batches;
        self.bytes += bytes;
        self.totals.batches.fetch_add(batches, Ordering::Relaxed);
        self.totals.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Nothing any more.
    pub fn clear(&mut self) {
        self.subtract(self.batches, self.bytes);
    }

    /// So many less.
    pub fn subtract(&mut self, batches: u64, bytes: u64) {
        self.batches -= batches;
        self.bytes -= bytes;
        self.totals.batches.fetch_sub(batches, Ordering::Relaxed);
        self.totals.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Undurable {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_topic_had_goes_with_it() {
        let totals = Arc::new(Totals::default());
        let mut one = Undurable::of(&totals);
        let mut other = Undurable::of(&totals);
        one.add(3, 100);
        other.add(1, 10);
        one.subtract(1, 40);
        assert_eq!((totals.batches(), totals.bytes()), (3, 70));
        drop(one);
        assert_eq!((totals.batches(), totals.bytes()), (1, 10));
    }
}
