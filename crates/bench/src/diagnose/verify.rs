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

    /// The load with a remedy; `None` if that cannot be applied here, or is what runs.
    fn with(&self, change: &Change) -> Option<Self>;

    /// Runs it without looking at it, and says how fast it was.
    ///
    /// # Errors
    /// It did not run.
    fn rate(&self, context: &Context) -> Result<f64>;
}

/// Tries the remedies that can be applied here and change what runs, and writes down what came of them. A finding whose remedy did not help
/// is withdrawn, and comes after those that stand.
///
/// # Errors
/// A trial failed, or was interrupted; what was tried before it stands.
pub fn verify<L: Tried>(
    diagnosis: &mut Diagnosis,
    load: &L,
    trials: Trials,
    context: &Context,
) -> Result<()> {
    let remedies = diagnosis.findings.iter_mut().filter_map(|finding| {
        let change = finding.remedy.change.clone()?;
        let changed = load.with(&change)?;
        Some((finding, change, changed))
    });
    let (mut tried, mut outcome) = (0, Ok(()));
    for (finding, change, changed) in remedies.take(trials.findings) {
        context.note(format_args!("{}: trying {change}", finding.cause));
        match compare(finding, [load, &changed], trials.pairs, context) {
            Ok(verified) => finding.verified = Some(verified),
            Err(error) => {
                outcome = Err(error.context(format!("cannot try {change}")));
                break;
            }
        }
        tried += 1;
    }
    if tried == 0 && outcome.is_ok() {
        context.note("no remedy was tried: none of what was found is a setting of this load");
    }
    diagnosis.withdraw();
    outcome
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use anyhow::ensure;
    use embar_console::interrupt::Interrupt;
    use embar_console::progress::Silent;
    use embar_diagnose::finding::Outcome;
    use embar_diagnose::{Cause, Limits, Remedy, Resource};

    use super::*;

    /// Its rate is what its batches have of bytes, and no more than a limit; another setting does nothing.
    #[derive(Clone)]
    struct Batches {
        bytes: u64,
        fails: bool,
    }

    const LIMIT: u64 = 1000;

    impl Tried for Batches {
        const UNIT: &'static str = "bytes/s";

        fn with(&self, change: &Change) -> Option<Self> {
            let Change::BatchSize(bytes) = *change else {
                return None;
            };
            let changed = bytes != self.bytes;
            changed.then_some(Self { bytes, ..*self })
        }

        fn rate(&self, _: &Context) -> Result<f64> {
            ensure!(!self.fails || self.bytes <= LIMIT, "too large");
            Ok(self.bytes.min(LIMIT) as f64)
        }
    }

    fn finding(cause: Cause, change: Option<Change>) -> Finding {
        Finding {
            cause,
            part: Resource::Brokers,
            evidence: Vec::new(),
            confidence: 1.0,
            gain_at_most: 1.0,
            remedy: Remedy {
                text: String::new(),
                change,
            },
            verified: None,
        }
    }

    fn tried(bytes: u64, fails: bool, changes: &[Option<Change>]) -> (Diagnosis, Result<()>) {
        let findings = changes.iter().cloned();
        let mut diagnosis = Diagnosis {
            limits: Limits::default(),
            findings: findings
                .map(|it| finding(Cause::BatchesTooSmall, it))
                .collect(),
            missing: Vec::new(),
        };
        let context = Context {
            progress: Arc::new(Silent),
            interrupt: Interrupt::default(),
            program: PathBuf::new(),
        };
        let trials = Trials {
            pairs: 8,
            findings: 1,
        };
        let load = Batches { bytes, fails };
        let outcome = verify(&mut diagnosis, &load, trials, &context);
        (diagnosis, outcome)
    }

    fn outcomes(diagnosis: &Diagnosis) -> Vec<Option<Outcome>> {
        let verified = diagnosis.findings.iter().map(|it| it.verified.as_ref());
        verified.map(|it| it.map(|it| it.outcome)).collect()
    }

    #[test]
    fn the_first_findings_are_tried_that_can_be_and_that_change_what_runs() {
        let changes = [
            None,
            Some(Change::Linger(0.0)),
            Some(Change::BatchSize(500)),
            Some(Change::BatchSize(900)),
            Some(Change::BatchSize(1000)),
        ];
        let (diagnosis, outcome) = tried(500, false, &changes);
        outcome.expect("all trials ran");
        let helped = Some(Outcome::Helped);
        assert_eq!(outcomes(&diagnosis), [None, None, None, helped, None]);
    }

    #[test]
    fn what_did_not_help_comes_after_what_stands() {
        let changes = [Some(Change::BatchSize(2000)), None];
        let (diagnosis, outcome) = tried(1000, false, &changes);
        outcome.expect("all trials ran");
        assert_eq!(outcomes(&diagnosis), [None, Some(Outcome::DidNotHelp)]);
    }

    #[test]
    fn a_trial_that_fails_leaves_what_was_found() {
        let (diagnosis, outcome) = tried(1000, true, &[Some(Change::BatchSize(2000)), None]);
        let said = format!("{:#}", outcome.expect_err("the trial failed"));
        assert!(
            said.contains("--batch-size 2000") && said.contains("too large"),
            "{said}"
        );
        assert_eq!(outcomes(&diagnosis), [None, None]);
    }
}
