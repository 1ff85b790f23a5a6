//! Checkers that never find anything prove nothing: each rule is broken on purpose, and some seed must
//! notice.

use std::ops::Range;

use embar_fabric::canary::Canary;

use crate::run::{Options, run};
use crate::violation::Violation;

/// Whether a canary is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It is, by some seed.
    Noticed,
    /// Nothing depends on the step that it leaves out, for this reason.
    Redundant(&'static str),
}

/// Canaries that a few seeds notice: those that go with every change.
pub const QUICK: &[Canary] = &[];

/// What is expected of a canary.
pub fn expected(canary: Canary) -> Expected {
    match canary {
        _ if false => Expected::Redundant(""),
        _ => Expected::Noticed,
    }
}

/// The first of the seeds that notices, and what it says is broken.
pub fn first_to_notice(canary: Canary, seeds: Range<u64>, steps: u64) -> Option<(u64, Violation)> {
    seeds.into_iter().find_map(|seed| {
        let report = run(Options {
            seed,
            steps,
            canary: Some(canary),
            verbose: false,
        });
        report.result.err().map(|violation| (seed, violation))
    })
}
