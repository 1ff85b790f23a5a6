//! Runs the bench in child processes, by turns.

use std::ffi::OsString;
use std::io::{Read, Seek, SeekFrom};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use embar_console::context::Context;
use embar_console::interrupt::Interrupted;
use embar_meter::experiment::{Experiment, Outcome, Precision, Sample};
use serde_json::Value;

use super::setting::Compare;
use super::subject::{Metric, Subject};
use crate::experiment::{self, Surroundings};

/// How often a child is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long a child that was told to end may take to remove its cluster.
const GRACE: Duration = Duration::from_secs(10);
/// So much of what a child says is kept, bytes.
const SAID_MAX: u64 = 4 << 10;

/// A trial failed.
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
pub struct BenchFailed {
    /// What its process ended with, if that was no signal.
    pub code: Option<i32>,
    /// What it said.
    said: String,
}

/// What is to be measured.
pub struct Plan {
    /// The bench.
    pub subject: &'static Subject,
    /// The figure of its report.
    pub metric: Metric,
    /// What is compared.
    pub compare: Compare,
    /// The command line of each configuration.
    pub commands: Vec<Vec<OsString>>,
    /// Rounds, at least.
    pub rounds: usize,
    /// When to stop after them.
    pub precision: Option<Precision>,
}

/// What was measured.
pub struct Measured {
    /// What each configuration ran, as its report says.
    pub configs: Vec<Value>,
    /// The figures.
    pub outcome: Outcome,
    /// What else the machine did.
    pub surroundings: Surroundings,
}

/// Runs all trials.
///
/// # Errors
/// A trial failed, or the values of the setting make no difference to what runs.
pub fn measure(plan: &Plan, context: &Context) -> Result<Measured> {
    let names = plan.compare.names();
    let mut configs = vec![Value::Null; names.len()];
    let experiment = Experiment::new(&names)
        .unit(plan.metric.unit)
        .better(plan.metric.better)
        .rotating()
        .trials(plan.rounds)
        .until(plan.precision);
    let (outcome, surroundings) = experiment::run(experiment, |index, round| {
        let report = run(&plan.commands[index], context)?;
        configs[index] = plan.subject.config(&report);
        let all_ran = configs.iter().all(|it| !it.is_null());
        if round.warmup && all_ran {
            check(&plan.compare, &configs)?;
        }
        let value = plan.metric.of(&report)?;
        let unit = plan.metric.unit;
        let digits = if value < 10.0 { 3 } else { 1 };
        context.note(format_args!(
            "{}, {round}: {value:.digits$} {unit}",
            names[index]
        ));
        Ok(Sample::from(value))
    })?;
    Ok(Measured {
        configs,
        outcome,
        surroundings,
    })
}

/// Values that run the same are no experiment.
fn check(compare: &Compare, configs: &[Value]) -> Result<()> {
    let Compare::Values { option, values } = compare else {
        return Ok(());
    };
    for (i, config) in configs.iter().enumerate() {
        if let Some(same) = configs[..i].iter().position(|it| it == config) {
            bail!(
                "--{option}={} and --{option}={} run the same: the setting has no effect on what is measured",
                values[same],
                values[i]
            );
        }
    }
    Ok(())
}

/// Runs the bench once, and reads its report.
fn run(arguments: &[OsString], context: &Context) -> Result<Value> {
    let [mut report, mut said] = [tempfile::tempfile()?, tempfile::tempfile()?];
    let mut child = Command::new(&context.program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(report.try_clone()?)
        .stderr(said.try_clone()?)
        .spawn()
        .context("cannot run the bench")?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if context.interrupt.is_raised() {
            end(&mut child);
            return Err(anyhow!(Interrupted));
        }
        thread::sleep(LOOK_EVERY);
    };
    if !status.success() {
        // What it died of comes last.
        let len = said.seek(SeekFrom::End(0))?;
        said.seek(SeekFrom::Start(len.saturating_sub(SAID_MAX)))?;
        let mut text = Vec::new();
        said.take(SAID_MAX).read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        let said = match text.trim() {
            "" => format!("the bench ended with {status}, and said nothing"),
            text => {
                let text = text.strip_prefix("embar: ").unwrap_or(text);
                text.strip_prefix("error: ").unwrap_or(text).to_owned()
            }
        };
        let code = status.code();
        return Err(BenchFailed { code, said }.into());
    }
    report.rewind()?;
    let mut text = String::new();
    report.read_to_string(&mut text)?;
    let report = serde_json::from_str(&text).context("the bench printed no report")?;
    ensure!(
        matches!(report, Value::Object(_)),
        "the bench printed no report"
    );
    Ok(report)
}

/// The terminal tells a child of Ctrl-C, and whoever ends this process by a signal does not.
fn end(child: &mut Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
        // It may have ended.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    for _ in 0..GRACE.as_millis() / LOOK_EVERY.as_millis() {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(LOOK_EVERY);
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_that_run_the_same_are_an_error() {
        let compare: Compare = "order=0,1".parse().expect("values");
        let differ = [json!({ "order": 0 }), json!({ "order": 1 })];
        assert!(check(&compare, &differ).is_ok());
        let same = [json!({ "order": 0 }), json!({ "order": 0 })];
        let error = check(&compare, &same).expect_err("the same").to_string();
        assert!(
            error.contains("--order=0 and --order=1 run the same"),
            "{error}"
        );
        assert!(check(&Compare::Itself, &same).is_ok());
    }
}
