//! What readers keep of a payload file from being used again: blocks of which something is lent to them, and what is held
//! for those that nobody hears of any more. And blocks that outlive their extents without that: who reads there is still at work.
//!
//! Invariants
//! - What is both lent and held counts once.
//! - What is lent leaves a block of every size free of readers: it lies in few of the *stretches* in which a largest block can lie,
//!   an eighth of them, and in a file that has less than eight in one. So batches of any size go on whatever stays lent.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::unit::{ORDER_MAX, UNIT_BYTES};

/// Blocks of which something is lent are at most this part of a payload file, and lie in this part of its aligned 16 MiB, or in one
/// of them: what readers that stand still keep from being used again.
pub const LENT_PART: u64 = 8;

pub(super) struct Kept {
    /// Blocks of which something is lent: their orders, by their first units.
    lent: BTreeMap<u64, u8>,
    /// Blocks whose extents were dropped, and that are not free yet.
    outliving: BTreeMap<u64, u8>,
    /// Units that are held, whether or not a block has them.
    held: BTreeSet<u64>,
    /// Units that are lent or held...
    units: u64,
    /// ...and how many may be, if more are to be lent.
    units_max: u64,
    /// How many of them are in each stretch that has some...
    stretches: BTreeMap<u64, u64>,
    /// ...and how many stretches may have some, if more are to be lent.
    stretches_max: usize,
    /// A stretch has 1 << order units.
    stretch_order: u8,
    /// Units of outliving blocks that are neither.
    pinned: u64,
}

impl Kept {
    /// Nothing, of a file of so many units.
    pub fn new(units: u64) -> Self {
        // A file that has not two of the largest blocks is divided into smaller ones.
        let has_two = |order: &u8| units >> order >= 2;
        let stretch_order = (0..=ORDER_MAX).rev().find(has_two).unwrap_or(0);
        let stretches_max = (units >> stretch_order) / LENT_PART;
        Self {
            stretches: BTreeMap::new(),
            stretches_max: stretches_max.max(1) as usize,
            stretch_order,
            lent: BTreeMap::new(),
            outliving: BTreeMap::new(),
            held: BTreeSet::new(),
            units: 0,
            units_max: units / LENT_PART,
            pinned: 0,
        }
    }

    /// Counts a block as lent, of which nothing was. False, and nothing is counted, if that were too much.
    pub fn lend(&mut self, at: u64, order: u8) -> bool {
        let (unit, more) = (at / UNIT_BYTES, self.unheld(at, order));
        // A block that may be lent is no larger than a stretch.
        let is_new = more > 0 && !self.stretches.contains_key(&(unit >> self.stretch_order));
        let stretches = self.stretches.len() + usize::from(is_new);
        if self.units + more > self.units_max || stretches > self.stretches_max {
            return false;
        }
        let before = self.lent.insert(unit, order);
        debug_assert!(before.is_none(), "only the first loan on a block counts");
        self.keep(unit, more);
        if self.outliving.contains_key(&unit) {
            self.pinned -= more;
        }
        true
    }

    /// Whether more is lent or held than was ever lent: somebody has locked what no reader can have.
    pub fn is_more_than_lent(&self) -> bool {
        self.units > self.units_max || self.stretches.len() > self.stretches_max
    }

    /// The last loan on a block has ended.
    pub fn end_loan(&mut self, at: u64, order: u8) {
        let (unit, less) = (at / UNIT_BYTES, self.unheld(at, order));
        self.lent.remove(&unit);
        self.unkeep(unit, less);
        if self.outliving.contains_key(&unit) {
            self.pinned += less;
        }
    }

    /// The extent of a block was dropped, and something else has the block still.
    pub fn outlive(&mut self, at: u64, order: u8) {
        let unit = at / UNIT_BYTES;
        self.outliving.insert(unit, order);
        if !self.lent.contains_key(&unit) {
            self.pinned += self.unheld(at, order);
        }
    }

    /// Nothing has the block any more.
    pub fn free(&mut self, at: u64, order: u8) {
        if self.outliving.remove(&(at / UNIT_BYTES)).is_some() {
            self.pinned -= self.unheld(at, order);
        }
    }

    /// Holds all of a block that is lent.
    pub fn hold(&mut self, at: u64, order: u8) {
        debug_assert!(self.lent.contains_key(&(at / UNIT_BYTES)), "it is lent");
        self.held.extend(units_of(at, order));
    }

    /// Holds a unit that no block has.
    pub fn hold_unit(&mut self, unit: u64) {
        if self.held.insert(unit) {
            self.keep(unit, 1);
        }
    }

    /// Does not hold a unit any more that was held.
    pub fn release(&mut self, unit: u64) {
        if !self.held.remove(&unit) || is_in(&self.lent, unit) {
            return;
        }
        self.unkeep(unit, 1);
        if is_in(&self.outliving, unit) {
            self.pinned += 1;
        }
    }

    /// Counts more units as lent or held, from this one on.
    fn keep(&mut self, unit: u64, more: u64) {
        if more > 0 {
            self.units += more;
            let stretch = unit >> self.stretch_order;
            *self.stretches.entry(stretch).or_default() += more;
        }
    }

    /// Takes that back.
    fn unkeep(&mut self, unit: u64, less: u64) {
        self.units -= less;
        let stretch = unit >> self.stretch_order;
        if let Some(count) = self.stretches.get_mut(&stretch) {
            *count -= less;
            if *count == 0 {
                self.stretches.remove(&stretch);
            }
        }
    }

    /// Units that are held.
    pub fn held(&self) -> &BTreeSet<u64> {
        &self.held
    }

    /// Where they are, as few ranges of bytes; the last ones come first.
    pub fn held_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for unit in self.held.iter().rev() {
            let bytes = unit * UNIT_BYTES..(unit + 1) * UNIT_BYTES;
            match ranges.last_mut() {
                Some(behind) if behind.start == bytes.end => behind.start = bytes.start,
                _ => ranges.push(bytes),
            }
        }
        ranges
    }

    /// Whether some of a block is held.
    pub fn holds(&self, at: u64, order: u8) -> bool {
        self.held.range(units_of(at, order)).next().is_some()
    }

    /// Bytes that are held.
    pub fn held_bytes(&self) -> u64 {
        self.held.len() as u64 * UNIT_BYTES
    }

    /// Bytes that are lent or held.
    pub fn bytes(&self) -> u64 {
        self.units * UNIT_BYTES
    }

    /// Bytes of blocks that outlive their extents, without what is lent or held.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned * UNIT_BYTES
    }

    /// Units of a block that are not held.
    fn unheld(&self, at: u64, order: u8) -> u64 {
        let held = self.held.range(units_of(at, order)).count() as u64;
        (1 << order) - held
    }
}

/// The units of a block.
fn units_of(at: u64, order: u8) -> Range<u64> {
    let unit = at / UNIT_BYTES;
    unit..unit + (1 << order)
}

/// Whether a unit is in one of these blocks.
fn is_in(blocks: &BTreeMap<u64, u8>, unit: u64) -> bool {
    let before = blocks.range(..=unit).next_back();
    before.is_some_and(|(first, order)| unit < first + (1 << order))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::BLOCK_BYTES_MAX;

    /// A block, and what is so of it.
    #[derive(Default)]
    struct Model {
        has_extent: bool,
        exists: bool,
        is_lent: bool,
    }

    #[test]
    fn what_is_lent_leaves_a_largest_block_alone_if_there_are_two() {
        let largest = 1 << ORDER_MAX;
        // Units, and how many of the largest blocks that fit twice may have something that is lent.
        for (units, most) in [
            (64 * largest, 8),
            (17 * largest, 2),
            (8 * largest, 1),
            (4 * largest, 1),
            (2 * largest, 1),
            (16, 1),
            (8, 1),
            (7, 0),
            (1, 0),
        ] {
            let mut kept = Kept::new(units);
            let size = (1 << kept.stretch_order) * UNIT_BYTES;
            let stretches = units * UNIT_BYTES / size;
            let lent = (0..stretches).filter(|it| kept.lend(it * size, 0)).count();
            assert_eq!(lent, most, "of {units} units");
            assert!(stretches >= 2 && size <= BLOCK_BYTES_MAX || units == 1);
            let again = kept.lend(UNIT_BYTES, 0);
            assert_eq!(again, units / LENT_PART > most as u64, "of {units} units");
        }
    }

    /// Random steps on blocks of four units, beside what a pass over all of them counts.
    #[test]
    fn counts_are_those_of_a_pass_over_all_blocks() {
        const BLOCKS: usize = 32;
        let order = 2;
        let mut kept = Kept::new(4 * BLOCKS as u64);
        let mut blocks: [Model; BLOCKS] = Default::default();
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let draw = (random >> 33) as usize;
            let (index, step, unit) = (draw % BLOCKS, draw / BLOCKS % 6, draw / BLOCKS / 6 % 4);
            let at = index as u64 * 4 * UNIT_BYTES;
            let unit = index as u64 * 4 + unit as u64;
            let block = &mut blocks[index];
            match step {
                0 if !block.exists => (block.exists, block.has_extent) = (true, true),
                0 if block.has_extent => {
                    block.has_extent = false;
                    kept.outlive(at, order);
                }
                0 if !block.is_lent => {
                    block.exists = false;
                    kept.free(at, order);
                }
                1 | 2 if block.exists && !block.is_lent => block.is_lent = kept.lend(at, order),
                3 if block.is_lent => {
                    block.is_lent = false;
                    kept.end_loan(at, order);
                }
                4 if block.is_lent => kept.hold(at, order),
                4 if !block.exists && draw.is_multiple_of(7) => kept.hold_unit(unit),
                5 => kept.release(unit),
                _ => {}
            }
            let of = |unit: &u64| &blocks[*unit as usize / 4];
            let all = 0..4 * BLOCKS as u64;
            let is_kept = |unit: &u64| of(unit).is_lent || kept.held().contains(unit);
            let units = all.clone().filter(is_kept).count() as u64;
            assert_eq!(kept.bytes(), units * UNIT_BYTES);
            let kept_units = all.clone().filter(is_kept);
            let stretches: BTreeSet<u64> = kept_units.map(|it| it >> kept.stretch_order).collect();
            assert!(stretches.iter().eq(kept.stretches.keys()));
            let outlives = |unit: &u64| of(unit).exists && !of(unit).has_extent;
            let pinned = all.filter(|unit| outlives(unit) && !is_kept(unit)).count() as u64;
            assert_eq!(kept.pinned_bytes(), pinned * UNIT_BYTES);
        }
    }
}
