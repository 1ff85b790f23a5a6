//! What the sessions under the log's protocol do for it: heartbeats, silent peers, answers and
//! acknowledgements that are not read.

mod support;

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use embar_broker::{BrokerConfig, Cluster};
use embar_frame::{FrameHeader, write_checksum};
use embar_session::CloseReason;
use embar_wire::control::{Control, CreateTopic, ListTopics, Metadata, StartAt};
use embar_wire::limits::MAX_TOPIC_NAME_BYTES;
use support::{Frame, Peer, batch, create_topic, data, eventually, start, until_still};

/// A PING of the session layer.
fn ping() -> Vec<u8> {
    let content = [0x09, 1, 2, 3, 4, 5, 6, 7, 8];
    let header = FrameHeader {
        length: content.len() as u32,
        id: 0xFF02,
        flags: 0,
    };
    let header = header.with_checksum().to_bytes();
    let mut frame = [&header[..], &content, &[0; 4]].concat();
    write_checksum(&mut frame);
    frame
}

fn impatient() -> BrokerConfig {
    BrokerConfig {
        idle_timeout: Duration::from_secs(1),
        keep_alive: Duration::from_millis(100),
        ..BrokerConfig::default()
    }
}

fn connections(cluster: &Cluster) -> u64 {
    let Control::StatusReply(status) = Peer::greet(data(cluster)).ask(&Control::Status) else {
        panic!("a status")
    };
    status.brokers[0].connections
}

/// Waits until the broker takes a peer for dead that connects now and then says nothing more.
fn outlive_a_silent_peer(address: SocketAddr) {
    let mut silent = Peer::greet(address);
    // Its core sees none of the bytes that come, so it answers no PING.
    if let Err(error) = std::io::copy(&mut silent.stream, &mut std::io::sink()) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_peer_that_is_silent_is_taken_for_dead() {
    let cluster = start(impatient());
    let began = Instant::now();
    // It answers no PING, because it does not read.
    let mut peer = Peer::greet(data(&cluster));
    eventually("only whoever asks is there", || connections(&cluster) == 1);
    assert!(began.elapsed() >= impatient().idle_timeout);
    match peer.receive() {
        Some(Frame::Closed(closed)) => assert_eq!(closed.reason, CloseReason::Idle),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_that_answers_heartbeats_stays() {
    let cluster = start(impatient());
    create_topic(&cluster, "t", 0);
    let mut subscriber = Peer::greet(data(&cluster));
    subscriber.subscribe("t", StartAt::Earliest);
    // It reads, and so its core answers, while nothing is published.
    let reads = std::thread::spawn(move || subscriber.read(1));
    outlive_a_silent_peer(data(&cluster));
    let mut publisher = Peer::greet(data(&cluster));
    let id = publisher.open_publisher("t", 1).topic_id;
    publisher.send_bytes(&batch(id, 0, &[b"late"]));
    let read = reads.join().expect("it was not cut");
    assert_eq!(read, [(0, b"late".to_vec())]);
}

#[test]
fn a_subscriber_that_does_not_read_stays_while_its_host_lives() {
    let cluster = start(impatient());
    create_topic(&cluster, "t", 0);
    let mut publisher = Peer::greet(data(&cluster));
    let id = publisher.open_publisher("t", 1).topic_id;
    for sequence in 0..24 {
        publisher.send_bytes(&batch(id, sequence, &[&vec![1; 1 << 20]]));
    }
    publisher.expect_acks(24);
    drop(publisher);
    let mut slow = Peer::greet(data(&cluster));
    slow.subscribe("t", StartAt::Earliest);
    let mut host = slow.stream.try_clone().expect("a second handle");
    let (done, over) = channel::<()>();
    let heart = std::thread::spawn(move || {
        let pause = Duration::from_millis(50);
        while over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            host.write_all(&ping()).expect("the broker reads");
        }
    });
    outlive_a_silent_peer(data(&cluster));
    assert_eq!(slow.read(24).len(), 24);
    drop(done);
    heart.join().expect("it was not cut");
}

#[test]
fn a_publisher_that_the_log_holds_back_is_not_taken_for_dead() {
    let config = BrokerConfig {
        high_watermark_percent: 20,
        low_watermark_percent: 5,
        backpressure_timeout: Duration::from_secs(60),
        frame_timeout: Duration::from_secs(60),
        ..impatient()
    };
    let cluster = start(config);
    create_topic(&cluster, "t", 0);
    // 20 % of the log is some 10 MB: three that are on their way hold more.
    let values = vec![vec![3u8; 825 << 10]; 4];
    let values: Vec<&[u8]> = values.iter().map(|v| &v[..]).collect();
    let mut publisher = Peer::greet(data(&cluster));
    let id = publisher.open_publisher("t", 1).topic_id;
    let whole = batch(id, 0, &values);
    let mut at = whole.len() - 40_000;
    let mut held = [(); 3].map(|()| {
        let mut peer = Peer::greet(data(&cluster));
        peer.open_publisher("t", 1);
        peer
    });
    held.iter_mut()
        .for_each(|peer| peer.send_bytes(&whole[..at]));
    // None of them is silent, however long the others take.
    let mut go_on = || {
        held.iter_mut()
            .for_each(|peer| peer.send_bytes(&whole[at..=at]));
        at += 1;
    };
    let staged = || cluster.broker(1).expect("it runs").log_usage().staged_bytes;
    eventually("three batches are on their way", || {
        go_on();
        staged() > 10_100_000
    });
    let mut waiting = Peer::greet(data(&cluster));
    let id = waiting.open_publisher("t", 1).topic_id;
    waiting.send_bytes(&batch(id, 0, &[b"me too"]));
    // The three are slow and not silent; the fourth cannot be anything but silent.
    let address = data(&cluster);
    let outlived = std::thread::spawn(move || outlive_a_silent_peer(address));
    while !outlived.is_finished() {
        go_on();
        std::thread::sleep(Duration::from_millis(50));
    }
    outlived.join().expect("the silent one was cut");
    drop(held);
    assert_eq!(waiting.expect_acks(1), [0]);
}

/// A cluster whose list of topics is much longer than what goes through a connection's ring.
fn with_many_topics(config: BrokerConfig) -> (Cluster, usize) {
    let cluster = start(config);
    let mut head = Peer::greet(cluster.bootstrap());
    let many = 240;
    for n in 0..many {
        let spec = CreateTopic {
            name: format!("{n:0>MAX_TOPIC_NAME_BYTES$}"),
            order: 0,
            retention_bytes: 0,
            retention_ms: 0,
            max_message_bytes: 0,
            replication_factor: 1,
        };
        let answer = head.ask(&Control::CreateTopic(spec));
        assert!(matches!(answer, Control::TopicCreated(_)), "{answer:?}");
    }
    (cluster, many)
}

#[test]
fn long_answers_come_whole_and_in_their_turn() {
    let (cluster, many) = with_many_topics(BrokerConfig::default());
    let mut peer = Peer::greet(data(&cluster));
    let rounds = 20;
    for _ in 0..rounds {
        peer.send(&Control::ListTopics(ListTopics::default()));
        peer.send(&Control::Metadata(Metadata::default()));
    }
    for _ in 0..rounds {
        match peer.receive() {
            Some(Frame::Control(Control::Topics(list))) => assert_eq!(list.topics.len(), many),
            other => panic!("{other:?}"),
        }
        let next = peer.receive();
        let is_metadata = matches!(next, Some(Frame::Control(Control::ClusterMetadata(_))));
        assert!(is_metadata, "{next:?}");
    }
}

#[test]
fn who_does_not_read_long_answers_is_cut_in_time() {
    let (cluster, _) = with_many_topics(impatient());
    let mut peer = Peer::greet(data(&cluster));
    for _ in 0..2000 {
        peer.send(&Control::ListTopics(ListTopics::default()));
    }
    // It is not silent either.
    let mut host = peer.stream.try_clone().expect("a second handle");
    eventually("only whoever asks is there", || {
        let _ = host.write_all(&ping());
        connections(&cluster) == 1
    });
}

#[test]
fn acks_that_are_not_read_hold_the_publisher_and_none_is_lost() {
    let cluster = start(BrokerConfig {
        send_buffer_bytes: Some(4096),
        ..BrokerConfig::default()
    });
    create_topic(&cluster, "t", 0);
    let mut peer = Peer::greet(data(&cluster));
    let id = peer.open_publisher("t", 1).topic_id;
    let mut writer = peer.stream.try_clone().expect("a second handle");
    let sender = std::thread::spawn(move || {
        let mut sequence = 0;
        while sequence < 60_000 {
            let mut bytes = Vec::new();
            for _ in 0..100 {
                bytes.extend(batch(id, sequence, &[b"x"]));
                sequence += 1;
            }
            writer.write_all(&bytes).expect("the broker reads");
        }
    });
    let appended = || {
        let broker = cluster.broker(1).expect("it runs");
        broker.snapshot().counter("batches").expect("it is counted")
    };
    until_still("the broker takes no more", &cluster, appended);
    let last = appended();
    assert!(
        last < 60_000,
        "{last} batches without a bound on their acks"
    );
    assert_eq!(peer.expect_acks(60_000).len(), 60_000);
    sender.join().expect("it sent");
}
