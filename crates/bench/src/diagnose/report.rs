//! What a diagnosis prints: the pipeline, then the findings.

use std::fmt;

use embar_diagnose::picture::Picture;
use embar_diagnose::{Diagnosis, Finding, Observed};
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
        write_diagnosis(f, self.diagnosis)
    }
}

/// The picture, the findings, and what could not be read.
pub(super) fn write_diagnosis(f: &mut fmt::Formatter<'_>, diagnosis: &Diagnosis) -> fmt::Result {
    writeln!(f, "{}", Picture(diagnosis))?;
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
