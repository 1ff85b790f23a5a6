//! What the threads of a run share: the checks, the gaps between acknowledgements, and the counters.

use std::fmt::Display;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use embar_client::Position;

use super::ack_check::MessageRange;
use super::checker::Checker;
use super::gaps::Gaps;
use super::own_timer::OwnTimer;
use super::plan::VerifyPlan;
use super::retention_model::RetentionModel;
use super::violation::Kind;

/// The checks and the counters of a run. A thread holds a lock for a moment only, and never two of them.
pub struct Shared {
    checker: Mutex<Checker>,
    gaps: Mutex<Gaps>,
    timer: OwnTimer,
    /// What was acknowledged last, until the readback takes it.
    latest: Mutex<Option<(MessageRange, Position)>>,
    /// Messages that were acknowledged, or sent where nothing is acknowledged.
    pub acknowledged: AtomicU64,
    /// Of them, messages that were acknowledged without a position.
    pub unplaced: AtomicU64,
    /// Messages that may be stored or not, as publishers learned.
    pub given_up: AtomicU64,
    /// Messages that are certainly not stored, as publishers learned.
    pub not_stored: AtomicU64,
    /// Acknowledgements whose messages the readback looked for at once.
    pub reread: AtomicU64,
}

impl Shared {
    /// The state at the start of a run. An error means that the timer cannot be started.
    pub fn new(plan: &VerifyPlan, retention: RetentionModel) -> io::Result<Self> {
        Ok(Self {
            checker: Mutex::new(Checker::new(plan.order, plan.acks > 0, retention)),
            gaps: Mutex::new(Gaps::new(plan.publishers, Instant::now())),
            timer: OwnTimer::start()?,
            latest: Mutex::new(None),
            acknowledged: AtomicU64::new(0),
            unplaced: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            not_stored: AtomicU64::new(0),
            reread: AtomicU64::new(0),
        })
    }

    /// The checks.
    pub fn checker(&self) -> MutexGuard<'_, Checker> {
        lock(&self.checker)
    }

    /// The times between acknowledgements.
    pub fn gaps(&self) -> MutexGuard<'_, Gaps> {
        lock(&self.gaps)
    }

    /// By how much the verifier's own timer was late at most.
    pub fn timer_late_max(&self) -> Duration {
        self.timer.longest()
    }

    /// Adds a violation: something did not happen for so long, which ends now. Its words say so if the machine was too busy
    /// meanwhile for this to prove anything.
    pub fn fail_liveness(&self, waited: Duration, text: impl Display) {
        let evidence = self.timer.judge(waited);
        self.checker()
            .fail(Kind::Liveness, format_args!("{text}{evidence}"));
    }

    /// Something was acknowledged.
    pub fn set_latest(&self, range: MessageRange, position: Position) {
        *lock(&self.latest) = Some((range, position));
    }

    /// What was acknowledged last, unless it was taken already.
    pub fn take_latest(&self) -> Option<(MessageRange, Position)> {
        lock(&self.latest).take()
    }

    /// One of the counters.
    pub fn count(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked is reported when it is joined; what it counted is still valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_named_and_hides_no_violation() {
        let plan = super::super::plan::tests::plan();
        let shared = Shared::new(&plan, RetentionModel::new(1, 1, 1)).expect("a thread");
        shared.fail_liveness(Duration::from_secs(3600), "nothing came");
        shared.timer.was_late(Duration::from_secs(5));
        shared.fail_liveness(Duration::from_secs(30), "nothing came");
        let checker = shared.checker();
        let violations = checker.violations();
        assert_eq!((violations.total, violations.of(Kind::Liveness)), (2, 2));
        let [sound, busy] = violations.first.as_slice() else {
            panic!("{:?}", violations.first);
        };
        assert_eq!(sound, "nothing came");
        let reason = "nothing came (meanwhile the verifier's own timer was late by ";
        assert!(
            busy.starts_with(reason) && busy.contains("too busy"),
            "{busy}"
        );
    }
}
