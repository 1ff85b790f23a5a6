//! Many seeds at once: each on a thread of its own, where nothing of another run can be seen.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use embar_fabric::canary::Canary;

use crate::figures::Figures;
use crate::protocol;
use crate::run::{Options, Part, Report, run};
use crate::violation::Violation;

/// Turns happen in the middle of turns.
const STACK_BYTES: usize = 16 << 20;
/// Seeds after which everything that can happen must have happened.
const COVERED_AFTER: u64 = 300;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The first seed.
    pub from: u64,
    /// How many.
    pub seeds: u64,
    /// In which worlds.
    pub parts: &'static [Part],
    /// Steps of a cluster before everything heals.
    pub steps: u64,
    /// A rule to break on purpose.
    pub canary: Option<Canary>,
    /// Go on behind a seed that fails.
    pub keeps_going: bool,
}

/// A run that broke a rule.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What was run.
    pub options: Options,
    /// The rule, and how it shows.
    pub violation: Violation,
}

/// What all runs went through.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// Runs that ended.
    pub runs: u64,
    /// In clusters.
    pub figures: Figures,
    /// In protocols.
    pub seen: BTreeMap<&'static str, u64>,
}

impl AddAssign<&Report> for Sums {
    fn add_assign(&mut self, report: &Report) {
        self.runs += 1;
        self.figures += report.figures;
        for (what, count) in &report.seen {
            *self.seen.entry(what).or_default() += count;
        }
    }
}

impl Search {
    /// Runs all, or up to the first that fails; tells `progress` after each run. Failures come in
    /// order, world by world and seed by seed, and the first of them is always the same.
    pub fn run(&self, mut progress: impl FnMut(&Sums)) -> (Sums, Vec<Failure>) {
        let (next, end) = (AtomicU64::new(0), AtomicU64::new(self.runs()));
        let (told, tells) = mpsc::channel();
        let work = |told: &mpsc::Sender<(u64, Report)>| {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end.load(Ordering::Relaxed) {
                    return;
                }
                let report = run(self.options(number));
                if report.result.is_err() && !self.keeps_going {
                    end.fetch_min(number, Ordering::Relaxed);
                }
                if told.send((number, report)).is_err() {
                    return;
                }
            }
        };
        let mut sums = Sums::default();
        let mut failures = BTreeMap::new();
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, NonZeroUsize::get) {
                let builder = thread::Builder::new().stack_size(STACK_BYTES);
                let (told, work) = (told.clone(), &work);
                let spawned = builder.spawn_scoped(scope, move || work(&told));
                spawned.expect("a thread can be made");
            }
            drop(told);
            for (number, report) in tells {
                sums += &report;
                if let Err(violation) = report.result {
                    failures.insert(number, violation);
                }
                progress(&sums);
            }
        });
        let failures = failures.into_iter().map(|(number, violation)| Failure {
            options: self.options(number),
            violation,
        });
        let most = if self.keeps_going { usize::MAX } else { 1 };
        (sums, failures.take(most).collect())
    }

    /// Runs in all.
    pub fn runs(&self) -> u64 {
        self.seeds * self.parts.len() as u64
    }

    /// What never happened, although the seeds are many.
    pub fn missing(&self, sums: &Sums) -> Vec<&'static str> {
        if self.seeds < COVERED_AFTER {
            return Vec::new();
        }
        let mut missing = Vec::new();
        if self.parts.contains(&Part::Cluster) {
            missing.append(&mut sums.figures.missing());
        }
        if self.parts.contains(&Part::Protocol) {
            let never = |what: &&&str| !sums.seen.contains_key(**what);
            missing.extend(protocol::EXPECTED.iter().filter(never));
        }
        missing
    }

    fn options(&self, number: u64) -> Options {
        Options {
            seed: self.from + number % self.seeds,
            part: self.parts[(number / self.seeds) as usize],
            steps: self.steps,
            canary: self.canary,
            verbose: false,
        }
    }
}
