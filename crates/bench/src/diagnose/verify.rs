//! Tries the remedies of findings, one at a time, each beside the load as it was, by turns.

use anyhow::Result;
use embar_console::context::Context;
use embar_diagnose::finding::Verified;
use embar_diagnose::{Diagnosis, Finding};
use embar_meter::experiment::{Experiment, Sample};

use super::plan::LoadPlan;
use super::run::rate;
use crate::experiment;

/// How the remedies are tried.
#[derive(Clone, Copy, Debug)]
pub struct Trials {
    /// Pairs of trials for each remedy.
    pub pairs: usize,
    /// Findings whose remedies are tried, the first ones.
    pub findings: usize,
}

/// Tries the remedies that can be applied here, and writes down what came of them. A finding whose remedy did not help is
/// withdrawn, and comes after those that stand.
pub fn verify(
    diagnosis: &mut Diagnosis,
    plan: &LoadPlan,
    trials: Trials,
    context: &Context,
) -> Result<()> {
    for finding in diagnosis.findings.iter_mut().take(trials.findings) {
        let Some(change) = &finding.remedy.change else {
            continue;
        };
        let Some(changed) = plan.with(change) else {
            continue;
        };
        context.note(format_args!("{}: trying {change}", finding.cause));
        finding.verified = Some(compare(finding, plan, &changed, trials.pairs, context)?);
    }
    diagnosis.findings.sort_by_key(Finding::withdrawn);
    Ok(())
}

fn compare(
    finding: &Finding,
    plan: &LoadPlan,
    changed: &LoadPlan,
    pairs: usize,
    context: &Context,
) -> Result<Verified> {
    let plans = [plan, changed];
    let names = ["as it is", "with the remedy"];
    let experiment = Experiment::new(names).unit("MiB/s").trials(pairs);
    let (outcome, surroundings) = experiment::run(experiment, |index, trial| {
        let rate = rate(plans[index], context)?;
        context.note(format_args!("{}, {trial}: {rate:.1} MiB/s", names[index]));
        Ok(Sample::from(rate))
    })?;
    let comparison = outcome.compare(0, 1)?;
    let others = surroundings.others + surroundings.steal;
    Ok(Verified::new(&comparison, finding.gain_at_most, others))
}
