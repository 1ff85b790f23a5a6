//! What a subscriber wants: its subscriptions, found by number and by name.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;

use super::names::{ByName, Name};
use crate::pubsub_event::Kind;
use crate::resp::ServerError;

/// All subscriptions.
#[derive(Default)]
pub(super) struct Subscriptions {
    by_number: HashMap<u64, Subscription>,
    numbers: ByName<u64>,
}

impl Subscriptions {
    pub fn find(&mut self, kind: Kind, name: &[u8]) -> Option<&mut Subscription> {
        let number = self.numbers.get(kind, name)?;
        self.by_number.get_mut(number)
    }

    pub fn get(&mut self, number: u64) -> Option<&mut Subscription> {
        self.by_number.get_mut(&number)
    }

    pub fn look_at(&self, number: u64) -> Option<&Subscription> {
        self.by_number.get(&number)
    }

    pub fn add(&mut self, subscription: Subscription) {
        let (number, name) = (subscription.number, Arc::clone(&subscription.name));
        self.numbers.insert(subscription.kind, name, number);
        self.by_number.insert(number, subscription);
    }

    pub fn remove(&mut self, number: u64) -> Option<Subscription> {
        let subscription = self.by_number.remove(&number)?;
        self.numbers.remove(subscription.kind, &subscription.name);
        Some(subscription)
    }
}

/// A subscription that the subscriber wants.
pub(super) struct Subscription {
    pub number: u64,
    pub kind: Kind,
    pub name: Name,
    /// Of a sharded channel; 0 for others, which have none.
    pub slot: u16,
    /// The connection to the node that it is assigned to.
    pub node: Option<u64>,
    pub state: SubscriptionState,
    /// A server confirmed it once, so the subscriber relies on it.
    pub was_confirmed: bool,
    /// How many callers wait for the confirmation.
    pub callers: usize,
    pub waiting: Vec<Waker>,
}

#[derive(Debug, PartialEq)]
pub(super) enum SubscriptionState {
    /// No request went out yet.
    New,
    Requested,
    Confirmed,
    Refused(ServerError),
}
