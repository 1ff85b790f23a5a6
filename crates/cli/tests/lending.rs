//! Subscribers on a broker's machine read its log where it lies, and hold up nobody.

mod common;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use common::{PATIENCE, Space, Up, embar, end_of, eventually, signal};
use embar_broker::Cluster;
use embar_client::{Admin, OnEvicted, Order, Publisher, Start, Subscriber, TopicSpec, Transport};

use embar_memory::file_lock;

/// Bytes of a value: a batch each, too large to come with others.
const VALUE_BYTES: usize = 200_000;

fn cluster(space: &Space) -> Cluster {
    Cluster::builder()
        .region_bytes(104 << 20)
        .brokers(2)
        .region_dir(space.region())
        .start()
        .expect("a cluster")
}

fn create(cluster: &Cluster, topic: &str, order: Order) -> String {
    let bootstrap = cluster.bootstrap().to_string();
    let admin = Admin::connect(&bootstrap)
        .expect("a thread")
        .timeout(PATIENCE);
    let spec = TopicSpec::new(topic).order(order);
    admin.create_topic(spec).wait().expect("created");
    bootstrap
}

fn subscriber(bootstrap: &str, topic: &str) -> Subscriber {
    Subscriber::builder(bootstrap)
        .topic(topic)
        .from(Start::Earliest)
        .on_evicted(OnEvicted::SkipToFirst)
        .transport(Transport::Shm)
        .open()
        .expect("brokers serve it")
}

fn publisher(bootstrap: &str, topic: &str) -> Publisher {
    let builder = Publisher::builder(bootstrap).topic(topic);
    let builder = builder.batch_bytes(256 << 10).linger(Duration::ZERO);
    builder.open().expect("brokers take it")
}

/// Every byte shows which message it is of.
fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(VALUE_BYTES / 8)
}

fn number_of(value: &[u8]) -> u64 {
    let (words, rest) = value.as_chunks::<8>();
    assert!(rest.is_empty() && value.len() == VALUE_BYTES);
    assert!(words.iter().all(|word| *word == words[0]), "torn");
    u64::from_le_bytes(words[0])
}

fn publish(publisher: &Publisher, numbers: std::ops::Range<u64>) {
    for number in numbers {
        publisher.publish(&value(number)).expect("open");
    }
    publisher.flush().expect("acknowledged");
}

/// Bytes that broker 1 lends.
fn lent(cluster: &Cluster) -> u64 {
    cluster.broker(1).expect("it runs").log_usage().lent_bytes
}

#[test]
fn a_reader_that_takes_nothing_holds_up_no_publisher_and_sees_no_changed_byte() {
    for order in [Order::None, Order::TotalPerPublisher] {
        let space = Space::new();
        let cluster = cluster(&space);
        let bootstrap = create(&cluster, "t", order);
        let publisher = publisher(&bootstrap, "t");
        publish(&publisher, 0..100);
        let mut reader = subscriber(&bootstrap, "t");
        eventually("it is lent what it does not take", || lent(&cluster) > 0);
        // Four times the log.
        publish(&publisher, 100..2_000);
        let usage = cluster.broker(1).expect("it runs").log_usage();
        assert!(usage.lent_bytes <= usage.total_bytes / 8, "{usage:?}");
        let mut next = 0;
        while next < 2_000 {
            let message = reader.next().expect("open").expect("it goes on");
            let number = number_of(message.value);
            assert!(number >= next, "{number} after {next}");
            next = number + 1;
        }
        let read_in_place = counted(&reader, "lent_bytes");
        assert!(read_in_place > 0, "all was copied");
        drop(reader);
        eventually("nothing is lent any more", || lent(&cluster) == 0);
        publisher.close().expect("in good order");
    }
}

fn counted(reader: &Subscriber, counter: &str) -> u64 {
    let profile = reader.profile();
    let counters = profile.counters.iter();
    let mut found = counters.filter(|it| it.0 == counter);
    found.next().expect("it is counted").1
}

/// A process that subscribes by shared memory. Nobody reads what it prints, so it takes no more than fits in a pipe.
fn reader_that_is_not_read(bootstrap: &str) -> Child {
    let mut consume = embar(&["consume", "t", "--bootstrap", bootstrap]);
    consume.args(["--transport", "shm"]).stdout(Stdio::piped());
    consume.spawn().expect("embar starts")
}

#[test]
fn a_process_that_is_stopped_or_killed_while_it_reads_keeps_nothing_for_good() {
    let space = Space::new();
    let cluster = cluster(&space);
    let bootstrap = create(&cluster, "t", Order::None);
    let publisher = publisher(&bootstrap, "t");
    publish(&publisher, 0..100);
    let mut reader = reader_that_is_not_read(&bootstrap);
    eventually("it is lent what it does not take", || lent(&cluster) > 0);
    signal(reader.id(), "STOP");
    publish(&publisher, 100..1_000);
    let usage = cluster.broker(1).expect("it runs").log_usage();
    assert!(usage.lent_bytes <= usage.total_bytes / 8, "{usage:?}");
    signal(reader.id(), "KILL");
    end_of(&mut reader);
    eventually("nothing is lent any more", || lent(&cluster) == 0);
    publish(&publisher, 1_000..1_500);
    publisher.close().expect("in good order");
}

/// What `embar status` says that broker 1 keeps for readers of which it hears no more.
fn held_bytes(up: &Up) -> u64 {
    let said: serde_json::Value =
        serde_json::from_str(&up.ok(&["--json", "status"])).expect("JSON");
    let brokers = said["brokers"].as_array().expect("a list");
    let first = brokers.iter().find(|it| it["id"] == 1).expect("broker 1");
    first["held_bytes"].as_u64().expect("a number")
}

/// Where openings of a payload file by other processes keep bytes of it locked.
fn locked(payload: &File) -> Vec<Range<u64>> {
    let len = payload.metadata().expect("it is open").len();
    let mut locked = Vec::new();
    let mut from = 0;
    while from < len
        && let Some(bytes) = file_lock::locked_by_others(payload, from..len).expect("asked")
    {
        from = bytes.end;
        locked.push(bytes);
    }
    locked
}

fn bytes_of(payload: &File, ranges: &[Range<u64>]) -> Vec<Vec<u8>> {
    let read = |range: &Range<u64>| {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        payload
            .read_exact_at(&mut bytes, range.start)
            .expect("it is as long");
        bytes
    };
    ranges.iter().map(read).collect()
}

#[test]
fn what_a_stopped_process_was_lent_stands_still_although_its_broker_died() {
    let space = Space::new();
    let up = Up::start(&space, &["--brokers", "2"]);
    up.ok(&["topic", "create", "t", "--order", "0"]);
    let first = publisher(up.bootstrap(), "t");
    publish(&first, 0..100);
    first.close().expect("in good order");
    let mut reader = reader_that_is_not_read(up.bootstrap());
    let payload = File::open(space.region().join("payload-1")).expect("a broker's payload");
    eventually("it is lent what it does not take", || {
        !locked(&payload).is_empty()
    });
    signal(reader.id(), "STOP");
    up.kill_all();
    let lent = locked(&payload);
    assert!(!lent.is_empty(), "the reader keeps the locks");
    let before = bytes_of(&payload, &lent);
    // The next broker goes on without it, also when its log was filled more than once.
    let up = Up::start(&space, &["--brokers", "2"]);
    let second = publisher(up.bootstrap(), "t");
    publish(&second, 100..1_500);
    second.close().expect("in good order");
    assert!(held_bytes(&up) > 0, "the broker says what it keeps");
    assert!(
        bytes_of(&payload, &lent) == before,
        "bytes changed under a reader"
    );
    signal(reader.id(), "KILL");
    end_of(&mut reader);
    eventually("nobody keeps it locked", || locked(&payload).is_empty());
    eventually("the broker has it back", || held_bytes(&up) == 0);
    let third = publisher(up.bootstrap(), "t");
    publish(&third, 1_500..2_000);
    third.close().expect("in good order");
    up.stop();
}

#[test]
fn a_message_stands_still_although_broker_after_broker_dies_and_the_region_goes() {
    let space = Space::new();
    let mut up = Up::start(&space, &["--brokers", "2"]);
    up.ok(&["topic", "create", "t", "--order", "0"]);
    let first = publisher(up.bootstrap(), "t");
    publish(&first, 0..100);
    first.close().expect("in good order");
    let mut reader = subscriber(up.bootstrap(), "t");
    let message = reader.next().expect("open").expect("there are some");
    let expected = number_of(message.value);
    for round in 1..3 {
        up.kill_all();
        up = Up::start(&space, &["--brokers", "2"]);
        let next = publisher(up.bootstrap(), "t");
        publish(&next, round * 1_000..round * 1_000 + 900);
        next.close().expect("in good order");
        assert_eq!(number_of(message.value), expected);
    }
    up.kill_all();
    std::fs::remove_dir_all(space.region()).expect("nobody needs it");
    assert_eq!(number_of(message.value), expected);
}
