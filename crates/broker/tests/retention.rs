//! More than the log holds: the oldest goes, readers are told.

mod support;

use embar_broker::BrokerConfig;
use embar_wire::control::{Control, ErrorCode, StartAt, Subscribe};
use embar_wire::isolation::Isolation;
use embar_wire::share::Share;
use support::{Frame, Peer, batch, create_topic, data, eventually, start};

fn publish(peer: &mut Peer, topic: u32, batches: std::ops::Range<u64>) {
    for sequence in batches {
        let value = vec![sequence as u8; 1 << 20];
        peer.send_bytes(&batch(topic, sequence, &[&value[..1_000_000]]));
    }
}

#[test]
fn a_full_log_evicts_the_oldest_and_says_where_it_starts() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut peer = Peer::greet(data(&cluster));
    let topic = peer.open_publisher("t", 1).topic_id;
    // 200 MB through a log of less than 64 MiB.
    publish(&mut peer, topic, 0..200);
    peer.expect_acks(200);

    let mut late = Peer::greet(data(&cluster));
    let from_zero = Subscribe {
        topic: "t".into(),
        start: StartAt::Offset(0),
        topic_id: 0,
        share: Share::All,
        isolation: Isolation::Durable,
    };
    let Control::Error(error) = late.ask(&Control::Subscribe(from_zero)) else {
        panic!()
    };
    assert_eq!(error.code, ErrorCode::OffsetOutOfRange);
    let first = error.first_available.expect("where it starts");
    assert!(
        (140..200).contains(&first),
        "most of the log is kept, from {first}"
    );
    let subscribed = late.subscribe("t", StartAt::Offset(first));
    assert_eq!((subscribed.first, subscribed.next), (first, 200));
    for (offset, value) in late.read((200 - first) as usize) {
        assert!(
            value.iter().all(|b| *b == offset as u8),
            "offset {offset} holds its own bytes"
        );
    }
}

#[test]
fn a_topic_with_a_limit_keeps_about_that_much() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "small", 8 << 20);
    create_topic(&cluster, "other", 0);
    let mut peer = Peer::greet(data(&cluster));
    let other = peer.open_publisher("other", 1).topic_id;
    publish(&mut peer, other, 0..1);
    peer.expect_acks(1);
    let mut peer = Peer::greet(data(&cluster));
    let topic = peer.open_publisher("small", 1).topic_id;
    publish(&mut peer, topic, 0..100);
    peer.expect_acks(100);
    let mut reader = Peer::greet(data(&cluster));
    let kept = 100 - reader.subscribe("small", StartAt::Earliest).first;
    // At least what was asked for, at most a quarter more.
    assert!(
        (8..=12).contains(&kept),
        "{kept} batches of a million bytes"
    );
    let mut reader = Peer::greet(data(&cluster));
    assert_eq!(
        reader.subscribe("other", StartAt::Earliest).first,
        0,
        "others keep theirs"
    );
}

#[test]
fn a_limit_beyond_all_memory_is_none() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "all", u64::MAX);
    let mut peer = Peer::greet(data(&cluster));
    let topic = peer.open_publisher("all", 1).topic_id;
    publish(&mut peer, topic, 0..40);
    peer.expect_acks(40);
    let mut reader = Peer::greet(data(&cluster));
    let kept = reader.subscribe("all", StartAt::Earliest);
    assert_eq!((kept.first, kept.next), (0, 40));
}

#[test]
fn a_reader_that_is_overtaken_gets_no_changed_bytes_and_is_cut() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut peer = Peer::greet(data(&cluster));
    let topic = peer.open_publisher("t", 1).topic_id;
    publish(&mut peer, topic, 0..30);
    peer.expect_acks(30);
    // It asks for all and reads nothing while the log turns over several times.
    let mut slow = Peer::greet(data(&cluster));
    slow.subscribe("t", StartAt::Earliest);
    publish(&mut peer, topic, 30..300);
    peer.expect_acks(270);
    let mut next = 0;
    let mut partial = Vec::new();
    use std::io::Read;
    // Half a batch may be the end; what came before it is right.
    drop(slow.stream.read_to_end(&mut partial));
    let mut rest = &partial[..];
    while let Ok((batch, behind)) = embar_wire::batch::Batch::split_first(rest, u32::MAX) {
        let header = batch.header();
        assert_eq!(header.base_offset(), next);
        header
            .check_payload(batch.payload())
            .expect("bytes as they were published");
        next += u64::from(header.message_count());
        rest = behind;
    }
    assert!(next < 300, "it was cut");
    // When it comes back it learns where the log starts now.
    let mut back = Peer::greet(data(&cluster));
    let subscribe = Subscribe {
        topic: "t".into(),
        start: StartAt::Offset(next),
        topic_id: 0,
        share: Share::All,
        isolation: Isolation::Durable,
    };
    let Control::Error(error) = back.ask(&Control::Subscribe(subscribe)) else {
        panic!()
    };
    assert!(error.first_available.is_some_and(|first| first > next));
}

#[test]
fn tiny_batches_fill_the_index_before_the_log_and_evict_too() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut peer = Peer::greet(data(&cluster));
    let topic = peer.open_publisher("t", 1).topic_id;
    // 512 pages of 63 records: 32,256 batches.
    let count = 40_000u64;
    let mut writer = peer.stream.try_clone().expect("a second handle");
    let sender = std::thread::spawn(move || {
        use std::io::Write;
        let mut bytes = Vec::new();
        for sequence in 0..count {
            bytes.extend(batch(topic, sequence, &[&sequence.to_le_bytes()]));
        }
        writer.write_all(&bytes).expect("the broker reads");
    });
    peer.expect_acks(count as usize);
    sender.join().expect("it sent");
    let mut reader = Peer::greet(data(&cluster));
    let subscribed = reader.subscribe("t", StartAt::Earliest);
    assert_eq!(subscribed.next, count);
    assert!(subscribed.first > 0, "the index has room for fewer");
    for (offset, value) in reader.read((count - subscribed.first) as usize) {
        assert_eq!(value, offset.to_le_bytes());
    }
}

#[test]
fn a_batch_comes_whole_or_not_at_all() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut peer = Peer::greet(data(&cluster));
    let topic = peer.open_publisher("t", 1).topic_id;
    let mut reader = Peer::greet(data(&cluster));
    reader.subscribe("t", StartAt::Earliest);
    let whole = batch(topic, 0, &[&[9; 200_000]]);
    let (head, tail) = whole.split_at(100_000);
    peer.send_bytes(head);
    eventually("half of it has come", || {
        let snapshot = cluster.broker(1).expect("it runs").snapshot();
        snapshot.counter("recv_bytes") >= Some(head.len() as u64)
    });
    // What could be read would be sent before this is answered.
    let next = reader.ask(&Control::Status);
    assert!(matches!(next, Control::StatusReply(_)), "{next:?}");
    peer.send_bytes(tail);
    assert!(matches!(reader.receive(), Some(Frame::Batch { .. })));
}
