//! The threads that receive for a subscriber. Alone in its process, because it counts them.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use embar_broker::Cluster;
use embar_client::{Admin, Order, Publisher, Start, Subscriber, SubscriberBuilder, TopicSpec};

const BROKERS: u32 = 3;
const MESSAGES: u64 = 12_000;
/// No read takes so long, on no machine.
const LONG: Duration = Duration::from_secs(60);

/// Names of the threads of subscribers in this process.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    let names = tasks.flatten().filter_map(|task| {
        // A thread may end while it is looked at.
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let name = name.trim();
        name.starts_with("embar-sub").then(|| name.to_string())
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Waits until there is none any more: the kernel lists a thread a little longer than others wait for its end.
fn wait_for_no_thread() {
    let deadline = Instant::now() + LONG;
    while !threads().is_empty() {
        assert!(Instant::now() < deadline, "{:?} go on", threads());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Publishes numbers, in batches of some messages.
fn publish(bootstrap: &str, topic: &str, order: Order) {
    let admin = Admin::connect(bootstrap).expect("a cluster");
    let spec = TopicSpec::new(topic).order(order);
    admin.create_topic(spec).wait().expect("created");
    let publisher = Publisher::builder(bootstrap)
        .topic(topic)
        .batch_bytes(4096)
        .threads_per_broker(1)
        .open()
        .expect("opens");
    let value = |number: u64| [&number.to_le_bytes()[..], &[7; 56]].concat();
    for number in 0..MESSAGES {
        publisher.publish(&value(number)).expect("published");
    }
    publisher.close().expect("all stored");
}

/// Reads all there is: per broker, or in the one order, what comes next must follow what came before.
fn read_all(mut subscriber: Subscriber, brokers: usize) {
    let mut next: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    let mut seen = vec![false; MESSAGES as usize];
    while let Some(message) = subscriber.next_timeout(LONG).expect("reads") {
        let next = next.entry(message.broker).or_default();
        assert_eq!(message.offset, *next);
        *next += 1;
        let number = message.value[..8].try_into().expect("8 bytes");
        let number = u64::from_le_bytes(number) as usize;
        assert!(
            !std::mem::replace(&mut seen[number], true),
            "{number} twice"
        );
    }
    assert!(seen.iter().all(|seen| *seen));
    assert_eq!(next.len(), brokers);
}

#[test]
fn connections_are_shared_out_among_as_many_threads_as_were_asked_for() {
    let builder = Cluster::builder().brokers(1 + BROKERS as u16);
    let cluster = builder.region_bytes(128 << 20).start();
    let cluster = cluster.expect("a small cluster starts");
    let bootstrap = cluster.bootstrap().to_string();
    publish(&bootstrap, "apart", Order::PerBroker);
    publish(&bootstrap, "together", Order::TotalPerPublisher);
    let builder = |topic: &str| -> SubscriberBuilder {
        let builder = Subscriber::builder(&bootstrap).topic(topic);
        builder.from(Start::Earliest).until_end(true)
    };

    for (most, expected) in [
        (1, &["embar-sub"][..]),
        (2, &["embar-sub", "embar-sub-1"]),
        (8, &["embar-sub", "embar-sub-1", "embar-sub-2"]),
    ] {
        let subscriber = builder("apart").io_threads(most).open().expect("opens");
        assert_eq!(threads(), expected, "at most {most}");
        read_all(subscriber, BROKERS as usize);
        wait_for_no_thread();
    }

    // One broker serves all of a topic with one order.
    let subscriber = builder("together").io_threads(8).open().expect("opens");
    assert_eq!(threads(), ["embar-sub"]);
    read_all(subscriber, 1);
    wait_for_no_thread();

    // All of them are held back by a reader that stops in the middle.
    let builder = builder("apart").until_end(false).io_threads(3);
    let mut subscriber = builder.open().expect("opens");
    assert!(subscriber.next_timeout(LONG).expect("reads").is_some());
    drop(subscriber);
    wait_for_no_thread();
    cluster.shutdown();
}
