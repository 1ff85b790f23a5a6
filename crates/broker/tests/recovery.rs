//! What survives the death of a broker, and of all of them.

mod support;

use embar_broker::{BrokerConfig, Cluster, RegionSpec, Role, Server, StartError};
use embar_wire::control::{Control, ListTopics, Metadata, StartAt, Subscribe};
use embar_wire::isolation::Isolation;
use embar_wire::share::Share;
use support::{Peer, batch, create_topic, data, small};

fn region() -> (tempfile::TempDir, std::path::PathBuf) {
    let parent = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let dir = parent.path().join("region");
    (parent, dir)
}

fn publish(cluster: &Cluster, topic: &str, sequence: u64, values: &[&[u8]]) -> u64 {
    let mut peer = Peer::greet(data(cluster));
    let id = peer.open_publisher(topic, 1).topic_id;
    peer.send_bytes(&batch(id, sequence, values));
    peer.expect_acks(1)[0]
}

fn read_all(cluster: &Cluster, topic: &str, count: usize) -> Vec<(u64, Vec<u8>)> {
    let mut peer = Peer::greet(data(cluster));
    let subscribed = peer.subscribe(topic, StartAt::Earliest);
    assert_eq!(subscribed.next - subscribed.first, count as u64);
    peer.read(count)
}

#[test]
fn a_data_broker_takes_over_what_its_dead_predecessor_acknowledged() {
    let mut cluster = small().start().expect("it starts");
    create_topic(&cluster, "t", 0);
    for n in 0..20u8 {
        publish(&cluster, "t", n.into(), &[&[n; 10_000], &[n]]);
    }
    // One batch is on its way when it dies.
    let mut dying = Peer::greet(data(&cluster));
    let id = dying.open_publisher("t", 1).topic_id;
    let whole = batch(id, 99, &[&[1; 100_000]]);
    dying.send_bytes(&whole[..50_000]);
    cluster.crash_broker(1);
    let Control::ClusterMetadata(metadata) =
        Peer::greet(cluster.bootstrap()).ask(&Control::Metadata(Metadata::default()))
    else {
        panic!("metadata")
    };
    assert_eq!(
        metadata.brokers[1].state,
        embar_wire::control::BrokerState::Gone
    );

    cluster.restart_broker(1).expect("it restarts");
    let broker = cluster.broker(1).expect("it runs");
    assert_eq!(
        (broker.recovered().batches, broker.recovered().damaged),
        (20, 0)
    );
    let read = read_all(&cluster, "t", 40);
    for (offset, value) in &read {
        assert_eq!(value[0], (offset / 2) as u8);
    }
    assert_eq!(
        publish(&cluster, "t", 0, &[b"next"]),
        40,
        "offsets go on where they were"
    );
    assert_eq!(read_all(&cluster, "t", 41)[40], (40, b"next".to_vec()));
}

#[test]
fn a_cluster_takes_over_the_region_of_one_that_is_gone() {
    let (_parent, dir) = region();
    let cluster = small().region_dir(&dir).start().expect("it starts");
    create_topic(&cluster, "kept", 0);
    create_topic(&cluster, "deleted", 0);
    publish(&cluster, "kept", 0, &[b"a", b"b"]);
    publish(&cluster, "deleted", 0, &[b"x"]);
    Peer::greet(cluster.bootstrap()).ask(&Control::DeleteTopic(embar_wire::control::DeleteTopic {
        name: "deleted".into(),
    }));
    drop(cluster);

    let again = small().region_dir(&dir).start().expect("it starts again");
    assert_eq!(
        read_all(&again, "kept", 2),
        [(0, b"a".to_vec()), (1, b"b".to_vec())]
    );
    let Control::Topics(topics) =
        Peer::greet(again.bootstrap()).ask(&Control::ListTopics(ListTopics::default()))
    else {
        panic!("topics")
    };
    assert_eq!(topics.topics.len(), 1);
    // Its ids and offsets are not given twice.
    create_topic(&again, "deleted", 0);
    assert_eq!(publish(&again, "deleted", 0, &[b"y"]), 0);
    assert_eq!(read_all(&again, "deleted", 1), [(0, b"y".to_vec())]);
}

#[test]
fn recovery_after_eviction_keeps_offsets() {
    let mut cluster = small().start().expect("it starts");
    create_topic(&cluster, "t", 0);
    let mut peer = Peer::greet(data(&cluster));
    let id = peer.open_publisher("t", 1).topic_id;
    for sequence in 0..150u64 {
        peer.send_bytes(&batch(id, sequence, &[&vec![sequence as u8; 1_000_000]]));
    }
    peer.expect_acks(150);
    let before = Peer::greet(data(&cluster)).subscribe("t", StartAt::Earliest);
    cluster.crash_broker(1);
    cluster.restart_broker(1).expect("it restarts");
    let mut reader = Peer::greet(data(&cluster));
    let after = reader.subscribe("t", StartAt::Earliest);
    assert_eq!((after.first, after.next), (before.first, 150));
    for (offset, value) in reader.read((150 - after.first) as usize) {
        assert!(value.iter().all(|b| *b == offset as u8));
    }
    // And the log still turns over.
    let mut peer = Peer::greet(data(&cluster));
    let id = peer.open_publisher("t", 1).topic_id;
    for sequence in 0..100u64 {
        peer.send_bytes(&batch(id, sequence, &[&vec![1; 1_000_000]]));
    }
    assert_eq!(peer.expect_acks(100)[99], 249);
}

#[test]
fn a_region_in_use_or_of_another_shape_is_refused() {
    let (_parent, dir) = region();
    let cluster = small().region_dir(&dir).start().expect("it starts");
    let second = small()
        .region_dir(&dir)
        .start()
        .err()
        .expect("it is in use")
        .to_string();
    assert!(
        second.contains("in use") && second.contains(&std::process::id().to_string()),
        "{second}"
    );
    drop(cluster);
    let other = Cluster::builder()
        .brokers(3)
        .region_bytes(128 << 20)
        .region_dir(&dir)
        .start();
    let other = other.err().expect("the shape differs");
    assert!(matches!(other, StartError::OtherShape { .. }), "{other}");
    assert!(other.to_string().contains("--fresh"), "{other}");
}

#[test]
fn a_damaged_region_is_refused_and_not_touched() {
    let (_parent, dir) = region();
    drop(small().region_dir(&dir).start().expect("it starts"));
    let control = dir.join("control");
    let mut bytes = std::fs::read(&control).expect("the control file");
    // The second copy of its first lines, too.
    bytes[100] ^= 0xFF;
    bytes[2048 + 100] ^= 0xFF;
    std::fs::write(&control, &bytes).expect("it is ours");
    let error = small()
        .region_dir(&dir)
        .start()
        .err()
        .expect("it is damaged")
        .to_string();
    assert!(
        error.contains("damaged") && error.contains("remove"),
        "{error}"
    );
    assert_eq!(std::fs::read(&control).expect("still there"), bytes);
}

#[test]
fn a_damaged_region_can_be_discarded_on_request() {
    let (_parent, dir) = region();
    drop(small().region_dir(&dir).start().expect("it starts"));
    // As a head leaves it that dies while it makes the region.
    std::fs::write(dir.join("control"), [0; 4096]).expect("it is ours");
    let head = |fresh| {
        let region = RegionSpec {
            bytes: 64 << 20,
            data_brokers: 1,
            standbys: 0,
            spares: 0,
            topics: None,
            sessions: None,
            fresh,
            coherence: embar_memory::Coherence::Coherent,
        };
        let role = Role::Head {
            dir: dir.clone(),
            region,
        };
        Server::start(role, BrokerConfig::default(), &|_| ())
    };
    let error = head(false).err().expect("it is damaged").to_string();
    assert!(error.contains("--fresh"), "{error}");
    let server = head(true).expect("it starts over");
    assert!(!server.has_failed());
}

#[test]
fn a_damaged_batch_costs_only_what_lies_before_it() {
    let (_parent, dir) = region();
    let cluster = small().region_dir(&dir).start().expect("it starts");
    create_topic(&cluster, "t", 0);
    for n in 0..10u8 {
        publish(&cluster, "t", n.into(), &[&[n; 1000]]);
    }
    drop(cluster);
    let payload_file = dir.join("payload-1");
    let mut bytes = std::fs::read(&payload_file).expect("the payload");
    let third = bytes
        .windows(1000)
        .position(|w| w.iter().all(|b| *b == 3))
        .expect("batch 3");
    bytes[third + 10] = 0;
    std::fs::write(&payload_file, &bytes).expect("it is ours");
    let again = small().region_dir(&dir).start().expect("it starts again");
    let mut reader = Peer::greet(data(&again));
    let all = Control::Subscribe(Subscribe {
        topic: "t".into(),
        start: StartAt::Earliest,
        topic_id: 0,
        share: Share::All,
        isolation: Isolation::Durable,
    });
    let Control::Error(error) = reader.ask(&all) else {
        panic!("who wants all is told what is missing");
    };
    assert!(error.message.contains("below 4 are lost"), "{error:?}");
    let mut reader = Peer::greet(data(&again));
    let subscribed = reader.subscribe("t", StartAt::Offset(4));
    assert_eq!(
        (subscribed.first, subscribed.next),
        (4, 10),
        "positions never change"
    );
    assert_eq!(again.broker(1).expect("it runs").recovered().damaged, 4);
}

#[test]
fn too_little_memory_is_told_before_anything_is_left_behind() {
    let (_parent, dir) = region();
    let error = Cluster::builder()
        .brokers(2)
        .region_bytes(1 << 50)
        .region_dir(&dir)
        .start()
        .err()
        .expect("nobody has that much");
    assert!(!dir.exists(), "nothing is left: {error}");
}

#[test]
fn memory_that_is_not_coherent_costs_write_backs_and_nothing_else() {
    let mut cluster = small()
        .coherence(embar_memory::Coherence::WriteBack)
        .config(BrokerConfig {
            network_threads: 2,
            ..BrokerConfig::default()
        })
        .start()
        .expect("it starts");
    create_topic(&cluster, "t", 0);
    for n in 0..10u8 {
        publish(&cluster, "t", n.into(), &[&[n; 50_000]]);
    }
    cluster.crash_broker(1);
    cluster.restart_broker(1).expect("it restarts");
    assert_eq!(read_all(&cluster, "t", 10)[9], (9, vec![9; 50_000]));
}
