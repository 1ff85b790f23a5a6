//! A part of a segment with batches of one chain, which is read at once.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use embar_wire::batch::BatchHeader;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};

use super::{HistoryError, Span, io_error};
use crate::aligned::AlignedBuffer;
use crate::format::{ALIGN_BYTES, IndexEntry, segment_name};
use crate::storage::{Storage, StoredFile};

/// What lies between two runs is read with them if it is not more.
const GAP_BYTES: u64 = 64 << 10;

/// Where a file cannot be read at once it is read in parts of this size...
const PART_BYTES: usize = 16 << 10;
/// ...of which so many may not be readable.
const FAILED_PARTS_MAX: usize = 4;

/// Where batches of a chain lie behind each other in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    segment: u64,
    /// In the file, aligned.
    place: Range<u64>,
    runs: Vec<IndexEntry>,
}

fn end_of(run: &IndexEntry) -> u64 {
    run.at + u64::from(run.bytes)
}

impl Extent {
    /// Of these runs of a segment the first, and those behind it that belong to the same span.
    pub(super) fn of(segment: u64, entries: &[IndexEntry], span: &Span) -> Self {
        let align = ALIGN_BYTES as u64;
        let from = entries[0].at / align * align;
        let (mut end, mut next) = (end_of(&entries[0]), entries[0].end());
        let more = entries[1..].iter().take_while(|run| {
            let bytes = end_of(run).saturating_sub(from);
            let belongs = run.first == next
                && run.first < span.end
                && (end..=end + GAP_BYTES).contains(&run.at)
                && bytes <= span.bytes as u64;
            if belongs {
                (end, next) = (end_of(run), run.end());
            }
            belongs
        });
        let runs = 1 + more.count();
        Self {
            segment,
            place: from..end.next_multiple_of(align),
            runs: entries[..runs].to_vec(),
        }
    }

    /// The segment's number.
    #[must_use]
    pub fn segment(&self) -> u64 {
        self.segment
    }

    /// Bytes to read.
    #[must_use]
    pub fn bytes(&self) -> usize {
        (self.place.end - self.place.start) as usize
    }

    /// The position behind its last batch.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.runs.last().map_or(0, IndexEntry::end)
    }

    /// Reads it. The buffer has room for just that. What cannot be read is zeros, if it is not much, and found damaged.
    ///
    /// # Errors
    /// [`HistoryError::Io`], or [`HistoryError::Damaged`] where the file ends before.
    pub fn read<S: Storage>(
        &self,
        storage: &S,
        buffer: &mut AlignedBuffer,
    ) -> Result<(), HistoryError> {
        let file = self.open(storage)?;
        let came = file.read(self.place.start, buffer);
        let came = came.or_else(|_| self.read_what_can_be(&file, buffer));
        self.check(came)
    }

    /// As [`Extent::read`], one part after the other. `after` hears how many bytes a part has, and how long it took.
    ///
    /// # Errors
    /// As [`Extent::read`].
    pub fn read_in_parts<S: Storage>(
        &self,
        storage: &S,
        buffer: &mut AlignedBuffer,
        part_bytes: usize,
        after: &mut dyn FnMut(usize, Duration),
    ) -> Result<(), HistoryError> {
        let file = self.open(storage)?;
        let mut began = Instant::now();
        let came = self.each_part(&file, buffer, part_bytes, &mut |came| {
            let bytes = came?;
            after(bytes, began.elapsed());
            began = Instant::now();
            Ok(bytes)
        });
        let came = came.or_else(|_| self.read_what_can_be(&file, buffer));
        self.check(came)
    }

    fn read_what_can_be(
        &self,
        file: &impl StoredFile,
        buffer: &mut AlignedBuffer,
    ) -> io::Result<usize> {
        let mut left = FAILED_PARTS_MAX;
        self.each_part(file, buffer, PART_BYTES, &mut |came| match came {
            Err(_) if left > 0 => {
                left -= 1;
                Ok(PART_BYTES)
            }
            // Otherwise it is the disk and not a part of it.
            came => came,
        })
    }

    /// Reads part by part. `came` hears what came of each, and says how much of it counts: what was not read is zeros.
    fn each_part(
        &self,
        file: &impl StoredFile,
        buffer: &mut AlignedBuffer,
        part_bytes: usize,
        came: &mut dyn FnMut(io::Result<usize>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut part = AlignedBuffer::new(part_bytes);
        let mut at = 0;
        while at < buffer.len() {
            let rest = &mut buffer[at..];
            part = part.with_len(part_bytes.min(rest.len()));
            let read = file.read(self.place.start + at as u64, &mut part);
            if read.is_err() {
                part.fill(0);
            }
            let len = came(read)?.min(part.len());
            rest[..len].copy_from_slice(&part[..len]);
            at += len;
            if len < part.len() {
                break;
            }
        }
        Ok(at)
    }

    fn open<S: Storage>(&self, storage: &S) -> Result<S::File, HistoryError> {
        let name = segment_name(self.segment);
        storage.open(&name).map_err(io_error(&name))
    }

    /// Whether all batches are in what came.
    fn check(&self, came: io::Result<usize>) -> Result<(), HistoryError> {
        let came = came.map_err(io_error(&segment_name(self.segment)))?;
        let end = self.place.start + came as u64;
        match self.runs.last().map(end_of) <= Some(end) {
            true => Ok(()),
            false => Err(self.damaged(end)),
        }
    }

    fn damaged(&self, at: u64) -> HistoryError {
        let name = segment_name(self.segment);
        HistoryError::Damaged { name, at }
    }

    /// Of what was read the batches of a span that `wants` says, each checked, up to the first that is not whole. They are moved
    /// behind each other; returns where, and the position at which to go on.
    ///
    /// # Errors
    /// [`HistoryError::Damaged`] if the first one is not whole.
    pub fn take(
        &self,
        bytes: &mut [u8],
        span: &Span,
        wants: &mut dyn FnMut(&BatchHeader) -> bool,
    ) -> Result<(Range<usize>, u64), HistoryError> {
        let mut taken: Option<Range<usize>> = None;
        let mut next = span.from;
        for run in &self.runs {
            match self.take_run(run, bytes, span, wants, (&mut taken, &mut next)) {
                Ok(true) => {}
                Ok(false) => break,
                // Who asks for what comes next hears of it.
                Err(_) if next > span.from => break,
                Err(damaged) => return Err(damaged),
            }
        }
        Ok((taken.unwrap_or(0..0), next))
    }

    /// False where the span ends.
    fn take_run(
        &self,
        run: &IndexEntry,
        bytes: &mut [u8],
        span: &Span,
        wants: &mut dyn FnMut(&BatchHeader) -> bool,
        (taken, next): (&mut Option<Range<usize>>, &mut u64),
    ) -> Result<bool, HistoryError> {
        let end = end_of(run);
        let (mut at, mut expected) = (run.at, run.first);
        while at < end {
            let place = (at - self.place.start) as usize;
            let rest = &bytes[place..(end - self.place.start) as usize];
            let header = BatchHeader::parse(rest, MAX_BATCH_BYTES);
            let header = header.map_err(|_| self.damaged(at))?;
            let len = header.frame_len() as usize;
            let is_next = header.topic() == span.chain.topic
                && header.base_offset() == expected
                && len <= rest.len();
            if !is_next {
                return Err(self.damaged(at));
            }
            expected += u64::from(header.message_count());
            at += len as u64;
            if expected <= span.from {
                continue;
            }
            if expected > span.end {
                return Ok(false);
            }
            if wants(&header) {
                let checked = header.check_payload(&rest[BATCH_HEADER_BYTES..len]);
                checked.map_err(|_| self.damaged(at - len as u64))?;
                let taken = taken.get_or_insert(place..place);
                if taken.end < place {
                    bytes.copy_within(place..place + len, taken.end);
                }
                taken.end += len;
            }
            *next = expected;
        }
        match expected == run.end() {
            true => Ok(true),
            false => Err(self.damaged(run.at)),
        }
    }
}
