//! A disk gets back what topics had that are gone, and all else stays as it was: on a real file system, and on one that is cut.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use embar_disk::format::{ABOUT_TOPIC, Run, index_name, segment_name};
use embar_disk::history::{History, HistoryError, Span};
use embar_disk::recover::recover;
use embar_disk::scan::Depth;
use embar_disk::verify::{Verified, Wrong, verify};
use embar_disk::{
    AlignedBuffer, Chain, CommitBuilder, Directory, Journal, Position, Progress, Simulated,
    Storage, StoredFile, begin_segment, give_back, prepare_segment, store_index,
};
use embar_wire::batch::{BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
use embar_wire::time::WallNs;

const DISK: [u8; 16] = *b"a disk for tests";
const SEGMENT_BYTES: u64 = 1 << 20;
const KEPT: u32 = 1;
const GONE: u32 = 2;
const BATCH_BYTES: usize = 20_000;
/// Of each topic, in the first segment.
const BATCHES: u64 = 12;

fn chain(topic: u32) -> Chain {
    Chain {
        topic,
        row: Run::ORDERED,
    }
}

/// A batch of one message with its place.
fn batch(topic: u32, first: u64) -> (BatchHeader, Vec<u8>) {
    let mut builder = BatchBuilder::new(Vec::new(), BATCH_BYTES + 1000);
    let value = [first as u8 + 1, topic as u8].repeat(BATCH_BYTES / 2);
    builder.try_push(None, &[], &value).expect("it fits");
    let fields = SealFields {
        topic,
        ..SealFields::default()
    };
    let frame: Vec<u8> = builder.seal(fields).into();
    let mut header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).expect("sealed");
    header.stamp(first, WallNs(1));
    (header, frame[BATCH_HEADER_BYTES..].to_vec())
}

/// A writer whose commits are synced at once.
struct Writer<'a, S: Storage> {
    storage: &'a S,
    journal: Journal,
    file: S::File,
}

impl<'a, S: Storage> Writer<'a, S> {
    /// Begins a segment and says in it that there are these topics.
    fn new(storage: &'a S, topics: &[u32]) -> Self {
        let mut journal = Journal::new(DISK, (1, 1), SEGMENT_BYTES, Position::default());
        let file = prepare_segment(storage, journal.next_segment()).expect("room");
        begin_segment(&mut journal, &file, 1, 1).expect("no fault");
        let mut writer = Self {
            storage,
            journal,
            file,
        };
        writer.say_facts(topics);
        writer
    }

    fn begin_segment(&mut self, topics: &[u32]) {
        let next = self.journal.next_segment();
        self.file = prepare_segment(self.storage, next).expect("room");
        begin_segment(&mut self.journal, &self.file, next.0 + 1, 1).expect("no fault");
        self.say_facts(topics);
    }

    fn say_facts(&mut self, topics: &[u32]) {
        let mut builder = CommitBuilder::new(AlignedBuffer::new(16 << 10));
        for topic in topics {
            builder
                .fact(ABOUT_TOPIC, (*topic).into(), b"a topic")
                .expect("room");
            let next = self.journal.next_of(chain(*topic));
            let chain = chain(*topic);
            builder.next(&Progress { chain, next }).expect("room");
        }
        builder.complete_facts();
        self.write(builder);
    }

    /// A commit with a batch of each topic, one beside the other.
    fn commit(&mut self, topics: &[u32]) {
        let mut builder = CommitBuilder::new(AlignedBuffer::new(128 << 10));
        for topic in topics {
            let (header, payload) = batch(*topic, self.journal.next_of(chain(*topic)));
            let fill = |room: &mut [u8]| room.copy_from_slice(&payload);
            builder.batch(Run::ORDERED, &header, fill).expect("room");
        }
        self.write(builder);
    }

    fn write(&mut self, builder: CommitBuilder) {
        let commit = self.journal.seal(builder, 7);
        let written = self
            .file
            .write_synced(commit.at, &commit.buffer, commit.len);
        written.expect("no fault");
        self.journal.synced(commit.ticket, &mut Vec::new());
    }
}

/// A journal whose first segment is over and has both topics, the second of which is gone.
fn journal<S: Storage>(storage: &S, has_index: bool) -> Writer<'_, S> {
    let mut writer = Writer::new(storage, &[KEPT, GONE]);
    for _ in 0..BATCHES {
        writer.commit(&[KEPT, GONE]);
    }
    writer.journal.forget(GONE);
    writer.begin_segment(&[KEPT]);
    let index = writer.journal.take_index().expect("a segment is over");
    if has_index {
        store_index(storage, &index).expect("no fault");
    }
    writer.commit(&[KEPT]);
    writer
}

fn give(storage: &impl Storage) -> u64 {
    let recovered = recover(storage, &DISK, &mut |_| {}).expect("it is whole");
    let gone = BTreeSet::from([GONE]);
    give_back(storage, &recovered.segments[0].counted, &gone, &mut || true).expect("it can")
}

fn verified(storage: &impl Storage, depth: Depth) -> Verified {
    verify(storage, &DISK, depth, &|_| {}).expect("the directory is there")
}

/// All batches of the topic that is kept can be read.
fn check_kept<S: Storage>(storage: &S) {
    let recovered = recover(storage, &DISK, &mut |_| {}).expect("it is whole");
    assert_eq!(recovered.position.chains[&chain(KEPT)], BATCHES + 1);
    let mut history = History::new(DISK);
    let last = recovered.segments.last().expect("there is one");
    history.follow(storage, &last.counted).expect("no fault");
    for from in 0..=BATCHES {
        let batches = history
            .read(storage, &span(KEPT, from), &mut |_| true)
            .expect("it is there");
        let (header, payload) = batch(KEPT, from);
        let (head, rest) = batches.bytes.split_at(BATCH_HEADER_BYTES);
        assert_eq!(head, header.as_bytes());
        assert!(rest == payload, "batch {from}");
    }
    let gone = history.read(storage, &span(GONE, 0), &mut |_| true);
    assert!(
        matches!(gone, Err(HistoryError::Damaged { .. })),
        "nobody asks for it"
    );
}

fn span(topic: u32, from: u64) -> Span {
    Span {
        chain: chain(topic),
        from,
        end: from + 1,
        bytes: 1,
    }
}

fn device_bytes(dir: &Path) -> u64 {
    let said = fs::metadata(dir.join(segment_name(0)));
    said.expect("it is there").blocks() * 512
}

#[test]
fn the_device_has_room_again_and_all_else_is_whole() {
    for has_index in [true, false] {
        let dir = tempfile::tempdir().expect("made");
        let directory = Directory::open(dir.path()).expect("there");
        let _writer = journal(&directory, has_index);
        let before = device_bytes(dir.path());
        let given = give(&directory);
        assert!(given >= BATCHES * (BATCH_BYTES as u64 - 2 * 4096));
        // A file in many parts takes a little more itself.
        assert!(device_bytes(dir.path()) <= before - given + (32 << 10));
        check_kept(&directory);
        assert_eq!(verified(&directory, Depth::Tables).damage, []);
        let verified = verified(&directory, Depth::Payloads);
        assert_eq!(verified.damage, []);
        assert_eq!(verified.batches, BATCHES + 1, "those of one topic");
        assert_eq!(give(&directory), given, "again, and it is the same");
        assert!(directory.open(&index_name(0)).is_ok() == has_index);
    }
}

#[test]
fn who_stops_in_between_goes_on_later() {
    let dir = tempfile::tempdir().expect("made");
    let directory = Directory::open(dir.path()).expect("there");
    let _writer = journal(&directory, true);
    let recovered = recover(&directory, &DISK, &mut |_| {}).expect("it is whole");
    let counted = recovered.segments[0].counted;
    let mut holes = 0;
    let mut few = || {
        holes += 1;
        holes <= BATCHES / 2
    };
    let some = give_back(&directory, &counted, &BTreeSet::from([GONE]), &mut few);
    let some = some.expect("it can");
    assert!(verified(&directory, Depth::Payloads).damage.is_empty());
    check_some_left(&directory);
    assert!(some > 0 && some < give(&directory));
    check_kept(&directory);
}

/// The last batch of the topic that is gone is still there.
fn check_some_left(directory: &Directory) {
    assert!(verified(directory, Depth::Payloads).batches > BATCHES + 1);
}

#[test]
fn what_is_damaged_of_a_topic_that_is_there_is_damage() {
    let dir = tempfile::tempdir().expect("made");
    let directory = Directory::open(dir.path()).expect("there");
    let _writer = journal(&directory, true);
    give(&directory);
    let path = dir.path().join(segment_name(0));
    let file = fs::File::options().write(true).open(path).expect("there");
    // Zeros in the middle of its first batch, as of a hole.
    let header = 4096 + 4096;
    file.write_all_at(&[0; 4096], header + 4096)
        .expect("written");
    file.sync_all().expect("synced");
    let damage = verified(&directory, Depth::Payloads).damage;
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert!(matches!(damage[0].what, Wrong::Batches { .. }));
    assert_eq!(damage[0].lost[0].chain, chain(KEPT));
}

#[test]
fn a_segment_that_is_damaged_or_removed_is_left_as_it_is() {
    let disk = Simulated::new();
    let _writer = journal(&disk, false);
    let recovered = recover(&disk, &DISK, &mut |_| {}).expect("it is whole");
    let mut counted = recovered.segments[0].counted;
    let gone = BTreeSet::from([GONE]);
    let give = |counted| give_back(&disk, &counted, &gone, &mut || true);
    counted.nonce += 1;
    assert_eq!(
        give(counted)
            .expect_err("another one has its number")
            .kind(),
        std::io::ErrorKind::InvalidData
    );
    counted.nonce -= 1;
    // In the table of a commit.
    disk.flip(&segment_name(0), 8 * 4096 + 8 * 24);
    assert_eq!(
        give(counted).expect_err("its tables say nothing").kind(),
        std::io::ErrorKind::InvalidData
    );
    counted.number = 9;
    assert_eq!(
        give(counted).expect_err("it is not there").kind(),
        std::io::ErrorKind::NotFound
    );
}

#[test]
fn a_power_cut_leaves_any_part_of_a_hole_and_nothing_else_is_lost() {
    for seed in 0..64 {
        let mut random = fastrand::Rng::with_seed(seed);
        let disk = Simulated::new();
        let _writer = journal(&disk, random.bool());
        give(&disk);
        let disk = disk.cut_power(&mut |below| random.u64(..below));
        assert_eq!(verified(&disk, Depth::Payloads).damage, [], "seed {seed}");
        give(&disk);
        check_kept(&disk);
        assert_eq!(verified(&disk, Depth::Payloads).damage, [], "seed {seed}");
    }
}
