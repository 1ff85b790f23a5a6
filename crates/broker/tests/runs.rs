//! Small batches that come many at a time: received by few calls, acknowledged by few frames, and each of them
//! stored or refused as if it had come alone.

mod support;

use std::io::Write;
use std::time::Duration;

use embar_broker::{BrokerConfig, Cluster};
use embar_wire::control::{ErrorCode, StartAt};
use support::{
    Peer, batch, batch_of, create_topic, create_topic_of_order, data, eventually, start,
};

/// A publisher's connection, with its topic and the epoch of its session.
fn publisher(cluster: &Cluster) -> (Peer, (u32, u32)) {
    let mut peer = Peer::greet(data(cluster));
    let opened = peer.open_publisher("t", 1);
    (peer, (opened.topic_id, opened.session_epoch))
}

fn counter(cluster: &Cluster, name: &str) -> u64 {
    let broker = cluster.broker(1).expect("it runs");
    broker.snapshot().counter(name).expect("it is counted")
}

fn value(number: u64) -> Vec<u8> {
    // Lengths that differ, so that batches begin at all places of a receive.
    vec![number as u8; 1 + (number as usize * 37) % 700]
}

fn run((topic, epoch): (u32, u32), numbers: std::ops::Range<u64>) -> Vec<u8> {
    let batches = numbers.map(|number| batch_of(7, epoch, topic, number, &[&value(number)]));
    batches.flatten().collect()
}

fn expect_stored(cluster: &Cluster, numbers: std::ops::Range<u64>) {
    let mut subscriber = Peer::greet(data(cluster));
    let subscribed = subscriber.subscribe("t", StartAt::Earliest);
    assert_eq!(subscribed.next, numbers.end, "nothing else is stored");
    let want: Vec<_> = numbers.map(|number| (number, value(number))).collect();
    assert_eq!(subscriber.read(want.len()), want);
}

#[test]
fn a_run_takes_few_calls_and_few_acknowledgements() {
    for order in [0, 5] {
        let cluster = start(BrokerConfig::default());
        create_topic_of_order(&cluster, "t", order, 0);
        let (mut peer, topic) = publisher(&cluster);
        // The first batch shows how large they are.
        peer.send_bytes(&run(topic, 0..1));
        assert_eq!(peer.expect_acks(1), [0]);
        let names = ["recv_calls", "recv_eagain", "send_calls"];
        let before = names.map(|name| counter(&cluster, name));
        peer.send_bytes(&run(topic, 1..301));
        let all: Vec<u64> = (1..301).collect();
        assert_eq!(peer.expect_acks(300), all, "order {order}");
        let after = names.map(|name| counter(&cluster, name));
        let [received, nothing, sent] = [0, 1, 2].map(|i| after[i] - before[i]);
        // The writer's bytes come in parts, the more of them the busier the machine is.
        assert!(
            received - nothing <= 100 && sent <= 100,
            "order {order}: {received} receives, {nothing} of which found nothing, and {sent} sends"
        );
        expect_stored(&cluster, 0..301);
    }
}

#[test]
fn a_run_that_ends_within_a_batch_leaves_the_whole_ones() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut stored = 0;
    // Within the header behind a batch, at its end, and within its payload.
    for part in [1, 63, 64, 65, 127] {
        let (mut peer, topic) = publisher(&cluster);
        peer.send_bytes(&run(topic, stored..stored + 1));
        assert_eq!(peer.expect_acks(1), [stored]);
        let mut bytes = run(topic, stored + 1..stored + 10);
        bytes.extend(&run(topic, 99..100)[..part]);
        peer.send_bytes(&bytes);
        let all: Vec<u64> = (stored + 1..stored + 10).collect();
        assert_eq!(peer.expect_acks(9), all, "{part} bytes more");
        stored += 10;
    }
    expect_stored(&cluster, 0..stored);
}

#[test]
fn a_damaged_batch_within_a_run_is_refused_and_nothing_behind_it_is_stored() {
    for order in [0, 5] {
        let cluster = start(BrokerConfig::default());
        create_topic_of_order(&cluster, "t", order, 0);
        let (mut peer, topic) = publisher(&cluster);
        peer.send_bytes(&run(topic, 0..1));
        assert_eq!(peer.expect_acks(1), [0]);
        let mut bytes = run(topic, 1..8);
        let damaged = bytes.len() + 64 + 20;
        bytes.extend(run(topic, 8..20));
        bytes[damaged] ^= 4;
        peer.send_bytes(&bytes);
        assert_eq!(
            peer.expect_refusal().code,
            ErrorCode::ChecksumMismatch,
            "order {order}"
        );
        // What is behind it has not come, to this broker's knowledge, and may be sent again.
        let mut again = Peer::greet(data(&cluster));
        let opened = again.open_publisher("t", 1);
        let topic = (opened.topic_id, opened.session_epoch);
        let answer = if order == 0 {
            again.send_bytes(&run(topic, 8..9));
            again.expect_acks(1)
        } else {
            again.send_bytes(&run(topic, 8..20));
            again.expect_acks(12)
        };
        assert_eq!(answer[0], 8, "order {order}");
    }
}

#[test]
fn a_run_that_comes_byte_by_byte_is_stored() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let (mut peer, topic) = publisher(&cluster);
    for byte in run(topic, 0..8) {
        peer.send_bytes(&[byte]);
    }
    let all: Vec<u64> = (0..8).collect();
    assert_eq!(peer.expect_acks(8), all);
    expect_stored(&cluster, 0..8);
}

#[test]
fn small_and_large_batches_take_turns() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let (mut peer, topic) = publisher(&cluster);
    let large = |number: u64| vec![number as u8; 300_000];
    let mut bytes = Vec::new();
    for number in 0..40 {
        match number % 10 {
            7 | 8 => bytes.extend(batch(topic.0, number, &[&large(number)])),
            _ => bytes.extend(run(topic, number..number + 1)),
        }
    }
    peer.send_bytes(&bytes);
    let all: Vec<u64> = (0..40).collect();
    assert_eq!(peer.expect_acks(40), all);
    let mut subscriber = Peer::greet(data(&cluster));
    subscriber.subscribe("t", StartAt::Earliest);
    for (number, bytes) in subscriber.read(40) {
        let want = match number % 10 {
            7 | 8 => large(number),
            _ => value(number),
        };
        assert!(bytes == want, "message {number}");
    }
}

/// Its batches are read as long as there is room for their acknowledgements.
#[test]
fn a_publisher_that_reads_no_acknowledgements_is_not_read_for_ever() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 1 << 20);
    let (mut peer, topic) = publisher(&cluster);
    let timeout = Some(Duration::from_millis(300));
    peer.stream.set_write_timeout(timeout).expect("a timeout");
    let bytes = (0..1000).map(|number| batch(topic.0, number, &[b"x"]));
    let bytes: Vec<u8> = bytes.flatten().collect();
    // At most 512 MiB of batches, whose acknowledgements take 32: long before that the broker stops reading.
    let blocked = (0..4096).any(|_| peer.stream.write_all(&bytes).is_err());
    assert!(blocked, "the broker reads on");
    let (mut other, topic) = publisher(&cluster);
    other.send_bytes(&run(topic, 0..1));
    other.expect_acks(1);
}

/// A run that finds the log full waits in its connection, and goes on where it was.
#[test]
fn a_run_waits_for_room_and_loses_nothing() {
    let config = BrokerConfig {
        high_watermark_percent: 2,
        low_watermark_percent: 1,
        ..BrokerConfig::default()
    };
    let cluster = start(config);
    create_topic(&cluster, "t", 0);
    // Half a batch in staging memory holds more than the high watermark allows.
    let (mut holder, topic) = publisher(&cluster);
    let (mut peer, _) = publisher(&cluster);
    peer.send_bytes(&run(topic, 0..1));
    assert_eq!(peer.expect_acks(1), [0]);
    let half = vec![1; 950_000];
    let held = batch(topic.0, 0, &[&half, &half]);
    holder.send_bytes(&held[..held.len() - 1]);
    let pauses = counter(&cluster, "pauses");
    eventually("the log is full", || {
        let all = counter(&cluster, "recv_bytes");
        all as usize >= held.len() - 1
    });
    peer.send_bytes(&run(topic, 1..40));
    eventually("the publisher waits", || {
        counter(&cluster, "pauses") > pauses
    });
    holder.send_bytes(&held[held.len() - 1..]);
    let mut all: Vec<(u64, u64)> = peer.expect_acks(39).into_iter().map(|at| (at, 1)).collect();
    // The large one has two messages.
    all.extend(holder.expect_acks(1).into_iter().map(|at| (at, 2)));
    all.sort_unstable();
    let end = all.into_iter().fold(1, |next, (at, messages)| {
        assert_eq!(at, next, "offsets are dense");
        next + messages
    });
    assert_eq!(end, 42);
}
