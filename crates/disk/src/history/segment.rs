//! Where the batches of each chain lie in one segment, read from its index or from the tables of its commits.

use std::collections::BTreeMap;
use std::io;

use crate::aligned::AlignedBuffer;
use crate::format::{
    ALIGN_BYTES, Before, Chain, CommitHeader, IndexEntry, RunKind, SEGMENT_HEADER_BYTES,
    SegmentHeader, SegmentIndex, index_name, runs,
};
use crate::storage::{Storage, StoredFile};
use crate::window::Window;

/// Bytes that are read at once where commits are small.
const WINDOW_BYTES: usize = 128 << 10;

/// What is known of a segment.
#[derive(Debug)]
pub(crate) struct Segment {
    header: SegmentHeader,
    /// How much of it counts, as far as is known.
    counts: Before,
    /// Up to where its tables were read: commits, where the next one begins, and the checksum of the last.
    read: (u32, u64, u32),
    /// By chain, in the order of positions.
    entries: BTreeMap<Chain, Vec<IndexEntry>>,
}

impl Segment {
    /// A segment of which so much counts.
    pub fn new(header: SegmentHeader, counts: Before) -> Self {
        Self {
            header,
            counts,
            read: (0, SEGMENT_HEADER_BYTES as u64, 0),
            entries: BTreeMap::new(),
        }
    }

    pub fn header(&self) -> &SegmentHeader {
        &self.header
    }

    /// So much of it counts.
    pub fn count(&mut self, counts: &Before) {
        if counts.commits > self.counts.commits {
            self.counts = *counts;
        }
    }

    /// The batches of a chain, as far as they were read.
    pub fn of_chain(&self, chain: Chain) -> &[IndexEntry] {
        self.entries.get(&chain).map_or(&[], |entries| entries)
    }

    /// Where batches lie is to be read again.
    pub fn forget(&mut self) {
        self.read = (0, SEGMENT_HEADER_BYTES as u64, 0);
        self.entries.clear();
    }

    /// All batches, as far as they were read.
    pub fn entries(&self) -> impl Iterator<Item = &IndexEntry> {
        self.entries.values().flatten()
    }

    /// Whether it is known where all batches lie that count.
    pub fn is_loaded(&self) -> bool {
        self.read.0 >= self.counts.commits
    }

    /// Reads where all batches lie that count. False where the segment is damaged.
    pub fn load<S: Storage>(&mut self, storage: &S, file: &S::File) -> io::Result<bool> {
        if self.read.0 == 0
            && let Some(index) = read_index(storage, &self.counts)?
        {
            for entry in index.entries {
                self.add(entry);
            }
            self.read = (self.counts.commits, index.end, self.counts.crc);
            return Ok(true);
        }
        self.read_tables(file)
    }

    fn add(&mut self, entry: IndexEntry) {
        if entry.count == 0 {
            return;
        }
        let chain = Chain {
            topic: entry.topic,
            row: entry.row,
        };
        self.entries.entry(chain).or_default().push(entry);
    }

    fn read_tables(&mut self, file: &impl StoredFile) -> io::Result<bool> {
        let mut window = Window::new(WINDOW_BYTES);
        while self.read.0 < self.counts.commits {
            let (number, at, before) = self.read;
            let first = window.load(file, at, ALIGN_BYTES)?;
            let header = CommitHeader::peek(first).filter(|header| {
                (header.segment, header.number, header.before)
                    == (self.header.nonce, number, before)
            });
            let Some(header) = header else {
                return Ok(false);
            };
            let head = first.to_vec();
            let table_at = header.table_at as usize;
            let page = table_at / ALIGN_BYTES * ALIGN_BYTES;
            let len = table_at + header.table_bytes() - page;
            let table = window.load(file, at + page as u64, len)?;
            let Some(table) = table.get(table_at - page..) else {
                return Ok(false);
            };
            let (Some(crc), Ok(runs)) = (CommitHeader::check(&head, table), runs(&header, table))
            else {
                return Ok(false);
            };
            for run in runs.iter().filter(|run| run.kind == RunKind::Batches) {
                self.add(IndexEntry::new(run, at, header.time));
            }
            self.read = (number + 1, at + u64::from(header.bytes), crc);
        }
        Ok(self.read.2 == self.counts.crc)
    }
}

/// Whether batches lie in the commits of a segment that end there, and have positions.
fn is_within(entry: &IndexEntry, end: u64) -> bool {
    let ends = entry.at.checked_add(entry.bytes.into());
    entry.at >= SEGMENT_HEADER_BYTES as u64
        && ends.is_some_and(|ends| ends <= end)
        && entry.first.checked_add(entry.count.into()).is_some()
}

/// The index of a segment of which so much counts, if it is there and whole.
fn read_index<S: Storage>(storage: &S, counts: &Before) -> io::Result<Option<SegmentIndex>> {
    let file = match storage.open(&index_name(counts.number)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let len = usize::try_from(file.size()?).unwrap_or(0);
    let mut bytes = AlignedBuffer::new(len.max(1));
    let came = file.read(0, &mut bytes)?;
    let index = SegmentIndex::decode(&bytes[..came]);
    let index = index.filter(|index| index.segment == *counts);
    // Whatever made it so, no commit has more than that.
    Ok(index.filter(|index| { index.entries.iter() }.all(|entry| is_within(entry, index.end))))
}
