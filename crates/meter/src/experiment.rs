//! Interleaved trials of several configurations, so that what changes with time (caches, clock frequency, neighbours on
//! the machine) hits all of them alike.
//!
//! A round runs every configuration once. Rounds alternate their direction (A B, B A, A B, ...), so that neither is
//! always the one that follows the other; with [`Experiment::rotating`] each two rounds also begin with another one. Warm-up rounds run first and are not kept: the first trial is cold. Whether
//! two configurations differ is decided by the ratio within each round, see [`verdict`](mod@crate::stats::verdict).

mod precision;

use std::fmt;
use std::time::Instant;

use crate::stats::{
    Interval, LossBound, PAIRS_MIN, Series, StatsError, VERDICT_LEVEL, Verdict, loss_bound,
    paired_ratio, paired_ratio_at, verdict,
};
use crate::table::Table;

pub use precision::{Precision, Stopped, too_few};

pub use crate::stats::Better;

/// Rounds that are run and thrown away unless told otherwise.
pub const DEFAULT_WARMUP: usize = 1;

/// Rounds that are measured unless told otherwise: the fewest that support a verdict.
pub const DEFAULT_TRIALS: usize = PAIRS_MIN;

/// What one trial measured, in whatever unit the experiment is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The value; above zero and finite.
    pub value: f64,
}

impl From<f64> for Sample {
    fn from(value: f64) -> Self {
        Self { value }
    }
}

/// Which trial is being run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The round, from 0; warm-up rounds and measured rounds are counted separately.
    pub index: usize,
    /// Whether the result will be thrown away.
    pub warmup: bool,
}

impl fmt::Display for Trial {
    /// `warm-up 1` or `trial 1`, counted from 1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.warmup { "warm-up" } else { "trial" };
        write!(f, "{kind} {}", self.index + 1)
    }
}

/// Why an experiment has no outcome. `E` is the error of the trial itself.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError<E> {
    /// A trial failed; the rounds before it are lost, since a broken environment makes them doubtful too.
    #[error("{trial} of {name:?} failed: {cause:#}")]
    Trial {
        /// Name of the configuration.
        name: String,
        /// The trial.
        trial: Trial,
        /// The trial's own error.
        cause: E,
    },
    /// Nothing to run, or values that cannot be compared.
    #[error("cannot evaluate {name:?}: {source}")]
    Values {
        /// Name of the configuration.
        name: String,
        /// What is wrong with its values.
        source: StatsError,
    },
}

/// A plan: which configurations, how many rounds.
#[derive(Clone, Debug)]
pub struct Experiment {
    names: Vec<String>,
    warmup: usize,
    trials: usize,
    better: Better,
    unit: String,
    rotating: bool,
    precision: Option<Precision>,
}

impl Experiment {
    /// One configuration per name; the first is the baseline. Higher values are better unless told otherwise.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self {
            names: names.into_iter().map(Into::into).collect(),
            warmup: DEFAULT_WARMUP,
            trials: DEFAULT_TRIALS,
            better: Better::Higher,
            unit: String::new(),
            rotating: false,
            precision: None,
        }
    }

    /// Has each two rounds begin with the next configuration. For three or more: alternating alone leaves those in the
    /// middle where they are, always between the same neighbours. A round and its reverse begin with the same one: if each began with
    /// the next, two configurations would always run in the same order.
    pub fn rotating(mut self) -> Self {
        self.rotating = true;
        self
    }

    /// Rounds to run first and throw away.
    pub fn warmup(mut self, rounds: usize) -> Self {
        self.warmup = rounds;
        self
    }

    /// Rounds to measure. Below [`PAIRS_MIN`] no verdict is possible, see [`stats::interval`](crate::stats::interval).
    pub fn trials(mut self, rounds: usize) -> Self {
        self.trials = rounds;
        self
    }

    /// Goes on after these rounds until the intervals are so narrow, or the budget is spent.
    pub fn until(mut self, precision: Option<Precision>) -> Self {
        self.precision = precision;
        self
    }

    /// Which direction is good.
    pub fn better(mut self, better: Better) -> Self {
        self.better = better;
        self
    }

    /// Unit of the values, for the table.
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = unit.into();
        self
    }

    /// Runs all rounds. `trial` gets the index of the configuration in the names given.
    ///
    /// # Errors
    /// The first error of a trial, or [`ExperimentError::Values`] when a measured value is not finite or the plan has
    /// no measured round.
    pub fn run<E>(
        self,
        mut trial: impl FnMut(usize, Trial) -> Result<Sample, E>,
    ) -> Result<Outcome, ExperimentError<E>> {
        let mut values = vec![Vec::new(); self.names.len()];
        let (started, mut stopped) = (Instant::now(), None);
        for direction in 0.. {
            let round = self.round(direction);
            if !round.warmup {
                stopped = self.stops(round.index, &values, started);
            }
            if stopped.is_some() {
                break;
            }
            let count = self.names.len();
            let first = if self.rotating { direction / 2 } else { 0 };
            for step in 0..count {
                let step = if direction % 2 == 0 {
                    step
                } else {
                    count - 1 - step
                };
                let config = (first + step) % count;
                let sample = trial(config, round).map_err(|cause| ExperimentError::Trial {
                    name: self.names[config].clone(),
                    trial: round,
                    cause,
                })?;
                if !round.warmup {
                    values[config].push(sample.value);
                }
            }
        }
        let configs = self
            .names
            .into_iter()
            .zip(values)
            .map(|(name, values)| match Series::new(values) {
                Ok(series) => Ok((name, series)),
                Err(source) => Err(ExperimentError::Values { name, source }),
            })
            .collect::<Result<_, _>>()?;
        Ok(Outcome {
            configs,
            better: self.better,
            unit: self.unit,
            stopped: stopped.unwrap_or(Stopped::Planned),
        })
    }

    /// The round of this number, the first being 0.
    fn round(&self, number: usize) -> Trial {
        match number.checked_sub(self.warmup) {
            Some(index) => Trial {
                index,
                warmup: false,
            },
            None => Trial {
                index: number,
                warmup: true,
            },
        }
    }

    /// Why no round follows those that gave these values, if none does.
    fn stops(&self, rounds: usize, values: &[Vec<f64>], started: Instant) -> Option<Stopped> {
        if rounds < self.trials {
            return None;
        }
        let Some(precision) = self.precision else {
            return Some(Stopped::Planned);
        };
        let widest = Precision::widest(values);
        if precision.is_met_by(widest) {
            return Some(Stopped::Precise);
        }
        let spent = rounds >= precision.rounds_max || started.elapsed() >= precision.time_max;
        spent.then(|| Stopped::Spent {
            rounds_needed: precision.rounds_needed(rounds, widest),
        })
    }
}

/// What was measured: a series per configuration, in the order of the names, one value per round.
#[derive(Clone, Debug)]
pub struct Outcome {
    configs: Vec<(String, Series)>,
    better: Better,
    unit: String,
    stopped: Stopped,
}

impl Outcome {
    /// Why no further round was run.
    pub fn stopped(&self) -> Stopped {
        self.stopped
    }

    /// Name and series of every configuration.
    pub fn configs(&self) -> &[(String, Series)] {
        &self.configs
    }

    /// The series of one configuration. Panics when there is none with this index.
    pub fn series(&self, config: usize) -> &Series {
        &self.configs[config].1
    }

    /// Compares `changed` with `baseline`, both indices of configurations; an index that does not exist is a bug and
    /// panics.
    ///
    /// # Errors
    /// [`StatsError::NotPositive`] when a trial measured zero or less.
    pub fn compare(&self, baseline: usize, changed: usize) -> Result<Comparison, StatsError> {
        let of = |config: usize| {
            let (name, series) = &self.configs[config];
            (name.as_str(), series)
        };
        Comparison::of(of(baseline), of(changed), self.better)
    }
}

impl fmt::Display for Outcome {
    /// A row per configuration, then a line per configuration that compares it with the first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = match self.unit.as_str() {
            "" => "configuration".to_owned(),
            unit => format!("configuration ({unit})"),
        };
        let mut table = Table::new([&title, "trials", "median", "min", "max", "spread"]);
        for (name, series) in &self.configs {
            table.row([
                name.clone(),
                series.values().len().to_string(),
                number(series.median()),
                number(series.min()),
                number(series.max()),
                format!("{:.1}%", series.spread() * 100.0),
            ]);
        }
        write!(f, "{table}")?;
        if self.stopped != Stopped::Planned {
            write!(f, "\n{}", self.stopped)?;
        }
        for changed in 1..self.configs.len() {
            match self.compare(0, changed) {
                Ok(comparison) => write!(f, "\n{comparison}")?,
                Err(error) => write!(f, "\n{}: {error}", self.configs[changed].0)?,
            }
        }
        Ok(())
    }
}

/// One configuration against another.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Comparison {
    /// Name of the configuration compared with.
    pub baseline: String,
    /// Name of the configuration judged.
    pub changed: String,
    /// Rounds both took part in.
    pub pairs: usize,
    /// The median of `changed / baseline` and its interval of 95 %.
    pub ratio: Interval,
    /// The same with the interval of 99 %, on which the verdict is built.
    pub ratio_99: Interval,
    /// What may be claimed.
    pub verdict: Verdict,
    /// What the change costs at most.
    pub loss: LossBound,
}

impl Comparison {
    /// Compares two series by the ratio of each pair.
    ///
    /// # Errors
    /// [`StatsError::Unpaired`], [`StatsError::NotPositive`].
    pub fn of(
        baseline: (&str, &Series),
        changed: (&str, &Series),
        better: Better,
    ) -> Result<Self, StatsError> {
        let (before, after) = (baseline.1, changed.1);
        let ratio_99 = paired_ratio_at(before, after, VERDICT_LEVEL)?;
        Ok(Self {
            baseline: baseline.0.to_owned(),
            changed: changed.0.to_owned(),
            pairs: before.values().len(),
            ratio: paired_ratio(before, after)?,
            ratio_99,
            verdict: verdict(&ratio_99, better),
            loss: loss_bound(before, after, better)?,
        })
    }
}

impl fmt::Display for Comparison {
    /// `zero-copy against copy: ratio 1.034 [1.012, 1.055] at 95%, [1.008, 1.060] at 99%, 8 pairs: faster`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} against {}: ratio {} at {}",
            self.changed,
            self.baseline,
            self.ratio,
            percent(self.ratio.level),
        )?;
        // Of few pairs both are the whole range.
        if self.ratio_99.level > self.ratio.level {
            let Interval {
                low, high, level, ..
            } = self.ratio_99;
            write!(f, ", [{low:.3}, {high:.3}] at {}", percent(level))?;
        }
        write!(f, ", {} pairs: {}", self.pairs, self.verdict)?;
        if self.pairs < PAIRS_MIN {
            write!(
                f,
                " (too few pairs for any verdict; run at least {PAIRS_MIN})"
            )?;
        }
        Ok(())
    }
}

fn percent(level: f64) -> String {
    format!("{}%", (level * 1000.0).round() / 10.0)
}

/// About four significant digits, whatever the unit.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}
