//! As many topics as there may be: each has its own identity and place, and none costs the others.

mod support;

use std::collections::BTreeSet;

use embar_broker::topics::TopicError;
use embar_broker::topics::{Topic, TopicTable};
use embar_broker::{BrokerConfig, Cluster};
use embar_fabric::geometry::TOPICS_MAX;
use embar_fabric::{Geometry, Region};
use embar_memory::{Coherence, Mapped};
use embar_wire::control::{Control, CreateTopic, DeleteTopic, ErrorCode, ListTopics, StartAt};
use embar_wire::limits::MAX_LISTED_TOPICS;
use embar_wire::time::WallNs;
use support::{Peer, batch, batch_of};

/// Topics of the cluster.
const TOPICS: usize = 3000;

fn spec(name: String, order: u32) -> CreateTopic {
    CreateTopic {
        name,
        order,
        retention_bytes: 0,
        retention_ms: 0,
        max_message_bytes: 0,
        replication_factor: 1,
    }
}

fn create(table: &mut TopicTable<Mapped>, name: &str) -> Result<Topic, TopicError> {
    table.create(&spec(name.into(), 0), 1 << 20, WallNs(1), |_| 0)
}

#[test]
fn the_table_takes_as_many_topics_as_it_has_records() {
    let tmp = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let geometry = Geometry {
        topics: TOPICS_MAX,
        index_pages: 16,
        goi_pages: 16,
        sessions: 16,
        payload_bytes: 1 << 20,
        ..Geometry::default()
    };
    let dir = tmp.path().join("region");
    let region = Region::create(&dir, &geometry, Coherence::Coherent).expect("room");
    let head = region.claim(0).expect("nobody has it");
    let mut table = TopicTable::attach(&region, Some(region.topic_record_writer(&head)));
    let mut follower = TopicTable::attach(&region, None);
    let mut ids = BTreeSet::new();
    for n in 0..TOPICS_MAX {
        let topic = create(&mut table, &format!("topic-{n}")).expect("a free topic record");
        assert!(ids.insert(topic.id), "{} was given before", topic.id);
        if n % 1000 == 0 {
            follower.refresh();
            assert_eq!(follower.by_id(topic.id), Some(&topic));
        }
    }
    let refused = create(&mut table, "one-more").expect_err("it is full");
    assert_eq!(refused.code(), ErrorCode::ClusterFull);
    let text = refused.to_string();
    assert!(
        text.contains("16384") && text.contains("--topics"),
        "{text}"
    );
    let taken = create(&mut table, "topic-7").expect_err("the name is taken");
    assert_eq!(taken.code(), ErrorCode::TopicExists);

    follower.refresh();
    assert_eq!(follower.iter().count(), usize::from(TOPICS_MAX));
    let deleted = table.delete("topic-7").expect("it is there");
    let other = create(&mut table, "one-more").expect("a topic record is free again");
    assert_eq!(other.record(), deleted.record());
    assert!(ids.insert(other.id), "an id is never given again");
    follower.refresh();
    assert_eq!(follower.take_gone(), [deleted.id]);
    assert_eq!(follower.by_name("topic-7"), None);
    assert_eq!(follower.by_name("one-more"), Some(&other));
    assert!(follower.take_gone().is_empty());
}

fn name(n: usize) -> String {
    format!("topic-{n}")
}

/// Half of them have one order over all brokers.
fn order(n: usize) -> u32 {
    if n.is_multiple_of(2) { 5 } else { 1 }
}

/// Sends all requests before it reads the answers.
fn ask_all(cluster: &Cluster, requests: impl Iterator<Item = Control>) -> Vec<Control> {
    let mut head = Peer::greet(cluster.bootstrap());
    let mut answers = Vec::new();
    for request in requests {
        answers.push(head.ask(&request));
    }
    answers
}

fn list(cluster: &Cluster) -> Vec<String> {
    let mut head = Peer::greet(cluster.bootstrap());
    let (mut names, mut from) = (Vec::new(), 0);
    loop {
        let Control::Topics(list) = head.ask(&Control::ListTopics(ListTopics { from })) else {
            panic!("no list");
        };
        assert!(list.topics.len() <= MAX_LISTED_TOPICS);
        names.extend(list.topics.into_iter().map(|topic| topic.name));
        if list.next == 0 {
            return names;
        }
        from = list.next;
    }
}

fn publish(cluster: &Cluster, n: usize, broker: u16) {
    let address = cluster.broker(broker).expect("it runs").address();
    let mut peer = Peer::greet(address);
    let opened = peer.open_publisher(&name(n), 1);
    let (topic, value) = (opened.topic_id, name(n));
    peer.send_bytes(&match order(n) {
        5 => batch_of(
            7,
            opened.session_epoch,
            topic,
            opened.mark,
            &[value.as_bytes()],
        ),
        _ => batch(topic, 0, &[value.as_bytes()]),
    });
    peer.expect_acks(1);
}

fn reads(cluster: &Cluster, n: usize, broker: u16) -> Vec<u8> {
    let address = cluster.broker(broker).expect("it runs").address();
    let mut peer = Peer::greet(address);
    peer.subscribe(&name(n), StartAt::Earliest);
    peer.read(1).remove(0).1
}

#[test]
fn thousands_of_topics_live_in_one_cluster() {
    let builder = Cluster::builder()
        .brokers(3)
        .standbys(1)
        .topics(TOPICS as u16);
    let builder = builder
        .region_bytes(256 << 20)
        .config(BrokerConfig::default());
    let mut cluster = builder.start().expect("it starts");
    let creations = (0..TOPICS).map(|n| Control::CreateTopic(spec(name(n), order(n))));
    let mut ids = BTreeSet::new();
    for answer in ask_all(&cluster, creations) {
        let Control::TopicCreated(created) = answer else {
            panic!("{answer:?}");
        };
        assert!(ids.insert(created.topic.id));
    }
    let one_more = Control::CreateTopic(spec("one-more".into(), 0));
    let refused = ask_all(&cluster, [one_more.clone()].into_iter()).remove(0);
    let Control::Error(refused) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refused.code, ErrorCode::ClusterFull);
    let all: Vec<String> = (0..TOPICS).map(name).collect();
    assert_eq!(list(&cluster), all);

    // More than a list of news names at once, over all of the table.
    let used: Vec<usize> = (0..TOPICS).step_by(61).collect();
    for n in &used {
        publish(&cluster, *n, 1);
    }
    for n in &used {
        assert_eq!(reads(&cluster, *n, 1), name(*n).into_bytes());
    }
    let ordered = used.iter().filter(|n| order(**n) == 5);
    for n in ordered.clone() {
        assert_eq!(reads(&cluster, *n, 2), name(*n).into_bytes(), "elsewhere");
    }
    // The standby takes over, the broker comes back: all of it is still there.
    cluster.crash_broker(0);
    cluster.crash_broker(1);
    cluster.restart_broker(0).expect("the head comes back");
    cluster.restart_broker(1).expect("the broker comes back");
    for n in &used {
        assert_eq!(reads(&cluster, *n, 1), name(*n).into_bytes());
    }
    publish(&cluster, 0, 2);

    let gone = (0..TOPICS).step_by(3);
    let deletions = gone.map(|n| Control::DeleteTopic(DeleteTopic { name: name(n) }));
    for answer in ask_all(&cluster, deletions) {
        assert!(matches!(answer, Control::TopicDeleted), "{answer:?}");
    }
    let kept: Vec<String> = (0..TOPICS).filter(|n| n % 3 > 0).map(name).collect();
    assert_eq!(list(&cluster), kept);
    let created = ask_all(&cluster, [one_more].into_iter()).remove(0);
    let Control::TopicCreated(created) = created else {
        panic!("{created:?}");
    };
    assert!(ids.insert(created.topic.id), "an id is never given again");
    assert_eq!(reads(&cluster, 61, 1), name(61).into_bytes());
}
