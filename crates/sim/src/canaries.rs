//! Checkers that never find anything prove nothing: each rule is broken on purpose, and some seed must
//! notice.

use std::ops::Range;

use embar_fabric::canary::Canary;

use crate::run::{Options, run};
use crate::violation::Violation;

/// Whether a canary is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It is, by one of a few hundred seeds.
    Noticed,
    /// It may be, but the moment that it takes is rare, for this reason.
    Rarely(&'static str),
    /// Nothing here depends on the step that it leaves out, for this reason.
    Redundant(&'static str),
}

/// Canaries that a few seeds notice: those that go with every change.
pub const QUICK: &[Canary] = &[
    Canary::SlotWriteBack,
    Canary::SlotFence,
    Canary::CommitWriteBack,
    Canary::CommitFence,
    Canary::WindowRaise,
    Canary::OrderedWindowRaise,
    Canary::SessionRowFirst,
    Canary::DenseCut,
    Canary::Dedupe,
];

/// What is expected of a canary.
pub fn expected(canary: Canary) -> Expected {
    match canary {
        Canary::SpanInvalidate => Expected::Redundant(
            "every incarnation starts here with an empty cache, so none has stale lines of its own log",
        ),
        Canary::ConsumedGrant => Expected::Redundant(
            "what the sequencer has not taken is not settled, and never more is unsettled than a lane has slots",
        ),
        Canary::LookAfterSending => Expected::Redundant(
            "clients check what they get; who got changed bytes asks again, and is told that they are gone",
        ),
        Canary::GoiFence => Expected::Rarely(
            "the next fence of the same step comes before all but a line that the cache gives up by chance",
        ),
        Canary::LeftIntact => Expected::Rarely(
            "memory of a refused batch must be used again before its broker dies, and its record still be there",
        ),
        Canary::FollowToStart => Expected::Rarely(
            "what is submitted again and was ordered is a duplicate, and its record is seen before that is told",
        ),
        Canary::CoverBeforeRelease => Expected::Rarely(
            "pages of the present epoch must be given up, and a batch in them be sent again after a takeover",
        ),
        Canary::LastsAfterNotices => Expected::Rarely(
            "a deposed sequencer must open a session between two accesses of the broker that asked for it",
        ),
        Canary::AdmittedLasts => Expected::Rarely(
            "a successor must look at the lanes between two accesses of a broker that comes back",
        ),
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
