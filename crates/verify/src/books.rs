//! What the threads of a run share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::checker::Checker;
use super::gaps::Gaps;
use super::ledger::Run;
use super::plan::VerifyPlan;
use super::room::Room;
use super::trail::Place;

/// Locks are held for moments only, and never two of them.
pub struct Books {
    checker: Mutex<Checker>,
    gaps: Mutex<Gaps>,
    /// What was acknowledged last, until somebody takes it to read it.
    latest: Mutex<Option<(Run, Place)>>,
    /// Messages that were acknowledged, or sent where nothing is acknowledged.
    pub acknowledged: AtomicU64,
    /// Messages of them whose position nobody knows any more.
    pub unplaced: AtomicU64,
    /// Messages that publishers were told may be stored or not.
    pub given_up: AtomicU64,
    /// Messages that publishers were told are not stored.
    pub not_stored: AtomicU64,
    /// Acknowledgements of which somebody looked at once whether they can be read.
    pub reread: AtomicU64,
}

impl Books {
    /// Empty ones.
    pub fn new(plan: &VerifyPlan, room: Room) -> Self {
        Self {
            checker: Mutex::new(Checker::new(plan.order, plan.acks > 0, room)),
            gaps: Mutex::new(Gaps::new(plan.publishers, Instant::now())),
            latest: Mutex::new(None),
            acknowledged: AtomicU64::new(0),
            unplaced: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            not_stored: AtomicU64::new(0),
            reread: AtomicU64::new(0),
        }
    }

    /// The checks.
    pub fn checker(&self) -> MutexGuard<'_, Checker> {
        lock(&self.checker)
    }

    /// The times.
    pub fn gaps(&self) -> MutexGuard<'_, Gaps> {
        lock(&self.gaps)
    }

    /// Something was acknowledged.
    pub fn set_latest(&self, run: Run, place: Place) {
        *lock(&self.latest) = Some((run, place));
    }

    /// What was acknowledged last, if nobody has taken it.
    pub fn take_latest(&self) -> Option<(Run, Place)> {
        lock(&self.latest).take()
    }

    /// One of the counters.
    pub fn count(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked is told of when it is joined; what it left is still counted.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
