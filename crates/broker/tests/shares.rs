//! One order, sent to a subscriber by several brokers: each batch is in one share.

mod support;

use embar_broker::{BrokerConfig, Cluster};
use embar_wire::control::{Control, ErrorCode, StartAt, Subscribe, Subscribed};
use embar_wire::isolation::Isolation;
use embar_wire::share::{BrokerSet, Share};
use support::{Peer, batch_of, create_topic_of_order};

const TOPIC: &str = "ordered";
const LARGE: u32 = 2000;

/// A head and two brokers that take data.
fn start() -> Cluster {
    let builder = Cluster::builder().brokers(3).region_bytes(192 << 20);
    let cluster = builder.config(BrokerConfig::default()).start();
    let cluster = cluster.expect("a small cluster starts");
    create_topic_of_order(&cluster, TOPIC, 5, 0);
    cluster
}

fn greet(cluster: &Cluster, broker: u16) -> Peer {
    Peer::greet(cluster.broker(broker).expect("it runs").address())
}

/// Publishes a batch of one message at each of these brokers in turn: `bytes` long, or small. Returns where each is.
fn publish(cluster: &Cluster, rounds: usize) -> Vec<(u64, u16, bool)> {
    let mut publishers: Vec<_> = [1u16, 2]
        .map(|broker| {
            let mut peer = greet(cluster, broker);
            let opened = peer.open_session(TOPIC, 10 + u64::from(broker));
            (broker, peer, opened)
        })
        .into();
    let mut all = Vec::new();
    for round in 0..rounds {
        for (broker, peer, opened) in &mut publishers {
            let is_large = round % 3 != 0;
            let value = vec![*broker as u8; if is_large { 3000 } else { 10 }];
            let epoch = opened.session_epoch;
            let number = opened.mark + round as u64;
            let producer = 10 + u64::from(*broker);
            peer.send_bytes(&batch_of(
                producer,
                epoch,
                opened.topic_id,
                number,
                &[&value],
            ));
            all.push((peer.expect_acks(1)[0], *broker, is_large));
        }
    }
    all
}

fn subscribe(share: Share, start: StartAt) -> Control {
    Control::Subscribe(Subscribe {
        topic: TOPIC.into(),
        start,
        topic_id: 0,
        share,
        isolation: Isolation::Durable,
    })
}

fn ask(peer: &mut Peer, share: Share, start: StartAt) -> Subscribed {
    match peer.ask(&subscribe(share, start)) {
        Control::Subscribed(subscribed) => subscribed,
        other => panic!("{other:?}"),
    }
}

fn positions(peer: &mut Peer, count: usize) -> Vec<u64> {
    let read = peer.read(count).into_iter();
    read.map(|(position, _)| position).collect()
}

fn without(broker: u32) -> Share {
    let mut brokers = BrokerSet::default();
    assert!(brokers.insert(broker));
    Share::Without {
        brokers,
        large_bytes: LARGE,
    }
}

#[test]
fn each_batch_comes_by_one_of_the_shares_also_while_more_are_published() {
    let cluster = start();
    let own = Share::Own { large_bytes: LARGE };
    let (mut server, mut helper) = (greet(&cluster, 1), greet(&cluster, 2));
    let mut from = 0;
    for round in 0..3 {
        let all = publish(&cluster, 9);
        if round == 0 {
            ask(&mut server, without(2), StartAt::Earliest);
            assert_eq!(ask(&mut helper, own, StartAt::Offset(0)).start, 0);
        }
        let of_helper = |it: &&(u64, u16, bool)| it.1 == 2 && it.2;
        let (helps, serves): (Vec<&(u64, u16, bool)>, Vec<_>) = all.iter().partition(of_helper);
        assert_eq!((helps.len(), serves.len()), (6, 12));
        for (peer, batches) in [(&mut helper, helps), (&mut server, serves)] {
            let expected: Vec<u64> = batches.iter().map(|it| it.0).collect();
            assert_eq!(positions(peer, expected.len()), expected, "round {round}");
        }
        assert_eq!(all[0].0, from, "the order is dense");
        from += all.len() as u64;
    }
}

#[test]
fn what_is_far_behind_the_batches_of_others_is_found() {
    let cluster = start();
    let mut peer = greet(&cluster, 1);
    let opened = peer.open_session(TOPIC, 1);
    // More than a broker looks at in one step.
    for chunk in (0..1200).collect::<Vec<u64>>().chunks(40) {
        for number in chunk {
            let number = opened.mark + number;
            let (topic, epoch) = (opened.topic_id, opened.session_epoch);
            peer.send_bytes(&batch_of(1, epoch, topic, number, &[b"small"]));
        }
        peer.expect_acks(chunk.len());
    }
    let own = Share::Own { large_bytes: LARGE };
    let mut helper = greet(&cluster, 2);
    ask(&mut helper, own, StartAt::Earliest);
    let later = publish(&cluster, 2);
    let (position, ..) = later
        .iter()
        .find(|it| it.1 == 2 && it.2)
        .expect("a large one");
    assert_eq!(positions(&mut helper, 1), [*position]);
}

#[test]
fn a_connection_goes_on_with_another_share_from_where_it_stands() {
    let cluster = start();
    let first = publish(&cluster, 3);
    let mut server = greet(&cluster, 1);
    ask(&mut server, Share::All, StartAt::Earliest);
    assert_eq!(positions(&mut server, 6), [0, 1, 2, 3, 4, 5]);
    // It has sent all, so it stands at the end.
    let renewed = ask(&mut server, without(2), StartAt::Latest);
    assert_eq!(renewed.start, first.len() as u64);
    let serves = publish(&cluster, 6)
        .into_iter()
        .filter(|it| it.1 == 1 || !it.2);
    let expected: Vec<u64> = serves.map(|it| it.0).collect();
    assert_eq!(positions(&mut server, expected.len()), expected);
}

#[test]
fn a_stream_is_not_moved_and_only_an_order_has_shares() {
    let cluster = start();
    let mut server = greet(&cluster, 1);
    ask(&mut server, Share::All, StartAt::Earliest);
    server.send(&subscribe(without(2), StartAt::Earliest));
    assert_eq!(server.expect_refusal().code, ErrorCode::BadFrame);

    create_topic_of_order(&cluster, "local", 0, 0);
    let mut reader = greet(&cluster, 1);
    let answer = reader.ask(&Control::Subscribe(Subscribe {
        topic: "local".into(),
        start: StartAt::Earliest,
        topic_id: 0,
        share: without(2),
        isolation: Isolation::Durable,
    }));
    let Control::Error(error) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(error.code, ErrorCode::InvalidArgument);
}
