//! Timers: tasks that the manager's thread wakes at a certain time.

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::{Duration, Instant};

/// As good as never, and still a time that the clock can express.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// The time `duration` from now. Also for [`Duration::MAX`], which no clock can express.
pub(crate) fn after(duration: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(duration).unwrap_or_else(|| now + NEVER)
}

/// Names an entry of a [`TimerQueue`]: its time, and a number that no other entry has.
pub(super) type TimerKey = (Instant, u64);

/// Which tasks to wake when.
#[derive(Default)]
pub(super) struct TimerQueue {
    wakers: BTreeMap<TimerKey, Waker>,
    /// The number of the next entry; never used twice.
    next_number: u64,
}

impl TimerQueue {
    /// The time of the earliest entry.
    pub fn next(&self) -> Option<Instant> {
        self.wakers.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the entries whose time has come.
    pub fn due(&mut self, now: Instant) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(first) = self.wakers.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        due
    }

    /// Adds an entry. True when it is the earliest one now.
    pub fn insert(&mut self, at: Instant, waker: Waker) -> (TimerKey, bool) {
        let first = self.next().is_none_or(|next| at < next);
        let key = (at, self.next_number);
        self.next_number += 1;
        self.wakers.insert(key, waker);
        (key, first)
    }

    /// Gives an entry another waker, if it is still there: the old waker, or the new one back.
    pub fn replace(&mut self, key: TimerKey, waker: Waker) -> Result<Waker, Waker> {
        match self.wakers.get_mut(&key) {
            Some(known) => Ok(std::mem::replace(known, waker)),
            None => Err(waker),
        }
    }

    /// Removes an entry.
    pub fn remove(&mut self, key: TimerKey) -> Option<Waker> {
        self.wakers.remove(&key)
    }

    /// How many entries there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.wakers.len()
    }
}
