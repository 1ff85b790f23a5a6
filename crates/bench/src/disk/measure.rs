//! Runs all trials, by turns.

use std::cell::RefCell;

use anyhow::Result;
use embar_console::context::Context;
use embar_meter::experiment::{Experiment, Sample};
use embar_meter::stats::median;

use super::journal::{self, SEGMENT_BYTES};
use super::plan::{DiskPlan, Work};
use super::report::DiskReport;
use super::space::Space;
use super::wall::{self, Measured};
use crate::experiment;

/// The file that is read.
const TO_READ: &str = "read";
/// The file that is written.
const TO_WRITE: &str = "write";
/// How the file that is read was written.
const FILLED_BY: (u32, u16) = (1 << 20, 2);

/// Measures the disk of a directory.
///
/// # Errors
/// What the plan or the system says.
pub fn run(plan: &DiskPlan, context: &Context) -> Result<DiskReport> {
    plan.validate()?;
    // The file that is read, and what a trial writes: the last segment of a journal is reserved as a whole.
    let needed = 2 * (plan.total_bytes + SEGMENT_BYTES);
    let space = Space::new(&plan.data, needed, context)?;
    let rounds = Rounds {
        plan,
        context,
        space: &space,
    };
    rounds.fill()?;
    rounds.run()
}

struct Rounds<'a> {
    plan: &'a DiskPlan,
    context: &'a Context,
    space: &'a Space,
}

/// What the trials of one work gave besides their rates.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Of each trial the median of its writes or reads, in nanoseconds.
    pub p50_ns: Vec<f64>,
    /// What 99 of 100 did not exceed.
    pub p99_ns: Vec<f64>,
}

impl Rounds<'_> {
    /// What is read was not written just before.
    fn fill(&self) -> Result<()> {
        let (directory, interrupt) = (&self.space.directory, &self.context.interrupt);
        let bytes = self.plan.total_bytes;
        wall::write(directory, TO_READ, bytes, FILLED_BY, interrupt).map(drop)
    }

    fn run(&self) -> Result<DiskReport> {
        let works = self.plan.works();
        let rounds = (self.plan.trials + self.plan.warmup) as u64;
        let bytes: u64 = works.iter().map(|work| self.plan.bytes_of(*work)).sum();
        let bar = self.context.bar("disk", bytes * rounds);
        let mut done = 0;
        let times = RefCell::new(vec![Times::default(); works.len()]);
        let experiment = Experiment::new(works.iter().map(|work| format!("{work:?}")))
            .unit("MiB/s")
            .rotating()
            .warmup(self.plan.warmup)
            .trials(self.plan.trials);
        let (outcome, surroundings) = experiment::run(experiment, |index, trial| {
            let mut measured = self.trial(works[index])?;
            done += self.plan.bytes_of(works[index]);
            bar.set(done);
            if !trial.warmup {
                let times = &mut times.borrow_mut()[index];
                let each = &mut measured.each_ns;
                each.sort_unstable();
                let at = |part: f64| {
                    let place = (part * each.len() as f64) as usize;
                    each.get(place).map(|ns| *ns as f64)
                };
                times.p50_ns.extend(at(0.5));
                times.p99_ns.extend(at(0.99));
            }
            Ok(Sample::from(measured.mib_per_s()))
        })?;
        let times = times.into_inner();
        let of = |times: &[f64]| median(times);
        let rows = (0..works.len()).map(|index| {
            let (p50_ns, p99_ns) = (of(&times[index].p50_ns), of(&times[index].p99_ns));
            (works[index], outcome.series(index).clone(), p50_ns, p99_ns)
        });
        let is_direct = self.space.directory.is_direct();
        DiskReport::new(self.plan, is_direct, rows.collect(), surroundings)
    }

    fn trial(&self, work: Work) -> Result<Measured> {
        let (directory, interrupt) = (&self.space.directory, &self.context.interrupt);
        let bytes = self.plan.bytes_of(work);
        match work {
            Work::Write { io_bytes, depth } => {
                let measured =
                    wall::write(directory, TO_WRITE, bytes, (io_bytes, depth), interrupt);
                embar_disk::Storage::remove(directory, TO_WRITE)?;
                measured
            }
            Work::Read { io_bytes, depth } => {
                wall::read(directory, TO_READ, (io_bytes, depth), interrupt)
            }
            Work::Journal { batch_bytes } => {
                journal::write(directory, bytes, batch_bytes, interrupt)
            }
            Work::Recover { batch_bytes } => {
                // That of another size may be there.
                journal::write(directory, bytes, batch_bytes, interrupt)?;
                journal::read_back(directory, batch_bytes)
            }
        }
    }
}
