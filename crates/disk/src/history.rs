//! Reads batches from a journal, while its writer goes on: those of one chain from a position on.
//!
//! What counts is what the writer says. All of that stays as it is: bytes are written once, and files go as a whole.

mod segment;

use std::collections::BTreeMap;
use std::io;

use embar_wire::batch::BatchHeader;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
use thiserror::Error;

use crate::aligned::AlignedBuffer;
use crate::format::Chain;
use crate::format::{
    ALIGN_BYTES, Before, IndexEntry, SEGMENT_HEADER_BYTES, SegmentHeader, segment_name,
};
use crate::storage::{Storage, StoredFile};
pub(crate) use segment::Segment;

/// Batches of a chain, as a subscriber gets them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batches {
    /// Whole batches that follow each other, but for those that were passed over.
    pub bytes: Vec<u8>,
    /// Position at which to go on.
    pub next: u64,
}

/// Why batches cannot be had.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// The system refused something.
    #[error("cannot read {name}: {error}")]
    Io {
        /// The file.
        name: String,
        /// What the system says.
        error: io::Error,
    },
    /// What counts is not whole any more.
    #[error("{name} is damaged at byte {at}")]
    Damaged {
        /// The file.
        name: String,
        /// About where.
        at: u64,
    },
    /// The position is not on the disk any more, or never was.
    #[error("the disk has this topic from position {first} on")]
    Gone {
        /// The first position above it that is.
        first: u64,
    },
    /// Nothing more is there yet.
    #[error("nothing more is on the disk yet")]
    End,
}

/// What is to be read.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Of this chain...
    pub chain: Chain,
    /// ...the batch that contains this position, and those behind it...
    pub from: u64,
    /// ...that end here or before...
    pub end: u64,
    /// ...of about so many bytes, or one batch if that is larger.
    pub bytes: usize,
}

/// Reads the journal of one disk.
#[derive(Debug)]
pub struct History {
    disk: [u8; 16],
    /// The segments of the journal, by number.
    segments: BTreeMap<u64, Segment>,
    buffer: AlignedBuffer,
}

impl History {
    /// Of a disk, of which nothing was read yet.
    #[must_use]
    pub fn new(disk: [u8; 16]) -> Self {
        Self {
            disk,
            segments: BTreeMap::new(),
            buffer: AlignedBuffer::new(ALIGN_BYTES),
        }
    }

    /// Takes in how much of the journal counts, as its writer says.
    ///
    /// # Errors
    /// [`HistoryError::Io`]
    pub fn follow<S: Storage>(&mut self, storage: &S, counts: &Before) -> Result<(), HistoryError> {
        let mut counts = *counts;
        loop {
            let known = self.segments.get_mut(&counts.number);
            if let Some(known) = known.filter(|known| known.header().nonce == counts.nonce) {
                known.count(&counts);
                return Ok(());
            }
            let Some(header) = self.header(storage, &counts)? else {
                // It was removed, as all before it were.
                return Ok(());
            };
            self.segments
                .insert(counts.number, Segment::new(header, counts));
            match header.before {
                Some(before) => counts = before,
                None => return Ok(()),
            }
        }
    }

    fn header<S: Storage>(
        &self,
        storage: &S,
        counts: &Before,
    ) -> Result<Option<SegmentHeader>, HistoryError> {
        let name = segment_name(counts.number);
        let file = match storage.open(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(io_error(&name))?,
        };
        let mut buffer = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
        let came = file.read(0, &mut buffer).map_err(io_error(&name))?;
        let header = SegmentHeader::decode(&buffer[..came]).filter(|header| {
            (header.disk, header.number, header.nonce) == (self.disk, counts.number, counts.nonce)
        });
        match header {
            Some(header) => Ok(Some(header)),
            None => Err(HistoryError::Damaged { name, at: 0 }),
        }
    }

    /// Whether no segment is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Segments below this one were removed.
    pub fn forget_below(&mut self, segment: u64) {
        self.segments = self.segments.split_off(&segment);
    }

    /// Reads batches, each checked. `wants` says which; others are passed over.
    ///
    /// # Errors
    /// [`HistoryError`]; then nothing was read.
    pub fn read<S: Storage>(
        &mut self,
        storage: &S,
        span: &Span,
        wants: &mut dyn FnMut(&BatchHeader) -> bool,
    ) -> Result<Batches, HistoryError> {
        let mut above = None;
        let mut damaged = None;
        for (number, segment) in &mut self.segments {
            let name = segment_name(*number);
            if !segment.is_loaded() {
                let loaded = match storage.open(&name) {
                    // Removed since.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    opened => opened.and_then(|file| segment.load(storage, &file)),
                };
                if !loaded.map_err(io_error(&name))? {
                    damaged = Some(HistoryError::Damaged { name, at: 0 });
                    continue;
                }
            }
            let entries = segment.of_chain(span.chain);
            let place = entries.partition_point(|entry| entry.end() <= span.from);
            let Some(first) = entries.get(place) else {
                continue;
            };
            if first.first > span.from {
                above = above.or(Some(first.first));
                continue;
            }
            let file = match storage.open(&name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(io_error(&name))?,
            };
            let read = read_batches(
                &file,
                &name,
                &entries[place..],
                span,
                &mut self.buffer,
                wants,
            );
            if matches!(read, Err(HistoryError::Damaged { .. })) {
                // A repair may have put them elsewhere in the segment: the next look finds where.
                segment.forget();
            }
            return read;
        }
        Err(match (damaged, above) {
            (Some(damaged), _) => damaged,
            (None, Some(first)) => HistoryError::Gone { first },
            (None, None) => HistoryError::End,
        })
    }
}

/// Reads batches of runs that follow each other in one segment; the first contains the position wanted.
fn read_batches(
    file: &impl StoredFile,
    name: &str,
    entries: &[IndexEntry],
    span: &Span,
    buffer: &mut AlignedBuffer,
    wants: &mut dyn FnMut(&BatchHeader) -> bool,
) -> Result<Batches, HistoryError> {
    let damaged = |at| HistoryError::Damaged {
        name: name.to_owned(),
        at,
    };
    let mut batches = Batches {
        bytes: Vec::new(),
        next: span.from,
    };
    let mut wanted = span.bytes;
    let mut window = entries[0].at..entries[0].at;
    for entry in entries {
        let mut at = entry.at;
        let end = entry.at + u64::from(entry.bytes);
        let mut expected = entry.first;
        while at < end {
            // A header at least, and all of the batch once it is known how long it is.
            let mut needed = BATCH_HEADER_BYTES as u64;
            let header = loop {
                if at + needed > window.end {
                    if !batches.bytes.is_empty() || batches.next > span.from {
                        return Ok(batches);
                    }
                    wanted = wanted.max(needed as usize);
                    let from = at / ALIGN_BYTES as u64 * ALIGN_BYTES as u64;
                    let len = wanted + ALIGN_BYTES;
                    // All of it is read, so it is as long as is wanted.
                    if buffer.len() != len.next_multiple_of(ALIGN_BYTES) {
                        *buffer = AlignedBuffer::new(len);
                    }
                    let came = file.read(from, buffer).map_err(io_error(name))?;
                    window = from..from + came as u64;
                    if at + needed > window.end {
                        return Err(damaged(at));
                    }
                }
                let bytes = &buffer[(at - window.start) as usize..];
                let header = BatchHeader::parse(bytes, MAX_BATCH_BYTES).map_err(|_| damaged(at))?;
                let is_next = header.topic() == span.chain.topic
                    && header.base_offset() == expected
                    && at + u64::from(header.frame_len()) <= end;
                if !is_next {
                    return Err(damaged(at));
                }
                let passes = expected + u64::from(header.message_count()) <= span.from;
                if passes || needed >= u64::from(header.frame_len()) {
                    break header;
                }
                needed = header.frame_len().into();
            };
            let next = expected + u64::from(header.message_count());
            if next > span.end {
                return Ok(batches);
            }
            let len = header.frame_len() as usize;
            if next > span.from {
                let start = (at - window.start) as usize;
                let bytes = &buffer[start..start + len];
                if wants(&header) {
                    let is_full = batches.bytes.len() + len > span.bytes;
                    if is_full && !batches.bytes.is_empty() {
                        return Ok(batches);
                    }
                    let checked = header.check_payload(&bytes[BATCH_HEADER_BYTES..]);
                    checked.map_err(|_| damaged(at))?;
                    batches.bytes.extend_from_slice(bytes);
                }
                batches.next = next;
            }
            expected = next;
            at += len as u64;
        }
        if expected != entry.end() {
            return Err(damaged(entry.at));
        }
    }
    Ok(batches)
}

fn io_error(name: &str) -> impl Fn(io::Error) -> HistoryError + use<> {
    let name = name.to_owned();
    move |error| HistoryError::Io {
        name: name.clone(),
        error,
    }
}
