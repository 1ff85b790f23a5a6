//! What a subscriber wants, what its connections requested, and what came.
//!
//! Invariants
//! - A subscription that is to be requested is either without a node and among the `unassigned`, or a member of a connection and in one of
//!   that one's queues.
//! - A member of a connection was not refused.
//! - Nothing that happens for each message, answer or caller looks at all subscriptions.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;

use super::connection::{ConnectRequest, NodeSubscriptions, Request};
use super::events::Events;
use super::names::Name;
use super::next_batch::next_batch;
use super::wanted::{Subscription, SubscriptionState, Subscriptions};
use crate::endpoint::Endpoint;
use crate::engine::router::Router;
use crate::pubsub_event::{Event, Kind, Message};
use crate::resp::{Items, ServerError, View};
use crate::slot::slot;

/// The state of a [`SubscriptionSet`](super::SubscriptionSet).
pub(super) struct State {
    pub events: Events,
    pub reader: Option<Waker>,
    subscriptions: Subscriptions,
    /// Wanted subscriptions without a node. Some may have ended meanwhile.
    unassigned: Vec<u64>,
    pub connections: BTreeMap<u64, NodeSubscriptions>,
    /// Numbers of connections and of subscriptions, never used twice.
    next_number: u64,
    /// The connection for channels and patterns: any node has the messages of all.
    anywhere: Option<u64>,
    /// Which node that is, as a subscriber has another one than the next.
    turn: usize,
    /// The generation of the routes by which nodes were assigned.
    generation: u64,
    /// Most bytes of a request for several subscriptions.
    max_request_bytes: usize,
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
        let due = mem::take(&mut self.due);
        self.0 = None;
        for waker in due.others.into_iter().chain(due.reader) {
            waker.wake();
        }
    }
}

impl State {
    /// With room for so many events. A request for several subscriptions has at most so many bytes.
    pub fn new(capacity: usize, max_request_bytes: usize) -> Self {
        Self {
            events: Events::new(capacity),
            reader: None,
            subscriptions: Subscriptions::default(),
            unassigned: Vec::new(),
            connections: BTreeMap::new(),
            next_number: 0,
            anywhere: None,
            turn: fastrand::u16(..).into(),
            generation: 0,
            max_request_bytes,
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

    pub fn subscription(&mut self, number: u64) -> Option<&mut Subscription> {
        self.subscriptions.get(number)
    }

    /// A caller subscribes: the subscription's number, and whether it needs a request.
    pub fn subscribe(&mut self, kind: Kind, name: &[u8]) -> (u64, bool) {
        if let Some(subscription) = self.subscriptions.find(kind, name) {
            subscription.callers += 1;
            let number = subscription.number;
            let refused = matches!(subscription.state, SubscriptionState::Refused(_));
            if refused {
                subscription.state = SubscriptionState::New;
                self.unassigned.push(number);
            }
            return (number, refused);
        }
        let number = self.number();
        self.subscriptions.add(Subscription {
            number,
            kind,
            name: name.into(),
            slot: if kind == Kind::Sharded { slot(name) } else { 0 },
            node: None,
            state: SubscriptionState::New,
            was_confirmed: false,
            callers: 1,
            waiting: Vec::new(),
        });
        self.unassigned.push(number);
        (number, true)
    }

    /// A caller does not wait for the confirmation any more, which ends a subscription that was never
    /// confirmed and that no other caller waits for. False when there was no room for that request.
    pub fn stop_waiting(&mut self, number: u64) -> bool {
        let Some(subscription) = self.subscriptions.get(number) else {
            return true;
        };
        subscription.callers -= 1;
        if subscription.callers > 0 || subscription.was_confirmed {
            return true;
        }
        self.remove(number)
    }

    /// Ends a subscription. False when there was no room for the request.
    pub fn unsubscribe(&mut self, kind: Kind, name: &[u8]) -> bool {
        let number = self.subscriptions.find(kind, name).map(|it| it.number);
        number.is_none_or(|number| self.remove(number))
    }

    fn remove(&mut self, number: u64) -> bool {
        let Some(subscription) = self.subscriptions.remove(number) else {
            return true;
        };
        self.due.others.extend(subscription.waiting);
        let node = subscription.node;
        let Some(connection) = node.and_then(|node| self.connections.get_mut(&node)) else {
            return true;
        };
        connection.members.remove(&number);
        match subscription.state {
            SubscriptionState::New | SubscriptionState::Refused(_) => true,
            SubscriptionState::Requested | SubscriptionState::Confirmed => {
                connection.unsubscribe(subscription.kind, &subscription.name)
            }
        }
    }

    /// Assigns each subscription to a node, by the routes of now: the connections to open. False when some node is not known, or there
    /// was no room for a request.
    pub fn assign_nodes(&mut self, router: &Router) -> (bool, Vec<ConnectRequest>) {
        let (mut complete, mut requests) = (true, Vec::new());
        let generation = router.generation();
        if mem::replace(&mut self.generation, generation) != generation {
            complete = self.leave_nodes(router);
        }
        let mut numbers = mem::take(&mut self.unassigned);
        // Those of a kind and a slot can be requested together.
        numbers.sort_by_key(|number| {
            let subscription = self.subscriptions.look_at(*number);
            subscription.map(|it| (it.kind as u8, it.slot))
        });
        for number in numbers {
            let Some(subscription) = self.subscriptions.get(number) else {
                continue;
            };
            if subscription.node.is_some() || subscription.state != SubscriptionState::New {
                continue;
            }
            let node = match subscription.kind {
                Kind::Sharded => {
                    let primary = router.primary_of(subscription.slot);
                    primary.map(|primary| self.connection_to(primary, &mut requests))
                }
                Kind::Channel | Kind::Pattern => self.connection_anywhere(router, &mut requests),
            };
            let Some(node) = node else {
                complete = false;
                self.unassigned.push(number);
                continue;
            };
            if let Some(connection) = self.connections.get_mut(&node) {
                connection.members.insert(number);
                connection.new.push_back(number);
            }
            if let Some(subscription) = self.subscriptions.get(number) {
                subscription.node = Some(node);
            }
        }
        self.connections.retain(|_, connection| {
            let is_needed = !connection.members.is_empty();
            if !is_needed {
                connection.close();
            }
            is_needed
        });
        (complete, requests)
    }

    /// The number of the connection to this node, which it adds if it is new.
    fn connection_to(&mut self, endpoint: Endpoint, requests: &mut Vec<ConnectRequest>) -> u64 {
        let mut known = self.connections.iter();
        if let Some((&number, _)) = known.find(|(_, one)| one.endpoint == endpoint) {
            return number;
        }
        let number = self.number();
        let connection = NodeSubscriptions::new(endpoint.clone());
        self.connections.insert(number, connection);
        requests.push(ConnectRequest {
            endpoint,
            number,
            attempt: self.failures,
        });
        number
    }

    /// The connection for all that any node has.
    fn connection_anywhere(
        &mut self,
        router: &Router,
        requests: &mut Vec<ConnectRequest>,
    ) -> Option<u64> {
        let known = self.anywhere;
        if let Some(known) = known.filter(|known| self.connections.contains_key(known)) {
            return Some(known);
        }
        let turn = self.turn.wrapping_add(self.failures as usize);
        let number = self.connection_to(router.some_node(turn)?, requests);
        self.anywhere = Some(number);
        Some(number)
    }

    /// Has those subscriptions assigned anew whose nodes are not theirs any more. False when there was no room for a request.
    fn leave_nodes(&mut self, router: &Router) -> bool {
        let (mut complete, mut interrupted) = (true, false);
        for (&node, connection) in &mut self.connections {
            let is_gone = !router.has_node(&connection.endpoint);
            let members: Vec<u64> = connection.members.iter().copied().collect();
            for number in members {
                let Some(subscription) = self.subscriptions.get(number) else {
                    continue;
                };
                let is_elsewhere = match subscription.kind {
                    // As long as no node is known for it, it may yet be there.
                    Kind::Sharded => router
                        .primary_of(subscription.slot)
                        .is_some_and(|primary| primary != connection.endpoint),
                    Kind::Channel | Kind::Pattern => is_gone,
                };
                if !is_elsewhere {
                    continue;
                }
                match mem::replace(&mut subscription.state, SubscriptionState::New) {
                    SubscriptionState::New | SubscriptionState::Refused(_) => {}
                    // Otherwise messages might come twice.
                    state @ (SubscriptionState::Requested | SubscriptionState::Confirmed) => {
                        interrupted |= state == SubscriptionState::Confirmed;
                        complete &= connection.unsubscribe(subscription.kind, &subscription.name);
                    }
                }
                subscription.node = None;
                connection.members.remove(&number);
                self.unassigned.push(number);
            }
            if is_gone && self.anywhere == Some(node) {
                self.anywhere = None;
            }
        }
        if interrupted {
            self.notify(Event::Interrupted);
        }
        complete
    }

    /// Requests on all connections what is to be requested. False when there was no room for all, and nothing comes that makes room.
    pub fn request_new(&mut self) -> bool {
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        let mut complete = true;
        for number in numbers {
            complete &= self.request_on(number);
        }
        complete
    }

    /// As [`State::request_new`], on one connection. Each answer that comes there goes on with it.
    fn request_on(&mut self, number: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&number) else {
            return true;
        };
        if !connection.is_open() {
            // It goes on when it is.
            return true;
        }
        let mut has_room = connection.send_auth() && connection.end_unwanted();
        while has_room {
            let Some(batch) = next_batch(
                connection,
                &mut self.subscriptions,
                number,
                self.max_request_bytes,
            ) else {
                return true;
            };
            has_room = connection.subscribe(&batch);
            if !has_room {
                connection.halves.push(batch.numbers);
                break;
            }
            for number in batch.numbers {
                if let Some(subscription) = self.subscriptions.get(number) {
                    subscription.state = SubscriptionState::Requested;
                }
            }
        }
        connection.has_requests()
    }

    /// Tells the servers who the client is now. False when there was no room for that everywhere.
    pub fn authenticate(&mut self, auth: &Arc<[u8]>) -> bool {
        let mut complete = true;
        let has_room = auth.len() <= self.max_request_bytes;
        for connection in self.connections.values_mut() {
            if !has_room {
                // There never will be; the next connection begins with it.
                connection.close();
                continue;
            }
            complete &= connection.authenticate(auth);
        }
        complete
    }

    /// An answer came on a connection: if that of `AUTH` is the next one there, this is it, and of that node.
    pub fn authenticated(&mut self, number: u64) -> Option<Endpoint> {
        let known = self.connections.get_mut(&number)?;
        let endpoint = known.authenticated()?;
        self.answered(number);
        Some(endpoint)
    }

    /// A connection is over.
    pub fn went_down(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else {
            return;
        };
        let mut interrupted = false;
        for number in connection.members {
            if let Some(subscription) = self.subscriptions.get(number) {
                interrupted |= subscription.state == SubscriptionState::Confirmed;
                subscription.state = SubscriptionState::New;
                subscription.node = None;
                self.unassigned.push(number);
            }
        }
        if interrupted {
            self.notify(Event::Interrupted);
        }
        self.failures = self.failures.saturating_add(1);
    }

    /// Takes a push: `message`, `subscribe` and the like. `None` when it is no known push.
    pub fn received(&mut self, connection: u64, mut items: Items<'_>) -> Option<()> {
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
            b"subscribe" => {
                self.confirmed(connection, kind, name);
                self.answered(connection);
            }
            b"unsubscribe" => {
                let known = self.connections.get_mut(&connection)?;
                if known.answered(false, kind, name) {
                    self.answered(connection);
                } else if let Some(number) = self.settled(connection, kind, name) {
                    // The server ended it by itself: its slot has moved.
                    self.reassign(number);
                    self.notify(Event::Interrupted);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// An answer made room for further requests.
    fn answered(&mut self, number: u64) {
        self.request_on(number);
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if connection.is_settled() && connection.renewed > 0 {
            let subscriptions = mem::take(&mut connection.renewed);
            let node = &connection.endpoint;
            tracing::info!(%node, subscriptions, "subscribed again");
        }
    }

    /// The server has confirmed a subscription.
    fn confirmed(&mut self, connection: u64, kind: Kind, name: &[u8]) {
        self.failures = 0;
        let Some(known) = self.connections.get_mut(&connection) else {
            return;
        };
        known.answered(true, kind, name);
        let Some(number) = self.settled(connection, kind, name) else {
            return;
        };
        if let Some(subscription) = self.subscriptions.get(number) {
            let was_confirmed = mem::replace(&mut subscription.was_confirmed, true);
            subscription.state = SubscriptionState::Confirmed;
            self.due.others.append(&mut subscription.waiting);
            if let Some(known) = self.connections.get_mut(&connection) {
                known.renewed += usize::from(was_confirmed);
            }
        }
    }

    /// The subscription that an answer settles: it is assigned to that connection's node, and no later
    /// request about it waits for an answer there.
    fn settled(&mut self, connection: u64, kind: Kind, name: &[u8]) -> Option<u64> {
        let known = self.connections.get(&connection)?;
        let subscription = self.subscriptions.find(kind, name)?;
        let is_here = subscription.node == Some(connection);
        (is_here && !known.has_request(kind, name)).then_some(subscription.number)
    }

    /// The server refused the oldest request on a connection.
    pub fn refused(&mut self, connection: u64, error: &ServerError) {
        let known = self.connections.get_mut(&connection);
        let request = known.and_then(NodeSubscriptions::refused);
        let Some(request) = request.filter(|request| request.begin) else {
            return;
        };
        let settled = |state: &mut Self, request: &Request| -> Vec<u64> {
            let names = request.open().iter();
            let settled = |name: &Name| state.settled(connection, request.kind, name);
            names.filter_map(settled).collect()
        };
        let numbers = settled(self, &request);
        if error.kind.is_retryable() {
            for number in numbers {
                self.reassign(number);
            }
        } else if request.open().len() > 1 {
            self.halve(connection, numbers);
        } else if let Some(&number) = numbers.first() {
            self.refuse(number, error);
        }
        self.answered(connection);
    }

    /// The server refused these together, and does not say which of them it means.
    fn halve(&mut self, connection: u64, mut numbers: Vec<u64>) {
        for number in &numbers {
            if let Some(subscription) = self.subscriptions.get(*number) {
                subscription.state = SubscriptionState::New;
            }
        }
        if let Some(connection) = self.connections.get_mut(&connection) {
            let second = numbers.split_off(numbers.len() / 2);
            let halves = [second, numbers].into_iter();
            connection
                .halves
                .extend(halves.filter(|half| !half.is_empty()));
        }
    }

    /// The server refused this one.
    fn refuse(&mut self, number: u64, error: &ServerError) {
        let Some(subscription) = self.subscriptions.get(number) else {
            return;
        };
        let was_confirmed = mem::take(&mut subscription.was_confirmed);
        let (kind, name) = (subscription.kind, subscription.name.to_vec());
        let node = subscription.node.take();
        if let Some(connection) = node.and_then(|node| self.connections.get_mut(&node)) {
            connection.members.remove(&number);
        }
        subscription.state = SubscriptionState::Refused(error.clone());
        self.due.others.append(&mut subscription.waiting);
        if subscription.callers == 0 {
            self.subscriptions.remove(number);
        }
        if was_confirmed {
            // The caller that relies on it has its confirmation for long, so an event must say it.
            let error = error.clone();
            self.notify(Event::Refused { kind, name, error });
        }
    }

    /// Has the next update assign the subscription to another node.
    fn reassign(&mut self, number: u64) {
        let Some(subscription) = self.subscriptions.get(number) else {
            return;
        };
        subscription.state = SubscriptionState::New;
        let node = subscription.node.take();
        if let Some(connection) = node.and_then(|node| self.connections.get_mut(&node)) {
            connection.members.remove(&number);
        }
        self.unassigned.push(number);
        self.has_moved = true;
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
