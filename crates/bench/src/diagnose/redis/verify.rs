//! Tries the remedies of findings, one at a time, each beside the callers as they were, by turns.

use anyhow::Result;
use embar_console::context::Context;
use embar_diagnose::finding::Verified;
use embar_diagnose::{Diagnosis, Finding};
use embar_meter::experiment::{Experiment, Sample};

use super::plan::RedisLoad;
use super::run::rate;
use crate::diagnose::verify::Trials;
use crate::experiment;

/// Tries the remedies that can be applied here, and writes down what came of them. A finding whose remedy did not help is
/// withdrawn, and comes after those that stand.
pub fn verify(
    diagnosis: &mut Diagnosis,
    plan: &RedisLoad,
    trials: Trials,
    context: &Context,
) -> Result<()> {
    for finding in diagnosis.findings.iter_mut().take(trials.findings) {
        let change = finding.remedy.change.as_ref();
        let Some((change, changed)) = change.and_then(|it| Some((it, plan.with(it)?))) else {
            continue;
        };
        context.note(format_args!("{}: trying {change}", finding.cause));
        let plans = [plan, &changed];
        let names = ["as it is", "with the remedy"];
        let experiment = Experiment::new(names)
            .unit("operations/s")
            .trials(trials.pairs);
        let (outcome, surroundings) = experiment::run(experiment, |index, trial| {
            let rate = rate(plans[index], context)?;
            context.note(format_args!("{}, {trial}: {rate:.0}/s", names[index]));
            Ok(Sample::from(rate))
        })?;
        let comparison = outcome.compare(0, 1)?;
        let others = surroundings.others + surroundings.steal;
        finding.verified = Some(Verified::new(&comparison, finding.gain_at_most, others));
    }
    diagnosis.findings.sort_by_key(Finding::withdrawn);
    Ok(())
}
