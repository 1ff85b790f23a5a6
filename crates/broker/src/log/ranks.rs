//! Ranks topics by how much each takes of something that all topics share: bytes of the log, or pages of the index.
//! Eviction begins with the topic that takes most.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Topics by what they take; the default of `K` is nothing. Of topics that take as much, the one that has
/// taken it for longest comes first, because what it has is the oldest.
#[derive(Debug, Default)]
pub(super) struct Ranks<K> {
    by_rank: BTreeSet<(Rank<K>, u32)>,
    of: BTreeMap<u32, Rank<K>>,
    changes: u64,
}

/// What a topic takes, and after how many changes it came to that.
type Rank<K> = (K, Reverse<u64>);

impl<K: Copy + Default + Ord> Ranks<K> {
    /// What a topic takes now; returns what it took before.
    pub fn set(&mut self, topic: u32, takes: K) -> K {
        let before = self.of.get(&topic).copied();
        let took = before.map_or_else(K::default, |(took, _)| took);
        if took == takes {
            return took;
        }
        if let Some(rank) = before {
            self.of.remove(&topic);
            self.by_rank.remove(&(rank, topic));
        }
        if takes != K::default() {
            self.changes += 1;
            let rank = (takes, Reverse(self.changes));
            self.of.insert(topic, rank);
            self.by_rank.insert((rank, topic));
        }
        took
    }

    /// The topic that comes first, of those behind this one when there is one.
    pub fn most(&self, below: Option<u32>) -> Option<u32> {
        let Some(topic) = below else {
            return self.by_rank.last().map(|(_, topic)| *topic);
        };
        let rank = *self.of.get(&topic)?;
        let next = self.by_rank.range(..(rank, topic)).next_back();
        next.map(|(_, topic)| *topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_come_in_the_order_of_what_they_take_now() {
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

    #[test]
    fn of_equals_the_one_that_has_it_longest_comes_first() {
        let mut ranks = Ranks::default();
        for (topic, takes) in [(3, 10), (1, 10), (2, 10), (3, 20), (3, 10), (1, 10)] {
            ranks.set(topic, takes);
        }
        let mut found = Vec::new();
        while let Some(next) = ranks.most(found.last().copied()) {
            found.push(next);
        }
        assert_eq!(found, [1, 2, 3]);
    }
}
