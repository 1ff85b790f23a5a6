//! An ordered map in one piece of memory, for keys that mostly come in ascending order and mostly go from the front.
//!
//! The log's lists of extents are such maps: an extent comes for each few batches, and another one goes. A tree would
//! ask for a node with some of them, and give it back with others.
//!
//! Invariants
//! - The keys ascend, and each is there once.
//! - A map that stays about as long as it is asks for no memory. One that has become much shorter gives memory back:
//!   there may be thousands of topics, each of which had most of the log at some time.

use std::collections::VecDeque;

/// Memory for fewer entries than this is not given back.
const SMALL: usize = 16;

/// The map. With `()` for values it is a set.
#[derive(Debug)]
pub(super) struct Sorted<K, V = ()> {
    entries: VecDeque<(K, V)>,
}

impl<K: Copy + Ord, V> Sorted<K, V> {
    pub const fn new() -> Self {
        Self {
            entries: VecDeque::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    fn find(&self, key: K) -> Result<usize, usize> {
        // Most calls are about the newest.
        match self.entries.back() {
            Some((last, _)) if *last == key => Ok(self.entries.len() - 1),
            Some((last, _)) if *last > key => self.entries.binary_search_by_key(&key, |it| it.0),
            _ => Err(self.entries.len()),
        }
    }

    /// Adds a key that is not there, or stores another value for one that is.
    pub fn insert(&mut self, key: K, value: V) {
        match self.find(key) {
            Ok(at) => self.entries[at].1 = value,
            Err(at) => self.entries.insert(at, (key, value)),
        }
    }

    pub fn get(&self, key: K) -> Option<&V> {
        let at = self.find(key).ok()?;
        Some(&self.entries[at].1)
    }

    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let at = self.find(key).ok()?;
        Some(&mut self.entries[at].1)
    }

    pub fn contains(&self, key: K) -> bool {
        self.find(key).is_ok()
    }

    pub fn remove(&mut self, key: K) -> Option<V> {
        let at = self.find(key).ok()?;
        let removed = self.entries.remove(at);
        self.give_back();
        removed.map(|(_, value)| value)
    }

    /// Keeps the keys for which `keeps` holds.
    pub fn retain(&mut self, mut keeps: impl FnMut(K, &mut V) -> bool) {
        self.entries.retain_mut(|(key, value)| keeps(*key, value));
        self.give_back();
    }

    fn give_back(&mut self) {
        let (len, capacity) = (self.entries.len(), self.entries.capacity());
        if capacity > SMALL && len < capacity / 8 {
            self.entries.shrink_to((len * 2).max(SMALL));
        }
    }

    pub fn first(&self) -> Option<K> {
        self.entries.front().map(|(key, _)| *key)
    }

    pub fn last_mut(&mut self) -> Option<&mut V> {
        self.entries.back_mut().map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.entries.iter().map(|(key, value)| (*key, value))
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> {
        self.entries.iter().map(|(key, _)| *key)
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// The entries with keys from `start` on and below `end`.
    pub fn range(&self, start: K, end: K) -> impl DoubleEndedIterator<Item = (K, &V)> {
        let at = |key| self.entries.partition_point(|it| it.0 < key);
        let entries = self.entries.range(at(start)..at(end));
        entries.map(|(key, value)| (*key, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_is_a_map() {
        let (mut map, mut tree) = (Sorted::new(), BTreeMap::new());
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for turn in 0..20_000 {
            // It grows, shrinks, and is often empty.
            let keys = 1 + turn / 2_000 % 2 * 200;
            let (key, value) = (random(keys), random(100));
            match random(4) {
                0 | 1 => {
                    map.insert(key, value);
                    tree.insert(key, value);
                }
                2 => assert_eq!(map.remove(key), tree.remove(&key)),
                _ => {
                    map.retain(|key, value| (key + *value) % 11 > 0);
                    tree.retain(|key, value| (key + *value) % 11 > 0);
                }
            }
            assert_eq!((map.len(), map.get(key)), (tree.len(), tree.get(&key)));
            assert_eq!(map.contains(key), tree.contains_key(&key));
            assert_eq!(map.get_mut(key), tree.get_mut(&key));
            assert_eq!(map.first(), tree.keys().next().copied());
            let (start, end) = (random(keys), keys);
            let part = tree.range(start..end).map(|(key, value)| (*key, value));
            assert!(map.range(start, end).eq(part));
            assert!(map.keys().eq(tree.keys().copied()) && map.values().eq(tree.values()));
        }
    }

    #[test]
    fn memory_that_is_not_needed_any_more_goes() {
        let mut map = Sorted::new();
        for key in 0..10_000 {
            map.insert(key, ());
        }
        for key in 0..9_990 {
            map.remove(key);
        }
        assert!(map.entries.capacity() < 200);
        map.retain(|_, ()| false);
        assert!(map.entries.capacity() <= 2 * SMALL);
    }

    #[test]
    fn a_map_that_stays_as_long_keeps_its_memory() {
        let (mut map, mut kept) = (Sorted::new(), None);
        for key in 0..10_000_u64 {
            map.insert(key, ());
            if let Some(old) = key.checked_sub(100) {
                map.remove(old);
            }
            let capacity = map.entries.capacity();
            assert!(key <= 1_000 || capacity == *kept.get_or_insert(capacity));
        }
    }
}
