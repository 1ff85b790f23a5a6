//! Clients and brokers that look for a while before they sleep. Alone in its process, because it counts how often threads sleep.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use embar_broker::{BrokerConfig, Cluster};
use embar_client::{Publisher, Start, Subscriber, Transport};

const MESSAGES: u64 = 200;
/// No wait takes so long, on no machine.
const LONG: Duration = Duration::from_secs(60);
/// Long enough that no thread sleeps between two messages.
const ALWAYS: Duration = LONG;

/// The files of a thread of this process whose name begins so.
fn task(name: &str) -> std::path::PathBuf {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    let is_it = |path: &std::path::PathBuf| {
        let comm = fs::read_to_string(path.join("comm"));
        comm.is_ok_and(|comm| comm.trim().starts_with(name))
    };
    let mut paths = tasks.flatten().map(|task| task.path());
    paths.find(is_it).expect("such a thread")
}

/// How often this thread went to sleep by itself.
fn sleeps(name: &str) -> u64 {
    let status = fs::read_to_string(task(name).join("status")).expect("it lives");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("Linux counts them")
        .trim()
        .parse()
        .expect("a number")
}

/// Waits until this thread sleeps in two looks, and not once in between.
fn wait_until_asleep(name: &str) {
    let deadline = Instant::now() + LONG;
    loop {
        let before = sleeps(name);
        let stat = fs::read_to_string(task(name).join("stat")).expect("it lives");
        let state = stat.rsplit(") ").next().expect("a state");
        thread::sleep(Duration::from_millis(20));
        if state.starts_with('S') && sleeps(name) == before {
            return;
        }
        assert!(Instant::now() < deadline, "{name} does not sleep");
    }
}

/// How often the threads of publisher, broker and subscriber sleep while messages go through one after the other.
fn sleeps_of(transport: Transport, clients: Duration, brokers: Duration) -> [u64; 3] {
    let config = BrokerConfig {
        spin: brokers,
        ..BrokerConfig::default()
    };
    let dir = tempfile::tempdir().expect("a directory");
    let builder = Cluster::builder()
        .brokers(2)
        .config(config)
        .region_dir(dir.path().join("region"));
    let cluster = builder.region_bytes(64 << 20).start();
    let cluster = cluster.expect("a small cluster starts");
    let bootstrap = cluster.bootstrap().to_string();
    // With it the connection's thread receives, and no other.
    let publisher = Publisher::builder(&bootstrap)
        .topic("t")
        .transport(transport)
        .linger(Duration::ZERO)
        .spin(clients)
        .on_ack(|_| {})
        .open()
        .expect("opens");
    let mut subscriber = Subscriber::builder(&bootstrap)
        .topic("t")
        .transport(transport)
        .from(Start::Earliest)
        .io_threads(1)
        .spin(clients)
        .open()
        .expect("opens");
    let names = ["embar-pub-1", "embar-net-1-", "embar-sub"];
    let mut before = [0; 3];
    for number in 0..MESSAGES + 1 {
        if number == 1 {
            before = names.map(sleeps);
        }
        publisher.publish(&number.to_le_bytes()).expect("published");
        publisher.flush().expect("stored");
        let message = subscriber.next_timeout(LONG).expect("reads");
        assert_eq!(message.expect("one").value, number.to_le_bytes());
    }
    let after = names.map(sleeps);
    if clients < LONG {
        wait_until_asleep("embar-pub-1");
        wait_until_asleep("embar-sub");
    }
    if brokers < LONG {
        wait_until_asleep("embar-net-1-");
    }
    subscriber.close();
    publisher.close().expect("ends");
    std::array::from_fn(|index| after[index] - before[index])
}

#[test]
fn a_thread_sleeps_when_nothing_came_for_as_long_as_it_spins() {
    let (often, briefly) = (MESSAGES / 2, Duration::from_millis(1));
    for transport in [Transport::Tcp, Transport::Unix, Transport::Shm] {
        let [publisher, broker, subscriber] = sleeps_of(transport, Duration::ZERO, Duration::ZERO);
        assert!(publisher > often, "{transport}: {publisher}");
        assert!(broker > often, "{transport}: {broker}");
        assert!(subscriber > often, "{transport}: {subscriber}");
        let [publisher, _, subscriber] = sleeps_of(transport, ALWAYS, Duration::ZERO);
        assert!(publisher < often, "{transport}: {publisher}");
        assert!(subscriber < often, "{transport}: {subscriber}");
        let [_, broker, _] = sleeps_of(transport, Duration::ZERO, ALWAYS);
        assert!(broker < often, "{transport}: {broker}");
        // It ends, which they check.
        sleeps_of(transport, briefly, briefly);
    }
}
