//! When to look at which session: one time for each, and a thread that waits for the nearest.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

thread_local! {
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread must not block: sessions, or times of a schedule, wait for it.
pub(crate) fn must_not_block() -> bool {
    WAITS.get() || embar_session::is_worker()
}

/// A time that is never reached, for durations that lead beyond all times.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// `wait` after `now`.
pub(crate) fn after(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or_else(|| now + FAR)
}

#[derive(Default)]
struct Times {
    sorted: BTreeSet<(Instant, u64)>,
    by_id: HashMap<u64, Instant>,
    stopped: bool,
}

/// Times of sessions, by their ids; one for each session.
#[derive(Default)]
pub(crate) struct Schedule {
    times: Mutex<Times>,
    changed: Condvar,
}

impl Schedule {
    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has session `id` looked at by this time.
    pub(crate) fn by(&self, id: u64, at: Instant) {
        let mut times = self.times();
        if times.stopped || times.by_id.get(&id).is_some_and(|earlier| *earlier <= at) {
            return;
        }
        if let Some(later) = times.by_id.insert(id, at) {
            times.sorted.remove(&(later, id));
        }
        times.sorted.insert((at, id));
        drop(times);
        self.changed.notify_all();
    }

    /// Session `id` is over.
    pub(crate) fn forget(&self, id: u64) {
        let mut times = self.times();
        if let Some(at) = times.by_id.remove(&id) {
            times.sorted.remove(&(at, id));
        }
    }

    /// Waits for the next session whose time is there; it has none any more. `None` when it is over.
    pub(crate) fn wait(&self) -> Option<u64> {
        WAITS.set(true);
        let mut times = self.times();
        while !times.stopped {
            let now = Instant::now();
            times = match times.sorted.first().copied() {
                Some((at, id)) if at <= now => {
                    times.sorted.pop_first();
                    times.by_id.remove(&id);
                    return Some(id);
                }
                Some((at, _)) => {
                    let waited = self.changed.wait_timeout(times, at - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.changed.wait(times);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
        None
    }

    /// Ends it.
    pub(crate) fn stop(&self) {
        let mut times = self.times();
        *times = Times {
            stopped: true,
            ..Times::default()
        };
        drop(times);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_time_of_each_counts_once() {
        let schedule = Schedule::default();
        let now = Instant::now();
        let far = after(now, Duration::MAX);
        schedule.by(1, far);
        schedule.by(2, now);
        schedule.by(2, far);
        schedule.by(3, far);
        schedule.by(3, now - Duration::from_millis(1));
        schedule.by(4, now);
        schedule.forget(4);
        assert_eq!(schedule.wait(), Some(3));
        assert_eq!(schedule.wait(), Some(2));
        assert_eq!(schedule.times().sorted.len(), 1);
        schedule.stop();
        assert_eq!(schedule.wait(), None);
        schedule.by(5, now);
        assert_eq!(schedule.wait(), None);
    }
}
