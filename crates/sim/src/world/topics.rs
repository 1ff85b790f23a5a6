//! Topics that are deleted while they are used, and those that come in their place.

use embar_broker::shard::At;
use embar_broker::topics::Topic;
use embar_fabric::interrupt_after;
use embar_wire::control::CreateTopic;

use super::turns::has_died;
use super::{World, with};
use crate::host::Broker;

/// Does what the head was asked to do.
pub(super) fn replace(row: u16, head: &mut Broker, at: At) {
    let Some((old, name)) = head.asked_to_replace.take() else {
        return;
    };
    if with(|world| world.healed) {
        return;
    }
    // Whoever looks between the two would not know which topics there are.
    interrupt_after(0, 0, || {});
    with(|world| world.forget_topic(&old));
    let spec = CreateTopic {
        name,
        order: old.order.into(),
        retention_bytes: old.retention_bytes,
        max_message_bytes: 0,
    };
    let mut topics = head.node.topics();
    let deleted = topics.delete(&old.name).is_ok() && !has_died(row);
    let largest = head.node.config.max_batch_bytes;
    let created = topics.create(&spec, largest, at.wall);
    drop(topics);
    let died = has_died(row);
    let created = created.ok().filter(|_| !died);
    with(|world| {
        if died {
            world.books.begun.insert(spec.name);
        }
        if deleted {
            world.figures.deleted += 1;
            world.books.deleted.insert(old.id, true);
        }
        if let Some(topic) = created {
            world.meet_topic(topic, &old);
        }
        world.plan_interruption();
    });
}

impl World {
    /// It may be deleted now.
    fn forget_topic(&mut self, topic: &Topic) {
        self.note(format_args!("{} is to be deleted", topic.name));
        self.topics.retain(|known| known.id != topic.id);
        self.books.deleted.insert(topic.id, false);
    }

    /// A topic came in the place of another, and clients with it.
    fn meet_topic(&mut self, topic: Topic, old: &Topic) {
        self.note(format_args!("{topic:?} comes instead of {}", old.id));
        self.books.enter(&topic);
        let orders = self.plan.topics.iter();
        let alike = orders
            .map(|plan| plan.order)
            .position(|order| order == old.order);
        let alike = alike.expect("it has the order of one that was planned");
        let (publisher, subscriber) = self.plan.clients_of(alike, &mut self.random);
        self.enter_publisher(publisher, &topic);
        self.enter_subscriber(subscriber, &topic);
        self.topics.push(topic);
    }
}
