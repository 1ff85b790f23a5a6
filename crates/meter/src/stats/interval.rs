//! How well a median is known.
//!
//! The interval is the wider, at each end, of two:
//! - the **bootstrap percentile interval**: resample the series with replacement [`RESAMPLES`] times, take the median
//!   of each, and cut half of what the confidence leaves, 2.5 % for 95 %, off both ends of what comes out (Efron and Tibshirani, "An Introduction to the
//!   Bootstrap", 1993, chapter 13);
//! - the **sign-test interval**: a value lies below the true median with probability 1/2, so the number of values
//!   below it is Binomial(n, 1/2), and the d-th smallest and d-th largest value enclose it with confidence
//!   `1 - 2 P(Binomial(n, 1/2) < d)`, whatever the distribution (Conover, "Practical Nonparametric Statistics",
//!   1999, section 3.2).
//!
//! The second is there because the first is too narrow for the few trials a bench runs: it would span the second to
//! the sixth of 7 values, which enclose the median in `1 - 2 * 8 / 128`, or 87.5 %, of all cases and not in 95 %. With
//! the second, 95 % is what it says, for any distribution. The same formula says what few values can support at all:
//! all of 5 values enclose the median with a confidence of 93.75 %, of 3 values with 75 %. Such an interval carries
//! that lower level, and no verdict is built on it.

use std::fmt;

use super::{
    LEVEL,
    series::{Series, quantile_of_sorted},
};
use crate::random::SplitMix64;

/// Resamples of one interval.
pub const RESAMPLES: usize = 10_000;

/// Seed of every interval: the same trials give the same interval on every machine.
pub const SEED: u64 = 0x656D_6261_725F_6D74;

/// A two-sided confidence interval of a median.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Interval {
    /// The estimate: the median itself.
    pub point: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Confidence, 0 to 1: what was asked for, or less when the values are too few (below 6 for [`LEVEL`]) to support it.
    pub level: f64,
}

impl Interval {
    /// Whether this interval excludes with this confidence that `value` is the truth. One of less confidence excludes nothing.
    pub fn excludes(&self, value: f64, level: f64) -> bool {
        self.level >= level && !(self.low..=self.high).contains(&value)
    }

    /// The further end's distance from the estimate, as a part of that: 0.02 is two percent. Infinite for an interval of less
    /// confidence than this.
    pub fn half_width(&self, level: f64) -> f64 {
        match self.level >= level && self.point != 0.0 {
            true => (self.high - self.point).max(self.point - self.low) / self.point.abs(),
            false => f64::INFINITY,
        }
    }
}

impl fmt::Display for Interval {
    /// `1.034 [1.012, 1.055]`; the format's precision applies to all three numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = f.precision().unwrap_or(3);
        write!(
            f,
            "{:.p$} [{:.p$}, {:.p$}]",
            self.point, self.low, self.high
        )
    }
}

/// The interval of the median of `series` at [`LEVEL`], see [the module](self). Takes time in proportion to [`RESAMPLES`]
/// times the number of values: made for trials, not for single latencies.
pub fn median_interval(series: &Series) -> Interval {
    median_interval_at(series, LEVEL)
}

/// The same at any confidence above one half.
pub fn median_interval_at(series: &Series, level: f64) -> Interval {
    let signs = sign_test_interval(series, level);
    let medians = resampled_medians(series.sorted());
    let tail = (1.0 - level) / 2.0;
    let interval = Interval {
        low: quantile_of_sorted(&medians, tail).min(signs.low),
        high: quantile_of_sorted(&medians, 1.0 - tail).max(signs.high),
        ..signs
    };
    assert!(
        interval.low <= interval.point && interval.point <= interval.high,
        "an interval encloses its own estimate"
    );
    interval
}

/// The second of the two intervals alone, which costs no resamples: to see how wide the interval is about to be.
pub(crate) fn sign_test_interval(series: &Series, level: f64) -> Interval {
    let sorted = series.sorted();
    let n = sorted.len();
    let cut = order_statistic(n, (1.0 - level) / 2.0);
    Interval {
        point: series.median(),
        low: sorted[cut],
        high: sorted[n - 1 - cut],
        level: level.min(1.0 - 2.0 * 0.5_f64.powf(n as f64)),
    }
}

/// A value that the median of `series` exceeds in at most 5 % of all cases, and the confidence its values support.
pub(super) fn median_upper_bound(series: &Series) -> (f64, f64) {
    let sorted = series.sorted();
    let n = sorted.len();
    let medians = resampled_medians(sorted);
    let cut = order_statistic(n, 1.0 - LEVEL);
    let upper = quantile_of_sorted(&medians, LEVEL).max(sorted[n - 1 - cut]);
    (upper, LEVEL.min(1.0 - 0.5_f64.powf(n as f64)))
}

/// The largest place (from 0) whose value lies above the true median with probability `tail` or less; 0 when not even
/// the smallest does.
fn order_statistic(n: usize, tail: f64) -> usize {
    // In logarithms, since 2^-n is below the smallest number for large n. Place d is above the median when at most d
    // values are below it: P(Binomial(n, 1/2) <= d).
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    for d in 0..n {
        below += log_term.exp();
        if below > tail {
            return d.saturating_sub(1);
        }
        log_term += ((n - d) as f64 / (d + 1) as f64).ln();
    }
    unreachable!("the tail is below one half, and the whole is one")
}

/// Medians of [`RESAMPLES`] resamples, ascending.
fn resampled_medians(sorted: &[f64]) -> Vec<f64> {
    let n = sorted.len();
    let mut random = SplitMix64::new(SEED);
    let mut drawn = vec![0_usize; n];
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            drawn.fill(0);
            for _ in 0..n {
                drawn[random.below(n as u64) as usize] += 1;
            }
            median_of_drawn(sorted, &drawn)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    medians
}

/// The median of a resample given as how often each sorted value was drawn: a walk instead of a sort.
fn median_of_drawn(sorted: &[f64], drawn: &[usize]) -> f64 {
    let n = sorted.len();
    let (left, right) = ((n - 1) / 2, n / 2);
    let mut passed = 0;
    let mut low = None;
    for (value, times) in sorted.iter().zip(drawn) {
        passed += times;
        if low.is_none() && passed > left {
            low = Some(*value);
        }
        if let Some(low) = low
            && passed > right
        {
            return quantile_of_sorted(&[low, *value], 0.5);
        }
    }
    unreachable!("a resample has as many values as the series")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{PAIRS_MIN, VERDICT_LEVEL};

    #[test]
    fn order_statistics_are_those_of_the_published_table() {
        // Conover (1999), table A3, or any table of the sign test: the d-th smallest and largest value, d from 1.
        for (n, d) in [
            (6, 1),
            (8, 1),
            (9, 2),
            (11, 2),
            (12, 3),
            (15, 4),
            (17, 5),
            (20, 6),
            (25, 8),
            (30, 10),
        ] {
            assert_eq!(order_statistic(n, 0.025) + 1, d, "two-sided, {n} values");
        }
        for (n, d) in [(5, 1), (8, 2), (11, 3), (13, 4), (20, 6)] {
            assert_eq!(order_statistic(n, 0.05) + 1, d, "one-sided, {n} values");
        }
        // So many values that 2^-n is no number: about n/2 - 1.96 sqrt(n)/2.
        let place = order_statistic(10_000, 0.025);
        assert!((4_899..=4_903).contains(&place), "{place}");
    }

    #[test]
    fn medians_of_resamples_are_medians() {
        let sorted = [1.0, 2.0, 5.0, 9.0];
        assert_eq!(median_of_drawn(&sorted, &[1, 1, 1, 1]), 3.5);
        assert_eq!(median_of_drawn(&sorted, &[0, 4, 0, 0]), 2.0);
        assert_eq!(median_of_drawn(&sorted, &[2, 0, 0, 2]), 5.0);
        assert_eq!(median_of_drawn(&sorted[..3], &[2, 0, 1]), 1.0);
    }

    #[test]
    fn an_interval_is_never_narrower_than_the_sign_test_allows() {
        // The widest ends that 2.5 % on each side leave, by the same table; the bootstrap alone is narrower for 7.
        for (n, d) in [(6, 1), (7, 1), (8, 1), (10, 2), (12, 3), (15, 4)] {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            let interval = median_interval(&Series::new(values).expect("finite"));
            assert!(
                interval.low <= f64::from(d) && interval.high >= f64::from(n + 1 - d),
                "{interval} of {n}"
            );
        }
    }

    #[test]
    fn few_values_say_how_little_they_support() {
        let levels: Vec<f64> = [1, 2, 3, 5, 6, 60]
            .iter()
            .map(|&n| median_interval(&Series::new(vec![7.0; n]).expect("finite")).level)
            .collect();
        assert_eq!(levels, [0.0, 0.5, 0.75, 0.9375, 0.95, 0.95]);
        let verdict = |n| {
            let values = Series::new(vec![7.0; n]).expect("finite");
            median_interval_at(&values, VERDICT_LEVEL).level >= VERDICT_LEVEL
        };
        assert!(verdict(PAIRS_MIN) && !verdict(PAIRS_MIN - 1));
    }

    #[test]
    fn an_interval_below_the_level_excludes_nothing() {
        let narrow = Interval {
            point: 2.0,
            low: 1.9,
            high: 2.1,
            level: 0.75,
        };
        assert!(!narrow.excludes(1.0, LEVEL));
        assert_eq!(narrow.half_width(LEVEL), f64::INFINITY);
        let sure = Interval {
            level: LEVEL,
            ..narrow
        };
        assert!(sure.excludes(1.0, LEVEL) && !sure.excludes(2.0, LEVEL));
        assert!(!sure.excludes(1.0, VERDICT_LEVEL));
        assert!((sure.half_width(LEVEL) - 0.05).abs() < 1e-9);
    }
}
