//! A histogram in fixed memory that adds a value in a few instructions.
//!
//! Buckets are log-linear: eight for each doubling, so a value is known to an eighth of itself. A
//! bucket includes its upper bound, as Prometheus's buckets do.

use crate::counter::Counter;

/// log2 of the buckets for each doubling.
const FINE: u32 = 3;
/// Doublings with buckets of their own; the last bucket also counts all larger values.
const DOUBLINGS: usize = 26;
const BUCKETS: usize = DOUBLINGS << FINE;

/// Counts values in units of 2^`UNIT`. One thread at a time writes it.
pub(crate) struct Histogram<const UNIT: u32> {
    buckets: [Counter; BUCKETS],
    sum: Counter,
}

impl<const UNIT: u32> Default for Histogram<UNIT> {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| Counter::default()),
            sum: Counter::default(),
        }
    }
}

/// The bucket of a value; 0 shares the bucket of 1.
#[inline]
fn bucket(value: u64, unit: u32) -> usize {
    let units = value.saturating_sub(1) >> unit;
    let log2 = (units | 1).ilog2();
    if log2 < FINE {
        return units as usize;
    }
    let fine = log2 - FINE;
    ((fine as usize) << FINE) + (units >> fine) as usize
}

/// The highest value of a bucket.
fn upper(bucket: usize, unit: u32) -> u64 {
    let (doubling, rest) = (bucket >> FINE, bucket & ((1 << FINE) - 1));
    let units = match doubling {
        0 => rest + 1,
        _ => ((1 << FINE) + rest + 1) << (doubling - 1),
    };
    (units as u64) << unit
}

impl<const UNIT: u32> Histogram<UNIT> {
    /// Adds a value `times` times; only the histogram's one writer calls this.
    #[inline]
    pub fn add(&self, value: u64, times: u64) {
        self.buckets[bucket(value, UNIT).min(BUCKETS - 1)].add(times);
        self.sum.add(value * times);
    }

    pub fn read(&self) -> Distribution {
        Distribution {
            unit: UNIT,
            counts: self.buckets.iter().map(Counter::value).collect(),
            sum: self.sum.value(),
        }
    }
}

/// A histogram as it was at one moment: how often which value occurred. Each value is known to an
/// eighth of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    unit: u32,
    counts: Box<[u64]>,
    sum: u64,
}

impl Distribution {
    /// How many values were added.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all values.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The value that the fraction `part` (0 to 1) of all values does not exceed, at most an eighth
    /// too high. `None` if there are no values.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<u64> {
        let rank = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        let mut reached = |count: &u64| {
            seen += count;
            seen >= rank
        };
        let bucket = self.counts.iter().position(&mut reached)?;
        Some(upper(bucket, self.unit))
    }

    /// How many values are at most `limit`. Exact if `limit` is a power of two (and at least 256 for
    /// nanoseconds); otherwise it leaves out the values in the limit's own bucket.
    #[must_use]
    pub fn at_most(&self, limit: u64) -> u64 {
        let buckets = (0..self.counts.len()).take_while(|place| upper(*place, self.unit) <= limit);
        buckets.map(|place| self.counts[place]).sum()
    }

    /// Adds what another distribution counted.
    ///
    /// # Panics
    /// If the other one counts in another unit: times and sizes do not add up.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.unit, other.unit, "both count in one unit");
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_the_bucket_whose_bounds_it_has() {
        for unit in [0, 8] {
            let mut lower = 0;
            for place in 0..BUCKETS {
                let upper = upper(place, unit);
                assert_eq!(bucket(lower + 1, unit), place);
                assert_eq!(bucket(upper, unit), place);
                let width = upper - lower;
                assert!(width <= (1 << unit).max(upper / 8), "{lower} to {upper}");
                lower = upper;
            }
            assert!(bucket(lower + 1, unit) >= BUCKETS);
        }
    }

    #[test]
    fn what_was_added_can_be_asked_for() {
        let histogram = Histogram::<0>::default();
        assert_eq!(histogram.read().quantile(0.5), None);
        (1..=100).for_each(|value| histogram.add(value, 1));
        histogram.add(1 << 40, 1);
        let seen = histogram.read();
        assert_eq!(seen.count(), 101);
        assert_eq!(seen.sum(), 5050 + (1 << 40));
        assert_eq!(
            (seen.at_most(1), seen.at_most(8), seen.at_most(64)),
            (1, 8, 64)
        );
        let half = seen.quantile(0.5).expect("there are some");
        assert!((51..=57).contains(&half), "{half}");
        assert!(seen.quantile(1.0) > Some(1 << 25));
        let mut twice = seen.clone();
        twice.merge(&seen);
        assert_eq!((twice.count(), twice.at_most(64)), (202, 128));
    }
}
