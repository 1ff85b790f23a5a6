//! Whatever a peer sends: it is told why, it is cut, nobody else notices.

mod support;

use std::io::Write;
use std::time::{Duration, Instant};

use embar_broker::{BrokerConfig, Cluster};
use embar_frame::{FrameHeader, write_checksum};
use embar_wire::batch::{BatchFlags, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{Control, CreateTopic, DescribeTopic, ErrorCode, ListTopics, Metadata};
use embar_wire::frame::{FrameId, LogProtocol};
use support::{Frame, Future, Peer, batch, create_topic, data, eventually, hello_of, start};

/// A publisher and a subscriber that must not notice what others do.
struct Witness {
    publisher: Peer,
    subscriber: Peer,
    topic: u32,
    sent: u64,
}

impl Witness {
    fn new(cluster: &Cluster) -> Self {
        create_topic(cluster, "witness", 0);
        let mut publisher = Peer::greet(data(cluster));
        let topic = publisher.open_publisher("witness", 1).topic_id;
        let mut subscriber = Peer::greet(data(cluster));
        subscriber.subscribe("witness", embar_wire::control::StartAt::Earliest);
        Self {
            publisher,
            subscriber,
            topic,
            sent: 0,
        }
    }

    fn check(&mut self) {
        let value = self.sent.to_le_bytes();
        self.publisher
            .send_bytes(&batch(self.topic, self.sent, &[&value]));
        let (first, bases) = self.publisher.expect_ack();
        assert_eq!((first, bases), (self.sent, vec![self.sent]));
        assert_eq!(self.subscriber.read(1), [(self.sent, value.to_vec())]);
        self.sent += 1;
    }
}

fn publisher(cluster: &Cluster) -> (Peer, u32) {
    let mut peer = Peer::greet(data(cluster));
    let topic = peer.open_publisher("witness", 1).topic_id;
    (peer, topic)
}

#[test]
fn garbage_on_any_port_is_refused() {
    let cluster = start(BrokerConfig::default());
    let mut witness = Witness::new(&cluster);
    for address in [cluster.bootstrap(), data(&cluster)] {
        for garbage in [
            &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
            &[0xFF; 300],
            &[0; 64],
        ] {
            let mut peer = Peer::connect(address);
            peer.send_bytes(garbage);
            let error = peer.expect_refusal();
            assert!(
                matches!(error.code, ErrorCode::BadFrame | ErrorCode::TooLarge),
                "{garbage:?}: {error:?}"
            );
            witness.check();
        }
    }
}

#[test]
fn truncated_frames_leave_nothing() {
    let cluster = start(BrokerConfig::default());
    let mut witness = Witness::new(&cluster);
    let (_, topic) = publisher(&cluster);
    let whole = batch(topic, 0, &[&[1; 300]]);
    for cut in 0..whole.len() {
        let (mut peer, _) = publisher(&cluster);
        peer.send_bytes(&whole[..cut]);
        drop(peer);
    }
    witness.check();
    eventually("all connections are forgotten", || {
        let Control::StatusReply(status) = Peer::greet(data(&cluster)).ask(&Control::Status) else {
            return false;
        };
        status.brokers[0].connections <= 3
    });
    witness.check();
}

#[test]
fn absurd_lengths_and_unknown_frames_are_refused_before_they_are_read() {
    let cluster = start(BrokerConfig::default());
    let mut witness = Witness::new(&cluster);
    let headers = [
        FrameHeader {
            length: u32::MAX,
            id: FrameId::Batch as u16,
            flags: 0,
        },
        FrameHeader {
            length: 40 << 20,
            id: FrameId::Batch as u16,
            flags: 0,
        },
        FrameHeader {
            length: 3,
            id: FrameId::Batch as u16,
            flags: 0,
        },
        FrameHeader {
            length: u32::MAX,
            id: FrameId::Metadata as u16,
            flags: 0,
        },
        FrameHeader {
            length: 0,
            id: 9999,
            flags: 0,
        },
        FrameHeader {
            length: 0,
            id: FrameId::Metadata as u16,
            flags: 7,
        },
    ];
    for header in headers {
        let (mut peer, _) = publisher(&cluster);
        let mut bytes = header.to_bytes().to_vec();
        bytes.resize(64, 0);
        peer.send_bytes(&bytes);
        let error = peer.expect_refusal();
        assert!(
            matches!(error.code, ErrorCode::BadFrame | ErrorCode::TooLarge),
            "{header:?}: {error:?}"
        );
        witness.check();
    }
}

#[test]
fn a_wrong_magic_or_version_is_told_apart() {
    let cluster = start(BrokerConfig::default());
    let mut peer = Peer::connect(data(&cluster));
    peer.send_bytes(&hello_of(Future));
    let error = peer.expect_refusal();
    assert_eq!(error.code, ErrorCode::UnsupportedVersion);
    assert!(error.message.contains("99"), "{}", error.message);

    let mut bytes = hello_of(LogProtocol::default());
    let magic = bytes
        .windows(4)
        .position(|w| w == b"EMBS")
        .expect("the magic");
    bytes[magic] ^= 1;
    write_checksum(&mut bytes);
    let mut peer = Peer::connect(data(&cluster));
    peer.send_bytes(&bytes);
    assert_eq!(peer.expect_refusal().code, ErrorCode::BadFrame);
}

#[test]
fn damaged_batches_are_refused_and_cost_no_offset() {
    let cluster = start(BrokerConfig::default());
    let mut witness = Witness::new(&cluster);
    let (_, topic) = publisher(&cluster);
    let good = batch(topic, 0, &[&[5; 1000], &[6; 10]]);
    // Every byte of the header and some of the payload.
    for at in (0..64).chain((64..good.len()).step_by(97)) {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        let (mut peer, _) = publisher(&cluster);
        peer.send_bytes(&bad);
        // A longer length only makes the broker wait for more.
        drop(peer.stream.shutdown(std::net::Shutdown::Write));
        match peer.receive() {
            None => {}
            Some(Frame::Control(Control::Error(_)) | Frame::Closed(_)) => {}
            other => panic!("byte {at}: {other:?}"),
        }
    }
    witness.check();
}

#[test]
fn a_batch_without_a_checksum_is_refused_on_a_socket() {
    let cluster = start(BrokerConfig::default());
    let mut witness = Witness::new(&cluster);
    let (mut peer, topic) = publisher(&cluster);
    let mut builder = BatchBuilder::new(Vec::new(), 4096);
    builder.try_push(None, &[], b"value").expect("fits");
    let frame = builder.seal(SealFields {
        topic,
        flags: BatchFlags::UNSUMMED,
        ..SealFields::default()
    });
    peer.send_bytes(&frame);
    let error = peer.expect_refusal();
    assert_eq!(error.code, ErrorCode::BadFrame);
    assert!(error.message.contains("without a checksum"), "{error:?}");
    witness.check();
}

/// One receive brings the end of a batch and the header behind it, be it one that the log refuses, one
/// that the session ends for, or a request that nobody may make here.
#[test]
fn stored_batches_are_acknowledged_before_the_next_one_is_refused() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut next = Vec::new();
    for bit in 0..64 * 8 {
        let mut peer = Peer::greet(data(&cluster));
        let topic = peer.open_publisher("t", 1).topic_id;
        let mut bytes = batch(topic, 0, &[b"stored"]);
        let bad = bytes.len() + bit / 8;
        bytes.extend(batch(topic, 1, &[b"refused"]));
        bytes[bad] ^= 1 << (bit % 8);
        peer.send_bytes(&bytes);
        // A longer length only makes the broker wait for more.
        drop(peer.stream.shutdown(std::net::Shutdown::Write));
        let (first, bases) = peer.expect_ack();
        assert_eq!(first, 0, "bit {bit}");
        next.extend(bases);
        match peer.receive() {
            None | Some(Frame::Control(Control::Error(_)) | Frame::Closed(_)) => {}
            other => panic!("bit {bit}: {other:?}"),
        }
    }
    let all: Vec<u64> = (0..64 * 8).collect();
    assert_eq!(next, all, "nothing else was stored");
}

#[test]
fn damaged_requests_are_not_answered() {
    let cluster = start(BrokerConfig::default());
    let mut witness = Witness::new(&cluster);
    let mut request = Vec::new();
    let asked = Control::DescribeTopic(DescribeTopic { name: "t".into() });
    embar_wire::control::encode(&asked, &mut request).expect("small");
    for bit in 0..request.len() * 8 {
        let mut bad = request.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let mut peer = Peer::greet(data(&cluster));
        peer.send_bytes(&bad);
        // A longer length only makes the broker wait for more.
        drop(peer.stream.shutdown(std::net::Shutdown::Write));
        match peer.receive() {
            None | Some(Frame::Closed(_)) => {}
            other => panic!("bit {bit}: {other:?}"),
        }
    }
    witness.check();
}

#[test]
fn messages_that_subscribers_would_stumble_over_do_not_get_in() {
    let cluster = start(BrokerConfig::default());
    let mut witness = Witness::new(&cluster);
    let (mut peer, topic) = publisher(&cluster);
    let good = batch(topic, 0, &[b"abc", b"defg"]);
    // A value length beyond the payload, under a checksum that is right.
    let mut payload = good[64..].to_vec();
    payload[..4].copy_from_slice(&1_000_000u32.to_le_bytes());
    peer.send_bytes(&support::reseal(&good, &payload));
    assert_eq!(peer.expect_refusal().code, ErrorCode::BadFrame);
    witness.check();

    let spec = CreateTopic {
        name: "short".into(),
        order: 0,
        retention_bytes: 0,
        retention_ms: 0,
        max_message_bytes: 10,
        replication_factor: 1,
    };
    Peer::greet(cluster.bootstrap()).ask(&Control::CreateTopic(spec));
    let mut peer = Peer::greet(data(&cluster));
    let opened = peer.open_publisher("short", 1);
    assert_eq!(opened.max_message_bytes, 10);
    peer.send_bytes(&batch(opened.topic_id, 0, &[&[1; 10]]));
    peer.expect_acks(1);
    peer.send_bytes(&batch(opened.topic_id, 1, &[&[1; 11]]));
    let error = peer.expect_refusal();
    assert_eq!(error.code, ErrorCode::TooLarge);
    assert!(error.message.contains("11 bytes"), "{}", error.message);
}

#[test]
fn frames_out_of_turn_are_refused() {
    let cluster = start(BrokerConfig::default());
    let mut witness = Witness::new(&cluster);
    let mut early = Peer::connect(data(&cluster));
    early.send(&Control::Metadata(Metadata::default()));
    assert_eq!(early.expect_refusal().code, ErrorCode::BadFrame);

    let (_, topic) = publisher(&cluster);
    let mut unopened = Peer::greet(data(&cluster));
    unopened.send_bytes(&batch(topic, 0, &[b"x"]));
    assert_eq!(unopened.expect_refusal().code, ErrorCode::BadFrame);

    let (mut other, _) = publisher(&cluster);
    other.send_bytes(&batch(topic ^ 1, 0, &[b"x"]));
    assert_eq!(other.expect_refusal().code, ErrorCode::BadFrame);

    let mut twice = Peer::greet(data(&cluster));
    twice.send_bytes(&hello_of(LogProtocol::default()));
    assert_eq!(twice.expect_refusal().code, ErrorCode::BadFrame);
    witness.check();
}

#[test]
fn those_who_never_finish_are_cut() {
    let config = BrokerConfig {
        hello_timeout: Duration::from_secs(1),
        frame_timeout: Duration::from_millis(600),
        ..BrokerConfig::default()
    };
    let cluster = start(config);
    let mut witness = Witness::new(&cluster);

    let silent = Instant::now();
    let mut peer = Peer::connect(data(&cluster));
    assert_eq!(peer.expect_refusal().code, ErrorCode::Timeout);
    assert!(silent.elapsed() >= Duration::from_secs(1));

    // One byte at a time, each well before the last one would time out.
    let (mut loris, topic) = publisher(&cluster);
    let whole = batch(topic, 0, &[&[1; 4000]]);
    let is_cut = whole.chunks(1).any(|byte| {
        std::thread::sleep(Duration::from_millis(20));
        witness.check();
        loris.stream.write_all(byte).is_err()
    });
    assert!(is_cut, "a frame may not take for ever");
    // An open connection that is between frames may stay: longer than one that began a frame later.
    witness.check();
    let (mut half, topic) = publisher(&cluster);
    half.send_bytes(&batch(topic, 0, &[b"value"])[..100]);
    assert_eq!(half.expect_refusal().code, ErrorCode::Timeout);
    witness.check();
}

#[test]
fn one_connection_too_many_gets_a_reason() {
    let cluster = start(BrokerConfig {
        max_connections: 3,
        ..BrokerConfig::default()
    });
    let _held: Vec<Peer> = (0..3).map(|_| Peer::greet(data(&cluster))).collect();
    let mut fourth = Peer::connect(data(&cluster));
    let error = fourth.expect_refusal();
    assert_eq!(error.code, ErrorCode::ClusterFull);
    assert!(error.message.contains('3'), "{}", error.message);
    drop(_held);
    eventually("there is room again", || {
        let mut peer = Peer::connect(data(&cluster));
        matches!(peer.say_hello(), Some(Frame::Welcome(_)))
    });
}

#[test]
fn a_flood_of_requests_without_reading_answers_is_bounded() {
    let cluster = start(BrokerConfig::default());
    let mut witness = Witness::new(&cluster);
    let mut flood = Peer::greet(data(&cluster));
    flood
        .stream
        .set_write_timeout(Some(Duration::from_millis(300)))
        .expect("a timeout");
    let mut bytes = Vec::new();
    for _ in 0..4096 {
        embar_wire::control::encode(&Control::ListTopics(ListTopics::default()), &mut bytes)
            .expect("small");
    }
    // At most 64 MiB of requests: long before that the broker stops reading them.
    let mut blocked = false;
    for _ in 0..2048 {
        if flood.stream.write_all(&bytes).is_err() {
            blocked = true;
            break;
        }
    }
    assert!(
        blocked,
        "the broker reads on although its answers are not read"
    );
    witness.check();
}
