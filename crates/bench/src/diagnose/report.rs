//! What a diagnosis prints: the pipeline, then the findings.

use std::fmt;

use embar_diagnose::observed::Step;
use embar_diagnose::picture::{OverTime, Picture};
use embar_diagnose::{Diagnosis, Finding, Observed};
use embar_meter::table::grouped;
use serde::Serialize;

/// A diagnosis with what it is of.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// What was looked at, in words.
    pub of: String,
    /// What was injected, as on the command line.
    pub injected: Vec<String>,
    /// Bytes of message values a second.
    pub bytes_per_s: f64,
    /// What was found.
    #[serde(flatten)]
    pub diagnosis: &'a Diagnosis,
    /// What it was found in.
    pub observed: &'a Observed,
    /// Processor time that it took to look at what others run, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub look_cpu_s: Option<f64>,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:.1} MiB/s, {:.0} messages/s in {:.1} s\n",
            self.bytes_per_s / f64::from(1 << 20),
            self.observed.messages as f64 / self.observed.seconds.max(f64::EPSILON),
            self.observed.seconds,
        )?;
        write_diagnosis(f, self.diagnosis, Carried::bytes(&self.observed.over_time))?;
        let Some(cpu_s) = self.look_cpu_s else {
            return Ok(());
        };
        let all_s = self.observed.seconds * f64::from(self.observed.machine.cores.max(1));
        writeln!(
            f,
            "this look took {:.0} ms of processor time, {:.1} % of what there was",
            cpu_s * 1e3,
            cpu_s / all_s * 100.0
        )
    }
}

/// What was carried over time.
pub(super) struct Carried<'a> {
    pub(super) steps: &'a [Step],
    /// In which unit it is shown,
    pub(super) unit: &'static str,
    /// and how much of what steps count that is.
    pub(super) of: f64,
}

impl<'a> Carried<'a> {
    pub(super) fn bytes(steps: &'a [Step]) -> Self {
        Self {
            steps,
            unit: "MiB/s",
            of: f64::from(1 << 20),
        }
    }

    /// The same, where what went either way is together.
    pub(super) fn both_ways(steps: &'a [Step]) -> Self {
        Self {
            unit: "MiB/s both ways",
            ..Self::bytes(steps)
        }
    }

    fn rates(&self) -> impl Iterator<Item = f64> {
        self.steps.iter().map(|it| it.per_s / self.of)
    }

    fn most(&self) -> f64 {
        self.rates().fold(0.0, f64::max)
    }
}

impl fmt::Display for Carried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let least = self.rates().fold(f64::INFINITY, f64::min);
        let seconds: f64 = self.steps.iter().map(|it| it.seconds).sum();
        writeln!(
            f,
            "{:<16} {}  {} to {} {} in steps of {:.0} ms",
            "over time",
            OverTime(self.steps),
            grouped(least as u64),
            grouped(self.most() as u64),
            self.unit,
            seconds / self.steps.len() as f64 * 1e3,
        )
    }
}

/// The picture, what happened over time, the findings, and what could not be read.
pub(super) fn write_diagnosis(
    f: &mut fmt::Formatter<'_>,
    diagnosis: &Diagnosis,
    carried: Carried<'_>,
) -> fmt::Result {
    write!(f, "{}", Picture(diagnosis))?;
    if carried.steps.len() > 1 && carried.most() >= 1.0 {
        write!(f, "{carried}")?;
    }
    writeln!(f)?;
    for (index, finding) in diagnosis.findings.iter().enumerate() {
        write_finding(f, index + 1, finding)?;
    }
    for missing in &diagnosis.missing {
        writeln!(f, "not read: {}: {}", missing.what, missing.why)?;
    }
    Ok(())
}

fn write_finding(f: &mut fmt::Formatter<'_>, number: usize, finding: &Finding) -> fmt::Result {
    let withdrawn = if finding.withdrawn() {
        " (withdrawn)"
    } else {
        ""
    };
    writeln!(
        f,
        "{number}. {}{withdrawn}: {}",
        finding.cause,
        finding.cause.sentence()
    )?;
    for evidence in &finding.evidence {
        writeln!(f, "     {evidence}")?;
    }
    if finding.cause.is_fault() {
        writeln!(
            f,
            "   confidence {:.0} %; if it were gone, at most {:.0} % more",
            finding.confidence * 100.0,
            finding.gain_at_most * 100.0
        )?;
    }
    writeln!(f, "   remedy: {}", finding.remedy.text)?;
    if let Some(verified) = &finding.verified {
        writeln!(
            f,
            "   tried: {}: {:.2} of the rate, {} pairs; others took {:.0} % of the processors",
            verified.outcome.sentence(),
            verified.ratio,
            verified.pairs,
            verified.others * 100.0
        )?;
    }
    writeln!(f)
}
