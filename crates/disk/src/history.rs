//! Reads batches from a journal, while its writer goes on: those of one chain from a position on.
//!
//! What counts is what the writer says. All of that stays as it is: bytes are written once, and files go as a whole.

mod extent;
mod segment;

use std::collections::BTreeMap;
use std::io;

use embar_wire::batch::BatchHeader;
use thiserror::Error;

use crate::aligned::AlignedBuffer;
use crate::format::Chain;
use crate::format::{ALIGN_BYTES, Before, SEGMENT_HEADER_BYTES, SegmentHeader, segment_name};
use crate::storage::{Storage, StoredFile};
pub use extent::Extent;
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

impl HistoryError {
    /// Whether the file is not there any more.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
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
    /// ...of about so many bytes of the disk, or one run if that is larger.
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
        loop {
            let extent = self.find(storage, span)?;
            let buffer = std::mem::replace(&mut self.buffer, AlignedBuffer::new(0));
            self.buffer = buffer.with_len(extent.bytes());
            match extent.read(storage, &mut self.buffer) {
                Ok(()) => {}
                Err(error) if error.is_removed() => {
                    self.segments.remove(&extent.segment());
                    continue;
                }
                Err(error) => return Err(error),
            }
            let taken = extent.take(&mut self.buffer, span, wants);
            let (range, next) = taken.inspect_err(|_| self.forget(&extent))?;
            return Ok(Batches {
                bytes: self.buffer[range].to_vec(),
                next,
            });
        }
    }

    /// Finds where batches lie: whole runs that are not far from each other, of about so many bytes, or one that is larger.
    ///
    /// # Errors
    /// [`HistoryError`]
    pub fn find<S: Storage>(&mut self, storage: &S, span: &Span) -> Result<Extent, HistoryError> {
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
            return Ok(Extent::of(*number, &entries[place..], span));
        }
        Err(match (damaged, above) {
            (Some(damaged), _) => damaged,
            (None, Some(first)) => HistoryError::Gone { first },
            (None, None) => HistoryError::End,
        })
    }

    /// Where batches lie in the segment of this extent is to be read again: a repair may have put them elsewhere.
    pub fn forget(&mut self, extent: &Extent) {
        if let Some(segment) = self.segments.get_mut(&extent.segment()) {
            segment.forget();
        }
    }
}

fn io_error(name: &str) -> impl Fn(io::Error) -> HistoryError + use<> {
    let name = name.to_owned();
    move |error| HistoryError::Io {
        name: name.clone(),
        error,
    }
}
