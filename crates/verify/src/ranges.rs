//! Sets of numbers that are nearly consecutive.

use std::collections::BTreeMap;

/// A set of numbers, kept as ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// The numbers `first .. end`.
    pub fn of(first: u64, end: u64) -> Self {
        Self(BTreeMap::from_iter((first < end).then_some((first, end))))
    }

    /// Adds `first .. first + count`. False, and nothing changes, if any of it is in already.
    pub fn insert(&mut self, first: u64, count: u64) -> bool {
        let end = first.saturating_add(count);
        let before = self.0.range(..=first).next_back().map(|(a, b)| (*a, *b));
        let after = self.0.range(first..).next().map(|(a, b)| (*a, *b));
        if before.is_some_and(|(_, before_end)| before_end > first)
            || after.is_some_and(|(after_first, _)| after_first < end)
        {
            return false;
        }
        let mut range = (first, end);
        if let Some((before_first, before_end)) = before
            && before_end == first
        {
            range.0 = before_first;
        }
        if let Some((after_first, after_end)) = after
            && after_first == end
        {
            self.0.remove(&after_first);
            range.1 = after_end;
        }
        self.0.insert(range.0, range.1);
        true
    }

    /// The number behind the largest; 0 when there are none.
    pub fn end(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(_, end)| *end)
    }

    /// Adds everything that is in `other`.
    pub fn merge(&mut self, other: &Self) {
        for (first, end) in other.iter() {
            for (hole, until) in self.missing_in(first, end) {
                self.insert(hole, until - hole);
            }
        }
    }

    /// The ranges in ascending order, each from its first number to the one behind its last.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(first, end)| (*first, *end))
    }

    /// What of `first..end` is not in the set.
    pub fn missing_in(&self, first: u64, end: u64) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        let mut at = first;
        let before = self.0.range(..first).next_back();
        for (from, until) in before.into_iter().chain(self.0.range(first..end)) {
            if *from > at {
                missing.push((at, *from));
            }
            at = at.max(*until);
        }
        if at < end {
            missing.push((at, end));
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(u64, u64)]) -> Ranges {
        let mut set = Ranges::default();
        for (first, count) in ranges {
            assert!(set.insert(*first, *count), "{first} + {count}");
        }
        set
    }

    #[test]
    fn neighbours_become_one() {
        let set = set(&[(0, 5), (10, 5), (5, 5)]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(0, 15)]);
        assert_eq!(set.end(), 15);
    }

    #[test]
    fn what_is_in_already_is_refused() {
        let mut set = set(&[(10, 10)]);
        for (first, count) in [(10, 1), (19, 1), (5, 6), (19, 5), (0, 100), (12, 2)] {
            assert!(!set.insert(first, count), "{first} + {count}");
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [(10, 20)]);
        assert!(set.insert(9, 1) && set.insert(20, 1));
    }

    #[test]
    fn holes_are_found() {
        let set = set(&[(2, 3), (8, 2)]);
        assert_eq!(set.missing_in(0, 12), [(0, 2), (5, 8), (10, 12)]);
        assert_eq!(set.missing_in(3, 9), [(5, 8)]);
        assert_eq!(set.missing_in(2, 5), []);
        assert_eq!(Ranges::default().missing_in(4, 4), []);
    }

    #[test]
    fn merging_bears_overlaps() {
        let mut one = set(&[(0, 5), (10, 5)]);
        one.merge(&set(&[(3, 9), (30, 1)]));
        assert_eq!(one.iter().collect::<Vec<_>>(), [(0, 15), (30, 31)]);
    }
}
