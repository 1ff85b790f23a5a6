//! How often a diagnosis names what was injected: each fault, strong and weak, two at once, and none, in rounds.

mod cases;

use std::collections::BTreeMap;
use std::fmt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use embar_console::context::Context;
use embar_console::size::show_duration;
use embar_diagnose::Cause;
use embar_diagnose::finding::{Outcome, Verified};
use embar_meter::stats::median;
use embar_meter::table::Table;
use serde::{Deserialize, Serialize};

use cases::CASES;

/// What is injected, with options that the fault needs to act, and the causes that are right: of two faults both.
#[derive(Clone, Copy)]
struct Case {
    injected: &'static str,
    options: &'static [&'static str],
    expected: &'static [Cause],
}

impl Case {
    /// The faults; none where nothing is injected.
    fn faults(self) -> impl Iterator<Item = &'static str> {
        let all = self.injected.split(AND);
        all.filter(|it| !it.starts_with("nothing"))
    }

    /// Whether what one finding says can be gained is the rate without its fault. Of two faults each finding is of one; a worse network goes
    /// by a wire that takes time itself; with a long linger each message is waited for.
    fn is_of_one(self) -> bool {
        let other = [
            Cause::NetworkDelay,
            Cause::NetworkLoss,
            Cause::LingerTooLong,
        ];
        self.faults().count() == 1 && !self.expected.iter().any(|it| other.contains(it))
    }

    /// Whether a setting undoes it: a remedy that `--verify` can apply.
    fn is_a_setting(self) -> bool {
        let settings = [
            Cause::ReceiveWindowTooSmall,
            Cause::SendBufferTooSmall,
            Cause::BatchesTooSmall,
            Cause::LingerTooLong,
            Cause::TooFewInFlight,
        ];
        self.faults().count() == 1 && settings.contains(&self.expected[0])
    }

    /// The case with nothing injected, and the same options.
    fn without(self) -> Option<usize> {
        CASES
            .iter()
            .position(|it| it.options == self.options && it.faults().count() == 0)
    }
}

/// Between the names of faults that are injected together.
const AND: &str = " + ";

/// How the matrix is measured.
#[derive(Clone, Copy, Debug)]
pub struct MatrixPlan {
    /// Runs of each case.
    pub runs: usize,
    /// How long each is looked at.
    pub span: Duration,
    /// How long it runs before.
    pub warm_up: Duration,
    /// Pairs in which the remedy is tried of what comes first, with only the faults that a setting undoes; `None` tries none, of any.
    pub pairs: Option<usize>,
}

/// All cases, and what was named.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Matrix {
    /// Runs of each case.
    pub runs: usize,
    /// A case each.
    pub rows: Vec<Row>,
}

/// What was named for one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What was injected.
    pub injected: String,
    /// Options beside it.
    pub options: String,
    /// The causes that are right.
    pub expected: Vec<Cause>,
    /// How often each cause came first.
    pub first: BTreeMap<String, usize>,
    /// Runs in which a right one came first.
    pub right: usize,
    /// Runs in which a right one was among the first three; of two faults, both.
    pub among_three: usize,
    /// The median rate, bytes of message values a second.
    pub bytes_per_s: f64,
    /// What a right finding said could be gained at most, 0.2 for 20 %: the median of the runs in which it came first, or was tried.
    pub gain_at_most: Option<f64>,
    /// How much more the median rate was without the fault: where remedies are tried, by them, and else in the case with the same options
    /// and nothing injected; `None` where there is none, or where that is not what is gained without the fault.
    pub gained: Option<f64>,
    /// How often each came of the remedy that was tried: `helped`, `did-not-help`, `not-shown`.
    pub outcomes: BTreeMap<Outcome, usize>,
    /// Runs in which the rate that was said to be possible, and the one with the remedy, were within a factor of 1.5 of each other.
    pub as_predicted: usize,
}

/// What one run named, in order, and its rate.
#[derive(Deserialize)]
struct Run {
    findings: Vec<Named>,
    bytes_per_s: f64,
}

#[derive(Deserialize)]
struct Named {
    cause: Cause,
    gain_at_most: f64,
    verified: Option<Verified>,
}

/// Measures it: in each round one run of each case, so that what changes on the machine changes for all. Who interrupts it gets the rounds
/// that were completed.
pub fn measure(plan: MatrixPlan, context: &Context) -> Result<Matrix> {
    let measured = |case: &Case| plan.pairs.is_none() || case.is_a_setting();
    let mut runs: Vec<Vec<Run>> = CASES.iter().map(|_| Vec::new()).collect();
    'rounds: for round in 1..=plan.runs {
        for (index, case) in CASES.iter().enumerate().filter(|it| measured(it.1)) {
            let seen = { context.interrupt.check().map_err(Into::into) }
                .and_then(|()| run(plan, *case, context))
                .with_context(|| format!("{}, run {round}", case.injected));
            match seen {
                Ok(seen) => {
                    let first = seen.first();
                    context.note(format_args!("run {round}, {}: {first}", case.injected));
                    runs[index].push(seen);
                }
                Err(_) if round > 1 && context.interrupt.check().is_err() => break 'rounds,
                Err(error) => return Err(error),
            }
        }
    }
    let seen = CASES.iter().zip(&runs).filter(|it| measured(it.0));
    let complete = seen.map(|it| it.1.len()).min().unwrap_or(0);
    if complete < plan.runs {
        context.note(format_args!("interrupted: {complete} rounds are complete"));
    }
    for runs in &mut runs {
        runs.truncate(complete);
    }
    let rate = |runs: &[Run]| {
        let rates: Vec<f64> = runs.iter().map(|it| it.bytes_per_s).collect();
        median(&rates).unwrap_or(0.0)
    };
    let seen = CASES.iter().zip(&runs).filter(|it| measured(it.0));
    let rows = seen.map(|(case, seen)| {
        let bytes_per_s = rate(seen);
        let without = case
            .without()
            .filter(|it| case.is_of_one() && !runs[*it].is_empty());
        let gained = without.map(|it| rate(&runs[it]) / bytes_per_s - 1.0);
        row(*case, seen, bytes_per_s, gained)
    });
    Ok(Matrix {
        runs: complete,
        rows: rows.collect(),
    })
}

fn row(case: Case, runs: &[Run], bytes_per_s: f64, gained: Option<f64>) -> Row {
    let mut row = Row {
        injected: case.injected.to_owned(),
        options: case.options.join(" "),
        expected: case.expected.to_vec(),
        first: BTreeMap::new(),
        right: 0,
        among_three: 0,
        bytes_per_s,
        gain_at_most: None,
        gained,
        outcomes: BTreeMap::new(),
        as_predicted: 0,
    };
    let (mut said, mut seen) = (Vec::new(), Vec::new());
    for run in runs {
        let is_right = |it: &Named| case.expected.contains(&it.cause);
        *row.first.entry(run.first().to_string()).or_default() += 1;
        let first = run.findings.first().filter(|it| is_right(it));
        row.right += usize::from(first.is_some());
        let mut tried = run.findings.iter().filter(|it| is_right(it));
        let tried = tried.find_map(|it| Some((it, it.verified.as_ref()?)));
        if let Some((_, verified)) = tried {
            *row.outcomes.entry(verified.outcome).or_default() += 1;
            row.as_predicted += usize::from(verified.as_predicted);
            seen.push(verified.ratio.point - 1.0);
        }
        said.extend(tried.map(|it| it.0).or(first).map(|it| it.gain_at_most));
        let three = &run.findings[..run.findings.len().min(3)];
        let is_among = match case.faults().count() > 1 {
            true => (case.expected.iter()).all(|cause| three.iter().any(|it| it.cause == *cause)),
            false => three.iter().any(is_right),
        };
        row.among_three += usize::from(is_among);
    }
    row.gain_at_most = median(&said).filter(|_| case.is_of_one() || !seen.is_empty());
    row.gained = median(&seen).or(gained);
    row
}

impl Run {
    fn first(&self) -> Cause {
        let first = self.findings.first();
        first.map_or(Cause::NothingFound, |it| it.cause)
    }
}

/// Each run is a process of its own, as a user would start it.
fn run(plan: MatrixPlan, case: Case, context: &Context) -> Result<Run> {
    let mut command = Command::new(&context.program);
    command
        .args(["--json", "diagnose", "--for", &show_duration(plan.span)])
        .args(["--warm-up", &show_duration(plan.warm_up)])
        .args(case.options)
        .stdin(Stdio::null());
    for fault in case.faults() {
        command.args(["--inject", fault]);
    }
    if let Some(pairs) = plan.pairs {
        command.args(["--verify", "--pairs", &pairs.to_string()]);
    }
    let output = command.output().context("cannot start the program again")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([
            "injected",
            "MiB/s",
            "right first",
            "in three",
            "at most",
            "without it",
            "tried",
            "named first",
        ]);
        for row in &self.rows {
            let named = row
                .first
                .iter()
                .map(|(cause, times)| format!("{cause} {times}"));
            let tried = row.outcomes.iter();
            let tried = tried.map(|(outcome, times)| format!("{outcome} {times}"));
            let gain = |it: Option<f64>| it.map_or_else(String::new, |it| format!("{it:+.2}"));
            table.row([
                row.injected.clone(),
                format!("{:.0}", row.bytes_per_s / f64::from(1 << 20)),
                format!("{} of {}", row.right, self.runs),
                format!("{} of {}", row.among_three, self.runs),
                gain(row.gain_at_most),
                gain(row.gained),
                tried.collect::<Vec<_>>().join(", "),
                named.collect::<Vec<_>>().join(", "),
            ]);
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use embar_meter::{Interval, Verdict};

    use super::*;

    const RATE: f64 = 1e9;

    fn case(injected: &str) -> Case {
        let case = CASES.iter().find(|it| it.injected == injected);
        *case.expect("a case")
    }

    fn named(cause: Cause, gain_at_most: f64) -> Named {
        Named {
            cause,
            gain_at_most,
            verified: None,
        }
    }

    fn run(findings: Vec<Named>) -> Run {
        Run {
            findings,
            bytes_per_s: RATE,
        }
    }

    fn tried(cause: Cause, said: f64, seen: f64, outcome: Outcome) -> Named {
        let ratio = Interval {
            point: 1.0 + seen,
            low: 0.9 + seen,
            high: 1.1 + seen,
            level: 0.95,
        };
        Named {
            verified: Some(Verified {
                ratio,
                verdict: Verdict::Faster,
                pairs: 8,
                as_predicted: (said - seen).abs() < 0.1,
                outcome,
                others: 0.0,
            }),
            ..named(cause, said)
        }
    }

    #[test]
    fn one_fault_is_right_where_it_comes_first_and_two_where_both_are_among_three() {
        let (window, batches) = (Cause::ReceiveWindowTooSmall, Cause::BatchesTooSmall);
        let runs = [
            run(vec![named(window, 0.5), named(batches, 0.2)]),
            run(vec![named(Cause::ColdMemory, 0.7), named(batches, 0.2)]),
            run(vec![named(Cause::NothingFound, 0.0)]),
        ];
        let one = row(case("small-rcvbuf=43690"), &runs, RATE, Some(0.6));
        assert_eq!((one.right, one.among_three), (1, 1));
        assert_eq!((one.gain_at_most, one.gained), (Some(0.5), Some(0.6)));
        assert_eq!(one.first["nothing-found"], 1);
        let two = case("small-rcvbuf=43690 + small-batches=16KiB");
        let two = row(two, &runs, RATE, None);
        assert_eq!((two.right, two.among_three), (1, 1));
        assert_eq!((two.gain_at_most, two.gained), (None, None));
        let none = row(case("nothing"), &runs, RATE, None);
        assert_eq!((none.right, none.among_three), (1, 1));
    }

    #[test]
    fn what_came_of_remedies_is_counted_also_of_those_that_were_withdrawn() {
        let linger = Cause::LingerTooLong;
        let runs = [
            run(vec![tried(linger, 0.5, 0.55, Outcome::Helped)]),
            run(vec![tried(linger, 0.75, 0.25, Outcome::Helped)]),
            run(vec![
                named(Cause::MachineWall, 0.0),
                tried(linger, 0.8, 0.0, Outcome::DidNotHelp),
            ]),
        ];
        let row = row(case("long-linger=20ms"), &runs, RATE, None);
        assert_eq!(row.right, 2);
        assert_eq!(row.outcomes[&Outcome::Helped], 2);
        assert_eq!(row.outcomes[&Outcome::DidNotHelp], 1);
        assert_eq!(row.as_predicted, 1);
        assert_eq!((row.gain_at_most, row.gained), (Some(0.75), Some(0.25)));
    }
}
