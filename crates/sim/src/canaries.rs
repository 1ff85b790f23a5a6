//! Runs seeds in which one rule is broken on purpose (a *canary*), and finds the first that notices: checkers that
//! never find anything prove nothing.
//!
//! Some seed notices each canary. A rule whose absence hardly any run could show has a test of its own instead, as the
//! order of a row's versions where they begin again (`embar_fabric::slot`).

use embar_memory::canary::Canary;

use crate::options::Part;
use crate::search::{Failure, Search};

/// Seeds within which each broken rule is noticed.
pub const SEEDS: u64 = 10_000;
/// Steps of a cluster before everything heals.
const STEPS: u64 = 2000;

/// Canaries that a few seeds notice: those that go with every change.
pub const QUICK: &[Canary] = &[
    Canary::SlotWriteBack,
    Canary::SlotFence,
    Canary::SlotInvalidate,
    Canary::CommitWriteBack,
    Canary::CommitFence,
    Canary::ForeignInvalidate,
    Canary::OrderedWindowRaise,
    Canary::SessionRowFirst,
    Canary::FollowToStart,
    Canary::Resubmission,
    Canary::CutAtStart,
    Canary::DenseCut,
    Canary::Dedupe,
    Canary::BitRepair,
    Canary::SecondCopy,
    Canary::SessionSecret,
    Canary::FrameChecksum,
    Canary::WatchedSilence,
    Canary::StreamBytesFence,
    Canary::StreamKept,
    Canary::StreamWithdrawn,
    Canary::StreamRing,
    Canary::StreamSleepInvalidate,
];

/// The first of so many seeds that notices.
pub fn first_to_notice(canary: Canary, seeds: u64) -> Option<Failure> {
    let search = Search {
        from: 1,
        seeds,
        parts: &Part::ALL,
        steps: STEPS,
        canary: Some(canary),
        keeps_going: false,
    };
    let (_, failures) = search.run(|_, _| {});
    failures.into_iter().next()
}
