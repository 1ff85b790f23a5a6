//! Two configurations, trial by trial.
//!
//! Trials that ran next to each other share the state of the machine, so each pair gives one ratio, and the interval is
//! that of the median ratio: slow drift, which moves both series, cancels out.

use std::fmt;

use super::interval::{Interval, median_interval_at, median_upper_bound};
use super::{LEVEL, Series, StatsError, VERDICT_LEVEL};

/// Which direction of a measured value is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Better {
    /// Throughput.
    Higher,
    /// Latency, run time, CPU time.
    Lower,
}

/// What may be said about one configuration against another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Verdict {
    /// Better, and the interval of the ratio at [`VERDICT_LEVEL`] excludes 1.
    Faster,
    /// Worse, and that interval excludes 1.
    Slower,
    /// The interval includes 1, or there are too few pairs to exclude anything: nothing may be claimed.
    InsideNoise,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::InsideNoise => "inside the noise",
        })
    }
}

/// The interval of the median of `changed[i] / baseline[i]`, at [`LEVEL`].
///
/// # Errors
/// [`StatsError::Unpaired`], [`StatsError::NotPositive`].
pub fn paired_ratio(baseline: &Series, changed: &Series) -> Result<Interval, StatsError> {
    paired_ratio_at(baseline, changed, LEVEL)
}

/// The same at any confidence above one half.
///
/// # Errors
/// As there.
pub fn paired_ratio_at(
    baseline: &Series,
    changed: &Series,
    level: f64,
) -> Result<Interval, StatsError> {
    Ok(median_interval_at(&ratios(baseline, changed)?, level))
}

/// What the interval of a ratio at [`VERDICT_LEVEL`] allows to say. One of less confidence allows nothing.
pub fn verdict(ratio: &Interval, better: Better) -> Verdict {
    if !ratio.excludes(1.0, VERDICT_LEVEL) {
        return Verdict::InsideNoise;
    }
    match (ratio.low > 1.0, better) {
        (true, Better::Higher) | (false, Better::Lower) => Verdict::Faster,
        (true, Better::Lower) | (false, Better::Higher) => Verdict::Slower,
    }
}

/// What a change costs at most, as a part of the baseline: 0.01 is one percent of the throughput, or one percent more
/// time.
///
/// "Inside the noise" alone may hide any loss when the noise is large; this number says how large a loss the trials
/// cannot exclude.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LossBound {
    /// The estimate; negative when it is a gain.
    pub point: f64,
    /// One-sided upper bound: the true loss is above it in at most 5 % of all cases.
    pub upper: f64,
    /// Confidence, 0 to 1: [`LEVEL`], or less when the pairs are too few (below 5) to support it.
    pub level: f64,
}

impl LossBound {
    /// Whether the trials show that the loss is at most `limit`, for instance 0.01.
    pub fn is_at_most(&self, limit: f64) -> bool {
        self.level >= LEVEL && self.upper <= limit
    }
}

impl fmt::Display for LossBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "loss {:.2}%, at most {:.2}% ({}% confidence)",
            self.point * 100.0,
            self.upper * 100.0,
            (self.level * 1000.0).round() / 10.0
        )
    }
}

/// The one-sided upper bound of the loss of `changed` against `baseline`: the upper end of a one-sided interval, made
/// as in [`interval`](super::interval) with all 5 % in the upper tail, of the median of `1 - changed / baseline`
/// (higher is better) or `changed / baseline - 1` (lower is better).
///
/// # Errors
/// [`StatsError::Unpaired`], [`StatsError::NotPositive`].
pub fn loss_bound(
    baseline: &Series,
    changed: &Series,
    better: Better,
) -> Result<LossBound, StatsError> {
    let losses: Vec<f64> = ratios(baseline, changed)?
        .values()
        .iter()
        .map(|ratio| match better {
            Better::Higher => 1.0 - ratio,
            Better::Lower => ratio - 1.0,
        })
        .collect();
    let losses = Series::new(losses)?;
    let (upper, level) = median_upper_bound(&losses);
    Ok(LossBound {
        point: losses.median(),
        upper,
        level,
    })
}

fn ratios(baseline: &Series, changed: &Series) -> Result<Series, StatsError> {
    let (left, right) = (baseline.values().len(), changed.values().len());
    if left != right {
        return Err(StatsError::Unpaired { left, right });
    }
    for series in [baseline, changed] {
        if series.min() <= 0.0 {
            return Err(StatsError::NotPositive {
                value: series.min(),
            });
        }
    }
    let pairs = baseline.values().iter().zip(changed.values());
    Series::new(
        pairs
            .map(|(baseline, changed)| changed / baseline)
            .collect::<Vec<f64>>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        Series::new(values).expect("finite values")
    }

    fn claimed(baseline: &[f64], changed: &[f64]) -> Interval {
        let pair = (series(baseline), series(changed));
        paired_ratio_at(&pair.0, &pair.1, VERDICT_LEVEL).expect("pairs")
    }

    const OFF: [f64; 8] = [100.0, 90.0, 110.0, 80.0, 105.0, 95.0, 120.0, 85.0];

    #[test]
    fn drift_that_both_share_cancels_out() {
        // The trials differ by 50 %, the change is 2 % each time.
        let on: Vec<f64> = OFF.iter().map(|value| value * 1.02).collect();
        let ratio = claimed(&OFF, &on);
        assert!((ratio.low - 1.02).abs() < 1e-9 && (ratio.high - 1.02).abs() < 1e-9);
        assert_eq!(verdict(&ratio, Better::Higher), Verdict::Faster);
        assert_eq!(verdict(&ratio, Better::Lower), Verdict::Slower);
    }

    #[test]
    fn the_same_difference_without_pairing_is_noise() {
        let mut on: Vec<f64> = OFF.iter().map(|value| value * 1.02).collect();
        on.rotate_left(1);
        let ratio = claimed(&OFF, &on);
        assert_eq!(verdict(&ratio, Better::Higher), Verdict::InsideNoise);
    }

    #[test]
    fn a_report_of_three_trials_supports_no_verdict() {
        // Profile on against off, seed report: however clear, three pairs cannot exclude chance.
        let ratio = claimed(&[2767.0, 2773.56, 2738.69], &[5500.0, 5500.0, 5500.0]);
        assert_eq!(verdict(&ratio, Better::Higher), Verdict::InsideNoise);
    }

    #[test]
    fn an_interval_of_95_percent_supports_no_verdict() {
        let on = OFF.map(|value| value * 1.02);
        let ratio = paired_ratio(&series(&OFF), &series(&on)).expect("pairs");
        assert!(ratio.excludes(1.0, LEVEL));
        assert_eq!(verdict(&ratio, Better::Higher), Verdict::InsideNoise);
    }

    #[test]
    fn the_bound_of_a_loss_includes_the_worst_that_cannot_be_excluded() {
        let losses = [0.001, 0.002, -0.001, 0.003, 0.0, 0.02];
        let on: Vec<f64> = losses.iter().map(|loss| 100.0 * (1.0 - loss)).collect();
        let bound = loss_bound(&series(&[100.0; 6]), &series(&on), Better::Higher).expect("pairs");
        assert!((bound.point - 0.0015).abs() < 1e-9);
        // One-sided, of 6 values: P(all 6 are below the median) = 1/64 is below 5 %, P(5 or 6 are) = 7/64 is not.
        assert!((bound.upper - 0.02).abs() < 1e-9);
        assert!(bound.is_at_most(0.021) && !bound.is_at_most(0.01));
        let bound =
            loss_bound(&series(&[100.0; 4]), &series(&[100.0; 4]), Better::Higher).expect("pairs");
        assert!(!bound.is_at_most(0.01), "four pairs support no bound");
    }

    #[test]
    fn refuses_what_has_no_ratio() {
        let pair = series(&[1.0, 2.0]);
        assert!(matches!(
            paired_ratio(&pair, &series(&[1.0])),
            Err(StatsError::Unpaired { left: 2, right: 1 })
        ));
        assert!(matches!(
            paired_ratio(&pair, &series(&[0.0, 1.0])),
            Err(StatsError::NotPositive { value: 0.0 })
        ));
    }
}
