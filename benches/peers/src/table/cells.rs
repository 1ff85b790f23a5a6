//! What was measured, and what it comes to.

use crate::arguments::{Name, Operation};
use serde::Serialize;
use std::fmt::{self, Display, Formatter};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// One of our clients.
    Client(Name),
    /// The program that comes with Redis.
    RedisBenchmark,
}

impl Display for Column {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(name) => name.fmt(f),
            Self::RedisBenchmark => f.write_str("redis-benchmark"),
        }
    }
}

/// One client in one cell, once.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub ops_per_s: f64,
    pub client_cpu_us_per_op: f64,
    pub errors: u64,
    /// Reads that found nothing, although all keys were written.
    pub misses: u64,
    /// What it wrote to its standard error.
    pub said: String,
    /// There are no figures.
    pub failed: bool,
}

impl Sample {
    /// There are no figures.
    pub fn failed() -> Self {
        Self {
            failed: true,
            ..Self::default()
        }
    }

    /// Why its figures do not count.
    pub fn problem(&self) -> Option<String> {
        let Self {
            errors,
            misses,
            said,
            ..
        } = self;
        match (errors, misses) {
            (0, 0) => None,
            (0, misses) => Some(format!("{misses} reads found nothing")),
            (errors, misses) => Some(format!("{errors} errors, {misses} misses ({said})")),
        }
    }
}

/// What all columns are measured with, and what came of it.
#[derive(Debug)]
pub struct Cell {
    pub threads: u64,
    pub operation: Operation,
    pub callers: u64,
    /// By column and round; `None` where the column has no such operation.
    pub samples: Vec<Vec<Option<Sample>>>,
}

impl Display for Cell {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            callers,
            threads,
            ..
        } = self;
        write!(f, "{operation}, callers {callers}, threads {threads}")
    }
}

/// A few figures of the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` of no figures.
    pub fn of(figures: impl Iterator<Item = f64>) -> Option<Self> {
        let mut figures: Vec<_> = figures.collect();
        figures.sort_unstable_by(f64::total_cmp);
        let [min, .., max] = figures.as_slice() else {
            let only = *figures.first()?;
            return Some(Self {
                median: only,
                min: only,
                max: only,
            });
        };
        let middle = figures.len() / 2;
        Some(Self {
            median: match figures.len() % 2 {
                0 => f64::midpoint(figures[middle - 1], figures[middle]),
                _ => figures[middle],
            },
            min: *min,
            max: *max,
        })
    }
}

/// All of it, as it is printed.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub rounds: u64,
    pub columns: Vec<String>,
    pub cells: Vec<Summary>,
    /// What did not go well.
    pub problems: Vec<String>,
}

/// A cell.
#[derive(Debug, Serialize)]
pub struct Summary {
    pub threads: u64,
    pub operation: Operation,
    pub callers: u64,
    /// By column; `None` where there are no figures.
    pub clients: Vec<Option<Figures>>,
    /// Our client's operations per second by those of the fastest other client, in each round.
    pub of_best_peer: Option<Spread>,
    /// The same by those of redis-benchmark.
    pub of_redis_benchmark: Option<Spread>,
}

/// What one client did in one cell.
#[derive(Debug, Serialize)]
pub struct Figures {
    pub ops_per_s: Spread,
    pub client_cpu_us_per_op: Spread,
    /// In some round it failed, or had errors or misses.
    pub suspect: bool,
}

impl Comparison {
    pub fn new(rounds: u64, columns: &[Column], cells: &[Cell], problems: Vec<String>) -> Self {
        Self {
            rounds,
            columns: columns.iter().map(Column::to_string).collect(),
            cells: cells.iter().map(|cell| summary(cell, columns)).collect(),
            problems,
        }
    }
}

fn summary(cell: &Cell, columns: &[Column]) -> Summary {
    let is_peer = |column: &Column| match column {
        Column::Client(name) => *name != Name::Embar,
        Column::RedisBenchmark => false,
    };
    Summary {
        threads: cell.threads,
        operation: cell.operation,
        callers: cell.callers,
        clients: cell
            .samples
            .iter()
            .map(|samples| figures(samples))
            .collect(),
        of_best_peer: ratio(cell, columns, is_peer),
        of_redis_benchmark: ratio(cell, columns, |column| *column == Column::RedisBenchmark),
    }
}

fn figures(samples: &[Option<Sample>]) -> Option<Figures> {
    let measured = || samples.iter().flatten().filter(|sample| !sample.failed);
    Some(Figures {
        ops_per_s: Spread::of(measured().map(|sample| sample.ops_per_s))?,
        client_cpu_us_per_op: Spread::of(measured().map(|sample| sample.client_cpu_us_per_op))?,
        suspect: samples
            .iter()
            .flatten()
            .any(|sample| sample.failed || sample.problem().is_some()),
    })
}

/// Ours by the fastest of some others, round by round: what slows a machine down for a while slows down both.
fn ratio(cell: &Cell, columns: &[Column], other: impl Fn(&Column) -> bool) -> Option<Spread> {
    let at = |column: usize, round: usize| {
        let sample = cell.samples[column].get(round)?.as_ref()?;
        (!sample.failed).then_some(sample.ops_per_s)
    };
    let ours = columns
        .iter()
        .position(|column| *column == Column::Client(Name::Embar))?;
    let others: Vec<_> = (0..columns.len())
        .filter(|column| other(&columns[*column]))
        .collect();
    let in_round = |round: usize| {
        let best = others.iter().filter_map(|column| at(*column, round));
        Some(at(ours, round)? / best.max_by(f64::total_cmp)?)
    };
    Spread::of((0..cell.samples[ours].len()).filter_map(in_round))
}

#[cfg(test)]
mod tests {
    use super::{Cell, Column, Comparison, Sample, Spread};
    use crate::arguments::{Name, Operation};

    const COLUMNS: [Column; 4] = [
        Column::Client(Name::Embar),
        Column::Client(Name::Fred),
        Column::Client(Name::Rustis),
        Column::RedisBenchmark,
    ];

    fn sample(ops_per_s: f64) -> Option<Sample> {
        Some(Sample {
            ops_per_s,
            ..Sample::default()
        })
    }

    fn cell(samples: Vec<Vec<Option<Sample>>>) -> Cell {
        Cell {
            threads: 1,
            operation: Operation::Get,
            callers: 64,
            samples,
        }
    }

    #[test]
    fn a_median_lies_in_the_middle() {
        let spread = |figures: &[f64]| Spread::of(figures.iter().copied());
        let expected = |median, min, max| Some(Spread { median, min, max });
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[2.0]), expected(2.0, 2.0, 2.0));
        assert_eq!(spread(&[3.0, 1.0]), expected(2.0, 1.0, 3.0));
        assert_eq!(spread(&[9.0, 1.0, 2.0]), expected(2.0, 1.0, 9.0));
    }

    #[test]
    fn ratios_are_those_of_the_same_round_to_its_fastest_peer() {
        // The machine is half as fast in the second round: of medians the ratio would be 3.
        let cell = cell(vec![
            vec![sample(400.0), sample(200.0)],
            vec![sample(100.0), sample(20.0)],
            vec![sample(80.0), sample(50.0)],
            vec![sample(800.0), None],
        ]);
        let comparison = Comparison::new(2, &COLUMNS, &[cell], Vec::new());
        let summary = &comparison.cells[0];
        let expected = Spread {
            median: 4.0,
            min: 4.0,
            max: 4.0,
        };
        assert_eq!(summary.of_best_peer, Some(expected));
        assert_eq!(summary.of_redis_benchmark.map(|ratio| ratio.max), Some(0.5));
    }

    #[test]
    fn failures_and_misses_are_suspect_and_no_figures() {
        let missing = Sample {
            misses: 1,
            ..sample(90.0).unwrap()
        };
        assert!(missing.problem().is_some());
        let failed = || Some(Sample::failed());
        let cell = cell(vec![
            vec![sample(100.0), sample(100.0)],
            vec![failed(), sample(50.0)],
            vec![Some(missing), sample(20.0)],
            vec![failed(), failed()],
        ]);
        let comparison = Comparison::new(2, &COLUMNS, &[cell], Vec::new());
        let summary = &comparison.cells[0];
        let suspect = |column: usize| summary.clients[column].as_ref().map(|of| of.suspect);
        assert_eq!(suspect(0), Some(false));
        assert_eq!((suspect(1), suspect(2)), (Some(true), Some(true)));
        assert_eq!(suspect(3), None);
        assert_eq!(summary.clients[1].as_ref().unwrap().ops_per_s.min, 50.0);
        assert_eq!(summary.of_redis_benchmark, None);
    }
}
