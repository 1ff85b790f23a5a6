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

    /// Reads it. The buffer has room for just that.
    ///
    /// # Errors
    /// [`HistoryError::Io`], or [`HistoryError::Damaged`] where the file ends before.
    pub fn read<S: Storage>(
        &self,
        storage: &S,
        buffer: &mut AlignedBuffer,
    ) -> Result<(), HistoryError> {
        let name = segment_name(self.segment);
        let file = storage.open(&name).map_err(io_error(&name))?;
        let came = file.read(self.place.start, buffer);
        let came = came.or_else(|error| self.read_in_parts(&file, buffer, error));
        let came = came.map_err(io_error(&name))?;
        match self.runs.last().map(end_of) <= Some(self.place.start + came as u64) {
            true => Ok(()),
            false => Err(self.damaged(self.place.start + came as u64)),
        }
    }

    /// As [`Extent::read`], part by part. `after` hears how many bytes a part has, and how long it took.
    ///
    /// # Errors
    /// As [`Extent::read`].
    pub fn read_in_turns<S: Storage>(
        &self,
        storage: &S,
        buffer: &mut AlignedBuffer,
        part_bytes: usize,
        after: &mut dyn FnMut(usize, Duration),
    ) -> Result<(), HistoryError> {
        if buffer.len() <= part_bytes {
            let began = Instant::now();
            let read = self.read(storage, buffer);
            after(buffer.len(), began.elapsed());
            return read;
        }
        let name = segment_name(self.segment);
        let file = storage.open(&name).map_err(io_error(&name))?;
        let mut part = AlignedBuffer::new(part_bytes);
        let mut at = 0;
        while at < buffer.len() {
            let began = Instant::now();
            let Ok(came) = file.read(self.place.start + at as u64, &mut part) else {
                return self.read(storage, buffer);
            };
            after(came, began.elapsed());
            let rest = &mut buffer[at..];
            let len = came.min(rest.len());
            rest[..len].copy_from_slice(&part[..len]);
            at += len;
            if came < part_bytes {
                break;
            }
        }
        match self.runs.last().map(end_of) <= Some(self.place.start + at as u64) {
            true => Ok(()),
            false => Err(self.damaged(self.place.start + at as u64)),
        }
    }

    /// Reads what can be read. The rest is zeros, so what lies there is found damaged.
    fn read_in_parts(
        &self,
        file: &impl StoredFile,
        buffer: &mut AlignedBuffer,
        error: io::Error,
    ) -> io::Result<usize> {
        let mut part = AlignedBuffer::new(PART_BYTES);
        let (mut at, mut failed) = (0, 0);
        while at < buffer.len() {
            let rest = &mut buffer[at..];
            let len = PART_BYTES.min(rest.len());
            let rest = &mut rest[..len];
            match file.read(self.place.start + at as u64, &mut part) {
                Ok(came) if came < len => {
                    rest[..came].copy_from_slice(&part[..came]);
                    return Ok(at + came);
                }
                Ok(_) => rest.copy_from_slice(&part[..len]),
                // It is the disk and not a part of it.
                Err(_) if failed == FAILED_PARTS_MAX => return Err(error),
                Err(_) => {
                    failed += 1;
                    rest.fill(0);
                }
            }
            at += len;
        }
        Ok(at)
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
