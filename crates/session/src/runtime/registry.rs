//! The sessions of one server or client, by id, and figures over all of them.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use embar_frame::Now;
use embar_transport::Peer;

use super::group::Group;
use super::handler::Handler;
use super::priority::{Priorities, Priority};
use super::rates::RateLimit;
use super::refusal::Refusal;
use super::session::Session;
use super::session_id::SessionId;
use super::stats::Totals;

/// How old the totals may be that a peer gets: adding them up looks at every session.
const RECENT: Duration = Duration::from_secs(1);

/// Makes the handler of an accepted session.
pub(super) type MakeHandler = dyn Fn(&Peer) -> Box<dyn Handler> + Send + Sync;

/// Whether a connection of this peer is to be accepted.
pub(super) type AcceptFilter = dyn Fn(&Peer) -> bool + Send + Sync;

/// The sessions of one server or client.
pub(super) struct Registry {
    pub(super) group: Arc<Group>,
    make_handler: Option<Box<MakeHandler>>,
    accept_filter: Option<Box<AcceptFilter>>,
    priorities: Option<Priorities>,
    sessions: Mutex<HashMap<SessionId, Session>>,
    recent_totals: Mutex<Option<(Now, Totals)>>,
}

impl Registry {
    pub(super) fn new(
        group: Arc<Group>,
        make_handler: Option<Box<MakeHandler>>,
        accept_filter: Option<Box<AcceptFilter>>,
        priorities: Option<Priorities>,
    ) -> Self {
        Self {
            group,
            make_handler,
            accept_filter,
            priorities,
            sessions: Mutex::default(),
            recent_totals: Mutex::default(),
        }
    }

    pub(super) fn enter(&self, session: &Session) {
        self.sessions().insert(session.id(), session.clone());
    }

    /// The session is over; its counts become the group's.
    pub(super) fn leave(&self, session: &Session) {
        let mut sessions = self.sessions();
        let (counters, its) = (&self.group.counters, session.stats());
        counters.messages_received.add(its.messages_received);
        counters.messages_sent.add(its.messages_sent);
        counters.bytes_received.add(its.bytes_received);
        counters.bytes_sent.add(its.bytes_sent);
        counters.closed.add(1);
        sessions.remove(&session.id());
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn list(&self) -> Vec<Session> {
        let mut list: Vec<Session> = self.sessions().values().cloned().collect();
        list.sort_by_key(Session::id);
        list
    }

    pub(super) fn totals(&self) -> Totals {
        // Under the lock, so that no session that ends is counted twice or not at all.
        let sessions = self.sessions();
        let counters = &self.group.counters;
        let mut totals = Totals {
            sessions: sessions.len() as u64,
            opened: counters.opened.get(),
            closed: counters.closed.get(),
            refused: counters.refusals.total(),
            left_early: counters.left_early.get(),
            listening: self.group.listening.load(Ordering::Relaxed) as u64,
            adopted: counters.adopted.get(),
            redirected: counters.redirected.get(),
            arrivals: self.group.arrivals.load(Ordering::Relaxed) as u64,
            idle_kicks: counters.idle_kicks.get(),
            malformed: counters.malformed.get(),
            panics: counters.panics.get(),
            budget_used_bytes: self.group.budget.used() as u64,
            budget_limit_bytes: self.group.budget.limit() as u64,
            messages_received: counters.messages_received.get(),
            messages_sent: counters.messages_sent.get(),
            bytes_received: counters.bytes_received.get(),
            bytes_sent: counters.bytes_sent.get(),
        };
        for session in sessions.values() {
            let its = session.stats();
            totals.messages_received += its.messages_received;
            totals.messages_sent += its.messages_sent;
            totals.bytes_received += its.bytes_received;
            totals.bytes_sent += its.bytes_sent;
        }
        totals
    }

    /// A handler for `peer`; `None` if the user's code panicked.
    pub(super) fn handler_for(&self, peer: &Peer) -> Option<Box<dyn Handler>> {
        let make = self.make_handler.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| make(peer))).ok()
    }

    /// What the accept filter says of `peer`; a filter that panics says no.
    pub(super) fn accepts(&self, peer: &Peer) -> bool {
        let Some(filter) = &self.accept_filter else {
            return true;
        };
        catch_unwind(AssertUnwindSafe(|| filter(peer))).unwrap_or_else(|_| {
            tracing::error!(%peer, "the accept filter panicked: the peer is refused");
            false
        })
    }

    /// The priority of a peer that has greeted.
    pub(super) fn priority_of(&self, peer: &Peer, greeting: &[u8]) -> Priority {
        let given = self.priorities.as_ref().map(|it| it.of(peer, greeting));
        given.unwrap_or_default()
    }

    /// As [`Registry::totals`], but up to a second old.
    pub(super) fn recent_totals(&self, now: Now) -> Totals {
        let recent = self.recent_totals.lock();
        let mut recent = recent.unwrap_or_else(PoisonError::into_inner);
        match *recent {
            Some((at, totals)) if now.since(at) < RECENT => totals,
            _ => {
                let totals = self.totals();
                *recent = Some((now, totals));
                totals
            }
        }
    }
}

/// Reads the figures of a server or client; also when that is gone.
#[derive(Clone)]
pub struct Monitor(Arc<Registry>);

impl Monitor {
    pub(super) fn new(registry: &Arc<Registry>) -> Self {
        Self(Arc::clone(registry))
    }

    /// What the server or client did so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.0.totals()
    }

    /// The sessions there are, in the order in which they were made.
    #[must_use]
    pub fn sessions(&self) -> Vec<Session> {
        self.0.list()
    }

    /// How many connections were refused for each reason; reasons that never were are left out.
    #[must_use]
    pub fn refused_by_reason(&self) -> Vec<(Refusal, u64)> {
        self.0.group.counters.refusals.by_reason()
    }

    /// How often sessions went beyond each of the [`Rates`](crate::Rates), and were delayed or closed for it. One that
    /// goes on with that counts once a second. Limits that nobody went beyond are left out.
    #[must_use]
    pub fn limited_by_rate(&self) -> Vec<(RateLimit, u64)> {
        self.0.group.counters.rates.by_limit()
    }

    /// How many sessions ended for each reason, by [`CloseReason::name`](crate::CloseReason::name).
    /// Sessions that never opened count as well.
    #[must_use]
    pub fn closed_by_reason(&self) -> Vec<(&'static str, u64)> {
        self.0.group.counters.reasons().into_iter().collect()
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Monitor")
    }
}
