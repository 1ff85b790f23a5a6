//! All logs in turn, several times.
//!
//! Machines differ from hour to hour. So in each round one log is measured after the other, beginning with another one each
//! time, and logs are compared within a round.

use crate::arguments::Arguments;
use crate::logs::{Log, Sample, Setup, Workload};
use crate::process::is_ending;
use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// What was measured.
pub struct Measured {
    /// By setup, then by round. Nothing where it failed.
    pub samples: Vec<Vec<Option<Sample>>>,
    /// What failed, for people.
    pub problems: Vec<String>,
}

/// Measures each setup once in each round.
pub fn measure(arguments: &Arguments, setups: &[Setup]) -> anyhow::Result<Measured> {
    let workload = arguments.workload();
    let mut kept = Kept::read(arguments.resume.as_deref(), workload)?;
    let rounds = usize::try_from(arguments.rounds)?;
    let mut samples = vec![Vec::new(); setups.len()];
    let mut problems = Vec::new();
    // It draws nothing where nobody looks.
    let bar = ProgressBar::new(arguments.rounds * setups.len() as u64);
    let bar = bar.with_style(ProgressStyle::with_template(
        "{bar:30} {pos}/{len} {msg} (about {eta} left)",
    )?);
    for round in 0..rounds {
        for turn in 0..setups.len() {
            let index = (round + turn) % setups.len();
            let setup = &setups[index];
            bar.set_message(format!("round {}: {}", round + 1, setup.log));
            let sample = match kept.find(round, setup) {
                Some(sample) => Ok(sample),
                None => setup.measure(&workload),
            };
            ensure!(!is_ending(), "ended by a signal");
            bar.inc(1);
            match sample {
                Ok(sample) => {
                    samples[index].push(Some(sample));
                    kept.keep(round, setup, sample)?;
                }
                Err(error) => {
                    let Setup { log, settings, .. } = setup;
                    let what = format!("{log} ({settings}), round {}: {error:#}", round + 1);
                    bar.suspend(|| eprintln!("{what}"));
                    problems.push(what);
                    samples[index].push(None);
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(Measured { samples, problems })
}

/// Figures in a file, one on a line. What failed is not among them: it is tried again.
struct Kept {
    workload: Workload,
    lines: Vec<Line>,
    file: Option<File>,
}

#[derive(PartialEq, Serialize, Deserialize)]
struct Line {
    workload: Workload,
    round: usize,
    log: Log,
    settings: String,
    sample: Sample,
}

impl Kept {
    fn read(path: Option<&Path>, workload: Workload) -> anyhow::Result<Self> {
        let Some(path) = path else {
            return Ok(Self {
                workload,
                lines: Vec::new(),
                file: None,
            });
        };
        let shown = || path.display().to_string();
        let file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .with_context(shown)?;
        let text = fs::read_to_string(path).with_context(shown)?;
        let lines: Result<Vec<Line>, _> = text.lines().map(serde_json::from_str).collect();
        let lines = lines.with_context(shown)?;
        let same = lines.iter().all(|line| line.workload == workload);
        ensure!(
            same,
            "{} is of other messages: remove it, or name another file",
            shown()
        );
        Ok(Self {
            workload,
            lines,
            file: Some(file),
        })
    }

    fn find(&self, round: usize, setup: &Setup) -> Option<Sample> {
        let mut lines = self.lines.iter();
        let is_it = |line: &&Line| {
            line.round == round && line.log == setup.log && line.settings == setup.settings
        };
        lines.find(is_it).map(|line| line.sample)
    }

    fn keep(&mut self, round: usize, setup: &Setup, sample: Sample) -> anyhow::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let line = Line {
            workload: self.workload,
            round,
            log: setup.log,
            settings: setup.settings.to_owned(),
            sample,
        };
        if !self.lines.contains(&line) {
            file.write_all(format!("{}\n", serde_json::to_string(&line)?).as_bytes())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::measure;
    use crate::arguments::Arguments;
    use crate::logs::{Log, Sample, Setup};
    use clap::Parser;
    use std::cell::Cell;
    use std::rc::Rc;

    /// A log that fails when it is measured for the `fails`th time.
    fn setup(log: Log, fails: u32) -> (Setup, Rc<Cell<u32>>) {
        let times = Rc::new(Cell::new(0));
        let counted = Rc::clone(&times);
        let setup = Setup::new(log, "as it is", move |_| {
            counted.set(counted.get() + 1);
            anyhow::ensure!(counted.get() != fails, "no memory");
            Ok(Sample {
                publish: Some(f64::from(counted.get())),
                ..Sample::default()
            })
        });
        (setup, times)
    }

    fn published(samples: &[Option<Sample>]) -> Vec<Option<f64>> {
        samples
            .iter()
            .map(|sample| sample.and_then(|sample| sample.publish))
            .collect()
    }

    #[test]
    fn what_was_measured_is_not_measured_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("figures");
        let path = file.to_str().unwrap();
        let arguments = |more: &[&str]| {
            let all = [&["log-peers", "--resume", path], more].concat();
            Arguments::try_parse_from(all).unwrap()
        };
        let (first, first_times) = setup(Log::Kafka, 2);
        let (second, second_times) = setup(Log::JetStream, 0);
        let setups = [first, second];
        let measured = measure(&arguments(&["--rounds", "2"]), &setups).unwrap();
        assert_eq!(published(&measured.samples[0]), [Some(1.0), None]);
        assert_eq!(published(&measured.samples[1]), [Some(1.0), Some(2.0)]);
        assert!(measured.problems[0].contains("kafka (as it is), round 2: no memory"));
        // One more round, and the one that failed.
        let measured = measure(&arguments(&["--rounds", "3"]), &setups).unwrap();
        assert!(measured.problems.is_empty());
        assert_eq!(
            published(&measured.samples[0]),
            [Some(1.0), Some(3.0), Some(4.0)]
        );
        assert_eq!((first_times.get(), second_times.get()), (4, 3));
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 6);
        let other = measure(&arguments(&["--message-size", "64"]), &setups);
        assert!(other.is_err(), "these are figures of other messages");
    }
}
