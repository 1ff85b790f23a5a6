//! A journal of many segments that are over and have indexes, as a long log leaves them. The segments are small: whoever finds out what
//! the disk has reads their headers and indexes, and those are as large as of full ones.

use anyhow::{Context as _, Result};
use embar_console::interrupt::Interrupt;
use embar_console::progress::Bar;
use embar_disk::format::{IndexEntry, SEGMENT_HEADER_BYTES, SegmentIndex};
use embar_disk::{
    AlignedBuffer, CommitBuilder, Directory, Journal, Position, StoredFile, begin_segment,
    prepare_segment, store_index,
};
use embar_wire::batch::{BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
use embar_wire::time::WallNs;

use super::journal::{CHAIN, DISK, SEGMENT_BYTES, say_topic};

/// Entries of an index: those of a segment that is full of commits of 4 MiB of one topic.
const ENTRIES: u64 = SEGMENT_BYTES / (4 << 20);
/// Bytes of a commit with so many messages.
const COMMIT_BYTES: usize = 16 << 10;
/// Bytes that each segment takes.
pub const FILE_BYTES: u64 = (SEGMENT_HEADER_BYTES + COMMIT_BYTES) as u64;

/// Writes so many segments, and one behind them, into a directory that has none. Returns the position behind the last message.
pub fn write(
    directory: &Directory,
    segments: u64,
    interrupt: &Interrupt,
    bar: &dyn Bar,
) -> Result<u64> {
    let mut batch = BatchBuilder::new(Vec::new(), COMMIT_BYTES);
    for _ in 0..ENTRIES {
        batch.try_push(None, &[], b"x").context("it has room")?;
    }
    let fields = SealFields {
        topic: CHAIN.topic,
        ..SealFields::default()
    };
    let frame: Vec<u8> = batch.seal(fields).into();
    let mut header = BatchHeader::parse(&frame, MAX_BATCH_BYTES).context("a batch of our own")?;
    let mut journal = Journal::new(DISK, (1, 1), SEGMENT_BYTES, Position::default());
    for number in 0..=segments {
        interrupt.check()?;
        let file = prepare_segment(directory, (number, FILE_BYTES))?;
        begin_segment(&mut journal, &file, number + 1, 0)?;
        if let Some(index) = journal.take_index() {
            store_index(directory, &spread(index))?;
        }
        let mut builder = CommitBuilder::new(AlignedBuffer::new(COMMIT_BYTES));
        say_topic(&mut builder)?;
        builder.complete_facts();
        header.stamp(journal.next_of(CHAIN), WallNs(1));
        let payload = &frame[BATCH_HEADER_BYTES..];
        builder.batch(CHAIN.row, &header, |into| into.copy_from_slice(payload))?;
        let commit = journal.seal(builder, 1);
        file.write_synced(commit.at, &commit.buffer, commit.len)?;
        journal.synced(commit.ticket, &mut Vec::new());
        bar.set(number * SEGMENT_BYTES);
    }
    Ok(journal.next_of(CHAIN))
}

/// The index as of a segment that has each message in a commit of its own.
fn spread(index: SegmentIndex) -> SegmentIndex {
    let entries = index.entries.iter().flat_map(|run| {
        (0..u64::from(run.count)).map(|message| IndexEntry {
            first: run.first + message,
            count: 1,
            bytes: run.bytes / run.count,
            ..*run
        })
    });
    SegmentIndex {
        entries: entries.collect(),
        ..index
    }
}
