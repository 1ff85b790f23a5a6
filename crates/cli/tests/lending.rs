//! Subscribers on a broker's machine read its log where it lies, and hold up nobody.

mod common;

use std::process::Stdio;
use std::time::Duration;

use common::{PATIENCE, Space, embar, end_of, eventually, signal};
use embar_broker::Cluster;
use embar_client::{Admin, OnEvicted, Order, Publisher, Start, Subscriber, TopicSpec, Transport};

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
        drop(reader);
        eventually("nothing is lent any more", || lent(&cluster) == 0);
        publisher.close().expect("in good order");
    }
}

#[test]
fn a_process_that_is_stopped_or_killed_while_it_reads_keeps_nothing_for_good() {
    let space = Space::new();
    let cluster = cluster(&space);
    let bootstrap = create(&cluster, "t", Order::None);
    let publisher = publisher(&bootstrap, "t");
    publish(&publisher, 0..100);
    // Nobody reads what it prints, so it takes no more than fits in a pipe.
    let mut reader = embar(&[
        "consume",
        "t",
        "--bootstrap",
        &bootstrap,
        "--transport",
        "shm",
    ])
    .stdout(Stdio::piped())
    .spawn()
    .expect("embar starts");
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
