//! What found no room in a session's ring: ends of calls, which must not be lost. They wait here, and leave as the ring has room.
//!
//! How many they are has a bound without a limit of their own: a call keeps its slot until its end is in the ring, so each slot has one.
//! None is longer than the room that the ring has for a reply when the session hands out a request. So while they wait it hands out none,
//! and if its peer takes nothing for as long as the idle timeout, it ends. What replies take of memory counts in the session's share, and
//! in the budget of all. Statuses do not count: that a call failed for want of memory must be told, too.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use embar_session::{BudgetShare, SendError, Session};

use crate::room_watch::RoomWatch;

/// Ends that wait.
#[derive(Default)]
pub(super) struct Outbox {
    ends: Mutex<VecDeque<End>>,
    /// Whether there are any.
    waiting: AtomicBool,
    watch: RoomWatch,
}

/// An end of a call, encoded.
pub(super) struct End {
    /// Which slot takes no other call until it has left; none, if its request had no slot.
    pub(super) slot: Option<u32>,
    pub(super) id: u16,
    pub(super) content: Vec<u8>,
    /// Of a reply.
    pub(super) _shares: Option<Shares>,
}

/// A reply's share of what its session may have waiting, and of the budget of all.
pub(super) type Shares = [BudgetShare; 2];

impl End {
    fn try_send(&self, session: &Session, before: impl FnOnce()) -> Result<(), SendError> {
        let mut packet = session.try_reserve(self.id, self.content.len())?;
        packet.copy_from_slice(&self.content);
        before();
        packet.commit();
        Ok(())
    }
}

impl Outbox {
    fn ends(&self) -> MutexGuard<'_, VecDeque<End>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        !self.waiting.load(Ordering::Relaxed)
    }

    /// Has an end wait for room.
    pub(super) fn push(&self, session: &Session, end: End) {
        let bytes = end.content.len();
        let mut ends = self.ends();
        ends.push_back(end);
        self.waiting.store(true, Ordering::Relaxed);
        drop(ends);
        self.watch.watch(session, bytes);
    }

    /// The session's handler was woken: sends what there is room for.
    pub(super) fn woken(&self, session: &Session, leaves: impl Fn(&End)) {
        self.watch.woken();
        self.flush(session, leaves);
    }

    /// Sends what there is room for. `leaves` is called with each end that is about to leave.
    pub(super) fn flush(&self, session: &Session, leaves: impl Fn(&End)) {
        let mut ends = self.ends();
        while let Some(end) = ends.front() {
            match end.try_send(session, || leaves(end)) {
                Ok(()) => {}
                Err(SendError::Full) => {
                    let bytes = end.content.len();
                    drop(ends);
                    return self.watch.watch(session, bytes);
                }
                // The session is over.
                Err(_) => leaves(end),
            }
            ends.pop_front();
        }
        // With the memory that many of them took.
        *ends = VecDeque::new();
        self.waiting.store(false, Ordering::Relaxed);
    }
}
