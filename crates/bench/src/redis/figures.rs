//! The figures of one run of `bench redis` (rate, counts, latencies), and their medians over several runs.

use std::time::Duration;

use embar_console::size::per_s;
use embar_meter::Series;
use embar_meter::table::grouped;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::measure::{CallerResults, RunOutcome};
use super::plan::Operation;
use super::profile::Profile;
use super::tally::{Counts, histogram};

/// Chooses whose part of a run is meant.
pub type PartOf = fn(&RedisRun) -> Option<&Part>;

/// What callers saw in one run.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// How many callers there are.
    pub callers: u64,
    /// Operations that succeeded, per second.
    pub ops_per_s: f64,
    /// Operations that succeeded.
    pub operations: u64,
    /// Reads that found the value.
    pub hits: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Writes that were acknowledged.
    pub sets: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Reads that found a value that is not that of the key.
    pub wrong: u64,
    /// Half of all operations are faster; `None` if there was none.
    pub p50_ns: Option<u64>,
    /// 99 of 100 operations are faster.
    pub p99_ns: Option<u64>,
    /// 999 of 1000 operations are faster.
    pub p999_ns: Option<u64>,
    /// The slowest operation.
    pub max_ns: Option<u64>,
}

impl Part {
    fn of(callers: u64, counts: &Counts, latency: &Histogram<u64>, took: Duration) -> Self {
        let at = |quantile| (!latency.is_empty()).then(|| latency.value_at_quantile(quantile));
        Self {
            callers,
            ops_per_s: per_s(counts.operations() as f64, took),
            operations: counts.operations(),
            hits: counts.hits,
            misses: counts.misses,
            sets: counts.sets,
            errors: counts.errors,
            wrong: counts.wrong,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: (!latency.is_empty()).then(|| latency.max()),
        }
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct RedisRun {
    /// What was done.
    pub operation: Operation,
    /// Its number, from 1.
    pub run: usize,
    /// The measured time.
    pub seconds: f64,
    /// What all callers saw.
    #[serde(flatten)]
    pub all: Part,
    /// Processor time of this process for each operation, microseconds.
    pub client_cpu_us_per_op: Option<f64>,
    /// Replies for each call that sent something: operations that left together.
    pub replies_per_write: Option<f64>,
    /// Replies for each call that received something.
    pub replies_per_read: Option<f64>,
    /// What tasks alone saw, in a run in which threads called, too.
    pub tasks: Option<Part>,
    /// What blocking threads alone saw.
    pub blocking_threads: Option<Part>,
    /// The first error.
    pub first_error: Option<String>,
    /// Where the time went, and what was allocated.
    pub profile: Option<Profile>,
}

impl RedisRun {
    /// The figures of an outcome.
    pub fn of(operation: Operation, run: usize, outcome: RunOutcome) -> Self {
        let took = outcome.took;
        let part = |seen: &CallerResults| Part::of(seen.callers, &seen.counts, &seen.latency, took);
        let (mut callers, mut counts, mut latency) = (0, Counts::default(), histogram());
        for seen in outcome.tasks.iter().chain(&outcome.threads) {
            callers += seen.callers;
            counts.add(&seen.counts);
            latency += &seen.latency;
        }
        let both = outcome.threads.is_some();
        let by = |whole: f64, parts: u64| (parts > 0).then(|| whole / parts as f64);
        let traffic = outcome.traffic;
        let answered = (counts.operations() + counts.wrong) as f64;
        let cpu_ns = u64::try_from(outcome.cpu.as_nanos()).unwrap_or(u64::MAX);
        Self {
            operation,
            run,
            seconds: took.as_secs_f64(),
            all: Part::of(callers, &counts, &latency, took),
            client_cpu_us_per_op: by(cpu_ns as f64 / 1e3, counts.operations()),
            replies_per_write: by(answered, traffic.writes),
            replies_per_read: by(answered, traffic.reads),
            tasks: outcome.tasks.as_ref().filter(|_| both).map(part),
            blocking_threads: outcome.threads.as_ref().map(part),
            profile: outcome
                .profile
                .map(|seen| Profile::of(&seen, cpu_ns, counts.operations())),
            first_error: counts.first_error,
        }
    }

    /// Progress for those who wait.
    pub fn describe(&self) -> String {
        let part = &self.all;
        let bad = match part.errors + part.wrong {
            0 => String::new(),
            bad => format!(", {bad} failed"),
        };
        format!(
            "{}, run {}: {} operations/s, P50 {} us{bad}",
            self.operation.name(),
            self.run,
            grouped(part.ops_per_s as u64),
            micros(part.p50_ns.map(|ns| ns as f64)),
        )
    }
}

/// Medians over runs of one operation; counts are of all runs together.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The operation.
    pub operation: Operation,
    /// How many runs.
    pub runs: usize,
    /// Operations per second, median of the runs.
    pub ops_per_s: f64,
    /// (max - min) / median of that rate.
    pub ops_per_s_spread: f64,
    /// Reads that found the value.
    pub hits: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Writes that were acknowledged.
    pub sets: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Reads that found a value that is not that of the key.
    pub wrong: u64,
    /// Median latency; this and those below are medians, and `None` if a run has none.
    pub p50_ns: Option<f64>,
    /// Latency that one of 100 operations exceeds.
    pub p99_ns: Option<f64>,
    /// Latency that one of 1000 operations exceeds.
    pub p999_ns: Option<f64>,
    /// Processor time of this process for each operation, microseconds.
    pub client_cpu_us_per_op: Option<f64>,
    /// Replies for each call that sent something.
    pub replies_per_write: Option<f64>,
    /// Replies for each call that received something.
    pub replies_per_read: Option<f64>,
}

impl Summary {
    /// Sums what `part` picks of each run; `None` when no run has it.
    pub fn of(operation: Operation, runs: &[&RedisRun], part: PartOf) -> Option<Self> {
        let parts: Vec<&Part> = runs.iter().filter_map(|run| part(run)).collect();
        let rates: Vec<f64> = parts.iter().map(|part| part.ops_per_s).collect();
        let rates = Series::new(rates).ok()?;
        let sum = |of: fn(&Part) -> u64| parts.iter().map(|part| of(part)).sum();
        let latency = |of: fn(&Part) -> Option<u64>| {
            median(parts.iter().map(|part| of(part).map(|ns| ns as f64)))
        };
        let whole = |of: fn(&RedisRun) -> Option<f64>| median(runs.iter().map(|run| of(run)));
        Some(Self {
            operation,
            runs: parts.len(),
            ops_per_s: rates.median(),
            ops_per_s_spread: rates.spread(),
            hits: sum(|part| part.hits),
            misses: sum(|part| part.misses),
            sets: sum(|part| part.sets),
            errors: sum(|part| part.errors),
            wrong: sum(|part| part.wrong),
            p50_ns: latency(|part| part.p50_ns),
            p99_ns: latency(|part| part.p99_ns),
            p999_ns: latency(|part| part.p999_ns),
            client_cpu_us_per_op: whole(|run| run.client_cpu_us_per_op),
            replies_per_write: whole(|run| run.replies_per_write),
            replies_per_read: whole(|run| run.replies_per_read),
        })
    }

    /// The cells of a table's row; `apart`: it is one of several parts of a run, so figures of the process are left out.
    pub fn row(&self, name: String, apart: bool) -> [String; 12] {
        // Figures of the process belong to all of its parts together.
        let whole = |value: Option<f64>| match value {
            Some(value) if !apart => format!("{value:.2}"),
            _ => "-".to_owned(),
        };
        let spread = match self.runs {
            1 => "-".to_owned(),
            _ => format!("{:.1}%", self.ops_per_s_spread * 100.0),
        };
        [
            name,
            grouped(self.ops_per_s.round() as u64),
            spread,
            grouped(self.hits),
            grouped(self.misses),
            grouped(self.errors + self.wrong),
            micros(self.p50_ns),
            micros(self.p99_ns),
            micros(self.p999_ns),
            whole(self.client_cpu_us_per_op),
            whole(self.replies_per_write),
            whole(self.replies_per_read),
        ]
    }
}

fn median(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Option<Vec<f64>> = values.collect();
    embar_meter::stats::median(&values?)
}

/// Microseconds with one digit; a dash for what is not known.
pub fn micros(nanos: Option<f64>) -> String {
    nanos.map_or_else(|| "-".to_owned(), |nanos| format!("{:.1}", nanos / 1e3))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::super::measure::Traffic;
    use super::*;

    /// What callers saw, with an operation that missed and two that failed.
    pub fn seen(callers: u64, hits: u64, nanos: u64) -> CallerResults {
        let mut latency = histogram();
        latency.saturating_record_n(nanos, hits);
        let counts = Counts {
            hits,
            misses: 1,
            errors: 2,
            first_error: Some("no".into()),
            ..Counts::default()
        };
        CallerResults {
            callers,
            counts,
            latency,
            between: Duration::ZERO,
            keys: BTreeMap::new(),
        }
    }

    /// The outcome of a run of two seconds.
    pub fn outcome(hits: u64) -> RunOutcome {
        RunOutcome {
            took: Duration::from_secs(2),
            cpu: Duration::from_micros(hits + 1),
            tasks: Some(seen(4, hits, 1000)),
            threads: None,
            traffic: Traffic {
                writes: 10,
                reads: 0,
            },
            profile: None,
        }
    }

    #[test]
    fn errors_are_no_operations() {
        let run = RedisRun::of(Operation::Get, 1, outcome(99));
        assert_eq!((run.all.operations, run.all.errors), (100, 2));
        assert_eq!(run.all.ops_per_s, 50.0);
        assert_eq!(run.client_cpu_us_per_op, Some(1.0));
        assert_eq!(
            (run.replies_per_write, run.replies_per_read),
            (Some(10.0), None)
        );
        assert_eq!(run.all.p50_ns, Some(1000));
        assert!(run.tasks.is_none());
    }

    #[test]
    fn tasks_and_threads_are_counted_apart_and_together() {
        let both = RunOutcome {
            threads: Some(seen(1, 9, 100_000)),
            ..outcome(99)
        };
        let run = RedisRun::of(Operation::Get, 1, both);
        let operations = |part: Option<Part>| part.map(|part| part.operations);
        assert_eq!((run.all.operations, run.all.callers), (110, 5));
        assert_eq!(operations(run.tasks), Some(100));
        assert_eq!(operations(run.blocking_threads), Some(10));
        assert!(run.all.max_ns > Some(99_000));
    }
}
