//! Threads that publish by shared memory as fast as they can take in by themselves what their connection brings. Whoever waits
//! for it otherwise hears of it, and nothing is lost or mixed up.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use embar_broker::Cluster;
use embar_client::{Publisher, Start, Subscriber, Transport};

/// No wait takes so long, on no machine.
const LONG: Duration = Duration::from_secs(60);
/// Larger than what is copied by the ring.
const BATCH_BYTES: usize = 128 << 10;
/// Of messages that do not count.
const WARM_UP: u8 = u8::MAX;

fn cluster(dir: &tempfile::TempDir) -> Cluster {
    let builder = Cluster::builder().brokers(2);
    let builder = builder.region_dir(dir.path().join("region"));
    let cluster = builder.region_bytes(256 << 20).start();
    cluster.expect("a small cluster starts")
}

/// A publisher with few buffers, so that it waits for one all the time.
fn open(cluster: &Cluster) -> Publisher {
    Publisher::builder(&cluster.bootstrap().to_string())
        .topic("t")
        .transport(Transport::Shm)
        .batch_bytes(BATCH_BYTES)
        .buffers(3)
        .open()
        .expect("opens")
}

fn counter(publisher: &Publisher, of: &str) -> u64 {
    let counters = publisher.profile().counters;
    let mut counters = counters.iter();
    let (_, count) = counters.find(|(name, _)| *name == of).expect("it is one");
    *count
}

/// Message `number` of a thread.
fn message(thread: u8, number: u64) -> [u8; 1000] {
    let mut bytes = [thread; 1000];
    bytes[1..9].copy_from_slice(&number.to_le_bytes());
    bytes
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// As an async runtime does, which drives no connection.
fn as_a_task<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let deadline = Instant::now() + LONG;
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        assert!(Instant::now() < deadline, "nobody wakes the task");
        thread::park_timeout(LONG);
    }
}

#[test]
fn who_waits_for_a_buffer_drives_and_all_others_hear_of_their_messages() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = cluster(&dir);
    let publisher = open(&cluster);
    // On a busy machine that takes more messages than the log keeps: nobody reads them.
    while counter(&publisher, "caller_waits") < 50 {
        publisher.publish(&message(WARM_UP, 0)).expect("published");
    }
    let mut published = 0;
    // From one state to the next: nobody waits, a thread waits, a task waits, and somebody publishes on meanwhile.
    for round in 0..20 {
        thread::scope(|scope| {
            for thread in 1..=2 {
                let handle = publisher.handle();
                scope.spawn(move || {
                    for number in 0..300 {
                        handle
                            .publish(&message(thread, round * 300 + number))
                            .expect("published");
                    }
                });
            }
            for _ in 0..300 {
                publisher
                    .publish(&message(0, published))
                    .expect("published");
                published += 1;
            }
            let ticket = publisher
                .publish(&message(0, published))
                .expect("published");
            published += 1;
            match round % 3 {
                0 => publisher.flush_timeout(LONG).expect("all stored"),
                1 => drop(publisher.acked(ticket).wait_timeout(LONG).expect("stored")),
                _ => drop(as_a_task(publisher.acked(ticket)).expect("stored")),
            }
        });
    }
    publisher.close().expect("all stored");
    let mut subscriber = Subscriber::builder(&cluster.bootstrap().to_string())
        .topic("t")
        .from(Start::Earliest)
        .until_end(true)
        .open()
        .expect("opens");
    let mut next = [0; 3];
    while let Some(read) = subscriber.next_timeout(LONG).expect("reads") {
        let thread = read.value[0];
        if thread == WARM_UP {
            continue;
        }
        let number = &mut next[usize::from(thread)];
        assert!(read.value == message(thread, *number), "{thread}: {number}");
        *number += 1;
    }
    assert_eq!(next, [published, 6000, 6000]);
}
