//! A cluster whose process has no file descriptor left: those it serves notice nothing, nobody who lives is taken
//! for dead, and others are served as soon as descriptors are free. In a process of its own, because the limit is
//! the whole process's.

mod support;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use embar_frame::{FRAME_HEADER_BYTES, FrameHeader};
use embar_wire::control::{Control, Metadata};
use embar_wire::frame::LogProtocol;
use rustix::process::{Resource, getrlimit, setrlimit};
use support::{PATIENCE, Peer, batch_of, create_topic_of_order, data, eventually, hello_of, small};

/// Descriptors of the process: a few for a cluster, and not too many to take them all.
const DESCRIPTORS: u64 = 512;
/// Batches, one after the other. Meanwhile locks are looked at again and again.
const BATCHES: u64 = 2_000;
const PRODUCER: u64 = 7;
/// The frame by which sessions end.
const CLOSE: u16 = 0xFF05;

/// Takes every descriptor that is left.
fn take_all() -> Vec<File> {
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken
}

/// How many descriptors are open to the pipe by which others wake the thread of the data broker: its own, and one
/// of the sequencer.
fn wakeup_pipes() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("this process has descriptors");
    let paths = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    paths.filter(|path| path.ends_with("wakeup-1-0")).count()
}

fn sequencer(peer: &mut Peer) -> Option<u32> {
    match peer.ask(&Control::Metadata(Metadata::default())) {
        Control::ClusterMetadata(metadata) => metadata.sequencer,
        other => panic!("{other:?}"),
    }
}

/// Sends one batch after the other, each when the one before is acknowledged.
struct Witness {
    publisher: Peer,
    topic: u32,
    epoch: u32,
    sent: u64,
}

impl Witness {
    fn publish(&mut self, batches: u64) {
        for _ in 0..batches {
            let batch = batch_of(PRODUCER, self.epoch, self.topic, self.sent, &[b"value"]);
            self.publisher.send_bytes(&batch);
            assert_eq!(self.publisher.expect_acks(1), [self.sent]);
            self.sent += 1;
        }
    }
}

#[test]
fn who_is_served_notices_nothing_and_others_are_served_later() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(DESCRIPTORS);
    setrlimit(Resource::Nofile, limit).expect("less is always allowed");
    let cluster = small().standbys(1).start().expect("a cluster");
    create_topic_of_order(&cluster, "witness", 5, 0);
    let mut publisher = Peer::greet(data(&cluster));
    let opened = publisher.open_session("witness", PRODUCER);
    let mut witness = Witness {
        publisher,
        topic: opened.topic_id,
        epoch: opened.session_epoch,
        sent: 0,
    };
    witness.publish(1);
    let mut asker = Peer::greet(cluster.bootstrap());
    let sequences = sequencer(&mut asker);
    assert!(sequences.is_some());
    let hello = hello_of(LogProtocol::default());

    // Without it no wake-up would come later, and each batch would wait until the broker looks by itself.
    eventually("the sequencer can wake the broker", || wakeup_pipes() == 2);

    // One for the client's end, and none for the broker's.
    let mut taken = take_all();
    taken.pop();
    let mut waits = TcpStream::connect(data(&cluster)).expect("the kernel answers");
    waits.write_all(&hello).expect("the kernel takes it");
    for _ in 0..BATCHES / 100 {
        witness.publish(100);
        // Often enough that the broker does not take the asker for dead.
        assert_eq!(sequencer(&mut asker), sequences, "nobody took over");
    }
    waits.set_nonblocking(true).expect("an option");
    let answer = waits.read(&mut [0]).expect_err("nobody has accepted it");
    assert_eq!(answer.kind(), ErrorKind::WouldBlock);
    waits.set_nonblocking(false).expect("an option");
    waits.set_read_timeout(Some(PATIENCE)).expect("an option");
    drop(taken);
    assert_eq!(waits.read(&mut [0]).expect("an answer"), 1);

    // One for each end, and none for the broker's rings, which it makes when a peer has greeted.
    let mut taken = take_all();
    taken.truncate(taken.len() - 2);
    let mut refused = TcpStream::connect(data(&cluster)).expect("the kernel answers");
    refused.set_read_timeout(Some(PATIENCE)).expect("an option");
    refused.write_all(&hello).expect("the kernel takes it");
    let mut header = [0; FRAME_HEADER_BYTES];
    refused.read_exact(&mut header).expect("a word");
    assert_eq!(FrameHeader::parse(&header).id, CLOSE, "it learns why");
    witness.publish(1);
    drop(taken);
    let mut served = Peer::greet(data(&cluster));
    assert_eq!(sequencer(&mut served), sequences);
    witness.publish(1);
}
