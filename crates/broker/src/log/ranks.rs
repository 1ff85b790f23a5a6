//! Which topic takes most of something that is short.

use std::collections::{BTreeMap, BTreeSet};

/// Topics by what they take: nothing is the default of `K`.
#[derive(Debug, Default)]
pub(super) struct Ranks<K> {
    by_rank: BTreeSet<(K, u32)>,
    of: BTreeMap<u32, K>,
}

impl<K: Copy + Default + Ord> Ranks<K> {
    /// What a topic takes now; returns what it took before.
    pub fn set(&mut self, topic: u32, takes: K) -> K {
        let before = if takes == K::default() {
            self.of.remove(&topic)
        } else {
            self.of.insert(topic, takes)
        };
        let before = before.unwrap_or_default();
        if before != takes {
            self.by_rank.remove(&(before, topic));
            if takes != K::default() {
                self.by_rank.insert((takes, topic));
            }
        }
        before
    }

    /// The topic that takes most, of those that take less than this one when there is one.
    pub fn most(&self, below: Option<u32>) -> Option<u32> {
        let Some(topic) = below else {
            return self.by_rank.last().map(|(_, topic)| *topic);
        };
        let rank = (self.of.get(&topic).copied().unwrap_or_default(), topic);
        let next = self.by_rank.range(..rank).next_back();
        next.map(|(_, topic)| *topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_take_most_come_first_as_they_are_now() {
        let mut ranks = Ranks::default();
        for (topic, takes) in [(1, 10), (2, 30), (3, 20), (2, 5), (2, 5)] {
            ranks.set(topic, takes);
        }
        let mut found = Vec::new();
        while let Some(next) = ranks.most(found.last().copied()) {
            found.push(next);
        }
        assert_eq!(found, [3, 1, 2]);
        assert_eq!((ranks.set(3, 0), ranks.set(9, 0)), (20, 0));
        assert_eq!(ranks.most(None), Some(1));
    }
}
