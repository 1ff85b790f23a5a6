//! Tries the remedies of findings, one at a time, each beside the load as it was, by turns.

use anyhow::Result;
use embar_console::context::Context;
use embar_diagnose::finding::{Change, Verified};
use embar_diagnose::{Diagnosis, Finding};
use embar_meter::experiment::{Experiment, Sample};

use crate::experiment;

/// How the remedies are tried.
#[derive(Clone, Copy, Debug)]
pub struct Trials {
    /// Pairs of trials for each remedy.
    pub pairs: usize,
    /// Findings whose remedies are tried, the first ones.
    pub findings: usize,
}

/// A load that can be run with and without a remedy.
pub trait Tried: Sized {
    /// The unit of its rate.
    const UNIT: &'static str;

    /// The load with a remedy; `None` if that cannot be applied here.
    fn with(&self, change: &Change) -> Option<Self>;

    /// Runs it without looking at it, and says how fast it was.
    ///
    /// # Errors
    /// It did not run.
    fn rate(&self, context: &Context) -> Result<f64>;
}

/// Tries the remedies that can be applied here, and writes down what came of them. A finding whose remedy did not help is
/// withdrawn, and comes after those that stand.
pub fn verify<L: Tried>(
    diagnosis: &mut Diagnosis,
    load: &L,
    trials: Trials,
    context: &Context,
) -> Result<()> {
    for finding in diagnosis.findings.iter_mut().take(trials.findings) {
        let Some(change) = &finding.remedy.change else {
            continue;
        };
        let Some(changed) = load.with(change) else {
            continue;
        };
        context.note(format_args!("{}: trying {change}", finding.cause));
        finding.verified = Some(compare(finding, [load, &changed], trials.pairs, context)?);
    }
    diagnosis.findings.sort_by_key(Finding::withdrawn);
    Ok(())
}

fn compare<L: Tried>(
    finding: &Finding,
    loads: [&L; 2],
    pairs: usize,
    context: &Context,
) -> Result<Verified> {
    let names = ["as it is", "with the remedy"];
    let experiment = Experiment::new(names).unit(L::UNIT).trials(pairs);
    let (outcome, surroundings) = experiment::run(experiment, |index, trial| {
        let (name, rate) = (names[index], loads[index].rate(context)?);
        context.note(format_args!("{name}, {trial}: {rate:.1} {}", L::UNIT));
        Ok(Sample::from(rate))
    })?;
    let comparison = outcome.compare(0, 1)?;
    let others = surroundings.others + surroundings.steal;
    Ok(Verified::new(&comparison, finding.gain_at_most, others))
}
