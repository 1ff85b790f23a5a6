//! Reads back what a disk has of the verified topic, and hands it to the checks. No process writes the disk meanwhile.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use embar_client::Position;
use embar_disk::format::{BatchRun, Identity, Run, RunKind, segment_name};
use embar_disk::recover::recover;
use embar_disk::scan::{Depth, Scan};
use embar_disk::{Directory, Storage};
use embar_wire::batch::Batch;
use embar_wire::limits::BATCH_HEADER_BYTES;

use super::checker::{Checker, REFERENCE_READER};
use super::reader_check::ReaderStart;
use super::shared::Shared;
use super::stamp::{self, Stamp};
use super::violation::Kind;

/// The file that says which disk a directory is.
const IDENTITY: &str = "identity";

/// What is read.
#[derive(Clone, Copy, Debug)]
pub struct DiskReaderSetup {
    /// Marks this run's messages.
    pub run: u32,
    /// Bytes of each.
    pub message_bytes: u32,
    /// The topic's id.
    pub topic: u32,
}

/// What one reading found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskRead {
    /// Messages of the topic.
    pub messages: u64,
    /// Messages that were written once more, as a successor does not know what its predecessor has written.
    pub repeated: u64,
    /// Bytes behind the end that do not count.
    pub torn_bytes: u64,
    /// Segments that count.
    pub segments: u64,
}

/// Reads a disk again and again. The reference reader of the checks gets what is new each time; another one reads all of it, so that
/// no position may change.
pub struct DiskReader {
    setup: DiskReaderSetup,
    /// Readers of the checks: of everything, and of what is there once more.
    again: usize,
    repeats: usize,
}

/// The messages of a batch, as the checks take them.
type Messages = Vec<(Position, Option<Stamp>)>;

impl DiskReader {
    /// For disks on which nothing is yet; `name` is what violations call them.
    pub fn new(setup: DiskReaderSetup, name: &str, checker: &mut Checker) -> Self {
        checker.name_reference(name);
        Self {
            setup,
            again: checker.add_reader(format!("{name}, read again")),
            repeats: checker.add_reader(format!("{name}, where it has something twice")),
        }
    }

    /// Reads a disk from its beginning on.
    ///
    /// # Errors
    /// The journal is not whole, or cannot be read.
    pub fn read(&self, dir: &Path, shared: &Shared) -> Result<DiskRead> {
        let identity = fs::read(dir.join(IDENTITY)).context("cannot read which disk it is")?;
        let disk = Identity::decode(&identity)?.disk;
        let directory = Directory::open(dir)?;
        let recovered = recover(&directory, &disk, &mut |_| {})?;
        let mut read = DiskRead {
            torn_bytes: recovered.torn_bytes,
            segments: recovered.segments.len() as u64,
            ..DiskRead::default()
        };
        shared.checker().begin(self.again, ReaderStart::AtZero);
        let mut pass = Pass::default();
        for segment in &recovered.segments {
            let name = segment_name(segment.header.number);
            let file = directory.open(&name)?;
            let mut scan = Scan::new(&file, segment.header, Depth::Payloads);
            while scan.number() < segment.counted.commits {
                let number = scan.number();
                let found = scan.next(&mut |found, bytes| {
                    for run in found.runs.iter().filter(|run| self.is_ours(run)) {
                        let at = run.at as usize;
                        let batches = &bytes[at..at + run.bytes as usize];
                        for (header, batch) in BatchRun::new(run, batches) {
                            let batch = Batch::new(header, &batch[BATCH_HEADER_BYTES..]);
                            let messages = batch.map(|batch| self.messages(&batch));
                            self.enter(&mut pass, messages.unwrap_or_default(), shared);
                        }
                    }
                })?;
                found.ok_or_else(|| anyhow!("commit {number} of {name} is damaged"))?;
            }
        }
        (read.messages, read.repeated) = (pass.next, pass.repeated);
        let acknowledged = shared.checker().acknowledged_below();
        if pass.next < acknowledged {
            let text = format_args!(
                "{}: it ends at {}, and everything below {acknowledged} was acknowledged",
                dir.display(),
                pass.next
            );
            shared.checker().fail(Kind::Lost, text);
        }
        Ok(read)
    }

    fn is_ours(&self, run: &Run) -> bool {
        run.kind == RunKind::Batches && (run.chain, run.row) == (self.setup.topic, Run::ORDERED)
    }

    fn messages(&self, batch: &Batch<'_>) -> Messages {
        let DiskReaderSetup {
            run, message_bytes, ..
        } = self.setup;
        let stamps = batch.messages().map(|message| {
            let message = message.ok()?;
            stamp::read(run, message_bytes as usize, message.value)
        });
        let offsets = batch.header().base_offset()..;
        { offsets.zip(stamps) }
            .map(|(offset, stamp)| {
                let broker = None;
                (Position { broker, offset }, stamp)
            })
            .collect()
    }

    fn enter(&self, pass: &mut Pass, messages: Messages, shared: &Shared) {
        let [(first, _), ..] = messages[..] else {
            return;
        };
        let (first, count) = (first.offset, messages.len() as u64);
        let mut checker = shared.checker();
        if first < pass.next {
            if pass.repeats_next != first {
                checker.begin(self.repeats, ReaderStart::At(first));
            }
            checker.read(self.repeats, &messages);
            pass.repeats_next = first + count;
            pass.repeated += count;
            return;
        }
        checker.read(self.again, &messages);
        let known = checker.next(REFERENCE_READER);
        let new = messages.partition_point(|(position, _)| position.offset < known);
        checker.read(REFERENCE_READER, &messages[new..]);
        pass.next = first + count;
    }
}

/// How far one reading is.
#[derive(Debug, Default)]
struct Pass {
    next: u64,
    repeats_next: u64,
    repeated: u64,
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use embar_disk::{
        AlignedBuffer, CommitBuilder, Journal, OpenOptions, RegionName, StoredFile, begin_segment,
        open_disks, prepare_segment,
    };
    use embar_wire::batch::{BatchHeader, SealFields};
    use embar_wire::builder::BatchBuilder;
    use embar_wire::limits::MAX_BATCH_BYTES;
    use embar_wire::time::WallNs;
    use tempfile::TempDir;

    use super::super::ack_check::MessageRange;
    use super::super::retention_model::RetentionModel;
    use super::super::stamp::{Origin, STAMP_BYTES, Writer};
    use super::*;

    const SETUP: DiskReaderSetup = DiskReaderSetup {
        run: 7,
        message_bytes: STAMP_BYTES as u32,
        topic: 3,
    };
    const ORIGIN: Origin = Origin {
        publisher: 0,
        instance: 0,
    };
    const REGION: RegionName = RegionName {
        nonce: 1,
        path: PathBuf::new(),
    };

    /// A batch with the messages of these numbers, at `first` and behind.
    fn batch(first: u64, numbers: &[u64]) -> (BatchHeader, Vec<u8>) {
        let mut builder = BatchBuilder::new(Vec::new(), 1 << 10);
        let mut writer = Writer::new(SETUP.run, ORIGIN, STAMP_BYTES);
        for number in numbers {
            let message = writer.stamp(*number);
            builder.try_push(None, &[], message).expect("it fits");
        }
        let fields = SealFields {
            topic: SETUP.topic,
            ..SealFields::default()
        };
        let frame: Vec<u8> = builder.seal(fields).into();
        let mut header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).expect("sealed");
        header.stamp(first, WallNs(1));
        (header, frame[BATCH_HEADER_BYTES..].to_vec())
    }

    /// The batches of one term.
    type Term<'a> = &'a [(u64, &'a [u64])];

    /// A disk with these batches, a segment for each term.
    fn disk(terms: &[Term<'_>]) -> TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let options = OpenOptions {
            may_create: true,
            ..OpenOptions::default()
        };
        let disks = open_disks(&[dir.path().to_owned()], &REGION, options).expect("opened");
        let [disk] = &disks[..] else {
            panic!("it is one disk");
        };
        let id = disk.identity().disk;
        for (epoch, batches) in (1..).zip(terms) {
            let found = recover(disk.directory(), &id, &mut |_| {}).expect("whole");
            let mut position = found.position;
            // It does not know how far the one before was.
            position.chains.clear();
            let mut journal = Journal::new(id, (epoch, 1), 1 << 20, position);
            let nonce = epoch.into();
            let next = journal.next_segment();
            let file = prepare_segment(disk.directory(), next).expect("room");
            begin_segment(&mut journal, &file, nonce, 1).expect("room");
            for (first, numbers) in *batches {
                let (header, payload) = batch(*first, numbers);
                let mut builder = CommitBuilder::new(AlignedBuffer::new(8 << 10));
                let copy = |room: &mut [u8]| room.copy_from_slice(&payload);
                builder.batch(Run::ORDERED, &header, copy).expect("room");
                let commit = journal.seal(builder, 1);
                let written = file.write_synced(commit.at, &commit.buffer, commit.len);
                written.expect("written");
                journal.synced(commit.ticket, &mut Vec::new());
            }
        }
        dir
    }

    /// What was found, and the violations, where the first `acknowledged` messages were acknowledged at their positions, and the
    /// disks are read one after the other.
    fn read(acknowledged: u64, dirs: &[TempDir]) -> (DiskRead, u64) {
        let plan = super::super::plan::tests::plan();
        let retention = RetentionModel::new(u64::MAX, u64::MAX, 1);
        let shared = Shared::new(&plan, retention).expect("a thread");
        let reader = DiskReader::new(SETUP, "the disk", &mut shared.checker());
        let range = MessageRange {
            origin: ORIGIN,
            number: 0,
            count: acknowledged,
        };
        let position = Position {
            broker: None,
            offset: 0,
        };
        shared.checker().announced(ORIGIN, 256);
        shared.checker().acknowledged(range, Some(position));
        let reads = dirs.iter().map(|dir| reader.read(dir.path(), &shared));
        let read = reads.last().expect("one").expect("it is whole");
        let mut checker = shared.checker();
        checker.finish(None);
        (read, checker.violations().total)
    }

    #[test]
    fn what_was_acknowledged_is_found_and_what_is_missing_too() {
        let (found, violations) = read(3, &[disk(&[&[(0, &[0, 1]), (2, &[2])]])]);
        assert_eq!((found.messages, found.segments, violations), (3, 1, 0));
        for (acknowledged, last, why) in [
            (4, &[2][..], "the fourth is not there"),
            (3, &[9], "another is at its place"),
            (2, &[1], "it comes again"),
            (2, &[3, 2], "not in its order"),
        ] {
            let found = read(acknowledged, &[disk(&[&[(0, &[0, 1]), (2, last)]])]);
            assert!(found.1 > 0, "{why}");
        }
    }

    #[test]
    fn what_a_successor_wrote_once_more_must_be_the_same() {
        let first: Term<'_> = &[(0, &[0, 1]), (2, &[2])];
        let second: Term<'_> = &[(0, &[0, 1]), (2, &[2]), (3, &[3])];
        let (found, violations) = read(4, &[disk(&[first, second])]);
        let sums = (found.messages, found.repeated, found.segments);
        assert_eq!((sums, violations), ((4, 3, 2), 0));
        let other: Term<'_> = &[(0, &[0, 1]), (2, &[3])];
        assert!(read(3, &[disk(&[first, other])]).1 > 0);
    }

    #[test]
    fn positions_that_change_between_two_readings_are_found() {
        let before = || disk(&[&[(0, &[0, 1])]]);
        let longer = disk(&[&[(0, &[0, 1]), (2, &[2])]]);
        assert_eq!(read(2, &[before(), longer]).1, 0);
        let changed = disk(&[&[(0, &[0, 2]), (2, &[3])]]);
        assert!(read(1, &[before(), changed]).1 > 0);
    }
}
