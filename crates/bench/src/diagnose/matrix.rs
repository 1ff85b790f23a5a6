//! How often a diagnosis names what was injected: each fault, strong and weak, two at once, and none, in rounds.

use std::collections::BTreeMap;
use std::fmt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use embar_console::context::Context;
use embar_console::size::show_duration;
use embar_diagnose::Cause;
use embar_meter::table::Table;
use serde::{Deserialize, Serialize};

/// What is injected, with options that the fault needs to act, and the causes that are right: of two faults both.
const CASES: [(&str, &[&str], &[Cause]); 38] = [
    ("nothing", &[], &NO_FAULT),
    (
        "nothing, batches of 256 KiB",
        &["--batch-size", "256KiB"],
        &NO_FAULT,
    ),
    ("nothing, order 5", &["-o", "5"], &NO_FAULT),
    ("nothing, reading", &["--flow", "read"], &NO_FAULT),
    ("slow-sender=200MiB", &[], &[Cause::ApplicationTooSlow]),
    ("slow-sender=2GiB", &[], &[Cause::ApplicationTooSlow]),
    (
        "slow-reader=200MiB",
        &["--flow", "read"],
        &[Cause::SlowSubscriber],
    ),
    (
        "slow-reader=2GiB",
        &["--flow", "read"],
        &[Cause::SlowSubscriber],
    ),
    ("small-rcvbuf=43690", &[], &[Cause::ReceiveWindowTooSmall]),
    ("small-rcvbuf=200KiB", &[], &[Cause::ReceiveWindowTooSmall]),
    (
        "small-sndbuf=16KiB",
        &["--flow", "read"],
        &[Cause::SendBufferTooSmall],
    ),
    (
        "small-sndbuf=48KiB",
        &["--flow", "read"],
        &[Cause::SendBufferTooSmall],
    ),
    ("cpu-hog=2", &[], &[Cause::ProcessorsTakenByOthers]),
    ("cpu-hog=1", &[], &[Cause::ProcessorsTakenByOthers]),
    ("cpu-quota=80", &[], &[Cause::ProcessorQuota]),
    ("cpu-quota=150", &[], &[Cause::ProcessorQuota]),
    ("hot-broker=90", &[], &[Cause::HotBroker]),
    ("hot-broker=60", &[], &[Cause::HotBroker]),
    ("small-batches=4KiB", &[], &[Cause::BatchesTooSmall]),
    ("small-batches=16KiB", &[], &[Cause::BatchesTooSmall]),
    ("long-linger=20ms", &[], &[Cause::LingerTooLong]),
    ("long-linger=200us", &[], &[Cause::LingerTooLong]),
    (
        "few-in-flight=1",
        &["--batch-size", "64KiB"],
        &[Cause::TooFewInFlight],
    ),
    (
        "few-in-flight=2",
        &["--batch-size", "32KiB"],
        &[Cause::TooFewInFlight],
    ),
    ("many-threads=4", &[], &[Cause::MoreThreadsThanCores]),
    ("many-threads=2", &[], &[Cause::MoreThreadsThanCores]),
    ("net-rate=100MiB", &[], &[Cause::NetworkRateLimit]),
    ("net-delay=2ms", &[], &[Cause::NetworkDelay]),
    ("net-delay=500us", &[], &[Cause::NetworkDelay]),
    ("net-loss=1", &[], &[Cause::NetworkLoss]),
    ("net-loss=0.3", &[], &[Cause::NetworkLoss]),
    (
        "cold-memory",
        &["--region-size", "8GiB"],
        &[Cause::ColdMemory],
    ),
    (
        "small-rcvbuf=43690 + cpu-hog=1",
        &[],
        &[Cause::ReceiveWindowTooSmall, Cause::ProcessorsTakenByOthers],
    ),
    (
        "small-rcvbuf=43690 + small-batches=16KiB",
        &[],
        &[Cause::ReceiveWindowTooSmall, Cause::BatchesTooSmall],
    ),
    (
        "small-batches=4KiB + cpu-hog=2",
        &[],
        &[Cause::BatchesTooSmall, Cause::ProcessorsTakenByOthers],
    ),
    (
        "small-batches=16KiB + cpu-quota=150",
        &[],
        &[Cause::BatchesTooSmall, Cause::ProcessorQuota],
    ),
    (
        "many-threads=4 + cpu-hog=4",
        &[],
        &[Cause::MoreThreadsThanCores, Cause::ProcessorsTakenByOthers],
    ),
    (
        "slow-sender=1GiB + cpu-hog=2",
        &[],
        &[Cause::ApplicationTooSlow, Cause::ProcessorsTakenByOthers],
    ),
];

/// Between the names of faults that are injected together.
const AND: &str = " + ";

/// What is right where nothing was injected.
const NO_FAULT: [Cause; 2] = [Cause::MachineWall, Cause::NothingFound];

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
}

/// Of what a run reports, what is needed.
#[derive(Deserialize)]
struct Reported {
    findings: Vec<Named>,
    bytes_per_s: f64,
}

#[derive(Deserialize)]
struct Named {
    cause: Cause,
}

/// Measures it: in each round one run of each case, so that what changes on the machine changes for all.
pub fn measure(plan: MatrixPlan, context: &Context) -> Result<Matrix> {
    let mut rows: Vec<Row> = CASES
        .iter()
        .map(|(injected, options, expected)| Row {
            injected: (*injected).to_owned(),
            options: options.join(" "),
            expected: expected.to_vec(),
            first: BTreeMap::new(),
            right: 0,
            among_three: 0,
            bytes_per_s: 0.0,
        })
        .collect();
    let mut rates = vec![Vec::new(); CASES.len()];
    for round in 0..plan.runs {
        for (index, (injected, options, expected)) in CASES.iter().enumerate() {
            context.interrupt.check()?;
            let reported = run(plan, injected, options, context)
                .with_context(|| format!("{injected}, run {}", round + 1))?;
            let causes: Vec<Cause> = reported.findings.iter().map(|it| it.cause).collect();
            let first = causes.first().copied().unwrap_or(Cause::NothingFound);
            let is_right = |cause: &Cause| expected.contains(cause);
            let row = &mut rows[index];
            *row.first.entry(first.to_string()).or_default() += 1;
            row.right += usize::from(is_right(&first));
            let three = &causes[..causes.len().min(3)];
            let is_among = match injected.contains(AND) {
                true => expected.iter().all(|cause| three.contains(cause)),
                false => three.iter().any(is_right),
            };
            row.among_three += usize::from(is_among);
            rates[index].push(reported.bytes_per_s);
            context.note(format_args!("run {}, {injected}: {first}", round + 1));
        }
    }
    for (row, rates) in rows.iter_mut().zip(&rates) {
        row.bytes_per_s = embar_meter::stats::median(rates).unwrap_or(0.0);
    }
    Ok(Matrix {
        runs: plan.runs,
        rows,
    })
}

/// Each run is a process of its own, as a user would start it.
fn run(plan: MatrixPlan, injected: &str, options: &[&str], context: &Context) -> Result<Reported> {
    let mut command = Command::new(&context.program);
    command
        .args(["--json", "diagnose", "--for", &show_duration(plan.span)])
        .args(["--warm-up", &show_duration(plan.warm_up)])
        .args(options)
        .stdin(Stdio::null());
    if !injected.starts_with("nothing") {
        for fault in injected.split(AND) {
            command.args(["--inject", fault]);
        }
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
            "named first",
        ]);
        for row in &self.rows {
            let named = row
                .first
                .iter()
                .map(|(cause, times)| format!("{cause} {times}"));
            table.row([
                row.injected.clone(),
                format!("{:.0}", row.bytes_per_s / f64::from(1 << 20)),
                format!("{} of {}", row.right, self.runs),
                format!("{} of {}", row.among_three, self.runs),
                named.collect::<Vec<_>>().join(", "),
            ]);
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::inject::Fault;
    use super::*;

    #[test]
    fn each_case_is_a_fault_of_the_cause_that_is_expected() {
        for (injected, _, expected) in CASES {
            if injected.starts_with("nothing") {
                assert!(expected.iter().all(|cause| !cause.is_fault()));
            } else {
                let faults = injected.split(AND).map(|it| it.parse::<Fault>());
                let causes = faults.map(|it| it.expect(injected).cause());
                assert_eq!(expected, causes.collect::<Vec<_>>(), "{injected}");
            }
        }
    }
}
