//! What a publisher is told of its batches when it is refused, and when another thread has taken in the answer.

use embar_broker::BrokerConfig;
use std::sync::Arc;
use std::time::Duration;

use embar_broker::node::Node;
use embar_memory::Simulated;
use embar_wire::control::{Control, OpenPublisher, Secret};
use embar_wire::frame::FrameId;

use super::thread::Thread;
use super::world::{Session, World, sealed};

/// A publisher to a topic of order 0, and what it is to seal its batches with.
fn publisher(world: &World) -> (Arc<Node<Simulated>>, Thread, Session) {
    let mut sequencer = world.sequencer();
    let topic = world.create_topic("t", 0);
    let node = world.node(1, &topic, BrokerConfig::default(), &mut sequencer);
    let mut thread = Thread::new(Arc::clone(&node));
    thread.ask(&Control::OpenPublisher(OpenPublisher {
        topic: "t".into(),
        acks: 1,
        ..OpenPublisher::default()
    }));
    thread.said();
    let of = Session {
        topic: topic.id,
        producer: 0,
        slot: 0,
        epoch: 0,
    };
    (node, thread, of)
}

/// Each heartbeat takes in what was ordered. If a broker's thread slept then, its publishers would wait until it wakes by itself.
#[test]
fn an_answer_that_a_heartbeat_takes_in_is_passed_on_at_once() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let topic = world.create_topic("t", 5);
    let node = world.node(1, &topic, BrokerConfig::default(), &mut sequencer);
    let mut thread = Thread::new(Arc::clone(&node));
    thread.ask(&Control::OpenPublisher(OpenPublisher {
        topic: "t".into(),
        producer: 1,
        instance: 1,
        acks: 1,
        secret: Secret([7; 16]),
        ..OpenPublisher::default()
    }));
    assert!(thread.waits_for_order(), "for its session");
    thread.said();
    sequencer.step(0, &|_| true);
    node.refresh_topics();
    assert!(thread.waits_for_order(), "for what was taken in for it");
    thread.hear(&[]);
    assert_eq!(thread.said(), [FrameId::PublisherOpened as u16]);
    assert!(!thread.waits_for_order(), "for nothing");
}

/// Its last bytes were there before the kernel heard that nobody wants them any more.
#[test]
fn a_batch_completed_after_its_publisher_was_refused_is_not_stored() {
    let world = World::new();
    let (node, mut thread, of) = publisher(&world);
    thread.hear(&sealed(&of, 0, 2000));
    assert_eq!(thread.said(), [FrameId::Ack as u16]);

    let batch = sealed(&of, 1, 2000);
    let (begun, rest) = batch.split_at(batch.len() - 100);
    thread.hear(begun);
    // Somebody waits for what it holds.
    node.paused_changed(&mut 0, 1);
    thread.pass(Duration::from_secs(2));
    assert_eq!(thread.said().first(), Some(&(FrameId::Error as u16)));
    assert!(thread.recalled);
    thread.hear(rest);
    assert_eq!(
        node.log().topic_stats(of.topic).map(|kept| kept.next),
        Some(1)
    );
}
