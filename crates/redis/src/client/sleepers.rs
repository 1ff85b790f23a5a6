//! Those who wait for time to pass.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::keeper::Keeper;

/// As good as never, and still a time that the clock knows.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// The time that is so long from now. Also for [`Duration::MAX`], which no clock reaches.
pub(crate) fn after(duration: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(duration).unwrap_or_else(|| now + NEVER)
}

/// Whom to wake when.
#[derive(Default)]
pub(super) struct Sleepers {
    wakers: BTreeMap<Key, Waker>,
    /// Numbers of entries, never used twice.
    next: u64,
}

/// The time, and a number that tells apart those who wait for the same time.
type Key = (Instant, u64);

/// Somebody who is to be woken. However often it says so, it is registered once; dropped, not at
/// all.
pub(crate) struct Nap {
    keeper: Arc<Keeper>,
    key: Key,
}

impl Sleepers {
    /// The time at which the next one is to be woken.
    pub fn next(&self) -> Option<Instant> {
        self.wakers.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes those whose time has come.
    pub fn due(&mut self, now: Instant) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(first) = self.wakers.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        due
    }

    /// True: it is the first one of all now. With it what is replaced, to be dropped without the
    /// lock: who knows what goes with a waker.
    fn register(
        &mut self,
        nap: &mut Option<Nap>,
        keeper: &Arc<Keeper>,
        at: Instant,
        waker: &Waker,
    ) -> (bool, Option<Waker>) {
        let mut before = None;
        if let Some(nap) = nap {
            before = match self.wakers.get_mut(&nap.key) {
                Some(known) if nap.key.0 == at => {
                    return (false, Some(std::mem::replace(known, waker.clone())));
                }
                _ => self.forget(nap.key),
            };
        }
        let first = self.next().is_none_or(|next| at < next);
        let key = (at, self.next);
        self.next += 1;
        self.wakers.insert(key, waker.clone());
        match nap {
            Some(nap) => nap.key = key,
            None => {
                let keeper = Arc::clone(keeper);
                *nap = Some(Nap { keeper, key });
            }
        }
        (first, before)
    }

    fn forget(&mut self, key: Key) -> Option<Waker> {
        self.wakers.remove(&key)
    }

    /// How many wait.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.wakers.len()
    }
}

impl Keeper {
    /// Wakes somebody at that time, or a little later. What `nap` asked for before does not count
    /// any more.
    pub fn wake_at(self: &Arc<Self>, nap: &mut Option<Nap>, at: Instant, waker: &Waker) {
        let (first, _) = self.sleepers(|sleepers| sleepers.register(nap, self, at, waker));
        if first {
            self.look_again();
        }
    }
}

impl Drop for Nap {
    fn drop(&mut self) {
        let waker = self.keeper.sleepers(|sleepers| sleepers.forget(self.key));
        drop(waker);
    }
}
