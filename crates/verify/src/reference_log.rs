//! What is at which position, as the first reader to come there saw it; all others must see the same.
//!
//! The latest positions are kept one by one. Of older ones a hash of each block is kept, so that a run may be of any
//! length: a reader far behind is compared block by block.

use std::collections::{BTreeMap, VecDeque};

/// Positions of one block.
pub const BLOCK: u64 = 4096;
/// Blocks whose positions are kept one by one.
pub const EXACT_BLOCKS: usize = 64;

/// A stream of positions: those of one broker, or `None` for the one order.
pub type Stream = Option<u32>;

/// The messages of one stream.
#[derive(Debug, Default)]
pub struct ReferenceLog {
    /// Hashes of blocks before `first` of which a reader saw all positions.
    sealed: BTreeMap<u64, BlockHash>,
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

    fn hash(&self) -> Option<BlockHash> {
        let mut roll = BlockHash::default();
        for digest in &self.digests {
            roll.add((*digest)?);
        }
        Some(roll)
    }
}

/// A hash of digests in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockHash(u64);

impl BlockHash {
    /// Adds the next digest.
    pub fn add(&mut self, digest: u64) {
        self.0 = (self.0.rotate_left(23) ^ digest).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl ReferenceLog {
    /// The position behind the highest one that a reader saw.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Takes what a reader saw at `position`; false if another message was seen there before.
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

    /// Takes the hash of a whole block that a reader saw; false if another reader's differed.
    pub fn agrees_on_block(&mut self, block: u64, roll: BlockHash) -> bool {
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

    fn roll(digests: impl IntoIterator<Item = u64>) -> BlockHash {
        let mut roll = BlockHash::default();
        digests.into_iter().for_each(|digest| roll.add(digest));
        roll
    }

    #[test]
    fn what_the_first_saw_the_others_must_see() {
        let mut reference_log = ReferenceLog::default();
        assert!(
            reference_log.agrees(5, 50)
                && reference_log.agrees(5, 50)
                && !reference_log.agrees(5, 51)
        );
        assert!(reference_log.agrees(4, 40));
        assert_eq!(reference_log.end(), 6);
    }

    #[test]
    fn old_blocks_are_compared_as_a_whole() {
        let mut reference_log = ReferenceLog::default();
        let blocks = EXACT_BLOCKS as u64 + 2;
        for position in 0..blocks * BLOCK {
            assert!(reference_log.agrees(position, position));
        }
        let whole = |block: u64| block * BLOCK..(block + 1) * BLOCK;
        assert!(reference_log.agrees_on_block(0, roll(whole(0))));
        assert!(!reference_log.agrees_on_block(1, roll(whole(1).rev())));
        // Too old to be compared one by one.
        assert!(reference_log.agrees(0, 77));
    }

    #[test]
    fn the_first_reader_of_a_whole_block_defines_it() {
        let mut reference_log = ReferenceLog::default();
        assert!(reference_log.agrees((EXACT_BLOCKS as u64 + 1) * BLOCK, 1));
        assert!(reference_log.agrees_on_block(0, roll(0..BLOCK)));
        assert!(reference_log.agrees_on_block(0, roll(0..BLOCK)));
        assert!(!reference_log.agrees_on_block(0, roll(1..BLOCK + 1)));
    }

    #[test]
    fn a_leap_takes_no_more_memory_than_a_step() {
        let mut reference_log = ReferenceLog::default();
        assert!(reference_log.agrees(3, 1) && reference_log.agrees(u64::MAX, 2));
        assert!(!reference_log.agrees(u64::MAX, 3) && reference_log.agrees(u64::MAX - 1, 4));
        assert!(reference_log.exact.len() <= EXACT_BLOCKS && reference_log.sealed.is_empty());
    }
}
