//! Runs many seeds at once, on as many threads as there are processors, and sums up what they found. Each thread has
//! one run at a time, and no run sees anything of another.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use embar_fabric::layout::TableId;
use embar_memory::canary::Canary;

use crate::figures::{Damaged, Figures};
use crate::options::{Options, Part};
use crate::protocol;
use crate::report::Report;
use crate::run::run;
use crate::streams;
use crate::violation::Violation;

/// Turns happen in the middle of turns.
const STACK_BYTES: usize = 16 << 20;
/// Seeds after which everything that can happen must have happened.
const COVERED_AFTER: u64 = 5000;

/// Seeds of each world that come before any world's others: most of what one world notices it notices
/// soon, and the other never.
const FIRST_SEEDS: u64 = 250;

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
    /// What memory of clusters was damaged.
    pub damaged: Damaged,
    /// In the smaller worlds.
    pub seen: BTreeMap<&'static str, u64>,
}

impl AddAssign<&Report> for Sums {
    fn add_assign(&mut self, report: &Report) {
        self.runs += 1;
        self.figures += report.figures;
        for (what, count) in &report.damaged {
            *self.damaged.entry(what).or_default() += count;
        }
        for (what, count) in &report.seen {
            *self.seen.entry(what).or_default() += count;
        }
    }
}

impl Search {
    /// Runs all seeds, or up to the first that fails. After each run it calls `progress` with the sums until then,
    /// and with this run's failure. The failures that it returns come in an order that is always the same.
    pub fn run(&self, mut progress: impl FnMut(&Sums, Option<&Failure>)) -> (Sums, Vec<Failure>) {
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
                let failure = report.result.err().map(|violation| Failure {
                    options: self.options(number),
                    violation,
                });
                progress(&sums, failure.as_ref());
                failures.extend(failure.map(|failure| (number, failure)));
            }
        });
        let most = if self.keeps_going { usize::MAX } else { 1 };
        (sums, failures.into_values().take(most).collect())
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
            // Simulated threads never sleep: the world wakes them.
            let tables = TableId::ALL.iter().filter(|it| **it != TableId::Sleepers);
            let never = |it: &&str| !sums.damaged.contains_key(it);
            missing.extend(tables.map(|table| table.name()).filter(never));
        }
        let expected = [
            (Part::Protocol, protocol::EXPECTED),
            (Part::Streams, streams::EXPECTED),
        ];
        for (part, expected) in expected {
            if self.parts.contains(&part) {
                let never = |what: &&&str| !sums.seen.contains_key(**what);
                missing.extend(expected.iter().filter(never));
            }
        }
        missing
    }

    /// The run of a number: the first seeds of all worlds, then the others world by world.
    fn options(&self, number: u64) -> Options {
        let (parts, first) = (self.parts.len() as u64, self.seeds.min(FIRST_SEEDS));
        let (number, from, seeds) = if number < first * parts {
            (number, self.from, first)
        } else {
            (
                number - first * parts,
                self.from + first,
                self.seeds - first,
            )
        };
        Options {
            seed: from + number % seeds,
            part: self.parts[(number / seeds) as usize],
            steps: self.steps,
            canary: self.canary,
            verbose: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_of_every_world_runs_once() {
        for (from, seeds) in [(1, 1), (1, 249), (1, 250), (7, 251), (1, 1000)] {
            let search = Search {
                from,
                seeds,
                parts: &Part::ALL,
                steps: 1,
                canary: None,
                keeps_going: true,
            };
            let runs = (0..search.runs()).map(|number| search.options(number));
            let mut runs: Vec<(&str, u64)> = runs.map(|it| (it.part.name(), it.seed)).collect();
            runs.sort_unstable();
            let mut parts = Part::ALL.map(Part::name);
            parts.sort_unstable();
            let of = |part| (from..from + seeds).map(move |seed| (part, seed));
            assert_eq!(runs, parts.into_iter().flat_map(of).collect::<Vec<_>>());
        }
    }
}
