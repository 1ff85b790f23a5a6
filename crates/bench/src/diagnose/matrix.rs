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
    /// What a right finding said could be gained at most, 0.2 for 20 %: the median of the runs in which it came first.
    pub gain_at_most: Option<f64>,
    /// How much more the median rate was of the case with the same options and nothing injected; `None` where there is none, or where
    /// that is not what is gained without the fault.
    pub gained: Option<f64>,
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
}

/// Measures it: in each round one run of each case, so that what changes on the machine changes for all. Who interrupts it gets the rounds
/// that were completed.
pub fn measure(plan: MatrixPlan, context: &Context) -> Result<Matrix> {
    let mut runs: Vec<Vec<Run>> = CASES.iter().map(|_| Vec::new()).collect();
    'rounds: for round in 1..=plan.runs {
        for (case, runs) in CASES.iter().zip(&mut runs) {
            let seen = { context.interrupt.check().map_err(Into::into) }
                .and_then(|()| run(plan, *case, context))
                .with_context(|| format!("{}, run {round}", case.injected));
            match seen {
                Ok(seen) => {
                    let first = seen.first();
                    context.note(format_args!("run {round}, {}: {first}", case.injected));
                    runs.push(seen);
                }
                Err(_) if round > 1 && context.interrupt.check().is_err() => break 'rounds,
                Err(error) => return Err(error),
            }
        }
    }
    let complete = runs.iter().map(Vec::len).min().unwrap_or(0);
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
    let rows = CASES.iter().zip(&runs).map(|(case, seen)| {
        let bytes_per_s = rate(seen);
        let without = case.without().filter(|_| case.is_of_one());
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
    };
    let mut gains = Vec::new();
    for run in runs {
        let is_right = |it: &Named| case.expected.contains(&it.cause);
        *row.first.entry(run.first().to_string()).or_default() += 1;
        if let Some(first) = run.findings.first().filter(|it| is_right(it)) {
            row.right += 1;
            gains.push(first.gain_at_most);
        }
        let three = &run.findings[..run.findings.len().min(3)];
        let is_among = match case.faults().count() > 1 {
            true => (case.expected.iter()).all(|cause| three.iter().any(|it| it.cause == *cause)),
            false => three.iter().any(is_right),
        };
        row.among_three += usize::from(is_among);
    }
    row.gain_at_most = median(&gains).filter(|_| case.is_of_one());
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
            "named first",
        ]);
        for row in &self.rows {
            let named = row
                .first
                .iter()
                .map(|(cause, times)| format!("{cause} {times}"));
            let gain = |it: Option<f64>| it.map_or_else(String::new, |it| format!("{it:+.2}"));
            table.row([
                row.injected.clone(),
                format!("{:.0}", row.bytes_per_s / f64::from(1 << 20)),
                format!("{} of {}", row.right, self.runs),
                format!("{} of {}", row.among_three, self.runs),
                gain(row.gain_at_most),
                gain(row.gained),
                named.collect::<Vec<_>>().join(", "),
            ]);
        }
        write!(f, "{table}")
    }
}
