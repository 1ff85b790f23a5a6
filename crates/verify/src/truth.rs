//! What is at which position, as the first reader saw it; all others must see the same.
//!
//! The latest positions are kept one by one. Of older ones a hash of each block is kept, so a run may be as long as it
//! likes: a reader far behind is compared block by block.

use std::collections::{BTreeMap, VecDeque};

/// Positions of one block.
pub const BLOCK: u64 = 4096;
/// Blocks whose positions are kept one by one.
pub const EXACT_BLOCKS: usize = 64;

/// Of one stream of positions.
#[derive(Debug, Default)]
pub struct Truth {
    /// Hashes of blocks before `first`, of which somebody saw all.
    sealed: BTreeMap<u64, Roll>,
    /// The first block that is kept position by position.
    first: u64,
    exact: VecDeque<Block>,
    end: u64,
}

#[derive(Debug)]
struct Block {
    digests: Box<[Option<u64>]>,
}

impl Block {
    fn new() -> Self {
        Self {
            digests: vec![None; BLOCK as usize].into(),
        }
    }

    fn hash(&self) -> Option<Roll> {
        let mut roll = Roll::default();
        for digest in &self.digests {
            roll.add((*digest)?);
        }
        Some(roll)
    }
}

/// A hash of digests in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roll(u64);

impl Roll {
    /// One more.
    pub fn add(&mut self, digest: u64) {
        self.0 = (self.0.rotate_left(23) ^ digest).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Truth {
    /// Behind the highest position that anybody saw.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Takes what somebody saw at `position`; false if another message was seen there before.
    pub fn agrees(&mut self, position: u64, digest: u64) -> bool {
        self.end = self.end.max(position.saturating_add(1));
        let block = position / BLOCK;
        self.slide_to(block);
        // Positions before the exact ones are compared by the block.
        let Some(index) = block.checked_sub(self.first) else {
            return true;
        };
        let place = &mut self.exact[index as usize].digests[(position % BLOCK) as usize];
        *place.get_or_insert(digest) == digest
    }

    /// Takes the hash of a whole block that somebody saw; false if others saw another.
    pub fn agrees_on_block(&mut self, block: u64, roll: Roll) -> bool {
        block >= self.first || *self.sealed.entry(block).or_insert(roll) == roll
    }

    /// Keeps `block` and those before it exactly, as many as there is room for.
    fn slide_to(&mut self, block: u64) {
        let first = (block + 1).saturating_sub(EXACT_BLOCKS as u64);
        while self.first < first {
            let Some(oldest) = self.exact.pop_front() else {
                self.first = first;
                break;
            };
            if let Some(hash) = oldest.hash() {
                self.sealed.insert(self.first, hash);
            }
            self.first += 1;
        }
        while self.first + (self.exact.len() as u64) <= block {
            self.exact.push_back(Block::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roll(digests: impl IntoIterator<Item = u64>) -> Roll {
        let mut roll = Roll::default();
        digests.into_iter().for_each(|digest| roll.add(digest));
        roll
    }

    #[test]
    fn what_the_first_saw_the_others_must_see() {
        let mut truth = Truth::default();
        assert!(truth.agrees(5, 50) && truth.agrees(5, 50) && !truth.agrees(5, 51));
        assert!(truth.agrees(4, 40));
        assert_eq!(truth.end(), 6);
    }

    #[test]
    fn old_blocks_are_compared_as_a_whole() {
        let mut truth = Truth::default();
        let blocks = EXACT_BLOCKS as u64 + 2;
        for position in 0..blocks * BLOCK {
            assert!(truth.agrees(position, position));
        }
        let whole = |block: u64| block * BLOCK..(block + 1) * BLOCK;
        assert!(truth.agrees_on_block(0, roll(whole(0))));
        assert!(!truth.agrees_on_block(1, roll(whole(1).rev())));
        // Too old to be told one by one.
        assert!(truth.agrees(0, 77));
    }

    #[test]
    fn a_block_that_nobody_saw_all_of_is_defined_by_the_first_who_does() {
        let mut truth = Truth::default();
        assert!(truth.agrees((EXACT_BLOCKS as u64 + 1) * BLOCK, 1));
        assert!(truth.agrees_on_block(0, roll(0..BLOCK)));
        assert!(truth.agrees_on_block(0, roll(0..BLOCK)));
        assert!(!truth.agrees_on_block(0, roll(1..BLOCK + 1)));
    }

    #[test]
    fn a_leap_takes_no_more_memory_than_a_step() {
        let mut truth = Truth::default();
        assert!(truth.agrees(3, 1) && truth.agrees(u64::MAX, 2));
        assert!(!truth.agrees(u64::MAX, 3) && truth.agrees(u64::MAX - 1, 4));
        assert!(truth.exact.len() <= EXACT_BLOCKS && truth.sealed.is_empty());
    }
}
