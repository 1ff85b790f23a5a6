//! Publish and read back, through real sockets.

mod support;

use embar_broker::BrokerConfig;
use embar_frame::{FrameHeader, write_checksum};
use embar_wire::control::{
    Control, DescribeTopic, ErrorCode, Metadata, OpenPublisher, StartAt, Subscribe,
};
use embar_wire::isolation::Isolation;
use embar_wire::share::Share;
use support::{Frame, Peer, batch, create_topic, data, eventually, start};

#[test]
fn what_is_acknowledged_is_read_back_in_order() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut publisher = Peer::greet(data(&cluster));
    let opened = publisher.open_publisher("t", 1);
    publisher.send_bytes(&batch(opened.topic_id, 0, &[b"a", b"bb"]));
    publisher.send_bytes(&batch(opened.topic_id, 1, &[b"ccc"]));
    assert_eq!(publisher.expect_acks(2), [0, 2]);

    let mut subscriber = Peer::greet(data(&cluster));
    let subscribed = subscriber.subscribe("t", StartAt::Earliest);
    assert_eq!((subscribed.first, subscribed.next), (0, 3));
    let want: Vec<(u64, Vec<u8>)> = vec![
        (0, b"a".to_vec()),
        (1, b"bb".to_vec()),
        (2, b"ccc".to_vec()),
    ];
    assert_eq!(subscriber.read(3), want);

    // It waits at the end, and is woken by what comes.
    publisher.send_bytes(&batch(opened.topic_id, 2, &[b"d"]));
    assert_eq!(subscriber.read(1), [(3, b"d".to_vec())]);
}

#[test]
fn a_subscription_starts_where_it_was_told() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut publisher = Peer::greet(data(&cluster));
    let id = publisher.open_publisher("t", 1).topic_id;
    for sequence in 0..3 {
        publisher.send_bytes(&batch(id, sequence, &[b"x", b"y"]));
    }
    publisher.expect_acks(3);

    let mut middle = Peer::greet(data(&cluster));
    assert_eq!(middle.subscribe("t", StartAt::Offset(3)).start, 3);
    assert_eq!(
        middle.read(4)[0].0,
        2,
        "the whole batch that holds offset 3 comes"
    );

    let mut end = Peer::greet(data(&cluster));
    assert_eq!(end.subscribe("t", StartAt::Latest).start, 6);
    publisher.send_bytes(&batch(id, 3, &[b"z"]));
    assert_eq!(end.read(1), [(6, b"z".to_vec())]);

    let mut beyond = Peer::greet(data(&cluster));
    let answer = beyond.ask(&Control::Subscribe(Subscribe {
        topic: "t".into(),
        start: StartAt::Offset(99),
        topic_id: 0,
        share: Share::All,
        isolation: Isolation::Durable,
    }));
    let Control::Error(error) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(
        (error.code, error.first_available),
        (ErrorCode::OffsetOutOfRange, Some(0))
    );
}

#[test]
fn without_acks_nothing_comes_back_but_the_data_is_there() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut publisher = Peer::greet(data(&cluster));
    let id = publisher.open_publisher("t", 0).topic_id;
    publisher.send_bytes(&batch(id, 0, &[b"quiet"]));
    // The answer to a request would come behind an ack.
    let answer = publisher.ask(&Control::Metadata(Metadata::default()));
    assert!(matches!(answer, Control::ClusterMetadata(_)), "{answer:?}");
    let mut subscriber = Peer::greet(data(&cluster));
    subscriber.subscribe("t", StartAt::Earliest);
    assert_eq!(subscriber.read(1), [(0, b"quiet".to_vec())]);
}

#[test]
fn a_connection_that_dies_inside_a_batch_leaves_nothing() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut publisher = Peer::greet(data(&cluster));
    let id = publisher.open_publisher("t", 1).topic_id;
    let big = batch(id, 0, &[&[7; 500_000]]);
    publisher.send_bytes(&big[..big.len() / 2]);
    drop(publisher);

    let mut publisher = Peer::greet(data(&cluster));
    let id = publisher.open_publisher("t", 1).topic_id;
    publisher.send_bytes(&batch(id, 0, &[b"whole"]));
    assert_eq!(
        publisher.expect_acks(1),
        [0],
        "no offset was spent on half a batch"
    );
}

#[test]
fn a_deleted_topic_takes_its_streams_with_it() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut publisher = Peer::greet(data(&cluster));
    let id = publisher.open_publisher("t", 1).topic_id;
    publisher.send_bytes(&batch(id, 0, &[b"x"]));
    publisher.expect_acks(1);
    let mut subscriber = Peer::greet(data(&cluster));
    subscriber.subscribe("t", StartAt::Latest);

    let delete = Control::DeleteTopic(embar_wire::control::DeleteTopic { name: "t".into() });
    let answer = Peer::greet(cluster.bootstrap()).ask(&delete);
    assert!(matches!(answer, Control::TopicDeleted), "{answer:?}");
    assert_eq!(subscriber.expect_refusal().code, ErrorCode::UnknownTopic);
    eventually("the broker forgets the topic", || {
        let describe = Control::DescribeTopic(DescribeTopic { name: "t".into() });
        matches!(
            Peer::greet(data(&cluster)).ask(&describe),
            Control::Error(_)
        )
    });
    publisher.send_bytes(&batch(id, 1, &[b"y"]));
    assert_eq!(publisher.expect_refusal().code, ErrorCode::UnknownTopic);

    // Another topic of that name starts from nothing, and whoever knows the old one is not given it.
    create_topic(&cluster, "t", 0);
    let old = OpenPublisher {
        topic: "t".into(),
        topic_id: id,
        ..OpenPublisher::default()
    };
    let mut knows = Peer::greet(data(&cluster));
    let old = [
        Control::OpenPublisher(old),
        Control::Subscribe(Subscribe {
            topic: "t".into(),
            topic_id: id,
            start: StartAt::Offset(1),
            share: Share::All,
            isolation: Isolation::Durable,
        }),
    ];
    for request in old {
        let answer = knows.ask(&request);
        let Control::Error(error) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(error.code, ErrorCode::TopicReplaced);
    }
    let mut again = Peer::greet(data(&cluster));
    let opened = again.open_publisher("t", 1);
    assert_ne!(opened.topic_id, id);
    again.send_bytes(&batch(opened.topic_id, 0, &[b"new"]));
    assert_eq!(again.expect_acks(1), [0]);
}

#[test]
fn many_connections_share_one_order() {
    let cluster = start(BrokerConfig {
        network_threads: 3,
        ..BrokerConfig::default()
    });
    create_topic(&cluster, "t", 0);
    let address = data(&cluster);
    let publishers: Vec<_> = (0..6u8)
        .map(|n| {
            std::thread::spawn(move || {
                let mut peer = Peer::greet(address);
                let id = peer.open_publisher("t", 1).topic_id;
                for sequence in 0..50 {
                    peer.send_bytes(&batch(id, sequence, &[&[n; 100], &[n; 3000]]));
                }
                peer.expect_acks(50)
            })
        })
        .collect();
    let mut subscriber = Peer::greet(address);
    subscriber.subscribe("t", StartAt::Earliest);
    let read = subscriber.read(600);
    for (at, (offset, _)) in read.iter().enumerate() {
        assert_eq!(*offset, at as u64, "dense and in order");
    }
    for (n, publisher) in publishers.into_iter().enumerate() {
        for base in publisher.join().expect("a publisher") {
            let (first, second) = (&read[base as usize], &read[base as usize + 1]);
            assert_eq!((first.1.len(), second.1.len()), (100, 3000));
            assert_eq!(first.1[0], n as u8, "the ack named the right offset");
        }
    }
}

#[test]
fn the_head_administers_and_takes_no_data() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let open = OpenPublisher {
        topic: "t".into(),
        producer: 1,
        acks: 1,
        ..OpenPublisher::default()
    };
    let answer = Peer::greet(cluster.bootstrap()).ask(&Control::OpenPublisher(open));
    let Control::Error(error) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(error.code, ErrorCode::NotData);

    let mut member = Peer::greet(data(&cluster));
    let Control::ClusterMetadata(metadata) = member.ask(&Control::Metadata(Metadata::default()))
    else {
        panic!()
    };
    let ids: Vec<u32> = metadata.brokers.iter().map(|b| b.id).collect();
    assert_eq!(ids, [0, 1]);
    let delete = Control::DeleteTopic(embar_wire::control::DeleteTopic { name: "t".into() });
    let Control::Error(error) = member.ask(&delete) else {
        panic!()
    };
    assert_eq!(error.code, ErrorCode::NotHead);
    assert!(
        error.message.contains(&cluster.bootstrap().to_string()),
        "{}",
        error.message
    );
}

#[test]
fn draining_says_goodbye_and_acknowledges_what_came() {
    let mut cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut publisher = Peer::greet(data(&cluster));
    let id = publisher.open_publisher("t", 1).topic_id;
    let mut subscriber = Peer::greet(data(&cluster));
    subscriber.subscribe("t", StartAt::Earliest);
    let stopping = std::thread::spawn(move || {
        let ended = cluster.stop_broker(1);
        (cluster, ended)
    });
    // The news that it drains may come first.
    let goodbye = loop {
        match publisher.receive() {
            Some(Frame::Control(Control::ClusterMetadata(_))) => {}
            other => break other,
        }
    };
    assert!(matches!(goodbye, Some(Frame::Goodbye(_))), "{goodbye:?}");
    publisher.send_bytes(&batch(id, 0, &[b"last"]));
    publisher.expect_acks(1);
    drop(publisher);
    let (_cluster, ended) = stopping.join().expect("it stops");
    assert_eq!(ended, Some(embar_broker::Shutdown::Drained));
}

#[test]
fn a_publisher_that_says_goodbye_has_its_last_batches_acknowledged() {
    let goodbye = FrameHeader {
        length: 0,
        id: 0xFF04,
        flags: 0,
    };
    let mut goodbye = [&goodbye.with_checksum().to_bytes()[..], &[0; 4]].concat();
    write_checksum(&mut goodbye);
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut publisher = Peer::greet(data(&cluster));
    let id = publisher.open_publisher("t", 1).topic_id;
    let mut bytes = Vec::new();
    for sequence in 0..100 {
        bytes.extend(batch(id, sequence, &[b"last"]));
    }
    bytes.extend(goodbye);
    publisher.send_bytes(&bytes);
    publisher.expect_acks(100);
    let end = publisher.receive();
    assert!(matches!(end, Some(Frame::Closed(_))), "{end:?}");
}

#[test]
fn a_system_call_takes_a_payload_and_what_follows() {
    let cluster = start(BrokerConfig::default());
    create_topic(&cluster, "t", 0);
    let mut publisher = Peer::greet(data(&cluster));
    let id = publisher.open_publisher("t", 1).topic_id;
    let counter = |name: &str| {
        let broker = cluster.broker(1).expect("it runs");
        broker.snapshot().counter(name).expect("it is counted")
    };
    let before = ["recv_calls", "recv_eagain", "batches"].map(counter);
    let mut bytes = Vec::new();
    for sequence in 0..400 {
        bytes.extend(batch(id, sequence, &[b"small"]));
    }
    // All at once, so that what follows a payload is there when it is received.
    publisher.send_bytes(&bytes);
    publisher.expect_acks(400);
    let after = ["recv_calls", "recv_eagain", "batches"].map(counter);
    let [calls, nothing, batches] = [0, 1, 2].map(|i| after[i] - before[i]);
    assert_eq!(batches, 400);
    // The writer's bytes come in parts, the more of them the busier the machine is.
    assert!(
        calls - nothing <= batches / 4,
        "{calls} calls, {nothing} of which found nothing, for {batches} batches"
    );
}
