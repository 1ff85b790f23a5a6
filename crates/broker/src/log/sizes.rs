//! How much of the log each topic occupies, which one occupies most, and how many bytes are stuck: no reader can read
//! them, or they lie beside batches that cannot be evicted.
//!
//! Invariant: no topic occupies more than its size here says.

use super::ranks::Ranks;

/// What one topic takes of the log. The greatest one is evicted from first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size {
    /// Bytes that it occupies above what it is to retain: topics with a limit of their own keep that
    /// much as long as others have anything.
    pub excess_bytes: u64,
    /// Bytes that it occupies.
    pub occupied_bytes: u64,
    /// Those of them that can never be read, or that can be read beside something that cannot go.
    pub stuck_bytes: u64,
}

/// The sizes of all topics, and how much is stuck in all.
#[derive(Default)]
pub(super) struct Sizes {
    ranks: Ranks<Size>,
    stuck_bytes: u64,
}

impl Sizes {
    /// What a topic takes now; nothing once it is gone.
    pub fn set(&mut self, topic: u32, size: Size) {
        let before = self.ranks.set(topic, size);
        self.stuck_bytes = self.stuck_bytes + size.stuck_bytes - before.stuck_bytes;
    }

    /// The topic that comes first, of those behind this one when there is one.
    pub fn most(&self, below: Option<u32>) -> Option<u32> {
        self.ranks.most(below)
    }

    /// Bytes of all topics that are stuck.
    pub fn stuck_bytes(&self) -> u64 {
        self.stuck_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_and_the_sum_follow_the_sizes() {
        let size = |excess_bytes, stuck_bytes| Size {
            excess_bytes,
            occupied_bytes: excess_bytes + 1,
            stuck_bytes,
        };
        let mut sizes = Sizes::default();
        sizes.set(1, size(10, 0));
        sizes.set(2, size(30, 3));
        sizes.set(2, size(5, 1));
        assert_eq!((sizes.most(None), sizes.most(Some(1))), (Some(1), Some(2)));
        assert_eq!(sizes.stuck_bytes(), 1);
        sizes.set(1, Size::default());
        assert_eq!(sizes.stuck_bytes(), 1);
    }
}
