//! Experiments of this crate: what else the machine did meanwhile stands beside what they say.

use std::fmt;
use std::process;

use anyhow::Result;
use embar_meter::experiment::{Experiment, ExperimentError, Outcome, Sample, Trial};
use embar_readings::census::Census;
use embar_readings::machine::Processors;
use serde::Serialize;

/// From this part of the processors on, others are worth a warning.
const DISTURBING: f64 = 0.05;

/// What others used of the processors while an experiment ran, as parts of all, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Surroundings {
    /// Processes that are not ours, and the kernel on its own account: the mean.
    pub others: f64,
    /// The same in the trial in which it was most.
    pub others_most: f64,
    /// The host of a virtual machine: the mean.
    pub steal: f64,
    /// In the trial in which it was most.
    pub steal_most: f64,
}

impl Surroundings {
    /// Whether the figures are of a machine that others used, too.
    pub fn disturb(&self) -> bool {
        self.others + self.steal > DISTURBING
    }
}

impl fmt::Display for Surroundings {
    /// `others took 1 % of the processors (4 % in one trial), the host 0 % (0 %)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: f64| format!("{:.0} %", part * 100.0);
        write!(
            f,
            "others took {} of the processors (at most {} in a trial), the host of this machine {} (at most {})",
            percent(self.others),
            percent(self.others_most),
            percent(self.steal),
            percent(self.steal_most)
        )?;
        if self.disturb() {
            f.write_str(": this machine was not quiet, so repeat it on one that is")?;
        }
        Ok(())
    }
}

/// Looks at the processors from trial to trial.
#[derive(Default)]
pub struct Watch {
    all_s: f64,
    others_s: f64,
    steal_s: f64,
    others_most: f64,
    steal_most: f64,
}

/// The processors at the beginning of a trial; `None` where the kernel does not say.
struct Before(Option<(Processors, Census)>);

impl Before {
    fn now() -> Self {
        let read = || Some((Processors::read().ok()?, Census::take().ok()?));
        Self(read())
    }
}

impl Watch {
    /// Runs a trial, and looks at what the processors did beside it.
    pub fn trial<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let before = Before::now();
        let result = run();
        if let (Some(before), Some(after)) = (before.0, Before::now().0)
            && let Some(shares) = after.0.since(&before.0)
        {
            // Who has started meanwhile, or has ended, is in one of these only.
            let mut family = before.1.family(process::id());
            family.extend(after.1.family(process::id()));
            let ours = after.1.cpu_s(&family) - before.1.cpu_s(&family);
            let left = (shares.busy * shares.all_s - ours.max(0.0)).max(0.0);
            let others = after.1.others_s(&before.1, &family).min(left);
            let steal = shares.steal * shares.all_s;
            self.all_s += shares.all_s;
            self.others_s += others;
            self.steal_s += steal;
            self.others_most = self.others_most.max(others / shares.all_s);
            self.steal_most = self.steal_most.max(shares.steal);
        }
        result
    }

    /// What was seen.
    pub fn seen(&self) -> Surroundings {
        let of_all = |part: f64| match self.all_s > 0.0 {
            true => part / self.all_s,
            false => 0.0,
        };
        Surroundings {
            others: of_all(self.others_s),
            others_most: self.others_most,
            steal: of_all(self.steal_s),
            steal_most: self.steal_most,
        }
    }
}

/// Runs all trials of an experiment, and watches the machine meanwhile.
///
/// # Errors
/// That of the first trial that fails, with its name. It keeps the trial's own, and with it the exit code.
pub fn run(
    experiment: Experiment,
    mut trial: impl FnMut(usize, Trial) -> Result<Sample>,
) -> Result<(Outcome, Surroundings)> {
    let mut watch = Watch::default();
    let outcome = experiment
        .run(|index, round| watch.trial(|| trial(index, round)))
        .map_err(trial_failed)?;
    Ok((outcome, watch.seen()))
}

/// The error of an experiment. It keeps the trial's own, and with it the exit code.
pub fn trial_failed(error: ExperimentError<anyhow::Error>) -> anyhow::Error {
    match error {
        ExperimentError::Trial { name, trial, cause } => cause.context(format!("{name}, {trial}")),
        other => anyhow::anyhow!("{other}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn compute(time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn what_we_use_is_not_taken_for_others() {
        let mut watch = Watch::default();
        let used = || {
            let census = Census::take().expect("/proc");
            census.cpu_s(&census.family(process::id()))
        };
        let before = used();
        watch.trial(|| compute(Duration::from_millis(300)));
        let of_all = (used() - before) / watch.all_s.max(0.3);
        let seen = watch.seen();
        assert!(
            seen.others <= 1.0 - of_all + 0.1,
            "{seen:?} beside {of_all}"
        );
    }

    #[test]
    fn a_machine_that_others_use_is_said_to_be_so() {
        let quiet = Surroundings {
            others: 0.01,
            others_most: 0.04,
            ..Surroundings::default()
        };
        assert!(!quiet.disturb() && !quiet.to_string().contains("not quiet"));
        let loud = Surroundings {
            steal: 0.07,
            ..quiet
        };
        assert!(loud.to_string().contains("not quiet"), "{loud}");
    }
}
