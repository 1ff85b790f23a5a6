//! What a subscriber wants, what its connections requested, and what came.

use std::sync::MutexGuard;
use std::task::Waker;

use super::connection::{ConnectRequest, NodeSubscriptions};
use super::events::Events;
use crate::endpoint::Endpoint;
use crate::engine::router::Router;
use crate::pubsub_event::{Event, Kind, Message};
use crate::resp::{Items, ServerError, View};
use crate::slot::slot;

/// The state of a [`SubscriptionSet`](super::SubscriptionSet).
pub(super) struct State {
    pub events: Events,
    pub reader: Option<Waker>,
    pub subscriptions: Vec<Subscription>,
    pub connections: Vec<NodeSubscriptions>,
    /// Numbers of connections and of subscriptions, never used twice.
    next_number: u64,
    pub failures: u32,
    /// A subscription has lost its node, and needs another one.
    pub has_moved: bool,
    pub ended: bool,
    due: DueWakers,
}

/// Tasks to wake once the lock is released.
#[derive(Default)]
struct DueWakers {
    reader: Option<Waker>,
    others: Vec<Waker>,
}

/// A subscription that the subscriber wants.
pub(super) struct Subscription {
    pub number: u64,
    pub kind: Kind,
    pub name: Vec<u8>,
    /// The node that it is assigned to.
    node: Option<Endpoint>,
    pub state: SubscriptionState,
    /// A server confirmed it once, so the subscriber relies on it.
    was_confirmed: bool,
    /// How many callers wait for the confirmation.
    callers: usize,
    pub waiting: Vec<Waker>,
}

#[derive(PartialEq)]
pub(super) enum SubscriptionState {
    /// No request went out yet.
    New,
    Requested,
    Confirmed,
    Refused(ServerError),
}

/// The locked state. Dropping it releases the lock and then wakes the tasks that are due.
pub(super) struct StateGuard<'s>(Option<MutexGuard<'s, State>>);

impl<'s> StateGuard<'s> {
    pub fn new(state: MutexGuard<'s, State>) -> Self {
        Self(Some(state))
    }
}

impl std::ops::Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("only drop takes it")
    }
}

impl std::ops::DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("only drop takes it")
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        let due = std::mem::take(&mut self.due);
        self.0 = None;
        for waker in due.others.into_iter().chain(due.reader) {
            waker.wake();
        }
    }
}

impl State {
    pub fn new(capacity: usize) -> Self {
        Self {
            events: Events::new(capacity),
            reader: None,
            subscriptions: Vec::new(),
            connections: Vec::new(),
            next_number: 0,
            failures: 0,
            has_moved: false,
            ended: false,
            due: DueWakers::default(),
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn position(&self, kind: Kind, name: &[u8]) -> Option<usize> {
        let is_it = |one: &Subscription| one.kind == kind && one.name == name;
        self.subscriptions.iter().position(is_it)
    }

    /// The index of the connection with this number.
    pub fn connection(&mut self, number: u64) -> Option<usize> {
        self.connections.iter().position(|one| one.number == number)
    }

    /// A caller subscribes: the subscription's number, and whether it needs a request.
    pub fn subscribe(&mut self, kind: Kind, name: &[u8]) -> (u64, bool) {
        if let Some(index) = self.position(kind, name) {
            let subscription = &mut self.subscriptions[index];
            subscription.callers += 1;
            let refused = matches!(subscription.state, SubscriptionState::Refused(_));
            if refused {
                subscription.state = SubscriptionState::New;
            }
            return (subscription.number, refused);
        }
        let number = self.number();
        self.subscriptions.push(Subscription {
            number,
            kind,
            name: name.to_vec(),
            node: None,
            state: SubscriptionState::New,
            was_confirmed: false,
            callers: 1,
            waiting: Vec::new(),
        });
        (number, true)
    }

    /// A caller does not wait for the confirmation any more, which ends a subscription that was never
    /// confirmed and that no other caller waits for. False when there was no room for that request.
    pub fn stop_waiting(&mut self, number: u64) -> bool {
        let is_it = |one: &Subscription| one.number == number;
        let Some(index) = self.subscriptions.iter().position(is_it) else {
            return true;
        };
        let subscription = &mut self.subscriptions[index];
        subscription.callers -= 1;
        if subscription.callers > 0 || subscription.was_confirmed {
            return true;
        }
        self.remove(index)
    }

    /// Ends a subscription. False when there was no room for the request.
    pub fn unsubscribe(&mut self, kind: Kind, name: &[u8]) -> bool {
        let index = self.position(kind, name);
        index.is_none_or(|index| self.remove(index))
    }

    fn remove(&mut self, index: usize) -> bool {
        let subscription = self.subscriptions.swap_remove(index);
        self.due.others.extend(subscription.waiting);
        let requested = matches!(
            subscription.state,
            SubscriptionState::Requested | SubscriptionState::Confirmed
        );
        let mut connections = self.connections.iter_mut().filter(|_| requested);
        connections
            .find(|one| Some(&one.endpoint) == subscription.node.as_ref())
            .is_none_or(|one| one.unsubscribe(subscription.kind, &subscription.name))
    }

    /// Assigns each subscription to a node. False when some node is not known, or there was no room
    /// for a request.
    pub fn assign_nodes(&mut self, router: &Router) -> bool {
        let mut complete = true;
        let mut interrupted = false;
        let failures = self.failures as usize;
        let connections = &mut self.connections;
        for subscription in &mut self.subscriptions {
            let stays = subscription.node.as_ref().is_some_and(|node| {
                router.has_node(node) && connections.iter().any(|one| one.endpoint == *node)
            });
            let target = match subscription.kind {
                Kind::Sharded => router.primary_of(slot(&subscription.name)),
                // Every node has the messages of all channels, so any node will do.
                _ if stays => continue,
                _ => router.some_node(failures),
            };
            complete &= target.is_some();
            if target.is_none() || target == subscription.node {
                continue;
            }
            let before = std::mem::replace(&mut subscription.node, target);
            let state = std::mem::replace(&mut subscription.state, SubscriptionState::New);
            interrupted |= state == SubscriptionState::Confirmed;
            match state {
                SubscriptionState::New => {}
                // Otherwise messages might come twice.
                SubscriptionState::Requested | SubscriptionState::Confirmed => {
                    let mut connections = connections.iter_mut();
                    let old = connections.find(|one| Some(&one.endpoint) == before.as_ref());
                    if let Some(old) = old {
                        complete &= old.unsubscribe(subscription.kind, &subscription.name);
                    }
                }
                SubscriptionState::Refused(_) => subscription.state = state,
            }
        }
        if interrupted {
            self.notify(Event::Interrupted);
        }
        complete
    }

    /// Closes connections that no subscription needs; the connections to open.
    pub fn update_connections(&mut self) -> Vec<ConnectRequest> {
        let (subscriptions, mut requests) = (&self.subscriptions, Vec::new());
        self.connections.retain(|connection| {
            let needed = subscriptions
                .iter()
                .any(|one| one.node.as_ref() == Some(&connection.endpoint));
            if !needed {
                connection.close();
            }
            needed
        });
        for index in 0..self.subscriptions.len() {
            let Some(endpoint) = self.subscriptions[index].node.clone() else {
                continue;
            };
            if self.connections.iter().any(|one| one.endpoint == endpoint) {
                continue;
            }
            let number = self.number();
            let connection = NodeSubscriptions::new(endpoint.clone(), number);
            self.connections.push(connection);
            requests.push(ConnectRequest {
                endpoint,
                number,
                attempt: self.failures,
            });
        }
        requests
    }

    /// Requests new subscriptions where there is a connection. False when there was no room for all.
    pub fn request_new(&mut self) -> bool {
        let mut complete = true;
        for connection in self.connections.iter_mut().filter(|one| one.is_open()) {
            complete &= connection.end_unwanted();
            for subscription in &mut self.subscriptions {
                let is_here = subscription.node.as_ref() == Some(&connection.endpoint);
                if subscription.state != SubscriptionState::New || !is_here {
                    continue;
                }
                if connection.subscribe(subscription.kind, &subscription.name) {
                    subscription.state = SubscriptionState::Requested;
                } else {
                    complete = false;
                }
            }
        }
        complete
    }

    /// A connection is over.
    pub fn went_down(&mut self, index: usize) {
        let connection = self.connections.swap_remove(index);
        let mut interrupted = false;
        for subscription in &mut self.subscriptions {
            if subscription.node.as_ref() == Some(&connection.endpoint) {
                interrupted |= subscription.state == SubscriptionState::Confirmed;
                if !matches!(subscription.state, SubscriptionState::Refused(_)) {
                    subscription.state = SubscriptionState::New;
                }
            }
        }
        if interrupted {
            self.notify(Event::Interrupted);
        }
        self.failures = self.failures.saturating_add(1);
    }

    /// Takes a push: `message`, `subscribe` and the like. `None` when it is no known push.
    pub fn received(&mut self, connection: usize, mut items: Items<'_>) -> Option<()> {
        let word = text(items.next()?)?;
        let (kind, word) = match word {
            [b'p', rest @ ..] if word != b"pong" => (Kind::Pattern, rest),
            [b's', rest @ ..] if matches!(rest, b"message" | b"subscribe" | b"unsubscribe") => {
                (Kind::Sharded, rest)
            }
            rest => (Kind::Channel, rest),
        };
        let name = text(items.next()?)?;
        match word {
            b"message" => {
                let (channel, pattern) = match kind {
                    Kind::Pattern => (text(items.next()?)?, Some(name.to_vec())),
                    _ => (name, None),
                };
                let message = Message {
                    kind,
                    channel: channel.to_vec(),
                    pattern,
                    payload: text(items.next()?)?.to_vec(),
                };
                self.notify(Event::Message(message));
            }
            b"subscribe" => self.confirmed(connection, kind, name),
            b"unsubscribe" if self.connections[connection].answered(false, kind, name) => {}
            b"unsubscribe" => {
                // The server ended it by itself: its slot has moved.
                if let Some(index) = self.settled(connection, kind, name) {
                    self.reassign(index);
                    self.notify(Event::Interrupted);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// The server has confirmed a subscription.
    fn confirmed(&mut self, connection: usize, kind: Kind, name: &[u8]) {
        self.connections[connection].answered(true, kind, name);
        self.failures = 0;
        if let Some(index) = self.settled(connection, kind, name) {
            let subscription = &mut self.subscriptions[index];
            if std::mem::replace(&mut subscription.was_confirmed, true) {
                let node = &self.connections[connection].endpoint;
                let name = name.escape_ascii();
                tracing::info!(%node, ?kind, %name, "subscribed again");
            }
            self.set_state(index, SubscriptionState::Confirmed);
        }
    }

    /// The subscription that an answer settles: it is assigned to that connection's node, and no later
    /// request about it waits for an answer there.
    fn settled(&self, connection: usize, kind: Kind, name: &[u8]) -> Option<usize> {
        let connection = &self.connections[connection];
        let index = self.position(kind, name)?;
        let is_here = self.subscriptions[index].node.as_ref() == Some(&connection.endpoint);
        (is_here && !connection.has_request(kind, name)).then_some(index)
    }

    /// The server refused the oldest request on a connection.
    pub fn refused(&mut self, connection: usize, error: ServerError) {
        let request = self.connections[connection].refused();
        let Some(request) = request.filter(|request| request.begin) else {
            return;
        };
        let Some(index) = self.settled(connection, request.kind, &request.name) else {
            return;
        };
        if error.kind.is_retryable() {
            return self.reassign(index);
        }
        let subscription = &mut self.subscriptions[index];
        let was_confirmed = std::mem::take(&mut subscription.was_confirmed);
        if subscription.callers > 0 {
            self.set_state(index, SubscriptionState::Refused(error.clone()));
        } else {
            self.subscriptions.swap_remove(index);
        }
        if was_confirmed {
            // The caller that relies on it has its confirmation for long, so an event must say it.
            self.notify(Event::Refused {
                kind: request.kind,
                name: request.name,
                error,
            });
        }
    }

    /// Has the next update assign the subscription to another node.
    fn reassign(&mut self, index: usize) {
        let subscription = &mut self.subscriptions[index];
        subscription.state = SubscriptionState::New;
        subscription.node = None;
        self.has_moved = true;
    }

    fn set_state(&mut self, index: usize, state: SubscriptionState) {
        let subscription = &mut self.subscriptions[index];
        subscription.state = state;
        self.due.others.append(&mut subscription.waiting);
    }

    /// Gives an event to the subscriber.
    fn notify(&mut self, event: Event) {
        self.events.push(event);
        if self.reader.is_some() {
            self.due.reader = self.reader.take();
        }
    }
}

fn text(view: View<'_>) -> Option<&[u8]> {
    match view {
        View::Bulk(text) | View::Simple(text) => Some(text),
        _ => None,
    }
}
