//! Programs that are no readers lock a payload file, for instance to save it, while its broker is not there.

mod support;

use std::fs::File;
use std::path::Path;

use embar_broker::Cluster;
use embar_memory::file_lock::{self, Access, WHOLE};
use embar_wire::control::{Control, StartAt};
use support::{Peer, batch, create_topic, data, eventually, small};

const BATCHES: u64 = 20;

fn value(number: u64) -> Vec<u8> {
    vec![number as u8; 1_000_000]
}

/// A cluster with some batches whose broker has died.
fn left_by_the_dead(dir: &Path) -> Cluster {
    let mut cluster = small().region_dir(dir).start().expect("it starts");
    create_topic(&cluster, "t", 0);
    let mut peer = Peer::greet(data(&cluster));
    let topic = peer.open_publisher("t", 1).topic_id;
    for number in 0..BATCHES {
        peer.send_bytes(&batch(topic, number, &[&value(number)]));
    }
    peer.expect_acks(BATCHES as usize);
    cluster.crash_broker(1);
    cluster
}

/// Locks all of the broker's payload.
fn lock(dir: &Path, access: Access) -> File {
    let path = dir.join("payload-1");
    let file = File::options().read(true).write(true).open(path);
    let file = file.expect("it is there");
    assert!(file_lock::try_lock(&file, access, WHOLE).expect("asked"));
    file
}

fn backpressured(cluster: &Cluster) -> u64 {
    let Control::StatusReply(reply) = Peer::greet(data(cluster)).ask(&Control::Status) else {
        panic!("no status")
    };
    reply.brokers[0].backpressured_connections
}

fn read_all(cluster: &Cluster, count: u64) {
    let mut peer = Peer::greet(data(cluster));
    let subscribed = peer.subscribe("t", StartAt::Earliest);
    assert_eq!((subscribed.first, subscribed.next), (0, count));
    for (offset, read) in peer.read(count as usize) {
        assert!(read == value(offset), "offset {offset}");
    }
}

#[test]
fn a_broker_loses_nothing_to_a_program_that_locks_all_and_goes_on_after_it() {
    let parent = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let dir = parent.path().join("region");
    let mut cluster = left_by_the_dead(&dir);
    let lock = lock(&dir, Access::Shared);
    cluster.restart_broker(1).expect("it starts all the same");
    let mut peer = Peer::greet(data(&cluster));
    let topic = peer.open_publisher("t", 1).topic_id;
    peer.send_bytes(&batch(topic, BATCHES, &[&value(BATCHES)]));
    eventually("it waits for room", || backpressured(&cluster) > 0);
    read_all(&cluster, BATCHES);
    drop(lock);
    peer.expect_acks(1);
    read_all(&cluster, BATCHES + 1);
}

#[test]
fn where_another_program_alone_has_a_lock_no_reader_has_anything() {
    let parent = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let dir = parent.path().join("region");
    let mut cluster = left_by_the_dead(&dir);
    let _lock = lock(&dir, Access::Exclusive);
    cluster.restart_broker(1).expect("it starts");
    let broker = cluster.broker(1).expect("it runs");
    assert_eq!(broker.log_usage().held_bytes, 0);
    let mut peer = Peer::greet(data(&cluster));
    let topic = peer.open_publisher("t", 1).topic_id;
    peer.send_bytes(&batch(topic, BATCHES, &[&value(BATCHES)]));
    peer.expect_acks(1);
    read_all(&cluster, BATCHES + 1);
}
