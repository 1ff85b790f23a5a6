//! Which topic holds most of the log, and how much of it all nobody can read.
//!
//! Invariant: no topic occupies more than is known of it here.

use std::collections::{BTreeMap, BTreeSet};

/// What one topic takes of the log. The one that is evicted from first is the greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size {
    /// Bytes that it occupies above what it is to retain: topics with a limit of their own keep that
    /// much as long as others have anything.
    pub excess_bytes: u64,
    /// Bytes that it occupies.
    pub occupied_bytes: u64,
    /// Bytes of these that nobody will read.
    pub dead_bytes: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Sizes {
    by_size: BTreeSet<(Size, u32)>,
    of: BTreeMap<u32, Size>,
    dead_bytes: u64,
}

impl Sizes {
    /// What a topic takes now; nothing once it is gone.
    pub fn set(&mut self, topic: u32, size: Size) {
        let before = if size.occupied_bytes == 0 {
            self.of.remove(&topic)
        } else {
            self.by_size.insert((size, topic));
            self.of.insert(topic, size)
        };
        self.dead_bytes += size.dead_bytes;
        if let Some(before) = before {
            self.dead_bytes -= before.dead_bytes;
            if before != size {
                self.by_size.remove(&(before, topic));
            }
        }
    }

    /// The topic that takes most, of those behind this one when there is one.
    pub fn largest(&self, behind: Option<(Size, u32)>) -> Option<(Size, u32)> {
        match behind {
            None => self.by_size.last().copied(),
            Some(behind) => self.by_size.range(..behind).next_back().copied(),
        }
    }

    /// Bytes of all topics that nobody will read.
    pub fn dead_bytes(&self) -> u64 {
        self.dead_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(excess_bytes: u64, dead_bytes: u64) -> Size {
        Size {
            excess_bytes,
            occupied_bytes: excess_bytes + 1,
            dead_bytes,
        }
    }

    #[test]
    fn the_largest_come_first_as_they_are_now() {
        let mut sizes = Sizes::default();
        sizes.set(1, size(10, 0));
        sizes.set(2, size(30, 3));
        sizes.set(3, size(20, 2));
        sizes.set(2, size(5, 1));
        sizes.set(2, size(5, 1));
        let mut found = Vec::new();
        let mut last = None;
        while let Some(next) = sizes.largest(last) {
            found.push(next.1);
            last = Some(next);
        }
        assert_eq!((found, sizes.dead_bytes()), (vec![3, 1, 2], 3));
        sizes.set(3, Size::default());
        sizes.set(9, Size::default());
        assert_eq!(sizes.largest(None), Some((size(10, 0), 1)));
        assert_eq!(sizes.dead_bytes(), 1);
    }
}
