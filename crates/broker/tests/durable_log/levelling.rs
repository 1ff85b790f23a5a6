//! A disk gets what another one has, and the power goes after each operation in turn.

use std::io::ErrorKind;

use embar_broker::journal::facts::{
    ABOUT_SESSION, ABOUT_TOPIC, ABOUT_TOPIC_IDS, encode_session, encode_topic_ids,
};
use embar_broker::journal::{self, Found, level};
use embar_broker::topics::Topic;
use embar_disk::format::Run;
use embar_disk::recover::RecoverError;
use embar_disk::{
    AlignedBuffer, Chain, CommitBuilder, Journal, Position, Simulated as Disk, StoredFile,
    begin_segment, make_segment,
};
use embar_fabric::{SessionOwner, SessionRow};
use embar_wire::batch::{BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
use embar_wire::time::WallNs;
use embar_wire::topic::Order;

use super::disks::{check_levelled, disk_id};

const TOPIC: u32 = 1 << 14;
const CHAIN: Chain = Chain {
    topic: TOPIC,
    row: Run::ORDERED,
};
/// So small that what is copied takes several.
const SEGMENT_BYTES: u64 = 96 << 10;
const BATCHES: u64 = 200;
/// Publishers with batches there, and those of which the sessions are all that there is.
const PRODUCERS: u64 = 3;
const SILENT: u64 = 200;

fn topic() -> Topic {
    Topic {
        id: TOPIC,
        name: "t".into(),
        order: Order::TotalPerPublisher,
        retention_bytes: 0,
        retention_ms: 0,
        max_message_bytes: 1 << 20,
        created: WallNs(1),
        disks: 0b11,
        former_disks: 0,
        moves: 0,
    }
}

fn session(producer: u64) -> Vec<u8> {
    let row = SessionRow {
        producer,
        chain: TOPIC,
        epoch: 1,
        first_epoch: 1,
        in_use: 1,
        order: 5,
        ..SessionRow::default()
    };
    let owner = SessionOwner {
        first_epoch: 1,
        ..SessionOwner::default()
    };
    encode_session(&row, &owner).to_vec()
}

fn batch(number: u64) -> (BatchHeader, Vec<u8>) {
    let mut builder = BatchBuilder::new(Vec::new(), 8 << 10);
    let value = vec![number as u8; 3000];
    builder.try_push(None, &[], &value).expect("it fits");
    let fields = SealFields {
        topic: TOPIC,
        producer: number % PRODUCERS,
        sequence: number / PRODUCERS,
        epoch: 1,
        ..SealFields::default()
    };
    let frame: Vec<u8> = builder.seal(fields).into();
    let mut header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).expect("sealed");
    header.stamp(number, WallNs(1));
    (header, frame[BATCH_HEADER_BYTES..].to_vec())
}

/// A disk with the topic, all in one large segment.
fn source() -> Disk {
    let disk = Disk::new();
    let mut journal = Journal::new(disk_id(0), (1, 1), 4 << 20, Position::default());
    let file = make_segment(&disk, &mut journal).expect("no fault");
    begin_segment(&mut journal, &file, 1, 1).expect("no fault");
    let mut builder = CommitBuilder::new(AlignedBuffer::new(1 << 20));
    let facts = [
        (ABOUT_TOPIC_IDS, 0, encode_topic_ids(TOPIC)),
        (ABOUT_TOPIC, TOPIC.into(), topic().encode()),
    ];
    let sessions = (0..PRODUCERS + SILENT).map(|it| (ABOUT_SESSION, it, session(it)));
    for (about, key, bytes) in facts.into_iter().chain(sessions) {
        builder.fact(about, key, &bytes).expect("room");
    }
    builder.complete_facts();
    for number in 0..BATCHES {
        let (header, payload) = batch(number);
        let fill = |room: &mut [u8]| room.copy_from_slice(&payload);
        builder.batch(CHAIN.row, &header, fill).expect("room");
    }
    let commit = journal.seal(builder, 1);
    let written = file.write_synced(commit.at, &commit.buffer, commit.len);
    written.expect("no fault");
    disk
}

fn read(disks: &[Disk; 2]) -> [Found; 2] {
    [0, 1].map(|number: u16| {
        Found::read(&disks[usize::from(number)], &disk_id(number)).expect("it can be read")
    })
}

/// Once the disks were read, the second one fails after so many operations.
fn level_once(disks: &[Disk; 2], nonce: &mut u64, fails: u64) -> Result<bool, RecoverError> {
    let found = read(disks);
    disks[1].fail_after(fails, ErrorKind::Other);
    let all = (0..).zip(disks).zip(found);
    let all = all.map(|((number, storage), found)| journal::Disk {
        number,
        storage,
        found,
    });
    let all: Vec<_> = all.collect();
    let mut nonce = || {
        *nonce += 1;
        *nonce
    };
    level(&all, (SEGMENT_BYTES, 1), &mut nonce, &mut |_| {})
}

/// Bytes of all segments.
fn written(found: &Found) -> u64 {
    found.recovered.segments.iter().map(|it| it.end).sum()
}

#[test]
fn a_disk_whose_levelling_was_cut_goes_on_and_has_all_sessions_in_the_end() {
    let source = source();
    let whole = [source.clone(), Disk::new()];
    let before = read(&whole);
    assert!(level_once(&whole, &mut 100, u64::MAX).expect("no fault"));
    let at_once = written(&read(&whole)[1]);
    let mut cuts = 0;
    for operation in 0.. {
        let mut disks = [source.clone(), Disk::new()];
        let mut random = fastrand::Rng::with_seed(operation);
        let mut nonce = 100;
        let first = level_once(&disks, &mut nonce, operation);
        disks = disks.map(|disk| disk.cut_power(&mut |below| random.u64(..below)));
        match first {
            Ok(_) => break,
            Err(_) => cuts += 1,
        }
        level_once(&disks, &mut nonce, u64::MAX).expect("no fault");
        let after = read(&disks);
        assert_eq!(after[1].next_of(CHAIN), BATCHES, "operation {operation}");
        check_levelled(&before, &after);
        // What was copied is not copied once more: what comes in addition are segments that were begun, and their facts.
        let most = at_once + 2 * SEGMENT_BYTES;
        let bytes = written(&after[1]);
        assert!(bytes <= most, "operation {operation}: {bytes}, {at_once}");
        let again = level_once(&disks, &mut nonce, u64::MAX).expect("no fault");
        assert!(!again, "nothing is missing any more");
    }
    assert!(cuts > 10, "{cuts}");
}
