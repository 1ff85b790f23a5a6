//! Medians over runs, and what may be said about one phase against another.

use embar_meter::stats::{Interval, PAIRS_MIN, median_interval};
use embar_meter::{Better, Comparison, Series};
use serde::Serialize;

use super::run::SessionRun;

/// Name of the bare sockets among the phases.
pub const WALL: &str = "wall";

/// A figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Metric {
    /// Median latency.
    #[serde(rename = "p50_ns")]
    P50,
    /// Tail latency.
    #[serde(rename = "p99_ns")]
    P99,
    /// Messages per second.
    #[serde(rename = "messages_per_s")]
    Rate,
}

impl Metric {
    /// All that phases are compared by.
    pub const ALL: [Self; 3] = [Self::P50, Self::P99, Self::Rate];

    fn of(self, run: &SessionRun) -> Option<f64> {
        match self {
            Self::P50 => Some(run.latency?.p50_ns),
            Self::P99 => Some(run.latency?.p99_ns),
            Self::Rate => Some(run.messages_per_s),
        }
    }

    fn better(self) -> Better {
        match self {
            Self::Rate => Better::Higher,
            Self::P50 | Self::P99 => Better::Lower,
        }
    }

    /// The name that is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::P50 => "P50",
            Self::P99 => "P99",
            Self::Rate => "packets/s",
        }
    }
}

/// Medians over the runs of a phase; those of latencies only where messages are answered one by one.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Name of the phase.
    pub phase: &'static str,
    /// How many runs there were.
    pub runs: usize,
    /// Median of the mean latencies.
    pub avg_ns: Option<f64>,
    /// Median of the median latencies, with its interval.
    pub p50_ns: Option<f64>,
    /// Median of the tail latencies, with its interval.
    pub p99_ns: Option<f64>,
    /// Median of the latencies that one of 1000 messages exceeds.
    pub p999_ns: Option<f64>,
    /// Median of the round trips per second.
    pub round_trips_per_s: Option<f64>,
    /// Median of the messages per second, with its interval.
    pub messages_per_s: f64,
    /// Median of the MiB per second.
    pub mb_per_s: f64,
    /// Median P99 divided by median P50.
    pub p99_by_p50: Option<f64>,
    /// The intervals of three of the medians.
    pub interval: Intervals,
    /// Messages lost in all runs together.
    pub lost: u64,
    /// Stalls in all runs together.
    pub stalls: usize,
}

/// Intervals of medians.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Intervals {
    /// The interval of the median latency.
    pub p50_ns: Option<Interval>,
    /// The interval of the tail latency.
    pub p99_ns: Option<Interval>,
    /// The interval of the rate.
    pub messages_per_s: Interval,
}

impl Summary {
    /// Sums up the measured runs of one phase among `runs`; `None` if there is none.
    pub fn of(phase: &'static str, runs: &[SessionRun]) -> Option<Self> {
        let runs: Vec<&SessionRun> = runs
            .iter()
            .filter(|run| run.phase == phase && !run.is_warmup())
            .collect();
        let series = |part: &dyn Fn(&SessionRun) -> Option<f64>| -> Option<Series> {
            let values: Option<Vec<f64>> = runs.iter().map(|run| part(run)).collect();
            Series::new(values?).ok()
        };
        let median = |part: &dyn Fn(&SessionRun) -> Option<f64>| Some(series(part)?.median());
        let interval = |metric: Metric| {
            let series = series(&|run| metric.of(run))?;
            Some(median_interval(&series))
        };
        let (p50, p99) = (interval(Metric::P50), interval(Metric::P99));
        let rate = interval(Metric::Rate)?;
        Some(Self {
            phase,
            runs: runs.len(),
            avg_ns: median(&|run| Some(run.latency?.avg_ns)),
            p50_ns: p50.map(|interval| interval.point),
            p99_ns: p99.map(|interval| interval.point),
            p999_ns: median(&|run| Some(run.latency?.p999_ns)),
            round_trips_per_s: median(&|run| run.round_trips_per_s),
            messages_per_s: rate.point,
            mb_per_s: median(&|run| Some(run.mb_per_s))?,
            p99_by_p50: p50.zip(p99).map(|(p50, p99)| p99.point / p50.point),
            interval: Intervals {
                p50_ns: p50,
                p99_ns: p99,
                messages_per_s: rate,
            },
            lost: runs.iter().map(|run| run.lost).sum(),
            stalls: runs.iter().map(|run| run.stalls.len()).sum(),
        })
    }
}

/// One phase against another by one figure.
#[derive(Clone, Debug, Serialize)]
pub struct Judgement {
    /// The figure that is compared.
    pub metric: Metric,
    /// The ratio of the runs of each round, and what may be claimed.
    #[serde(flatten)]
    pub comparison: Comparison,
}

impl Judgement {
    /// `0.950 [0.940, 0.960] faster`.
    pub fn cell(&self) -> String {
        let comparison = &self.comparison;
        format!("{} {}", comparison.ratio, comparison.verdict)
    }

    /// Whether the runs are too few for any verdict.
    pub fn is_too_few(&self) -> bool {
        self.comparison.pairs < PAIRS_MIN
    }
}

/// Each phase against the wall and against the phase before it, in this order, by every figure that they have.
/// Rounds that only one of two phases finished do not count.
pub fn judgements(
    phases: &[&'static str],
    wall: &[SessionRun],
    runs: &[SessionRun],
) -> Vec<Judgement> {
    let mut judgements = Vec::new();
    let mut judge = |baseline: (&str, &[SessionRun]), changed: &str| {
        for metric in Metric::ALL {
            judgements.extend(judgement(metric, baseline, (changed, runs)));
        }
    };
    for phase in phases {
        judge((WALL, wall), phase);
    }
    for pair in phases.windows(2) {
        judge((pair[0], runs), pair[1]);
    }
    judgements
}

fn judgement(
    metric: Metric,
    (baseline, baseline_runs): (&str, &[SessionRun]),
    (changed, runs): (&str, &[SessionRun]),
) -> Option<Judgement> {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let measured = |run: &&SessionRun| run.phase == baseline && !run.is_warmup();
    for run in baseline_runs.iter().filter(measured) {
        let other = runs
            .iter()
            .find(|other| other.phase == changed && other.run == run.run);
        if let Some(other) = other {
            before.push(metric.of(run)?);
            after.push(metric.of(other)?);
        }
    }
    let (before, after) = (Series::new(before).ok()?, Series::new(after).ok()?);
    // A run in which nothing arrived has no ratio; it is reported as lost.
    let comparison = Comparison::of((baseline, &before), (changed, &after), metric.better());
    Some(Judgement {
        metric,
        comparison: comparison.ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::run;
    use super::*;

    fn runs(phase: &'static str, p50_us: f64) -> Vec<SessionRun> {
        // The machine gets slower by a tenth from run to run.
        (1..=8)
            .map(|number| {
                let slower = 1.1_f64.powi(number);
                run(
                    phase,
                    number as usize,
                    p50_us * slower,
                    1e6 / p50_us / slower,
                )
            })
            .collect()
    }

    #[test]
    fn medians_come_with_their_intervals() {
        let runs = [10.0, 30.0, 20.0].map(|us| run("baseline", 1, us, 1e6 / us));
        let summary = Summary::of("baseline", &runs).expect("runs");
        assert_eq!(
            (summary.p50_ns, summary.p99_ns, summary.messages_per_s),
            (Some(20_000.0), Some(40_000.0), 50_000.0)
        );
        assert_eq!(summary.p99_by_p50, Some(2.0));
        let interval = summary.interval.p50_ns.expect("latencies");
        assert_eq!((interval.low, interval.high), (10_000.0, 30_000.0));
        assert!(Summary::of("zero-copy send", &runs).is_none());
    }

    #[test]
    fn what_is_not_answered_has_no_latency() {
        let one_way = SessionRun {
            latency: None,
            round_trips_per_s: None,
            ..run("baseline", 1, 1.0, 1e6)
        };
        let summary = Summary::of("baseline", std::slice::from_ref(&one_way)).expect("a run");
        assert_eq!((summary.p50_ns, summary.messages_per_s), (None, 1e6));
        let judged = judgements(
            &["baseline"],
            &[SessionRun {
                phase: WALL,
                ..one_way.clone()
            }],
            &[one_way],
        );
        let metrics: Vec<Metric> = judged.iter().map(|judgement| judgement.metric).collect();
        assert_eq!(metrics, [Metric::Rate]);
    }

    #[test]
    fn phases_are_compared_with_the_wall_and_with_the_one_before_round_by_round() {
        let wall = runs(WALL, 7.0);
        let all = [runs("baseline", 10.0), runs("scatter-gather", 9.5)].concat();
        let judged = judgements(&["baseline", "scatter-gather"], &wall, &all);
        let pairs: Vec<_> = judged
            .iter()
            .filter(|judgement| judgement.metric == Metric::P50)
            .map(|judgement| {
                let comparison = &judgement.comparison;
                let ratio = (comparison.ratio.point * 100.0).round() / 100.0;
                (
                    comparison.baseline.as_str(),
                    comparison.changed.as_str(),
                    ratio,
                )
            })
            .collect();
        assert_eq!(
            pairs,
            [
                (WALL, "baseline", 1.43),
                (WALL, "scatter-gather", 1.36),
                ("baseline", "scatter-gather", 0.95)
            ]
        );
        assert!(judged.last().expect("some").cell().ends_with("] faster"));
    }

    #[test]
    fn what_cannot_be_distinguished_is_inside_the_noise() {
        let mut other = runs("scatter-gather", 10.0);
        let figures: Vec<_> = other.iter().map(|run| run.latency).collect();
        for (run, latency) in other.iter_mut().zip(figures.into_iter().rev()) {
            run.latency = latency;
        }
        let all = [runs("baseline", 10.0), other].concat();
        let judged = judgements(&["baseline", "scatter-gather"], &[], &all);
        assert_eq!(judged[0].metric, Metric::P50);
        let cell = judged[0].cell();
        assert!(
            cell.ends_with("] inside the noise") && !judged[0].is_too_few(),
            "{cell}"
        );
    }

    #[test]
    fn rounds_that_one_of_two_did_not_finish_do_not_count() {
        let mut all = [runs("baseline", 10.0), runs("scatter-gather", 10.0)].concat();
        all.truncate(10);
        let judged = judgements(&["baseline", "scatter-gather"], &[], &all);
        assert_eq!(judged[0].comparison.pairs, 2);
        assert!(judged[0].is_too_few());
    }
}
