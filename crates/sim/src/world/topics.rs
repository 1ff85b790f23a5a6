//! Topics that are deleted while they are used, and those that come in their place.

use embar_broker::clock::Timestamp;
use embar_broker::topics::{Topic, TopicTable};
use embar_memory::interrupt_after;
use embar_wire::control::CreateTopic;

use super::hosts::has_died;
use super::{World, with};
use crate::host::Broker;

/// Does what the head was asked to do.
pub(super) fn replace(row: u16, head: &mut Broker, at: Timestamp) {
    let Some((old, name)) = head.asked_to_replace.take() else {
        return;
    };
    if with(|world| world.healed) {
        return;
    }
    // A checker that looks between the two would not know which topics there are.
    interrupt_after(0, 0, || {});
    with(|world| world.forget_topic(&old));
    let spec = CreateTopic {
        name,
        order: old.order.into(),
        retention_bytes: old.retention_bytes,
        retention_ms: 0,
        max_message_bytes: 0,
        replication_factor: old.replication_factor(),
    };
    let mut topics = head.node.topics();
    let deleted = topics.delete(&old.name).is_ok() && !has_died(row);
    let largest = head.node.config.max_batch_bytes;
    let created = topics.create(&spec, largest, at.wall, |_| 0);
    drop(topics);
    let died = has_died(row);
    with(|world| {
        if deleted {
            world.figures.deleted += 1;
            world.oracle.deleted.insert(old.id, true);
        }
        match created {
            Ok(topic) if !died => world.meet_topic(topic, &old),
            // What it stored last is settled once it is buried.
            _ if died => world.last_created = Some((spec.name, old)),
            _ => {}
        }
        world.plan_interruption();
    });
}

impl World {
    /// It may be deleted now.
    fn forget_topic(&mut self, topic: &Topic) {
        self.note(format_args!("{} is to be deleted", topic.name));
        self.topics.retain(|known| known.id != topic.id);
        self.oracle.deleted.insert(topic.id, false);
    }

    /// The head died while it created a topic, which may exist all the same.
    pub(super) fn meet_last_created(&mut self) {
        let Some((name, old)) = self.last_created.take() else {
            return;
        };
        let topics = TopicTable::attach(&self.devices.raw(), None);
        let found = topics.iter().find(|topic| topic.name == name);
        if let Some(topic) = found.filter(|topic| topic.id != old.id) {
            self.meet_topic(topic.clone(), &old);
        }
    }

    /// A topic came in the place of another, and clients with it.
    fn meet_topic(&mut self, topic: Topic, old: &Topic) {
        self.note(format_args!("{topic:?} comes instead of {}", old.id));
        self.oracle.enter(&topic);
        let orders = self.plan.topics.iter();
        let alike = orders
            .map(|plan| plan.order)
            .position(|order| order == old.order.level());
        let alike = alike.expect("it has the order of one that was planned");
        let (publisher, subscriber) = self.plan.clients_of(alike, &mut self.random);
        self.enter_publisher(publisher, &topic);
        self.enter_subscriber(subscriber, &topic);
        self.topics.push(topic);
    }
}
