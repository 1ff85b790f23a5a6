//! The statistics behind every claim of a bench.
//!
//! All of it is about medians: one stalled trial moves a mean as far as it likes, and a median hardly at all.
//!
//! - [`series`]: values in the order measured, their quantiles and spread;
//! - [`interval`]: how well the median of a series is known;
//! - [`mod@verdict`]: two series, trial by trial: their ratio, the verdict, and the loss that can still be excluded.

pub mod interval;
pub mod series;
pub mod verdict;

pub use interval::{Interval, median_interval, median_interval_at};
pub use series::{Series, median};
pub use verdict::{Better, LossBound, Verdict, loss_bound, paired_ratio, paired_ratio_at, verdict};

/// Confidence that intervals and bounds aim at.
pub const LEVEL: f64 = 0.95;

/// Confidence that a verdict needs. Of two hundred comparisons of a configuration with itself, two at most are to claim a
/// difference; at [`LEVEL`] it would be ten.
pub const VERDICT_LEVEL: f64 = 0.99;

/// The fewest pairs that support a verdict: `1 - 2 * 0.5^8` is 0.992.
pub const PAIRS_MIN: usize = 8;

/// Why values are no series, or two series no pair.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StatsError {
    /// No values at all.
    #[error("a series needs at least one value; run at least one measured trial")]
    Empty,
    /// NaN or infinite.
    #[error("value {index} of the series is {value}; only finite numbers can be compared")]
    NotFinite {
        /// Its place, from 0.
        index: usize,
        /// The value.
        value: f64,
    },
    /// Pairs need the same number of trials on both sides.
    #[error("{left} and {right} values cannot be paired; run both configurations equally often")]
    Unpaired {
        /// Values of the first series.
        left: usize,
        /// Values of the second series.
        right: usize,
    },
    /// A ratio needs values above zero.
    #[error(
        "a measured value of {value} has no ratio; throughputs and times are above zero, so look why this trial failed"
    )]
    NotPositive {
        /// The value.
        value: f64,
    },
}
