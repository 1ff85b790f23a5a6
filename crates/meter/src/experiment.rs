//! Interleaved trials of several configurations, so that what changes with time (caches, clock frequency, neighbours on
//! the machine) hits all of them alike.
//!
//! A round runs every configuration once. Rounds alternate their direction (A B, B A, A B, ...), so that neither is
//! always the one that follows the other; with [`Experiment::rotating`] each round also begins with another one. Warm-up rounds run first and are not kept: the first trial is cold. Whether
//! two configurations differ is decided by the ratio within each round, see [`verdict`](mod@crate::stats::verdict).

use std::fmt;

use crate::stats::{
    Interval, LossBound, Series, StatsError, Verdict, loss_bound, paired_ratio, verdict,
};
use crate::table::Table;

pub use crate::stats::Better;

/// Rounds that are run and thrown away unless told otherwise.
pub const DEFAULT_WARMUP: usize = 1;

/// Rounds that are measured unless told otherwise: the fewest that support a verdict at 95 %, and two more.
pub const DEFAULT_TRIALS: usize = 8;

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
        }
    }

    /// Has each round begin with the next configuration. For three or more: alternating alone leaves those in the
    /// middle where they are, always between the same neighbours.
    pub fn rotating(mut self) -> Self {
        self.rotating = true;
        self
    }

    /// Rounds to run first and throw away.
    pub fn warmup(mut self, rounds: usize) -> Self {
        self.warmup = rounds;
        self
    }

    /// Rounds to measure. Below 6 no verdict is possible, see [`stats::interval`](crate::stats::interval).
    pub fn trials(mut self, rounds: usize) -> Self {
        self.trials = rounds;
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
        let mut values = vec![Vec::with_capacity(self.trials); self.names.len()];
        for (direction, round) in self.rounds().enumerate() {
            let count = self.names.len();
            let first = if self.rotating { direction } else { 0 };
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
        })
    }

    fn rounds(&self) -> impl Iterator<Item = Trial> + use<> {
        let warmups = (0..self.warmup).map(|index| Trial {
            index,
            warmup: true,
        });
        warmups.chain((0..self.trials).map(|index| Trial {
            index,
            warmup: false,
        }))
    }
}

/// What was measured: a series per configuration, in the order of the names, one value per round.
#[derive(Clone, Debug)]
pub struct Outcome {
    configs: Vec<(String, Series)>,
    better: Better,
    unit: String,
}

impl Outcome {
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
        let (before, after) = (&self.configs[baseline], &self.configs[changed]);
        let ratio = paired_ratio(&before.1, &after.1)?;
        Ok(Comparison {
            baseline: before.0.clone(),
            changed: after.0.clone(),
            pairs: before.1.values().len(),
            ratio,
            verdict: verdict(&ratio, self.better),
            loss: loss_bound(&before.1, &after.1, self.better)?,
        })
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
pub struct Comparison {
    /// Name of the configuration compared with.
    pub baseline: String,
    /// Name of the configuration judged.
    pub changed: String,
    /// Rounds both took part in.
    pub pairs: usize,
    /// The median of `changed / baseline` and its interval.
    pub ratio: Interval,
    /// What may be claimed.
    pub verdict: Verdict,
    /// What the change costs at most.
    pub loss: LossBound,
}

impl fmt::Display for Comparison {
    /// `zero-copy against copy: ratio 1.034 [1.012, 1.055], 95% confidence, 8 pairs: faster`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} against {}: ratio {}, {}% confidence, {} pairs: {}",
            self.changed,
            self.baseline,
            self.ratio,
            (self.ratio.level * 1000.0).round() / 10.0,
            self.pairs,
            self.verdict
        )?;
        if self.ratio.level < crate::stats::LEVEL {
            write!(f, " (too few pairs for any verdict; run at least 6)")?;
        }
        Ok(())
    }
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
