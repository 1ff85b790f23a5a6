//! How long it takes to find out what a disk has, as a broker does after a power cut, beside reading as many bytes.

mod report;

use std::cell::RefCell;
use std::path::PathBuf;
use std::slice;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use embar_broker::journal::Found;
use embar_console::context::Context;
use embar_console::size::Size;
use embar_disk::Storage;
use embar_meter::experiment::{Experiment, Sample};

use super::beside::{DEPTHS, DiskWalls};
use super::journal::{self, CHAIN, DISK, SEGMENT_BYTES};
use super::sealed;
use super::space::Space;
use crate::experiment;
use crate::usage::{Cost, Meters};
pub use report::RecoverReport;

/// Fewest bytes of what is read.
const BYTES_MIN: u64 = 4 << 20;

/// A measurement of one directory.
#[derive(Clone, Debug)]
pub struct RecoverPlan {
    /// The directory.
    pub data: PathBuf,
    /// Bytes of batches that have to be read.
    pub total_bytes: u64,
    /// Bytes of each batch.
    pub batch_bytes: u32,
    /// Segments with indexes before the last one, in a journal of their own; none if 0.
    pub segments: u64,
    /// Trials of each.
    pub trials: usize,
    /// Trials before that are thrown away.
    pub warmup: usize,
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Reads of a file, so many at once.
    Read { depth: u16 },
    /// What a journal has that must be read.
    Recover,
    /// What a journal has of which almost all is over, and has indexes.
    Sealed,
}

impl RecoverPlan {
    /// Refuses what cannot be measured.
    ///
    /// # Errors
    /// What to ask for instead.
    pub fn validate(&self) -> Result<()> {
        let least = BYTES_MIN.max(4 * u64::from(self.batch_bytes));
        if self.total_bytes < least {
            bail!(
                "--size {} is too little: at least {}, and four batches",
                Size(self.total_bytes),
                Size(least)
            );
        }
        if self.trials == 0 {
            bail!("--trials 0 measures nothing: give 1 or more");
        }
        Ok(())
    }

    fn works(&self) -> Vec<Work> {
        let mut works: Vec<_> = DEPTHS.map(|depth| Work::Read { depth }).into();
        works.push(Work::Recover);
        if self.segments > 0 {
            works.push(Work::Sealed);
        }
        works
    }
}

/// Measures how fast the disk of a directory is read after a power cut.
///
/// # Errors
/// What the plan or the system says.
pub fn run(plan: &RecoverPlan, context: &Context) -> Result<RecoverReport> {
    plan.validate()?;
    Rounds::prepare(plan, context)?.run()
}

struct Rounds<'a> {
    plan: &'a RecoverPlan,
    context: &'a Context,
    walls: DiskWalls,
    journal: Space,
    /// Bytes of the batches in it.
    bytes: u64,
    sealed: Space,
    /// Position behind the last message of the segments that are over.
    sealed_end: u64,
}

impl<'a> Rounds<'a> {
    /// Writes all that is read.
    fn prepare(plan: &'a RecoverPlan, context: &'a Context) -> Result<Self> {
        let walls = DiskWalls::new(slice::from_ref(&plan.data), plan.total_bytes, context)?;
        // The last segment is reserved as a whole.
        let needed = plan.total_bytes + plan.total_bytes / 16 + SEGMENT_BYTES;
        let journal = Space::new(&plan.data, needed, context)?;
        // An index takes a page or two.
        let needed = plan.segments * 2 * sealed::FILE_BYTES;
        let sealed = Space::new(&plan.data, needed, context)?;
        walls.fill()?;
        let interrupt = &context.interrupt;
        let (bytes, batch_bytes) = (plan.total_bytes, plan.batch_bytes);
        let written = journal::write(&journal.directory, bytes, batch_bytes, interrupt)?;
        let sealed_end = match plan.segments {
            0 => 0,
            segments => {
                let bar = context.bar("segments", segments * SEGMENT_BYTES);
                sealed::write(&sealed.directory, segments, interrupt, &*bar)?
            }
        };
        Ok(Self {
            plan,
            context,
            walls,
            journal,
            bytes: written.bytes,
            sealed,
            sealed_end,
        })
    }

    fn run(&self) -> Result<RecoverReport> {
        let works = self.plan.works();
        let rounds = (self.plan.trials + self.plan.warmup) * works.len();
        let bar = self.context.bar("recover", rounds as u64 * self.bytes);
        let (mut done, costs) = (0, RefCell::new(Vec::new()));
        let experiment = Experiment::new(works.iter().map(|work| format!("{work:?}")))
            .unit("MiB/s, or s")
            .rotating()
            .warmup(self.plan.warmup)
            .trials(self.plan.trials);
        let (outcome, surroundings) = experiment::run(experiment, |index, trial| {
            self.context.interrupt.check()?;
            let measured = match works[index] {
                Work::Read { depth } => self.walls.read(depth)?,
                Work::Recover => {
                    let (seconds, cost) = self.recover()?;
                    if !trial.warmup {
                        costs.borrow_mut().push(cost);
                    }
                    self.bytes as f64 / f64::from(1 << 20) / seconds
                }
                Work::Sealed => self.recover_sealed()?,
            };
            done += self.bytes;
            bar.set(done);
            Ok(Sample::from(measured))
        })?;
        let series = works.iter().enumerate();
        let series = series.map(|(index, work)| (*work, outcome.series(index).clone()));
        let is_direct = self.journal.directory.is_direct();
        let seen = (self.bytes, is_direct);
        RecoverReport::new(
            self.plan,
            seen,
            &series.collect::<Vec<_>>(),
            &costs.into_inner(),
        )
        .map(|report| report.beside(surroundings))
    }

    /// Seconds, and what it cost.
    fn recover(&self) -> Result<(f64, Cost)> {
        let meters = Meters::start(&[])?;
        let (seconds, found) = read(&self.journal)?;
        let cost = meters.stop(self.bytes)?.client;
        ensure!(found.next_of(CHAIN) > 0, "nothing was found");
        Ok((seconds, cost))
    }

    /// Seconds.
    fn recover_sealed(&self) -> Result<f64> {
        let (seconds, found) = read(&self.sealed)?;
        let end = found.next_of(CHAIN);
        ensure!(
            end == self.sealed_end && found.recovered.unindexed.is_empty(),
            "{end} of {} messages were found, and {} segments without an index",
            self.sealed_end,
            found.recovered.unindexed.len()
        );
        Ok(seconds)
    }
}

/// What a disk has, and the seconds that it took.
fn read(space: &Space) -> Result<(f64, Found)> {
    // What others wrote to the file system is no part of it.
    space.directory.sync_all().context("cannot sync")?;
    let began = Instant::now();
    let found = Found::read(&space.directory, &DISK)?;
    Ok((began.elapsed().as_secs_f64(), found))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use embar_console::interrupt::Interrupt;
    use embar_console::progress::Silent;

    use super::*;

    fn plan() -> RecoverPlan {
        RecoverPlan {
            data: PathBuf::from("/nowhere"),
            total_bytes: 64 << 20,
            batch_bytes: 2 << 20,
            segments: 400,
            trials: 3,
            warmup: 1,
        }
    }

    #[test]
    fn segments_that_are_over_are_measured_if_there_are_any() {
        assert!(plan().validate().is_ok());
        assert_eq!(plan().works().last(), Some(&Work::Sealed));
        let alone = RecoverPlan {
            segments: 0,
            ..plan()
        };
        assert_eq!(alone.works().last(), Some(&Work::Recover));
        for wrong in [
            RecoverPlan {
                total_bytes: 6 << 20,
                ..plan()
            },
            RecoverPlan {
                trials: 0,
                ..plan()
            },
        ] {
            assert!(wrong.validate().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn all_that_was_written_is_found_and_nothing_stays() {
        let place = tempfile::tempdir().expect("a directory");
        let context = Context {
            progress: Arc::new(Silent),
            interrupt: Interrupt::default(),
            program: PathBuf::new(),
        };
        let plan = RecoverPlan {
            data: place.path().to_owned(),
            total_bytes: 4 << 20,
            batch_bytes: 64 << 10,
            segments: 5,
            trials: 1,
            warmup: 0,
        };
        let report = run(&plan, &context).expect("measured");
        let text = report.to_string();
        assert!(text.contains("5 segments"), "{text}");
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(json["sealed"]["segments"], 5);
        assert!(json["journal"]["bytes"].as_u64() >= Some(4 << 20), "{json}");
        assert_eq!(
            std::fs::read_dir(place.path()).map_or(9, Iterator::count),
            0
        );
    }
}
