//! What waits for room in one session's ring: of each kind the latest message.
//!
//! What waits is committed under the lock that it was put under, so nothing overtakes it: a sender
//! that finds nothing waiting comes behind all that waited.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use embar_transport::{BudgetShare, MemoryBudget};

use crate::{SendError, Sender};

/// Most messages that wait in one session.
pub(super) const MAX_WAITING: usize = 64;

/// Messages that replace each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) broadcast: u64,
    /// What the sender gave, or else the message id.
    pub(super) key: Result<u64, u16>,
}

struct Waiting {
    kind: Kind,
    frame: Arc<[u8]>,
    share: BudgetShare,
}

/// What became of a message that is to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    Waits,
    /// It waits, and an older one of its kind is gone.
    Replaced,
    /// Too many wait, or there is no memory, or the session is over.
    Refused,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    ended: bool,
}

/// What waits for room in one session's ring.
#[derive(Default)]
pub(super) struct Latest {
    any: AtomicBool,
    queue: Mutex<Queue>,
}

impl Latest {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something waits. A thread that put something sees it until it was committed.
    #[inline]
    pub(super) fn any(&self) -> bool {
        // Partner: the store in `commit`. Who sees that nothing waits comes behind what waited.
        self.any.load(Ordering::Acquire)
    }

    /// Has a frame wait behind all that waits, in the place of the one of its kind.
    pub(super) fn put(&self, kind: Kind, budget: &MemoryBudget, frame: Arc<[u8]>) -> Put {
        let mut queue = self.queue();
        if queue.ended {
            return Put::Refused;
        }
        let older = queue.waiting.iter().position(|it| it.kind == kind);
        if older.is_none() && queue.waiting.len() >= MAX_WAITING {
            return Put::Refused;
        }
        let enough = older.is_some_and(|at| queue.waiting[at].share.bytes() >= frame.len());
        // The older one stays if there is no memory for the newer.
        let share = match enough {
            true => None,
            false => match budget.try_reserve(frame.len()) {
                Ok(share) => Some(share),
                Err(_) => return Put::Refused,
            },
        };
        let older = older.and_then(|at| queue.waiting.remove(at));
        let put = match older {
            Some(_) => Put::Replaced,
            None => Put::Waits,
        };
        let Some(share) = share.or(older.map(|it| it.share)) else {
            return Put::Refused;
        };
        let waiting = Waiting { kind, frame, share };
        queue.waiting.push_back(waiting);
        self.any.store(true, Ordering::Release);
        put
    }

    /// Commits what there is room for. `Some`: the next needs so many bytes.
    pub(super) fn commit(&self, sender: &Sender) -> Option<usize> {
        let mut queue = self.queue();
        while let Some(first) = queue.waiting.front() {
            // One that is too long, or too late, waits for nothing.
            if sender.send_encoded(&first.frame) == Err(SendError::Full) {
                return Some(sender.room_for_encoded(first.frame.len()));
            }
            queue.waiting.pop_front();
        }
        self.any.store(false, Ordering::Release);
        None
    }

    /// Nothing waits any more.
    pub(super) fn end(&self) {
        let mut queue = self.queue();
        queue.ended = true;
        queue.waiting = VecDeque::new();
        self.any.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(key: u64) -> Kind {
        Kind {
            broadcast: 1,
            key: Ok(key),
        }
    }

    fn waiting(latest: &Latest) -> Vec<u8> {
        latest
            .queue()
            .waiting
            .iter()
            .map(|it| it.frame[0])
            .collect()
    }

    #[test]
    fn the_newest_of_a_kind_waits_behind_all_others() {
        let (latest, budget) = (Latest::default(), MemoryBudget::new(100));
        let put = |key, byte| latest.put(kind(key), &budget, [byte].into());
        assert!(!latest.any());
        assert_eq!(put(1, 10), Put::Waits);
        assert_eq!(put(2, 20), Put::Waits);
        assert_eq!(put(1, 11), Put::Replaced);
        assert_eq!(waiting(&latest), [20, 11]);
        assert_eq!(budget.used(), 2);
        assert!(latest.any());
        latest.end();
        assert_eq!(budget.used(), 0);
        assert_eq!(put(1, 12), Put::Refused);
        assert!(!latest.any());
    }

    #[test]
    fn the_same_key_of_another_broadcast_is_another_kind_and_so_is_an_id() {
        let (latest, budget) = (Latest::default(), MemoryBudget::new(100));
        for (broadcast, key) in [(1, Ok(7)), (2, Ok(7)), (1, Err(7))] {
            let put = latest.put(Kind { broadcast, key }, &budget, [0].into());
            assert_eq!(put, Put::Waits);
        }
    }

    #[test]
    fn neither_more_than_the_limit_waits_nor_more_than_the_budget() {
        let (latest, budget) = (Latest::default(), MemoryBudget::new(MAX_WAITING + 9));
        for key in 0..MAX_WAITING as u64 {
            assert_eq!(latest.put(kind(key), &budget, [0].into()), Put::Waits);
        }
        assert_eq!(latest.put(kind(1 << 40), &budget, [0].into()), Put::Refused);
        assert_eq!(latest.put(kind(3), &budget, [1; 100].into()), Put::Refused);
        assert!(
            waiting(&latest).iter().all(|&byte| byte == 0),
            "the older one stays"
        );
        assert_eq!(latest.put(kind(3), &budget, [2].into()), Put::Replaced);
        assert_eq!(budget.used(), MAX_WAITING);
    }
}
