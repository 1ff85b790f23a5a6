//! The random numbers of a run, all from its seed.

use embar_meter::random::SplitMix64;

/// What a simulation draws.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The generator that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// A generator of its own for one part of the run, so that parts do not disturb each other.
    pub fn fork(&mut self) -> Self {
        Self::new(self.bits())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number from 1 to `high` whose logarithm is even: small ones are as likely as large ones.
    pub fn size(&mut self, high: u64) -> u64 {
        let bits = self.between(0, u64::from(high.ilog2()));
        let low = 1 << bits;
        self.between(low, (2 * low - 1).min(high))
    }

    /// True once in `n` times; never for 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// Puts them into any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.bits() as u8).collect()
    }
}
