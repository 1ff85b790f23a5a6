//! Brokers join and leave while publishers and subscribers work: nothing acknowledged is missing or comes twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use embar_broker::{BrokerConfig, Cluster, Entry, RemoveError, Role, Server};
use embar_client::{
    Admin, AdminError, ClientError, OnBrokerLoss, Order, Publisher, Start, Subscriber, TopicSpec,
};
use embar_memory::Coherence;
use embar_wire::control::{BrokerState, ErrorCode};

/// Longest that anything may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);
/// In the place of a publisher's number: a [mark](expect_marks).
const MARK: u8 = u8::MAX;
/// The number of the next mark.
static NEXT_MARK: AtomicU64 = AtomicU64::new(0);
const MIB: u64 = 1 << 20;

fn cluster(data: u16, spares: u16) -> Cluster {
    Cluster::builder()
        .region_bytes(u64::from(data) * 40 * MIB + 24 * MIB)
        .brokers(data + 1)
        .spares(spares)
        .start()
        .expect("a cluster")
}

fn admin(cluster: &Cluster) -> Admin {
    let admin = Admin::connect(&cluster.bootstrap().to_string()).expect("a thread");
    admin.timeout(PATIENCE)
}

fn create(cluster: &Cluster, name: &str, order: Order) {
    let spec = TopicSpec::new(name).order(order);
    admin(cluster).create_topic(spec).wait().expect("created");
}

fn subscriber(cluster: &Cluster, topic: &str) -> Subscriber {
    Subscriber::builder(&cluster.bootstrap().to_string())
        .topic(topic)
        .from(Start::Earliest)
        .open()
        .expect("a subscriber")
}

/// Batches that a broker has taken.
fn batches(cluster: &Cluster, id: u16) -> u64 {
    let status = admin(cluster).status(id.into()).wait().expect("it serves");
    status.batches
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A publisher that numbers its messages, until the test stops it.
struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Load {
    fn start(cluster: &Cluster, topic: &str, number: u8) -> Self {
        let publisher = Publisher::builder(&cluster.bootstrap().to_string())
            .topic(topic)
            .batch_bytes(4096)
            .linger(Duration::from_millis(1))
            .on_broker_loss(OnBrokerLoss::InDoubt)
            .open()
            .expect("a publisher");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut sent = 0_u64;
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..50 {
                    let mut value = sent.to_le_bytes().to_vec();
                    value.push(number);
                    publisher.publish(&value).expect("published");
                    sent += 1;
                }
                std::thread::sleep(Duration::from_micros(500));
            }
            publisher.flush().expect("all of it is acknowledged");
            publisher.close().expect("in good order");
            sent
        });
        Self { stop, thread }
    }

    /// How many messages were acknowledged: all.
    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}

fn parse(value: &[u8]) -> (u8, u64) {
    let (sequence, number) = value.split_first_chunk().expect("8 bytes");
    (number[0], u64::from_le_bytes(*sequence))
}

/// The next message that is no mark: who published it, and its number.
fn next_message(subscriber: &mut Subscriber) -> (u8, u64) {
    loop {
        let message = subscriber.next_timeout(PATIENCE).expect("it comes");
        let (number, sequence) = parse(message.expect("there is more").value);
        if number != MARK {
            return (number, sequence);
        }
    }
}

/// Publishes marks until the subscriber has one from each of `brokers` (of the one order: `None`): nothing else was on its
/// way to it.
fn expect_marks(cluster: &Cluster, subscriber: &mut Subscriber, brokers: &[Option<u32>]) {
    let publisher = Publisher::builder(&cluster.bootstrap().to_string())
        .topic("t")
        .linger(Duration::ZERO)
        .open()
        .expect("a publisher");
    let first = NEXT_MARK.load(Ordering::Relaxed);
    let mut missing: BTreeSet<Option<u32>> = brokers.iter().copied().collect();
    let deadline = Instant::now() + PATIENCE;
    while !missing.is_empty() {
        assert!(Instant::now() < deadline, "no mark of {missing:?}");
        let mark = NEXT_MARK.fetch_add(1, Ordering::Relaxed);
        let value = [&mark.to_le_bytes()[..], &[MARK]].concat();
        publisher.publish(&value).expect("published");
        publisher.flush().expect("acknowledged");
        // Marks of an earlier call may come before it.
        loop {
            let message = subscriber.next_timeout(PATIENCE).expect("it comes");
            let message = message.expect("there is more");
            let (number, sequence) = parse(message.value);
            assert_eq!(number, MARK, "message {sequence} is not expected");
            if sequence >= first {
                missing.remove(&message.broker);
            }
            if sequence == mark {
                break;
            }
        }
    }
    publisher.close().expect("in good order");
}

/// Reads `sent` of each publisher in the order of each, each message once, and nothing else.
fn read_in_order(cluster: &Cluster, subscriber: &mut Subscriber, sent: &[u64]) {
    let mut next = vec![0; sent.len()];
    while next != sent {
        let (number, sequence) = next_message(subscriber);
        assert_eq!(sequence, next[usize::from(number)], "of publisher {number}");
        next[usize::from(number)] += 1;
    }
    expect_marks(cluster, subscriber, &[None]);
}

/// Reads `sent` of one publisher from brokers 1 and 2, each message once, and nothing else.
fn read_all(cluster: &Cluster, subscriber: &mut Subscriber, sent: u64) {
    let mut seen: BTreeMap<u64, u32> = BTreeMap::new();
    for _ in 0..sent {
        let (_, sequence) = next_message(subscriber);
        *seen.entry(sequence).or_default() += 1;
    }
    assert!(seen.values().all(|times| *times == 1) && seen.len() as u64 == sent);
    expect_marks(cluster, subscriber, &[Some(1), Some(2)]);
}

#[test]
fn a_broker_that_is_added_takes_batches_of_order_0_and_is_read() {
    let mut cluster = cluster(1, 1);
    create(&cluster, "t", Order::None);
    let mut reader = subscriber(&cluster, "t");
    let load = Load::start(&cluster, "t", 0);
    assert_eq!(cluster.add_broker().expect("a spare is there"), 2);
    eventually("it takes batches", || batches(&cluster, 2) > 0);
    let sent = load.stop();
    read_all(&cluster, &mut reader, sent);
    let read = reader.position();
    assert!(read.next(1) > Some(0) && read.next(2) > Some(0), "{read}");
}

#[test]
fn a_broker_that_is_added_takes_batches_of_order_5_and_sends_them() {
    let mut cluster = cluster(1, 1);
    create(&cluster, "t", Order::TotalPerPublisher);
    let mut reader = subscriber(&cluster, "t");
    let load = [0, 1].map(|number| Load::start(&cluster, "t", number));
    let id = cluster.add_broker().expect("a spare is there");
    eventually("it takes batches", || batches(&cluster, id) > 0);
    let sent = load.map(Load::stop);
    read_in_order(&cluster, &mut reader, &sent);
    // A reader at the first broker alone now gets what lies in the payload file that came later.
    read_in_order(&cluster, &mut subscriber(&cluster, "t"), &sent);
}

#[test]
fn brokers_that_leave_take_nothing_of_order_5_along() {
    let mut cluster = cluster(3, 0);
    create(&cluster, "t", Order::TotalPerPublisher);
    let mut readers = [(); 3].map(|()| subscriber(&cluster, "t"));
    let load = [0, 1].map(|number| Load::start(&cluster, "t", number));
    eventually("all of them take batches", || {
        (1..=3).all(|id| batches(&cluster, id) > 20)
    });
    cluster.remove_broker(1, false).expect("it leaves");
    cluster.remove_broker(3, false).expect("it leaves");
    let before = batches(&cluster, 2);
    eventually("the last one goes on", || {
        batches(&cluster, 2) > before + 20
    });
    let sent = load.map(Load::stop);
    for reader in &mut readers {
        read_in_order(&cluster, reader, &sent);
    }
    // What those that left had taken is still there for readers that come now.
    read_in_order(&cluster, &mut subscriber(&cluster, "t"), &sent);
    let metadata = admin(&cluster).metadata().wait().expect("an answer");
    let state = |id| {
        metadata
            .brokers
            .iter()
            .find(|it| it.id == id)
            .map(|it| it.state)
    };
    assert_eq!(
        [1, 2, 3].map(state),
        [BrokerState::Left, BrokerState::Ready, BrokerState::Left].map(Some)
    );
}

#[test]
fn brokers_come_and_go_again_and_again() {
    let mut cluster = cluster(1, 1);
    create(&cluster, "t", Order::TotalPerPublisher);
    let mut reader = subscriber(&cluster, "t");
    let load = Load::start(&cluster, "t", 0);
    for round in 0..4 {
        let id = cluster.add_broker().expect("a place is free");
        eventually("it takes batches", || batches(&cluster, id) > 5);
        let other = 3 - id;
        eventually("and the other one does", || batches(&cluster, other) > 5);
        // Each of the two leaves in turn, and comes back with what it had.
        let leaves = if round % 2 == 0 { other } else { id };
        cluster.remove_broker(leaves, false).expect("it leaves");
    }
    let sent = load.stop();
    read_in_order(&cluster, &mut reader, &[sent]);
    read_in_order(&cluster, &mut subscriber(&cluster, "t"), &[sent]);
}

#[test]
fn a_full_cluster_says_what_to_do() {
    let mut cluster = cluster(1, 1);
    cluster.add_broker().expect("a spare is there");
    let full = cluster
        .add_broker()
        .expect_err("no place is left")
        .to_string();
    for what in ["all 2 places", "embar drain", "--spares"] {
        assert!(full.contains(what), "{what} is not in: {full}");
    }
    cluster.remove_broker(1, false).expect("it is empty");
    assert_eq!(cluster.add_broker().expect("a place is free again"), 1);
}

#[test]
fn who_joins_takes_the_place_of_a_dead_broker_before_others() {
    let mut cluster = cluster(3, 1);
    cluster.remove_broker(1, false).expect("it is empty");
    cluster.crash_broker(3);
    let join = || {
        let role = Role::Follower {
            entry: Entry::Head {
                address: cluster.bootstrap(),
                id: None,
            },
            coherence: Coherence::Coherent,
        };
        Server::start(role, BrokerConfig::default(), &|_| ()).expect("a place is free")
    };
    let joined = [join(), join(), join()];
    assert_eq!(joined.each_ref().map(Server::id), [3, 1, 4]);
}

#[test]
fn a_broker_leaves_with_messages_that_only_it_has_if_it_is_forced_to() {
    let mut cluster = cluster(2, 0);
    create(&cluster, "t", Order::None);
    let load = Load::start(&cluster, "t", 0);
    eventually("both take batches", || {
        (1..=2).all(|id| batches(&cluster, id) > 5)
    });
    let sent = load.stop();
    let bootstrap = cluster.bootstrap().to_string();
    let described = admin(&cluster).describe_topic("t").wait().expect("there");
    let of_1 = described.partitions[0].next;
    let refused = admin(&cluster).remove_broker(1, false).wait();
    let Err(AdminError::Client(ClientError::Refused { code, message })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(code, ErrorCode::RetainsData);
    for what in [
        &format!("{of_1} messages of t (order 0)"),
        "--force",
        "--id 1",
    ] {
        assert!(message.contains(what), "{what} is not in: {message}");
    }
    assert!(matches!(
        cluster.remove_broker(1, false),
        Err(RemoveError::Retains { id: 1, retained }) if retained[0].messages == of_1
    ));
    let mut reader = subscriber(&cluster, "t");
    read_all(&cluster, &mut reader, sent);
    cluster.remove_broker(1, true).expect("it is forced to");
    // Readers go on without it, and do not wait for it.
    let mut left = 0;
    let until_end = Subscriber::builder(&bootstrap).topic("t").until_end(true);
    let mut rest = until_end.open().expect("one broker serves");
    while let Some(message) = rest.next_timeout(PATIENCE).expect("no error") {
        left += u64::from(parse(message.value).0 != MARK);
    }
    assert_eq!(left, sent - of_1);
    let load = Load::start(&cluster, "t", 0);
    eventually("the other one takes batches", || batches(&cluster, 2) > 40);
    // A broker takes its place again, and has what it had: no reader gets that twice.
    assert_eq!(cluster.add_broker().expect("its place is free"), 1);
    eventually("it takes batches", || batches(&cluster, 1) > 5);
    let more = load.stop();
    read_all(&cluster, &mut reader, more);
    read_all_again(&cluster, &mut subscriber(&cluster, "t"), sent + more);
}

/// Of several publishers with the same numbers: only how many.
fn read_all_again(cluster: &Cluster, subscriber: &mut Subscriber, all: u64) {
    for _ in 0..all {
        next_message(subscriber);
    }
    expect_marks(cluster, subscriber, &[Some(1), Some(2)]);
}

#[test]
fn the_last_broker_that_takes_data_stays_and_the_head_always_does() {
    let mut cluster = cluster(2, 0);
    cluster.remove_broker(2, false).expect("it is empty");
    let refused = |id| admin(&cluster).remove_broker(id, false).wait();
    for (id, why) in [(1, "last one"), (0, "takes no data")] {
        let Err(AdminError::Client(ClientError::Refused { message, .. })) = refused(id) else {
            panic!("broker {id} was not refused");
        };
        assert!(message.contains(why), "{why} is not in: {message}");
    }
    assert!(refused(2).is_ok(), "it has left already");
    admin(&cluster)
        .remove_broker(1, true)
        .wait()
        .expect("forced");
}
