//! Who gives positions: the head, and a standby when the head is gone.

mod support;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use embar_broker::places::HEAD;
use embar_broker::{BrokerConfig, Cluster, Entry, RegionSpec, Role, Server};
use embar_fabric::region::Region;
use embar_memory::{Coherence, Mapped};
use embar_order::Leadership;
use embar_wire::batch::{BatchFlags, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{
    BrokerState, Control, CreateTopic, DeleteTopic, ErrorCode, ListTopics, Metadata, OpenPublisher,
    PublisherOpened, Secret, StartAt,
};
use embar_wire::time::WallNs;
use support::{Peer, data, eventually};

const TOPIC: &str = "ordered";
/// The row of the only standby beside a head and one data broker.
const STANDBY: u16 = 2;

/// A directory for a region. Threads are to sleep here, so the tests of this file take turns.
fn directory() -> ((tempfile::TempDir, MutexGuard<'static, ()>), PathBuf) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let parent = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let dir = parent.path().join("region");
    ((parent, turn), dir)
}

fn start(dir: &Path, standbys: u16) -> Cluster {
    start_with(BrokerConfig::default(), dir, standbys)
}

fn start_with(config: BrokerConfig, dir: &Path, standbys: u16) -> Cluster {
    let builder = Cluster::builder().brokers(2).standbys(standbys);
    let builder = builder.region_bytes(128 << 20).region_dir(dir);
    let cluster = builder.config(config).start();
    cluster.expect("a small cluster starts")
}

fn look_into(dir: &Path) -> Region<Mapped> {
    Region::open(dir, Coherence::Coherent).expect("a region")
}

fn create_ordered(head: SocketAddr) -> Control {
    Peer::greet(head).ask(&Control::CreateTopic(CreateTopic {
        name: TOPIC.into(),
        order: 5,
        retention_bytes: 0,
        retention_ms: 0,
        max_message_bytes: 0,
        replication_factor: 1,
    }))
}

/// A publisher of one session, one batch with one message at a time.
struct Publisher {
    peer: Peer,
    opened: PublisherOpened,
    next: u64,
}

impl Publisher {
    fn open(broker: SocketAddr) -> Self {
        let open = Control::OpenPublisher(OpenPublisher {
            topic: TOPIC.into(),
            producer: 7,
            acks: 1,
            instance: 1,
            secret: Secret([7; 16]),
            ..OpenPublisher::default()
        });
        loop {
            let mut peer = Peer::greet(broker);
            match peer.ask(&open) {
                Control::PublisherOpened(opened) => {
                    return Self {
                        next: opened.mark,
                        peer,
                        opened,
                    };
                }
                // The one that was asked has ended.
                Control::Error(error) if error.code == ErrorCode::NoSequencer => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn send(&mut self, value: &[u8]) {
        let mut builder = BatchBuilder::new(Vec::new(), value.len() + 512);
        builder.try_push(None, &[], value).expect("it fits");
        self.peer.send_bytes(&builder.seal(SealFields {
            producer: 7,
            sequence: self.next,
            topic: self.opened.topic_id,
            epoch: self.opened.session_epoch,
            append_time: WallNs(1),
            flags: BatchFlags::default(),
        }));
        self.next += 1;
    }

    /// Its position.
    fn publish(&mut self, value: &[u8]) -> u64 {
        self.send(value);
        self.peer.expect_acks(1)[0]
    }
}

fn read(broker: SocketAddr, count: usize) -> Vec<(u64, Vec<u8>)> {
    let mut peer = Peer::greet(broker);
    peer.subscribe(TOPIC, StartAt::Earliest);
    peer.read(count)
}

fn numbered(count: u64) -> Vec<(u64, Vec<u8>)> {
    (0..count).map(|n| (n, n.to_le_bytes().to_vec())).collect()
}

#[test]
fn the_order_goes_on_at_once_when_candidates_die_and_come_back() {
    let (_parent, dir) = directory();
    let config = BrokerConfig {
        sequencer_lease: 10 * support::PATIENCE,
        ..BrokerConfig::default()
    };
    let mut cluster = start_with(config, &dir, 1);
    create_ordered(cluster.bootstrap());
    let region = look_into(&dir);
    let active = || Leadership::observe(&region).term.map(|term| term.area);
    assert_eq!(active(), Some(0), "the head sequences when it is ready");

    let mut publisher = Publisher::open(data(&cluster));
    assert_eq!(publisher.publish(&0u64.to_le_bytes()), 0);
    for n in 1..=5u64 {
        let (dies, takes_over) = if n % 2 == 1 { (0, 1) } else { (STANDBY, 0) };
        cluster.crash_broker(dies);
        assert_eq!(publisher.publish(&n.to_le_bytes()), n);
        assert_eq!(active(), Some(takes_over));
        // Who comes back has looked who sequences when it is ready, and stands by.
        cluster.restart_broker(dies).expect("it comes back");
        assert_eq!(active(), Some(takes_over));
    }
    assert_eq!(publisher.publish(&6u64.to_le_bytes()), 6);
    assert_eq!(Leadership::observe(&region).rounds, 6);
    assert_eq!(read(data(&cluster), 7), numbered(7));
}

#[test]
fn a_sequencer_that_sleeps_is_woken_and_wakes_who_waits_for_it() {
    let (_parent, dir) = directory();
    let cluster = start(&dir, 0);
    create_ordered(cluster.bootstrap());
    let mut publisher = Publisher::open(data(&cluster));
    let region = look_into(&dir);
    let sleep_flag = region.sleep_flag(HEAD, region.sequencer_thread());
    let term = Leadership::observe(&region)
        .term
        .expect("the head sequences");
    let beat = || {
        region
            .sequencer_row(term.area)
            .found()
            .map_or(0, |row| row.beat)
    };
    // Without wake-ups each of them looks about once for each beat of the sequencer, so twelve batches take more
    // than eight beats. With them any batch may be held up, and not all.
    eventually("few beats see many batches", || {
        let before = beat();
        for _ in 0..12 {
            eventually("the sequencer sleeps", || sleep_flag.is_asleep());
            publisher.publish(b"x");
        }
        beat() - before < 6
    });
}

#[test]
fn a_head_that_comes_back_has_its_address_and_its_topics_again() {
    let (_parent, dir) = directory();
    let mut cluster = start(&dir, 1);
    let standby = cluster.broker(STANDBY).expect("it runs").address();
    cluster.crash_broker(0);
    let Control::Error(refused) = create_ordered(standby) else {
        panic!("only the head creates topics")
    };
    assert_eq!(refused.code, ErrorCode::NotHead);
    cluster.restart_broker(0).expect("it comes back");
    let created = create_ordered(cluster.bootstrap());
    assert!(matches!(created, Control::TopicCreated(_)), "{created:?}");
    assert_eq!(Publisher::open(data(&cluster)).publish(b"x"), 0);
}

#[test]
fn a_broker_that_dies_while_the_head_is_gone_comes_back_with_its_data() {
    let (_parent, dir) = directory();
    let mut cluster = start(&dir, 1);
    create_ordered(cluster.bootstrap());
    Publisher::open(data(&cluster)).publish(&0u64.to_le_bytes());
    cluster.crash_broker(0);
    cluster.crash_broker(1);
    cluster.restart_broker(1).expect("it needs no head");
    let mut publisher = Publisher::open(data(&cluster));
    assert_eq!(publisher.next, 1, "the session is known");
    publisher.publish(&1u64.to_le_bytes());
    // The head finds it where it is, and another one still finds the row taken.
    cluster.restart_broker(0).expect("it comes back");
    let Control::ClusterMetadata(found) =
        Peer::greet(cluster.bootstrap()).ask(&Control::Metadata(Metadata::default()))
    else {
        panic!("metadata")
    };
    let broker = found.brokers.iter().find(|it| it.id == 1).expect("a row");
    assert_eq!(broker.address, data(&cluster).to_string());
    assert_eq!((broker.state, broker.incarnation), (BrokerState::Ready, 2));
    let again = Role::Follower {
        entry: Entry::Region { dir, id: 1 },
        coherence: Coherence::Coherent,
    };
    let refused = Server::start(again, BrokerConfig::default(), &|_| ()).err();
    let refused = refused.expect("its row has an owner").to_string();
    assert!(refused.contains("row 1"), "{refused}");
    assert_eq!(read(data(&cluster), 2), numbered(2));
}

#[test]
fn a_broker_that_knows_its_region_takes_no_row_of_another_kind() {
    let (_parent, dir) = directory();
    let _cluster = start(&dir, 0);
    let start = |id, takes_data| {
        let entry = Entry::Region {
            dir: dir.clone(),
            id,
        };
        let coherence = Coherence::Coherent;
        let role = match takes_data {
            true => Role::Follower { entry, coherence },
            false => Role::Standby { entry, coherence },
        };
        let refused = Server::start(role, BrokerConfig::default(), &|_| ()).err();
        refused.expect("no such row").to_string()
    };
    assert!(start(0, true).contains("not one of 1 to 1"));
    assert!(start(STANDBY, false).contains("--standbys"));
}

#[test]
fn a_standby_takes_no_data_and_no_other_row() {
    let (_parent, dir) = directory();
    let mut cluster = start(&dir, 1);
    create_ordered(cluster.bootstrap());
    let standby = cluster.broker(STANDBY).expect("it runs").address();
    let open = OpenPublisher {
        topic: TOPIC.into(),
        producer: 7,
        acks: 1,
        instance: 1,
        ..OpenPublisher::default()
    };
    let Control::Error(refused) = Peer::greet(standby).ask(&Control::OpenPublisher(open)) else {
        panic!("it takes no data")
    };
    assert_eq!(refused.code, ErrorCode::NotData);
    cluster.crash_broker(STANDBY);
    let join = |id| {
        let role = Role::Standby {
            entry: Entry::Head {
                address: cluster.bootstrap(),
                id,
            },
            coherence: Coherence::Coherent,
        };
        Server::start(role, BrokerConfig::default(), &|_| ())
    };
    let refused = join(Some(1)).err().expect("a data row").to_string();
    assert!(refused.contains("not one of 2 to 2"), "{refused}");
    let joined = join(None).expect("the row is free");
    assert_eq!(joined.id(), STANDBY);
    let refused = join(None).err().expect("it has joined").to_string();
    assert!(refused.contains("--standbys"), "{refused}");
}

#[test]
fn a_cluster_that_ended_under_its_standby_goes_on_under_its_head() {
    let (_parent, dir) = directory();
    let mut cluster = start(&dir, 1);
    create_ordered(cluster.bootstrap());
    let mut publisher = Publisher::open(data(&cluster));
    publisher.publish(&0u64.to_le_bytes());
    cluster.crash_broker(0);
    publisher.publish(&1u64.to_le_bytes());
    cluster.restart_broker(0).expect("it comes back");
    cluster.crash_broker(0);
    drop(cluster);

    let cluster = start(&dir, 1);
    let leadership = Leadership::observe(&look_into(&dir));
    assert_eq!(leadership.term.map(|term| term.area), Some(0));
    let mut publisher = Publisher::open(data(&cluster));
    assert_eq!(publisher.next, 2, "the session is known");
    assert_eq!(publisher.publish(&2u64.to_le_bytes()), 2);
    assert_eq!(read(data(&cluster), 3), numbered(3));
}

/// Leaves a batch in the lane of a dead broker that no sequencer has seen, has `damage` done to the
/// payload file, and returns what a restarted cluster has in order.
fn with_leftovers(damage: impl FnOnce(&mut Vec<u8>)) -> Vec<(u64, Vec<u8>)> {
    let (_parent, dir) = directory();
    let mut cluster = start(&dir, 0);
    create_ordered(cluster.bootstrap());
    let mut publisher = Publisher::open(data(&cluster));
    publisher.publish(b"first");
    cluster.crash_broker(0);
    publisher.send(&[77; 3000]);
    let mut lane = look_into(&dir).lane_reader(1, 0);
    eventually("it is in the lane", || {
        while lane.take().found().is_some() {}
        lane.position() == 3
    });
    cluster.crash_broker(1);
    let payload_file = dir.join("payload-1");
    let mut bytes = std::fs::read(&payload_file).expect("the payload");
    damage(&mut bytes);
    std::fs::write(&payload_file, &bytes).expect("it is ours");

    cluster.restart_broker(0).expect("the head comes back");
    cluster.restart_broker(1).expect("the broker comes back");
    let mut publisher = Publisher::open(data(&cluster));
    let ordered = publisher.next;
    let last = publisher.publish(b"last");
    assert_eq!(last, ordered);
    read(data(&cluster), last as usize + 1)
}

#[test]
fn what_a_dead_broker_had_received_whole_is_ordered() {
    let ordered = with_leftovers(|_| ());
    let values: Vec<_> = ordered.into_iter().map(|(_, value)| value).collect();
    assert_eq!(
        values,
        [b"first".to_vec(), vec![77; 3000], b"last".to_vec()]
    );
}

#[test]
fn what_a_dead_broker_left_damaged_is_not_ordered() {
    let ordered = with_leftovers(|bytes| {
        let at = bytes.windows(3000).position(|w| w == [77; 3000]);
        bytes[at.expect("the batch") + 2999] ^= 1;
    });
    let values: Vec<_> = ordered.into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, [b"first".to_vec(), b"last".to_vec()]);
}

#[test]
fn a_head_that_is_alone_orders_what_it_takes() {
    let (_parent, dir) = directory();
    let start = || {
        let role = Role::Head {
            dir: dir.clone(),
            region: RegionSpec {
                bytes: 64 << 20,
                data_brokers: 0,
                standbys: 0,
                spares: 0,
                topics: None,
                sessions: None,
                fresh: false,
                coherence: Coherence::Coherent,
            },
        };
        Server::start(role, BrokerConfig::default(), &|_| ()).expect("it starts")
    };
    let alone = start();
    create_ordered(alone.address());
    assert_eq!(
        Publisher::open(alone.address()).publish(&0u64.to_le_bytes()),
        0
    );
    drop(alone);
    let alone = start();
    assert_eq!(
        Publisher::open(alone.address()).publish(&1u64.to_le_bytes()),
        1
    );
    assert_eq!(read(alone.address(), 2), numbered(2));
}

#[test]
fn batches_that_wait_are_answered_when_the_last_topic_is_deleted() {
    let (_parent, dir) = directory();
    let cluster = start(&dir, 0);
    create_ordered(cluster.bootstrap());
    let mut publisher = Publisher::open(data(&cluster));
    publisher.next += 1;
    publisher.send(b"waits for the one before");
    // The answer comes when the batch is taken in.
    publisher.peer.ask(&Control::Status);
    let deleted = Peer::greet(cluster.bootstrap())
        .ask(&Control::DeleteTopic(DeleteTopic { name: TOPIC.into() }));
    assert_eq!(deleted, Control::TopicDeleted);
    // Now the data broker knows.
    Peer::greet(data(&cluster)).ask(&Control::ListTopics(ListTopics::default()));
    let answers = publisher.peer.expect_answers(1);
    let gone = [ErrorCode::UnknownTopic, ErrorCode::UnknownSession];
    assert!(
        matches!(answers[..], [Err((code, 0))] if gone.contains(&code)),
        "the broker's word, or the sequencer's: {answers:?}"
    );
}
