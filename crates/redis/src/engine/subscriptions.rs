//! The subscriptions of one subscriber: which there are, on which connection each one is, and the
//! messages that came.
//!
//! A [`SubscriptionSet`] records what its subscriber wants. The manager's thread then connects, and
//! subscribes to what is wanted and not requested yet; it does so again whenever a connection breaks, a
//! slot moves, or the topology changes. Servers answer requests in order, so an error belongs to the
//! oldest request.
//!
//! Nothing slow happens while the state is locked: names resolve, connections open and tasks wake
//! without the lock.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use embar_mux::{CloseReason, Connection, ConnectionLimits};

use super::authentication::log_refusal;
use super::credential_store::Authenticated;
use super::greeting::{Purpose, encoded_auth};
use super::protocol::{ConnectionOwner, RedisProtocol};
use super::router::Router;
use super::schedule::{Task, Timer};
use super::shared::Shared;
use super::timers::after;
use crate::credentials::Credentials;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::pubsub_event::{Event, Kind};
use crate::resp::{ServerError, View, is_refusal_of_credentials, parse};
use connection::ConnectRequest;
use state::{State, StateGuard};
use wanted::SubscriptionState;

mod connection;
mod events;
mod names;
mod next_batch;
mod state;
mod wanted;

/// How long to wait before subscribing again, after a node answered that another one has the slot.
const MOVED_PAUSE: Duration = Duration::from_millis(20);

/// The subscriptions of one subscriber.
pub(crate) struct SubscriptionSet {
    me: Weak<SubscriptionSet>,
    shared: Arc<Shared>,
    router: Weak<Router>,
    state: Mutex<State>,
}

/// Waits until the server confirms a subscription. Dropped before that, it ends the subscription
/// unless others want it.
pub(crate) struct Confirmation<'s> {
    set: &'s SubscriptionSet,
    /// The subscription's number.
    number: u64,
    deadline: Instant,
    timer: Option<Timer>,
}

impl SubscriptionSet {
    /// Without subscriptions, and with room for so many events.
    pub fn new(router: &Arc<Router>, capacity: usize) -> Arc<Self> {
        assert!(capacity > 0, "a subscriber holds at least one message");
        // A request needs room in one piece.
        let max_request_bytes = router.shared.config.ring_bytes / 4;
        let set = Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            shared: Arc::clone(&router.shared),
            router: Arc::downgrade(router),
            state: Mutex::new(State::new(capacity, max_request_bytes)),
        });
        set.shared.schedule.run_after_refreshes(set.task());
        if let Some(credentials) = &set.shared.credentials {
            credentials.add(Weak::clone(&set.me) as Weak<dyn Authenticated>);
        }
        set
    }

    fn state(&self) -> StateGuard<'_> {
        StateGuard::new(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn task(&self) -> Weak<dyn Task> {
        Weak::clone(&self.me) as Weak<dyn Task>
    }

    fn update_at(&self, at: Instant) {
        self.shared.schedule.run_at(self.task(), Some(at));
    }

    fn update_after_failure(&self, failures: u32) {
        self.update_at(after(self.shared.config.retries.backoff(failures)));
    }

    /// Subscribes.
    pub fn subscribe(&self, kind: Kind, name: &[u8]) -> Confirmation<'_> {
        let (number, is_new) = self.state().subscribe(kind, name);
        if is_new {
            self.update_at(Instant::now());
        }
        self.confirmation(number)
    }

    /// Subscribes to all of these, which are requested together.
    pub fn subscribe_all(&self, kind: Kind, names: &[impl AsRef<[u8]>]) -> Vec<Confirmation<'_>> {
        let mut state = self.state();
        let mut subscribe = |name: &[u8]| state.subscribe(kind, name);
        let all: Vec<_> = names.iter().map(|name| subscribe(name.as_ref())).collect();
        drop(state);
        if all.iter().any(|(_, is_new)| *is_new) {
            self.update_at(Instant::now());
        }
        let numbers = all.into_iter().map(|(number, _)| number);
        numbers.map(|number| self.confirmation(number)).collect()
    }

    fn confirmation(&self, number: u64) -> Confirmation<'_> {
        Confirmation {
            set: self,
            number,
            deadline: after(self.shared.config.timeout),
            timer: None,
        }
    }

    /// Ends a subscription.
    pub fn unsubscribe(&self, kind: Kind, name: &[u8]) {
        let requested = self.state().unsubscribe(kind, name);
        self.update_later_unless(requested);
    }

    fn update_later_unless(&self, requested: bool) {
        if !requested {
            self.update_after_failure(0);
        }
    }

    /// The next event.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Event, Error>> {
        let mut state = self.state();
        if let Some(event) = state.events.pop() {
            return Poll::Ready(Ok(event));
        }
        if self.shared.schedule.is_over() {
            return Poll::Ready(Err(Error::Closed));
        }
        let before = state.reader.replace(cx.waker().clone());
        drop(state);
        // Without the lock: a waker's drop may run any code.
        drop(before);
        Poll::Pending
    }

    /// Closes all connections, for good.
    pub fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        for connection in std::mem::take(&mut state.connections).into_values() {
            connection.close();
        }
    }

    /// Connects and subscribes as far as that is missing.
    fn update(&self, router: &Router) {
        let mut state = self.state();
        if state.ended {
            return;
        }
        let (mut complete, requests) = state.assign_nodes(router);
        complete &= state.request_new();
        state.failures = state.failures.saturating_add(u32::from(!complete));
        let failures = state.failures;
        drop(state);
        if let Some(me) = self.me.upgrade() {
            for request in requests {
                me.connect(request);
            }
        }
        if !complete {
            self.update_after_failure(failures);
        }
    }

    /// Opens a connection, here if that does not block, or else on a thread.
    fn connect(self: &Arc<Self>, request: ConnectRequest) {
        let (set, endpoint) = (Arc::clone(self), request.endpoint.clone());
        let open = move || match set.shared.current_credentials() {
            Ok((credentials, version)) => {
                let opened = set.open(&request, credentials.as_ref());
                set.connected(request.number, opened);
                if let Some(store) = &set.shared.credentials {
                    // Those who were told meanwhile did not include this one.
                    store.opened(version);
                }
            }
            Err(why) => set.connected(request.number, Err(CloseReason::NotReady(why))),
        };
        self.shared.dialer.run(&endpoint, open);
    }

    fn open(
        self: &Arc<Self>,
        request: &ConnectRequest,
        credentials: Option<&Arc<Credentials>>,
    ) -> Result<Connection, CloseReason> {
        let config = &*self.shared.config;
        let limits = ConnectionLimits {
            // Pushes answer no command, so none is ever in flight.
            in_flight: 1,
            connect_timeout: config.connect_timeout,
            max_reply_bytes: config.max_reply_bytes,
            ..ConnectionLimits::default()
        };
        let owner = Box::new(Owner {
            set: Arc::downgrade(self),
            number: request.number,
        });
        let protocol = RedisProtocol::new(config, credentials, Purpose::Subscriptions, owner);
        let dialer = &self.shared.dialer;
        dialer.open(&request.endpoint, request.attempt, limits, protocol)
    }

    /// There is a connection, which may still fail to open, or a reason why there is none.
    fn connected(&self, number: u64, opened: Result<Connection, CloseReason>) {
        let mut state = self.state();
        let known = state.connections.get_mut(&number);
        match (opened, known) {
            (Ok(conn), Some(known)) => {
                known.opened(conn);
                drop(state);
                self.update_at(Instant::now());
            }
            // No subscription needs it any more, or it is over already.
            (Ok(conn), None) => conn.close(),
            (Err(reason), _) => {
                drop(state);
                self.went_down(number, &reason);
            }
        }
    }

    /// A connection is over.
    fn went_down(&self, number: u64, reason: &CloseReason) {
        let mut state = self.state();
        let Some(known) = state.connections.get(&number) else {
            return;
        };
        tracing::debug!(node = %known.endpoint, "a subscriber's connection is over: {reason}");
        if let (Some(credentials), CloseReason::Refused(words)) = (&self.shared.credentials, reason)
            && is_refusal_of_credentials(words)
        {
            credentials.refused(None);
        }
        state.went_down(number);
        let failures = state.failures;
        drop(state);
        self.update_after_failure(failures);
    }

    /// The server did not take new credentials.
    fn not_authenticated(&self, state: &State, number: u64, node: &Endpoint, error: &ServerError) {
        if is_refusal_of_credentials(&error.text) {
            log_refusal(node, error);
            if let Some(credentials) = &self.shared.credentials {
                credentials.refused(None);
            }
        } else if let Some(connection) = state.connections.get(&number) {
            // With RESP2 a subscriber may not say who it is. The next connection begins with that.
            connection.close();
        }
    }

    /// A frame came on a connection.
    fn received(&self, number: u64, frame: &[u8]) {
        let mut state = self.state();
        if !state.connections.contains_key(&number) {
            return;
        }
        match parse(frame) {
            Ok((View::Push(items) | View::Array(items), _))
                if state.received(number, items).is_none() =>
            {
                tracing::debug!("a server pushed something that is no message");
            }
            Ok((View::Error(error), _)) => {
                // It changes no data.
                let error = ServerError::from(error).answering(false);
                match state.authenticated(number) {
                    Some(node) => self.not_authenticated(&state, number, &node, &error),
                    None => state.refused(number, &error),
                }
            }
            // Only `AUTH` is answered so.
            Ok((View::Simple(_), _)) => drop(state.authenticated(number)),
            _ => {}
        }
        if std::mem::take(&mut state.has_moved) {
            drop(state);
            self.shared.schedule.request_refresh();
            self.update_at(Instant::now() + MOVED_PAUSE);
        }
    }
}

impl Authenticated for SubscriptionSet {
    fn authenticate(&self, credentials: &Credentials) {
        let auth: Arc<[u8]> = encoded_auth(credentials).into();
        let told = self.state().authenticate(&auth);
        self.update_later_unless(told);
    }
}

impl Task for SubscriptionSet {
    fn run(self: Arc<Self>) {
        if let Some(router) = self.router.upgrade() {
            self.update(&router);
        }
    }
}

/// What the protocol reports of one connection goes to the set, if that still exists.
struct Owner {
    set: Weak<SubscriptionSet>,
    /// The connection's number.
    number: u64,
}

impl ConnectionOwner for Owner {
    fn push(&self, frame: &[u8]) {
        if let Some(set) = self.set.upgrade() {
            set.received(self.number, frame);
        }
    }

    fn closed(&self, reason: &CloseReason, _: bool) {
        if let Some(set) = self.set.upgrade() {
            set.went_down(self.number, reason);
        }
    }
}

impl Confirmation<'_> {
    /// Ready when the server has confirmed the subscription, or refused it, or time is over.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let unavailable = |why: &str| {
            let why = why.to_owned();
            Poll::Ready(Err(Error::Unavailable { why }))
        };
        let mut state = self.set.state();
        let Some(subscription) = state.subscription(self.number) else {
            return unavailable("the subscription was ended meanwhile");
        };
        match &subscription.state {
            SubscriptionState::Confirmed => return Poll::Ready(Ok(())),
            SubscriptionState::Refused(error) => return Poll::Ready(Err(error.clone().into())),
            SubscriptionState::New | SubscriptionState::Requested => {}
        }
        if Instant::now() >= self.deadline {
            return unavailable("no server has confirmed the subscription in time");
        }
        let mut known = subscription.waiting.iter();
        if !known.any(|known| known.will_wake(cx.waker())) {
            subscription.waiting.push(cx.waker().clone());
        }
        drop(state);
        let schedule = &self.set.shared.schedule;
        schedule.wake_at(&mut self.timer, self.deadline, cx.waker());
        Poll::Pending
    }
}

impl Drop for Confirmation<'_> {
    fn drop(&mut self) {
        let requested = self.set.state().stop_waiting(self.number);
        self.set.update_later_unless(requested);
    }
}
