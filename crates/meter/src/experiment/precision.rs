//! When an experiment has run for long enough.
//!
//! It stops by how wide the intervals are, and never by what they say: who stops as soon as a difference shows finds one in
//! everything, because each look is another chance to be wrong. How wide an interval is says little of which side
//! of 1 it will lie on where noise has one mode: an interval that was awaited in this way then errs about as often as one of rounds counted
//! before. Where it has two modes, as on a machine that is at times another one, an interval is narrow once its median has settled in one of
//! them, and errs more often (Chow and
//! Robbins, "On the Asymptotic Theory of Fixed-Width Sequential Confidence Intervals for the Mean", The Annals of
//! Mathematical Statistics 36, 1965).

use std::fmt;
use std::time::Duration;

use crate::stats::interval::sign_test_interval;
use crate::stats::{PAIRS_MIN, Series, VERDICT_LEVEL};

/// How narrow intervals are to be, and what that may cost. The rounds of [`Experiment::trials`](super::Experiment::trials) are run in any
/// case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precision {
    /// Each interval's further end is at most this part of the estimate away from it: 0.02 is two percent.
    pub half_width: f64,
    /// Rounds at most.
    pub rounds_max: usize,
    /// After so long no further round begins.
    pub time_max: Duration,
}

/// Why no further round was run.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Stopped {
    /// As many were run as were asked for.
    Planned,
    /// The intervals are as narrow as they were to be.
    Precise,
    /// The most rounds, or the time, was spent before that.
    Spent {
        /// About how many rounds it would have taken; `None` if too few were run to say.
        rounds_needed: Option<usize>,
    },
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Planned => f.write_str("as many rounds as were asked for"),
            Self::Precise => f.write_str("as precise as was asked for"),
            Self::Spent {
                rounds_needed: Some(rounds),
            } => write!(
                f,
                "the budget was spent before it was as precise as was asked for: some {rounds} rounds would be needed"
            ),
            Self::Spent {
                rounds_needed: None,
            } => f.write_str("the budget was spent before it was as precise as was asked for"),
        }
    }
}

impl Precision {
    /// How wide the widest interval is: of each ratio to the first configuration, or of the only configuration itself.
    pub(super) fn widest(values: &[Vec<f64>]) -> f64 {
        let width = |values: Vec<f64>| {
            Series::new(values).map_or(f64::INFINITY, |series| {
                sign_test_interval(&series, VERDICT_LEVEL).half_width(VERDICT_LEVEL)
            })
        };
        match values {
            [] => f64::INFINITY,
            [only] => width(only.clone()),
            [first, others @ ..] => {
                let ratios = |changed: &Vec<f64>| {
                    let pairs = first.iter().zip(changed);
                    width(pairs.map(|(before, after)| after / before).collect())
                };
                others.iter().map(ratios).fold(0.0, f64::max)
            }
        }
    }

    /// Whether intervals of this width are narrow enough.
    pub(super) fn is_met_by(&self, widest: f64) -> bool {
        widest <= self.half_width
    }

    /// About how many rounds it takes, when so many gave intervals of this width: the width falls with their square root.
    pub(super) fn rounds_needed(&self, rounds: usize, widest: f64) -> Option<usize> {
        let times = (widest / self.half_width).powi(2);
        let needed = (rounds as f64 * times).ceil();
        (widest.is_finite() && needed < 1e9).then_some(needed as usize)
    }
}

/// Why an experiment of so many rounds will give no verdict, whatever it measures: to be said before it runs.
pub fn too_few(rounds: usize) -> Option<String> {
    (rounds < PAIRS_MIN).then(|| {
        format!("{rounds} rounds support no verdict, whatever they show: {PAIRS_MIN} or more do")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_PERCENT: Precision = Precision {
        half_width: 0.02,
        rounds_max: 100,
        time_max: Duration::from_secs(60),
    };

    #[test]
    fn a_width_is_that_of_the_widest_ratio() {
        let first = vec![100.0; 8];
        let steady = vec![110.0; 8];
        let noisy: Vec<f64> = (0..8).map(|i| 100.0 + f64::from(i)).collect();
        assert_eq!(Precision::widest(&[first.clone(), steady.clone()]), 0.0);
        let widest = Precision::widest(&[first.clone(), steady, noisy.clone()]);
        // 1.00 to 1.07 around 1.035.
        assert!((widest - 0.035 / 1.035).abs() < 1e-9, "{widest}");
        let alone = Precision::widest(&[noisy]);
        assert!((alone - 0.035 / 1.035).abs() < 1e-9, "{alone}");
    }

    #[test]
    fn too_few_rounds_are_never_precise() {
        let same = [vec![1.0; 7], vec![1.0; 7]];
        assert!(!TWO_PERCENT.is_met_by(Precision::widest(&same)));
        let same = [vec![1.0; 8], vec![1.0; 8]];
        assert!(TWO_PERCENT.is_met_by(Precision::widest(&same)));
        assert!(too_few(7).is_some_and(|text| text.contains("8 or more")));
        assert_eq!(too_few(8), None);
    }

    #[test]
    fn half_the_width_takes_four_times_the_rounds() {
        assert_eq!(TWO_PERCENT.rounds_needed(10, 0.04), Some(40));
        assert_eq!(TWO_PERCENT.rounds_needed(4, f64::INFINITY), None);
    }
}
