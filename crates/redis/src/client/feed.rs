//! Subscriptions: which there are, on which connection each is, and the messages that came.
//!
//! What is wanted is written down here, and the keeper makes it so: it connects, asks for what is
//! wanted and was not asked for, and does all of that again whenever a connection breaks, a slot
//! moves, or the topology changes. Servers answer each request in order, which tells what an error
//! is about.
//!
//! Nothing slow happens while the state is locked: names are looked up, connections opened and
//! tasks woken without it.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use embar_mux::{CloseReason, Connection};

use super::Inner;
use super::keeper::Keeper;
use super::sleepers::{Nap, after};
use crate::config::Endpoint;
use crate::error::Error;
use crate::pubsub::{Event, Kind};
use crate::resp::{ServerError, View, parse};
use state::{Held, Standing, State};

mod events;
mod line;
mod state;

/// How long to wait before a subscription is looked at again that the wrong node was asked for.
const MOVED_PAUSE: Duration = Duration::from_millis(20);

/// See the module.
pub(crate) struct Feed {
    me: Weak<Feed>,
    keeper: Arc<Keeper>,
    state: Mutex<State>,
}

/// A connection that a subscriber needs.
pub(crate) struct Wish {
    pub endpoint: Endpoint,
    /// Names the connection; never used twice.
    pub number: u64,
    /// Attempts to connect that failed before.
    pub attempt: u32,
}

/// Somebody waits until a subscription is confirmed. Dropped before that, it is not wanted any more
/// unless others want it.
pub(crate) struct Asking<'f> {
    feed: &'f Feed,
    number: u64,
    deadline: Instant,
    nap: Option<Nap>,
}

impl Feed {
    pub fn new(keeper: Arc<Keeper>, capacity: usize) -> Arc<Self> {
        assert!(capacity > 0, "a subscriber holds at least one message");
        let feed = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            keeper,
            state: Mutex::new(State::new(capacity)),
        });
        feed.keeper.remember(Arc::downgrade(&feed));
        feed
    }

    fn state(&self) -> Held<'_> {
        Held::new(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tend_at(&self, at: Instant) {
        self.keeper.tend(Weak::clone(&self.me), at);
    }

    fn tend_after_failure(&self, failures: u32) {
        self.tend_at(after(self.keeper.backoff(failures)));
    }

    /// Writes down that something is wanted.
    pub fn want(&self, kind: Kind, name: &[u8]) -> Asking<'_> {
        let (number, new) = self.state().want(kind, name);
        if new {
            self.tend_at(Instant::now());
        }
        Asking {
            feed: self,
            number,
            deadline: after(self.keeper.timeout()),
            nap: None,
        }
    }

    /// It is wanted no more.
    pub fn forget(&self, kind: Kind, name: &[u8]) {
        let said = self.state().forget(kind, name);
        self.say_later_unless(said);
    }

    fn say_later_unless(&self, said: bool) {
        if !said {
            self.tend_after_failure(0);
        }
    }

    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Event, Error>> {
        let mut state = self.state();
        if let Some(event) = state.events.pop() {
            return Poll::Ready(Ok(event));
        }
        if self.keeper.is_over() {
            return Poll::Ready(Err(Error::Closed));
        }
        let before = state.reader.replace(cx.waker().clone());
        drop(state);
        // Not under the lock: who knows what goes with it.
        drop(before);
        Poll::Pending
    }

    pub fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        for line in std::mem::take(&mut state.lines) {
            line.close();
        }
    }

    /// Makes what is wanted so. On the keeper's thread.
    pub fn tend(&self, client: &Inner) {
        let mut state = self.state();
        if state.ended {
            return;
        }
        let mut complete = state.place(client);
        let wishes = state.connections();
        complete &= state.ask();
        state.failures = state.failures.saturating_add(u32::from(!complete));
        let failures = state.failures;
        drop(state);
        if let Some(me) = self.me.upgrade() {
            for wish in wishes {
                self.keeper.connect_feed(Arc::clone(&me), wish);
            }
        }
        if !complete {
            self.tend_after_failure(failures);
        }
    }

    /// The keeper has opened a connection, which may still fail to be made, or could not.
    pub fn opened(&self, number: u64, opened: Result<Connection, CloseReason>) {
        let mut state = self.state();
        let line = state.line(number);
        match (opened, line) {
            (Ok(conn), Some(line)) => {
                state.lines[line].opened(conn);
                drop(state);
                self.tend_at(Instant::now());
            }
            // Nothing needs it any more, or it is over already.
            (Ok(conn), None) => conn.close(),
            (Err(reason), _) => {
                drop(state);
                self.went_down(number, &reason);
            }
        }
    }

    /// A connection is over.
    pub fn went_down(&self, number: u64, reason: &CloseReason) {
        let mut state = self.state();
        let Some(line) = state.line(number) else {
            return;
        };
        let endpoint = &state.lines[line].endpoint;
        tracing::debug!(node = %endpoint, "a subscriber's connection is over: {reason}");
        state.went_down(line);
        let failures = state.failures;
        drop(state);
        self.tend_after_failure(failures);
    }

    /// A frame came.
    pub fn heard(&self, number: u64, frame: &[u8]) {
        let mut state = self.state();
        let Some(line) = state.line(number) else {
            return;
        };
        match parse(frame) {
            Ok((View::Push(items) | View::Array(items), _))
                if state.heard(line, items).is_none() =>
            {
                tracing::debug!("a server pushed something that is no message");
            }
            Ok((View::Error(error), _)) => state.refused(line, ServerError::from(error)),
            _ => {}
        }
        if std::mem::take(&mut state.unsettled) {
            drop(state);
            self.keeper.refresh();
            self.tend_at(Instant::now() + MOVED_PAUSE);
        }
    }
}

impl Asking<'_> {
    /// Whether the server has confirmed it.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let unavailable = |why: &str| {
            let why = why.to_owned();
            Poll::Ready(Err(Error::Unavailable { why }))
        };
        let mut state = self.feed.state();
        let mut wanted = state.wanted.iter_mut();
        let Some(wanted) = wanted.find(|wanted| wanted.number == self.number) else {
            return unavailable("the subscription was ended meanwhile");
        };
        match &wanted.standing {
            Standing::Confirmed => return Poll::Ready(Ok(())),
            Standing::Refused(error) => return Poll::Ready(Err(error.clone().into())),
            Standing::New | Standing::Asked => {}
        }
        if Instant::now() >= self.deadline {
            return unavailable("no server has confirmed the subscription in time");
        }
        if !wanted
            .waiting
            .iter()
            .any(|known| known.will_wake(cx.waker()))
        {
            wanted.waiting.push(cx.waker().clone());
        }
        drop(state);
        let keeper = &self.feed.keeper;
        keeper.wake_at(&mut self.nap, self.deadline, cx.waker());
        Poll::Pending
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let said = self.feed.state().stop_asking(self.number);
        self.feed.say_later_unless(said);
    }
}
