//! Topics that are on disks, and what may be asked of those that are not.

use std::sync::Arc;

use embar_broker::BrokerConfig;
use embar_memory::Simulated;
use embar_order::Sequencer;
use embar_wire::control::{
    Control, DescribeTopic, ErrorCode, ErrorReply, OpenPublisher, Secret, StartAt, Subscribe,
};
use embar_wire::isolation::Isolation;
use embar_wire::share::Share;

use super::thread::Thread;
use super::world::World;

/// A connection to a broker of a topic that is on so many of two disks.
fn connected(order: u32, disks: u8) -> (Thread, Sequencer<Simulated>) {
    let world = World::with_disks(2);
    let mut sequencer = world.sequencer();
    let topic = world.create_topic_on_disks("t", order, disks);
    let node = world.node(1, &topic, BrokerConfig::default(), &mut sequencer);
    (Thread::new(Arc::clone(&node)), sequencer)
}

fn open(acks: u32) -> Control {
    Control::OpenPublisher(OpenPublisher {
        topic: "t".into(),
        producer: 1,
        instance: 1,
        acks,
        secret: Secret([7; 16]),
        ..OpenPublisher::default()
    })
}

fn refused(thread: &mut Thread, request: &Control) -> ErrorReply {
    thread.ask(request);
    match thread.answer() {
        Control::Error(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn acks_2_on_a_topic_in_memory_alone_are_refused_and_the_connection_goes_on() {
    for order in [0, 5] {
        let (mut thread, sequencer) = connected(order, 0);
        let error = refused(&mut thread, &open(2));
        assert_eq!(
            (error.code, error.message.as_str()),
            (
                ErrorCode::InvalidArgument,
                "acks 2 needs a topic on a disk, and topic t has replication factor 1: create one with --replication-factor 2, or choose acks 1"
            )
        );
        is_opened(thread, sequencer, 1);
    }
}

#[test]
fn a_topic_on_a_disk_takes_every_level_that_its_order_knows() {
    for (order, acks) in [(0, 0), (0, 1), (0, 2), (5, 1), (5, 2)] {
        let (thread, sequencer) = connected(order, 1);
        is_opened(thread, sequencer, acks);
    }
    let (mut thread, _sequencer) = connected(5, 1);
    let error = refused(&mut thread, &open(0));
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    let error = refused(&mut thread, &open(3));
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    assert!(
        error
            .message
            .starts_with("acks 3 are not served: acks are 0")
    );
}

fn is_opened(mut thread: Thread, mut sequencer: Sequencer<Simulated>, acks: u32) {
    thread.ask(&open(acks));
    sequencer.step(0, &|_| true);
    thread.hear(&[]);
    let answer = thread.answer();
    assert!(
        matches!(answer, Control::PublisherOpened(_)),
        "acks {acks}: {answer:?}"
    );
}

#[test]
fn a_description_says_in_how_many_places_a_topic_is() {
    for disks in 0..=2 {
        let (mut thread, _sequencer) = connected(5, disks);
        thread.ask(&Control::DescribeTopic(DescribeTopic { name: "t".into() }));
        let Control::TopicDescription(description) = thread.answer() else {
            panic!("the broker knows it");
        };
        assert_eq!(description.topic.replication_factor, 1 + disks);
    }
}

#[test]
fn a_subscriber_keeps_its_isolation_when_it_asks_for_another_share() {
    let share = Share::Own { large_bytes: 1 };
    let subscribe = |share, isolation| {
        Control::Subscribe(Subscribe {
            topic: "t".into(),
            start: StartAt::Latest,
            topic_id: 0,
            share,
            isolation,
        })
    };
    let (mut thread, _sequencer) = connected(5, 1);
    for share in [Share::All, share] {
        thread.ask(&subscribe(share, Isolation::Latest));
        assert!(matches!(thread.answer(), Control::Subscribed(_)));
    }
    refused(&mut thread, &subscribe(share, Isolation::Durable));
}
