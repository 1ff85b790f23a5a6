//! A set of hash slots, as bits: 2 KiB.

use crate::slot::SLOTS;

const WORDS: usize = SLOTS as usize / 64;

/// A set of slots.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SlotSet(Box<[u64; WORDS]>);

impl SlotSet {
    pub fn empty() -> Self {
        Self(Box::new([0; WORDS]))
    }

    pub fn all() -> Self {
        Self(Box::new([u64::MAX; WORDS]))
    }

    pub fn only(slot: u16) -> Self {
        let mut set = Self::empty();
        set.insert(slot);
        set
    }

    pub fn insert(&mut self, slot: u16) {
        self.0[usize::from(slot / 64)] |= 1 << (slot % 64);
    }

    pub fn remove(&mut self, slot: u16) {
        self.0[usize::from(slot / 64)] &= !(1 << (slot % 64));
    }

    pub fn contains(&self, slot: u16) -> bool {
        self.0[usize::from(slot / 64)] & (1 << (slot % 64)) != 0
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Keeps those that the other set has, too.
    pub fn keep(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&*other.0) {
            *word &= other;
        }
    }

    /// Removes those that the other set has.
    pub fn remove_all(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&*other.0) {
            *word &= !other;
        }
    }

    /// All of them, in order, from this slot on and then around.
    pub fn from(&self, first: u16) -> impl Iterator<Item = u16> + '_ {
        let slots = (first..SLOTS).chain(0..first);
        slots.filter(|slot| self.contains(*slot))
    }
}

impl std::fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlotSet({} slots)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_and_go() {
        let mut set = SlotSet::only(63);
        set.insert(64);
        set.insert(SLOTS - 1);
        assert_eq!(set.from(0).collect::<Vec<_>>(), [63, 64, SLOTS - 1]);
        assert_eq!(set.from(64).collect::<Vec<_>>(), [64, SLOTS - 1, 63]);
        let mut all = SlotSet::all();
        assert_eq!(all.len(), usize::from(SLOTS));
        all.remove_all(&set);
        assert_eq!(all.len(), usize::from(SLOTS) - 3);
        set.remove(64);
        assert!(!set.contains(64) && !all.contains(64));
        set.keep(&SlotSet::only(63));
        assert_eq!(set, SlotSet::only(63));
        set.keep(&SlotSet::empty());
        assert!(set.is_empty());
    }
}
