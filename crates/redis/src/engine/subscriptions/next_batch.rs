//! Which subscriptions go together in the next request to a node.

use super::connection::{Batch, NodeSubscriptions};
use super::wanted::{Subscription, SubscriptionState, Subscriptions};

/// What the next request on a connection is about; `None`: nothing is to be requested there.
pub(super) fn next_batch(
    connection: &mut NodeSubscriptions,
    subscriptions: &mut Subscriptions,
    node: u64,
    max_bytes: usize,
) -> Option<Batch> {
    let mut add = |batch: &mut Option<Batch>, number: u64| {
        // It may have ended, or gone elsewhere.
        let is_wanted =
            |it: &&mut Subscription| it.node == Some(node) && it.state == SubscriptionState::New;
        let Some(it) = subscriptions.get(number).filter(is_wanted) else {
            return true;
        };
        let (kind, slot) = (it.kind, it.slot);
        let batch = batch.get_or_insert_with(|| Batch::of(kind, slot, max_bytes));
        batch.add(kind, slot, number, &it.name)
    };
    let mut batch = None;
    while batch.is_none()
        && let Some(mut half) = connection.halves.pop()
    {
        let added = half.iter().take_while(|number| add(&mut batch, **number));
        let rest = half.split_off(added.count());
        if !rest.is_empty() {
            connection.halves.push(rest);
        }
    }
    // A half goes alone, as it was refused with others.
    let is_half = batch.is_some();
    while let Some(&number) = connection.new.front().filter(|_| !is_half) {
        if !add(&mut batch, number) {
            break;
        }
        connection.new.pop_front();
    }
    batch
}
