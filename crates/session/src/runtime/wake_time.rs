//! When a handler is to be woken: one time for each session, which any thread may bring nearer.

use std::sync::atomic::{AtomicU64, Ordering};

use embar_frame::Now;

/// No time.
const NEVER: u64 = u64::MAX;

/// The time for which a session's timer is set, if it is.
pub(super) struct WakeTime(AtomicU64);

impl Default for WakeTime {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl WakeTime {
    /// Sets it to `at`; false if it is set to a time that is as near.
    pub(super) fn set(&self, at: Now) -> bool {
        let at = at.0.min(NEVER - 1);
        self.0.fetch_min(at, Ordering::AcqRel) > at
    }

    /// The time that it is set to.
    pub(super) fn get(&self) -> Option<Now> {
        let at = self.0.load(Ordering::Relaxed);
        (at != NEVER).then_some(Now(at))
    }

    /// Whether that time is there. If so, it is set no more: what a thread did before it called `set` in vain is visible
    /// to the caller.
    pub(super) fn take(&self, now: Now) -> bool {
        let due = self.get().is_some_and(|at| at <= now);
        if due {
            self.0.swap(NEVER, Ordering::AcqRel);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_time_counts_and_comes_once() {
        let time = WakeTime::default();
        assert!(!time.take(Now(u64::MAX)));
        assert!(time.set(Now(50)));
        assert!(!time.set(Now(60)));
        assert!(time.set(Now(20)));
        assert_eq!(time.get(), Some(Now(20)));
        assert!(!time.take(Now(19)));
        assert!(time.take(Now(20)));
        assert!(!time.take(Now(70)), "what was farther is forgotten");
        assert!(time.set(Now(u64::MAX)), "the farthest time is one, too");
        assert!(time.take(Now(u64::MAX)));
    }
}
