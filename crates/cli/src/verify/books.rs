//! What the threads of a run share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::checker::Checker;
use super::gaps::Gaps;
use super::plan::VerifyPlan;
use super::room::Room;

/// Locks are held for moments only, and never two of them.
pub struct Books {
    checker: Mutex<Checker>,
    gaps: Mutex<Gaps>,
    /// Why the run cannot go on, if it cannot, and no promise is broken.
    trouble: Mutex<Option<anyhow::Error>>,
    /// Messages that were acknowledged, or sent where nothing is acknowledged.
    pub acknowledged: AtomicU64,
    /// Messages of them whose position nobody knows any more.
    pub unplaced: AtomicU64,
    /// Messages that publishers were told are not stored, or may not be.
    pub given_up: AtomicU64,
}

impl Books {
    /// Empty ones.
    pub fn new(plan: &VerifyPlan, room: Room) -> Self {
        Self {
            checker: Mutex::new(Checker::new(plan.order, plan.acks > 0, room)),
            gaps: Mutex::new(Gaps::new(plan.publishers, Instant::now())),
            trouble: Mutex::new(None),
            acknowledged: AtomicU64::new(0),
            unplaced: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
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

    /// Ends the run without a verdict.
    pub fn give_up(&self, why: anyhow::Error) {
        lock(&self.trouble).get_or_insert(why);
    }

    /// Why the run has no verdict.
    pub fn trouble(&self) -> Option<anyhow::Error> {
        lock(&self.trouble).take()
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
