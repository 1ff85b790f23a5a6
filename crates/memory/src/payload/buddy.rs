//! A buddy allocator over units of 64 KiB (Knowlton, "A fast storage allocator", 1965).
//!
//! Blocks have 2^order units and start at multiples of their size. The lowest free block is taken,
//! so the same calls give the same offsets.

use std::collections::BTreeSet;
use std::ops::Range;

use super::kept::Kept;
use super::unit::{ORDER_MAX, UNIT_BYTES};

pub(super) struct Buddy {
    /// First units of the free blocks of each order.
    free: [BTreeSet<u64>; ORDER_MAX as usize + 1],
    free_units: u64,
    units: u64,
    /// How many times a block was given back.
    freed: u64,
    /// What readers keep. What of it is held is not free, whether or not a block has it.
    pub(super) kept: Kept,
    /// Units that are held and that no block has.
    held_idle: BTreeSet<u64>,
    /// How many times a block was held that somebody had.
    holds: u64,
}

impl Buddy {
    /// All of `bytes` free; a rest below 64 KiB is not used.
    pub(super) fn new(bytes: u64) -> Self {
        let units = bytes / UNIT_BYTES;
        let mut buddy = Self {
            free: Default::default(),
            free_units: units,
            units,
            freed: 0,
            kept: Kept::new(units),
            held_idle: BTreeSet::new(),
            holds: 0,
        };
        let mut at = 0;
        while at < units {
            let fits = |order: &u8| at.is_multiple_of(1 << order) && at + (1 << order) <= units;
            let order = (0..=ORDER_MAX)
                .rev()
                .find(fits)
                .expect("order 0 always fits");
            buddy.free[usize::from(order)].insert(at);
            at += 1 << order;
        }
        buddy
    }

    /// The smallest order whose blocks hold `bytes`.
    pub(super) fn order_for(bytes: u32) -> Option<u8> {
        let units = u64::from(bytes.max(1))
            .div_ceil(UNIT_BYTES)
            .next_power_of_two();
        let order = units.trailing_zeros() as u8;
        (order <= ORDER_MAX).then_some(order)
    }

    /// Takes the lowest free block of `order`, splitting the smallest larger one if need be.
    pub(super) fn allocate(&mut self, order: u8) -> Option<u64> {
        let from = (order..=ORDER_MAX).find(|from| !self.free[usize::from(*from)].is_empty())?;
        let unit = self.free[usize::from(from)]
            .pop_first()
            .expect("found not empty");
        self.split(unit, from, unit, order);
        Some(unit * UNIT_BYTES)
    }

    /// Takes the block of `order` at byte `at`, if there is such a block and all of it is free, or held and in no block.
    pub(super) fn allocate_at(&mut self, at: u64, order: u8) -> bool {
        if order > ORDER_MAX || !at.is_multiple_of(UNIT_BYTES << order) {
            return false;
        }
        let unit = at / UNIT_BYTES;
        let idle: Vec<u64> = self
            .held_idle
            .range(unit..unit + (1 << order))
            .copied()
            .collect();
        for unit in &idle {
            self.held_idle.remove(unit);
            self.put(*unit, 0);
        }
        let taken = self.take_at(unit, order);
        if !taken {
            for unit in idle {
                self.take_at(unit, 0);
                self.held_idle.insert(unit);
            }
        }
        taken
    }

    /// Holds these units, of which no block has any.
    pub(super) fn hold(&mut self, units: Range<u64>) {
        for unit in units.start..units.end.min(self.units) {
            if self.take_at(unit, 0) {
                self.kept.hold_unit(unit);
                self.held_idle.insert(unit);
            }
        }
    }

    /// Holds a block that somebody has, and of which something is lent.
    pub(super) fn hold_of(&mut self, at: u64, order: u8) {
        self.kept.hold(at, order);
        self.holds += 1;
    }

    /// How many times [`Buddy::hold_of`] was called.
    pub(super) fn holds(&self) -> u64 {
        self.holds
    }

    /// Holds nothing of these units any more.
    pub(super) fn release(&mut self, units: Range<u64>) {
        let held: Vec<u64> = self.kept.held().range(units).copied().collect();
        for unit in held {
            self.kept.release(unit);
            if self.held_idle.remove(&unit) {
                self.freed += 1;
                self.put(unit, 0);
            }
        }
    }

    /// Takes a block that is free.
    fn take_at(&mut self, unit: u64, order: u8) -> bool {
        let around = (order..=ORDER_MAX).find_map(|from| {
            let start = unit & !((1 << from) - 1);
            self.free[usize::from(from)]
                .remove(&start)
                .then_some((start, from))
        });
        let Some((start, from)) = around else {
            return false;
        };
        self.split(start, from, unit, order);
        true
    }

    /// Splits the block of order `from` at `start`, already taken, down to the one of `order` at
    /// `unit`, and frees the other halves.
    fn split(&mut self, mut start: u64, from: u8, unit: u64, order: u8) {
        for half in (order..from).rev() {
            let upper = start + (1 << half);
            if unit >= upper {
                self.free[usize::from(half)].insert(start);
                start = upper;
            } else {
                self.free[usize::from(half)].insert(upper);
            }
        }
        self.free_units -= 1 << order;
    }

    /// Gives a block back, but for what is held of it. Joins it with its buddy for as long as that is free too.
    pub(super) fn free(&mut self, at: u64, order: u8) {
        self.freed += 1;
        self.kept.free(at, order);
        let unit = at / UNIT_BYTES;
        if !self.kept.holds(at, order) {
            return self.put(unit, order);
        }
        for unit in unit..unit + (1 << order) {
            match self.kept.held().contains(&unit) {
                true => drop(self.held_idle.insert(unit)),
                false => self.put(unit, 0),
            }
        }
    }

    fn put(&mut self, mut unit: u64, mut order: u8) {
        self.free_units += 1 << order;
        while order < ORDER_MAX && self.free[usize::from(order)].remove(&(unit ^ (1 << order))) {
            unit &= !(1 << order);
            order += 1;
        }
        let fresh = self.free[usize::from(order)].insert(unit);
        assert!(fresh, "the block of unit {unit} was freed twice");
    }

    /// Bytes of the free blocks that lie in these places.
    pub(super) fn free_bytes_in(&self, places: Range<u64>) -> u64 {
        let units = places.start / UNIT_BYTES..places.end / UNIT_BYTES;
        let free = self.free.iter().zip(0..);
        let units: u64 = free
            .map(|(blocks, order)| (blocks.range(units.clone()).count() as u64) << order)
            .sum();
        units * UNIT_BYTES
    }

    pub(super) fn freed(&self) -> u64 {
        self.freed
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.free_units * UNIT_BYTES
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.units * UNIT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_rounded_up() {
        assert_eq!(Buddy::order_for(0), Some(0));
        assert_eq!(Buddy::order_for(64 << 10), Some(0));
        assert_eq!(Buddy::order_for((64 << 10) + 1), Some(1));
        assert_eq!(Buddy::order_for(16 << 20), Some(8));
        assert_eq!(Buddy::order_for((16 << 20) + 1), None);
        assert_eq!(Buddy::order_for(u32::MAX), None);
    }

    /// Random calls against a map of units: no overlap, no loss, and everything joins again.
    #[test]
    fn never_overlaps_and_never_loses() {
        for (seed, units) in [(1_u64, 256_u64), (2, 13), (3, 512), (4, 1)] {
            let mut buddy = Buddy::new(units * UNIT_BYTES);
            let mut used = vec![false; units as usize];
            let mut blocks: Vec<(u64, u8)> = Vec::new();
            let mut random = seed;
            for _ in 0..4000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let draw = random >> 33;
                let order = (draw % 9) as u8;
                let range = |at: u64, order: u8| {
                    (at / UNIT_BYTES) as usize..(at / UNIT_BYTES) as usize + (1 << order)
                };
                let taken = match draw / 9 % 4 {
                    0 if !blocks.is_empty() => {
                        let (at, order) = blocks.swap_remove(draw as usize / 36 % blocks.len());
                        used[range(at, order)].fill(false);
                        buddy.free(at, order);
                        None
                    }
                    1 => {
                        let at = (draw / 36 % (units + 2)) * UNIT_BYTES;
                        buddy.allocate_at(at, order).then_some((at, order))
                    }
                    _ => buddy.allocate(order % 4).map(|at| (at, order % 4)),
                };
                if let Some((at, order)) = taken {
                    assert!(at.is_multiple_of(UNIT_BYTES << order));
                    assert!(
                        used[range(at, order)].iter().all(|used| !used),
                        "overlap at {at}"
                    );
                    used[range(at, order)].fill(true);
                    blocks.push((at, order));
                }
                let free = used.iter().filter(|used| !**used).count() as u64;
                assert_eq!(buddy.free_bytes(), free * UNIT_BYTES);
            }
            for (at, order) in blocks {
                buddy.free(at, order);
            }
            let fresh = Buddy::new(units * UNIT_BYTES);
            assert_eq!(buddy.free, fresh.free, "all blocks joined again");
        }
    }

    #[test]
    fn a_block_is_taken_where_asked_or_not_at_all() {
        let mut buddy = Buddy::new(4 * UNIT_BYTES);
        assert!(buddy.allocate_at(UNIT_BYTES, 0));
        assert!(!buddy.allocate_at(UNIT_BYTES, 0), "taken");
        assert!(!buddy.allocate_at(0, 1), "half of it is taken");
        assert!(
            !buddy.allocate_at(UNIT_BYTES, 1),
            "not a multiple of its size"
        );
        assert!(!buddy.allocate_at(4 * UNIT_BYTES, 0), "beyond the end");
        assert!(!buddy.allocate_at(0, 200), "no such order");
        assert!(buddy.allocate_at(2 * UNIT_BYTES, 1));
        assert_eq!(buddy.free_bytes(), UNIT_BYTES);
    }
}
