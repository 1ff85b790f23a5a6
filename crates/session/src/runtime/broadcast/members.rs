//! The members of one broadcast.
//!
//! A member keeps its place until it leaves, so that a sender can go through the places in batches
//! and let others join and leave between them; it passes over those that joined after it began.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Lag;
use crate::runtime::memberships::Membership;
use crate::runtime::session::Session;
use crate::runtime::session_id::SessionId;

pub(super) struct Member {
    pub(super) session: Session,
    pub(super) lag: Lag,
    /// How many had joined before.
    joined: u64,
}

#[derive(Default)]
struct Places {
    slots: Vec<Option<Member>>,
    /// May name a place twice, or one that is taken or gone: whoever takes one looks.
    free: Vec<usize>,
    by_id: HashMap<SessionId, usize>,
    joined: u64,
}

impl Places {
    fn enter(&mut self, session: &Session, lag: Lag) {
        if let Some(member) = self
            .by_id
            .get(&session.id())
            .and_then(|&at| self.slots[at].as_mut())
        {
            member.lag = lag;
            return;
        }
        let member = Member {
            session: session.clone(),
            lag,
            joined: self.joined,
        };
        self.joined += 1;
        let free = loop {
            match self.free.pop() {
                Some(at) if self.slots.get(at).is_some_and(Option::is_none) => break at,
                Some(_) => {}
                None => {
                    self.slots.push(None);
                    break self.slots.len() - 1;
                }
            }
        };
        self.by_id.insert(session.id(), free);
        self.slots[free] = Some(member);
    }

    fn remove(&mut self, id: SessionId) -> Option<Member> {
        let at = self.by_id.remove(&id)?;
        let member = self.slots[at].take();
        self.free.push(at);
        while self.slots.pop_if(|last| last.is_none()).is_some() {}
        if self.slots.is_empty() {
            self.free.clear();
        }
        member
    }
}

/// The members of one broadcast.
pub(super) struct Members {
    number: u64,
    places: Mutex<Places>,
}

impl Default for Members {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            places: Mutex::default(),
        }
    }
}

impl Members {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No other broadcast of this process ever has the same.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn len(&self) -> usize {
        self.places().by_id.len()
    }

    pub(super) fn join(self: &Arc<Self>, session: &Session, lag: Lag) -> bool {
        let mut places = self.places();
        // Under both locks, so that a session that ends finds all its memberships.
        let this = Arc::downgrade(self);
        let lives = session.0.memberships.enter(self.number, this);
        if lives {
            places.enter(session, lag);
        }
        lives
    }

    pub(super) fn leave(&self, session: &Session) -> bool {
        let mut places = self.places();
        let member = places.remove(session.id());
        session.0.memberships.remove(self.number);
        drop(places);
        // Only here: it may be the last handle.
        member.is_some()
    }

    /// Begins to go through all who are members now.
    pub(super) fn round(&self) -> Round {
        Round {
            at: 0,
            joined: self.places().joined,
        }
    }

    /// The next places, up to `most` of them; `None` at the end.
    pub(super) fn next_batch(&self, round: &mut Round, most: usize) -> Option<Batch<'_>> {
        let places = self.places();
        let from = round.at;
        if from >= places.slots.len() {
            return None;
        }
        let to = places.slots.len().min(from + most);
        round.at = to;
        Some(Batch {
            places,
            from,
            to,
            joined: round.joined,
        })
    }
}

impl Membership for Members {
    fn forget(&self, id: SessionId) {
        let member = self.places().remove(id);
        drop(member);
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        let places = self.places.get_mut();
        let places = std::mem::take(places.unwrap_or_else(PoisonError::into_inner));
        for member in places.slots.into_iter().flatten() {
            member.session.0.memberships.remove(self.number);
        }
    }
}

/// How far a sender is.
pub(super) struct Round {
    at: usize,
    joined: u64,
}

/// Some of the places, which nobody changes meanwhile.
pub(super) struct Batch<'a> {
    places: MutexGuard<'a, Places>,
    from: usize,
    to: usize,
    joined: u64,
}

impl Batch<'_> {
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        let all = self.places.slots[self.from..self.to].iter().flatten();
        all.filter(|member| member.joined < self.joined)
    }
}
