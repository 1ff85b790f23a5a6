//! Clients and brokers that look for a while before they sleep. Alone in its process, because it looks at what threads do.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use embar_broker::{BrokerConfig, Cluster};
use embar_client::{Publisher, Start, Subscriber, Transport};

const MESSAGES: u64 = 200;
/// No wait takes so long, on no machine.
const LONG: Duration = Duration::from_secs(60);
/// Long enough that no thread sleeps while it is looked at.
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

/// Waits until this thread is in this state in two looks, and did not sleep by itself in between.
fn wait_until(name: &str, wanted: char) {
    let deadline = Instant::now() + LONG;
    loop {
        let before = (state(name), sleeps(name));
        thread::sleep(Duration::from_millis(20));
        let after = (state(name), sleeps(name));
        if before.0 == wanted && after == before {
            return;
        }
        assert!(Instant::now() < deadline, "{name} is {after:?}");
    }
}

/// Running, `R`, or asleep, `S`.
fn state(name: &str) -> char {
    let stat = fs::read_to_string(task(name).join("stat")).expect("it lives");
    let (_, state) = stat.rsplit_once(") ").expect("a state");
    state.chars().next().expect("a state")
}

/// Lets messages go through one after the other. Then nothing comes, and a thread that looks for long enough runs on; all
/// others sleep.
fn check(transport: Transport, clients: Duration, brokers: Duration) {
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
    for number in 0..MESSAGES {
        publisher.publish(&number.to_le_bytes()).expect("published");
        publisher.flush().expect("stored");
        let message = subscriber.next_timeout(LONG).expect("reads");
        assert_eq!(message.expect("one").value, number.to_le_bytes());
    }
    for (name, spin) in [
        ("embar-pub-1", clients),
        ("embar-net-1-", brokers),
        ("embar-sub", clients),
    ] {
        wait_until(name, if spin == ALWAYS { 'R' } else { 'S' });
    }
    subscriber.close();
    publisher.close().expect("ends");
}

#[test]
fn a_thread_sleeps_when_nothing_came_for_as_long_as_it_spins() {
    let briefly = Duration::from_millis(1);
    for transport in [Transport::Tcp, Transport::Unix, Transport::Shm] {
        check(transport, Duration::ZERO, Duration::ZERO);
        check(transport, ALWAYS, Duration::ZERO);
        check(transport, Duration::ZERO, ALWAYS);
        check(transport, briefly, briefly);
    }
}
