//! A broker that is asked to leave: what it answers, what it takes from then on, whom it tells.

mod support;

use std::net::SocketAddr;

use embar_broker::Cluster;
use embar_wire::control::{BrokerState, Control, ErrorCode, RemoveBroker, StartAt};
use support::{Frame, Peer, batch, create_topic, eventually};

fn two() -> Cluster {
    let cluster = Cluster::builder().region_bytes(128 << 20).brokers(3);
    cluster.start().expect("a cluster")
}

fn address(cluster: &Cluster, id: u16) -> SocketAddr {
    cluster.broker(id).expect("it runs").address()
}

fn remove(broker: u32, force: bool) -> Control {
    Control::RemoveBroker(RemoveBroker { broker, force })
}

fn code_of(answer: &Control) -> Option<ErrorCode> {
    match answer {
        Control::Error(error) => Some(error.code),
        _ => None,
    }
}

/// What an unasked word about the cluster says of a broker.
fn state_of(id: u32, frame: &Frame) -> Option<BrokerState> {
    let Frame::Control(Control::ClusterMetadata(cluster)) = frame else {
        panic!("{frame:?} was not expected");
    };
    let found = cluster.brokers.iter().find(|broker| broker.id == id);
    found.map(|broker| broker.state)
}

#[test]
fn only_the_broker_that_is_meant_leaves() {
    let cluster = two();
    let mut peer = Peer::greet(address(&cluster, 1));
    let wrong = peer.ask(&remove(2, true));
    assert_eq!(code_of(&wrong), Some(ErrorCode::InvalidArgument));
    assert_eq!(peer.ask(&remove(1, false)), Control::Done);
    eventually("it has left", || {
        cluster.broker(1).expect("it is still held").has_left()
    });
    assert!(!cluster.broker(2).expect("it runs").has_left());
}

#[test]
fn of_two_that_are_asked_at_once_one_stays() {
    for _ in 0..8 {
        let cluster = two();
        let leaves = std::thread::scope(|scope| {
            let ask = |id| {
                let mut peer = Peer::greet(address(&cluster, id));
                scope.spawn(move || peer.ask(&remove(id.into(), false)))
            };
            [ask(1), ask(2)].map(|asked| asked.join().expect("it was asked"))
        });
        let done = leaves.iter().filter(|answer| **answer == Control::Done);
        assert!(done.count() <= 1, "{leaves:?}");
        let stays = leaves.iter().position(|answer| *answer != Control::Done);
        let stays = stays.expect("at most one leaves");
        assert_eq!(code_of(&leaves[stays]), Some(ErrorCode::InvalidArgument));
        // It is as if it had not been asked.
        let mut peer = Peer::greet(address(&cluster, stays as u16 + 1));
        assert_eq!(peer.ask(&remove(stays as u32 + 1, true)), Control::Done);
    }
}

#[test]
fn one_that_leaves_empty_takes_nothing_that_only_it_would_have() {
    let cluster = two();
    create_topic(&cluster, "t", 0);
    let mut publisher = Peer::greet(address(&cluster, 1));
    let topic = publisher.open_publisher("t", 1).topic_id;
    let mut other = Peer::greet(address(&cluster, 1));
    assert_eq!(other.ask(&remove(1, false)), Control::Done);
    // It was not acknowledged, so its publisher sends it to another broker.
    publisher.send_bytes(&batch(topic, 0, &[b"too late"]));
    while let Some(frame) = publisher.receive() {
        assert!(!matches!(frame, Frame::Ack { .. }), "{frame:?}");
    }
    eventually("it has left", || {
        cluster.broker(1).expect("it is still held").has_left()
    });
}

#[test]
fn streams_are_told_who_comes_and_goes() {
    let mut cluster = two();
    create_topic(&cluster, "t", 0);
    let mut publisher = Peer::greet(address(&cluster, 1));
    publisher.open_publisher("t", 1);
    let mut subscriber = Peer::greet(address(&cluster, 1));
    subscriber.subscribe("t", StartAt::Earliest);
    let mut told = |wanted| {
        for peer in [&mut publisher, &mut subscriber] {
            while state_of(2, &peer.receive().expect("it stays open")) != Some(wanted) {}
        }
    };
    cluster.remove_broker(2, false).expect("it is empty");
    told(BrokerState::Left);
    assert_eq!(cluster.add_broker().expect("its place is free"), 2);
    told(BrokerState::Ready);
}
