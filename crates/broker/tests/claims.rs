//! What publishers announce and do not send costs the others nothing, and what comes late throws
//! nothing away.

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use embar_broker::{BrokerConfig, Cluster, ReceivePath};
use embar_wire::control::StartAt;
use support::{
    Peer, batch, batch_of, create_topic, create_topic_of_order, data, eventually, small, start,
};

/// A batch of a million bytes.
fn million(topic: u32, sequence: u64) -> Vec<u8> {
    batch(topic, sequence, &[&vec![sequence as u8; 1_000_000]])
}

fn publish(peer: &mut Peer, topic: u32, batches: std::ops::Range<u64>) {
    let count = batches.end - batches.start;
    for sequence in batches {
        peer.send_bytes(&million(topic, sequence));
    }
    peer.expect_acks(count as usize);
}

/// What can be read: the first message and the one after the last.
fn kept(address: SocketAddr, topic: &str) -> (u64, u64) {
    let subscribed = Peer::greet(address).subscribe(topic, StartAt::Earliest);
    (subscribed.first, subscribed.next)
}

fn publisher(cluster: &Cluster, topic: &str) -> (Peer, u32) {
    let mut peer = Peer::greet(data(cluster));
    let id = peer.open_publisher(topic, 1).topic_id;
    (peer, id)
}

/// How much a full log keeps, in messages of a million bytes.
fn kept_when_full(cluster: &Cluster, topic: &str, peer: &mut Peer, id: u32) -> u64 {
    publish(peer, id, 0..200);
    let (first, next) = kept(data(cluster), topic);
    assert_eq!(next, 200);
    assert!(first > 100, "the log is full");
    next - first
}

/// The bytes of a batch that are in the log or beside it without being readable.
fn arrived(cluster: &Cluster) -> u64 {
    let log = cluster.broker(1).expect("it runs").log_usage();
    log.receiving_bytes + log.staged_bytes
}

#[test]
fn a_batch_that_comes_late_takes_nothing_from_those_before_it() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let (mut steady, topic) = publisher(&cluster, "t");
    let full = kept_when_full(&cluster, "t", &mut steady, topic);
    // Again and again one stops in the middle of a batch, while the other goes on.
    let (mut stopped, _) = publisher(&cluster, "t");
    publish(&mut stopped, topic, 0..4);
    let mut next = 200;
    for round in 0..6 {
        let late = million(topic, 4 + round);
        stopped.send_bytes(&late[..500_000]);
        eventually("it began", || arrived(&cluster) > 0);
        publish(&mut steady, topic, next..next + full / 3);
        next += full / 3;
        stopped.send_bytes(&late[500_000..]);
        stopped.expect_acks(1);
        publish(&mut steady, topic, next..next + 8);
        next += 8;
        let (first, end) = kept(data(&cluster), "t");
        assert!(
            end - first >= full * 3 / 4,
            "round {round}: {} of {full} are kept",
            end - first
        );
    }
}

#[test]
fn a_topic_keeps_its_limit_when_a_batch_comes_late() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 24 << 20);
    let (mut steady, topic) = publisher(&cluster, "t");
    publish(&mut steady, topic, 0..60);
    let (mut stopped, _) = publisher(&cluster, "t");
    publish(&mut stopped, topic, 0..2);
    let late = million(topic, 2);
    stopped.send_bytes(&late[..500_000]);
    eventually("it began", || arrived(&cluster) > 0);
    publish(&mut steady, topic, 60..90);
    stopped.send_bytes(&late[500_000..]);
    stopped.expect_acks(1);
    publish(&mut steady, topic, 90..100);
    let (first, next) = kept(data(&cluster), "t");
    assert_eq!(next, 103);
    assert!((24..=40).contains(&(next - first)), "{first}..{next}");
}

#[test]
fn a_gap_of_order_5_throws_nothing_away_when_it_closes() {
    let cluster = start(BrokerConfig::default());
    create_topic_of_order(&cluster, "t", 5, 0);
    let mut steady = Peer::greet(data(&cluster));
    let opened = steady.open_session("t", 7);
    let id = opened.topic_id;
    let send = |peer: &mut Peer, producer: u64, sequence: u64| {
        let value = vec![sequence as u8; 1_000_000];
        peer.send_bytes(&batch_of(
            producer,
            opened.session_epoch,
            id,
            sequence,
            &[&value],
        ));
    };
    for sequence in 0..200 {
        send(&mut steady, 7, sequence);
    }
    steady.expect_acks(200);
    let (first, next) = kept(data(&cluster), "t");
    let full = next - first;
    // Others send what is ahead of what they withhold: a few bytes each, into many extents.
    let mut sequence = 200;
    let mut gaps: Vec<Peer> = (0..8)
        .map(|n| {
            let mut gap = Peer::greet(data(&cluster));
            let producer = 100 + n;
            let epoch = gap.open_session("t", producer).session_epoch;
            gap.send_bytes(&batch_of(producer, epoch, id, 1, &[b"ahead"]));
            for _ in 0..full / 8 {
                send(&mut steady, 7, sequence);
                sequence += 1;
            }
            steady.expect_acks((full / 8) as usize);
            gap
        })
        .collect();
    for (n, gap) in gaps.iter_mut().enumerate() {
        gap.send_bytes(&batch_of(100 + n as u64, 1, id, 0, &[b"withheld"]));
        let answers = gap.expect_answers(2);
        assert!(
            answers.iter().any(Result::is_ok),
            "what is expected gets in"
        );
    }
    for _ in 0..8 {
        send(&mut steady, 7, sequence);
        sequence += 1;
    }
    steady.expect_acks(8);
    let mut reader = Peer::greet(data(&cluster));
    let subscribed = reader.subscribe("t", StartAt::Earliest);
    let kept = subscribed.next - subscribed.first;
    assert!(kept >= full * 3 / 4, "{kept} of {full} are kept");
}

#[test]
fn announced_batches_evict_nothing_and_hold_nobody_back() {
    // However slow this machine is, nobody is refused for coming slowly.
    let patience = Duration::from_secs(300);
    let cluster = small()
        .config(BrokerConfig {
            frame_timeout: patience,
            backpressure_timeout: patience,
            ..BrokerConfig::default()
        })
        .start()
        .expect("a small cluster starts");
    create_topic(&cluster, "t", 0);
    let (mut honest, topic) = publisher(&cluster, "t");
    kept_when_full(&cluster, "t", &mut honest, topic);
    let before = kept(data(&cluster), "t");
    // Each announces 8 MiB, which together are five times the log, and sends some bytes.
    let values = vec![vec![1u8; 1_000_000]; 8];
    let values: Vec<&[u8]> = values.iter().map(|value| &value[..]).collect();
    let mut claiming: Vec<(Peer, Vec<u8>)> = (0..30)
        .map(|_| {
            let (mut peer, topic) = publisher(&cluster, "t");
            let whole = batch(topic, 0, &values);
            peer.send_bytes(&whole[..1000]);
            (peer, whole)
        })
        .collect();
    eventually("all have begun", || arrived(&cluster) >= 30 * 1000);
    assert_eq!(kept(data(&cluster), "t"), before, "nothing went");
    // They go on, byte by byte, while the other publishes.
    for sequence in 200..300 {
        for (peer, whole) in &mut claiming {
            let at = 1000 + (sequence - 200) as usize;
            peer.send_bytes(&whole[at..=at]);
        }
        honest.send_bytes(&million(topic, sequence));
        honest.expect_acks(1);
    }
    // In the end one of them is whole.
    let (peer, whole) = &mut claiming[0];
    peer.send_bytes(&whole[1100..]);
    peer.expect_acks(1);
}

#[test]
fn who_delivered_much_claims_little_beside_the_log() {
    let cluster = start(BrokerConfig {
        receive: ReceivePath::Staging,
        max_batch_bytes: 16 << 20,
        ..BrokerConfig::default()
    });
    create_topic(&cluster, "t", 0);
    let (mut peer, topic) = publisher(&cluster, "t");
    let staged = || cluster.broker(1).expect("it runs").log_usage().staged_bytes;
    let large = |sequence| {
        let value = vec![sequence as u8; 1 << 20];
        batch(topic, sequence, &[&value[..]; 12])
    };
    for sequence in 0..2 {
        peer.send_bytes(&large(sequence));
        peer.expect_acks(1);
    }
    let third = large(2);
    peer.send_bytes(&third[..1000]);
    eventually("it is received", || staged() > 0);
    assert!(staged() <= 2 << 20, "{} bytes for 1,000", staged());
    peer.send_bytes(&third[1000..]);
    peer.expect_acks(1);
    assert_eq!(staged(), 0);
    let mut reader = Peer::greet(data(&cluster));
    reader.subscribe("t", StartAt::Earliest);
    for (offset, value) in reader.read(36) {
        assert!(
            value == vec![(offset / 12) as u8; 1 << 20],
            "message {offset}"
        );
    }
}

#[test]
fn who_delivered_may_claim_as_much_and_not_for_long() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let (mut peer, topic) = publisher(&cluster, "t");
    let claimed = || {
        cluster
            .broker(1)
            .expect("it runs")
            .log_usage()
            .receiving_bytes
    };
    let staged = || cluster.broker(1).expect("it runs").log_usage().staged_bytes;
    let first = million(topic, 0);
    peer.send_bytes(&first[..1000]);
    eventually("it is received beside the log", || staged() > 0);
    assert_eq!(claimed(), 0);
    peer.send_bytes(&first[1000..]);
    peer.expect_acks(1);
    assert_eq!(staged(), 0);
    let second = million(topic, 1);
    peer.send_bytes(&second[..1000]);
    eventually("it has its room in the log, or had it", || {
        claimed() + staged() > 0
    });
    eventually("it goes on beside the log", || {
        claimed() == 0 && staged() > 0
    });
    peer.send_bytes(&second[1000..]);
    peer.expect_acks(1);
    let mut reader = Peer::greet(data(&cluster));
    reader.subscribe("t", StartAt::Earliest);
    let read = reader.read(2);
    assert!(
        read.iter()
            .all(|(offset, value)| *value == vec![*offset as u8; 1_000_000])
    );
}
