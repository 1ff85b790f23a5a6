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
