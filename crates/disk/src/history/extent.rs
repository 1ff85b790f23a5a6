//! A part of a segment with batches of one chain, which is read at once.

use std::ops::Range;

use embar_wire::batch::BatchHeader;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};

use super::{HistoryError, Span, io_error};
use crate::aligned::AlignedBuffer;
use crate::format::{ALIGN_BYTES, IndexEntry, segment_name};
use crate::storage::{Storage, StoredFile};

/// What lies between two runs is read with them if it is not more.
const GAP_BYTES: u64 = 64 << 10;

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
        let mut end = end_of(&entries[0]);
        let more = entries[1..].iter().take_while(|run| {
            let bytes = end_of(run).saturating_sub(from);
            let belongs = run.first < span.end
                && (end..=end + GAP_BYTES).contains(&run.at)
                && bytes <= span.bytes as u64;
            if belongs {
                end = end_of(run);
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
        let came = file
            .read(self.place.start, buffer)
            .map_err(io_error(&name))?;
        match self.runs.last().map(end_of) <= Some(self.place.start + came as u64) {
            true => Ok(()),
            false => Err(self.damaged(self.place.start + came as u64)),
        }
    }

    fn damaged(&self, at: u64) -> HistoryError {
        let name = segment_name(self.segment);
        HistoryError::Damaged { name, at }
    }

    /// Of what was read the batches of a span that `wants` says, each checked. They are moved behind each other; returns where, and the
    /// position at which to go on.
    ///
    /// # Errors
    /// [`HistoryError::Damaged`]
    pub fn take(
        &self,
        bytes: &mut [u8],
        span: &Span,
        wants: &mut dyn FnMut(&BatchHeader) -> bool,
    ) -> Result<(Range<usize>, u64), HistoryError> {
        let mut taken: Option<Range<usize>> = None;
        let mut next = span.from;
        'runs: for run in &self.runs {
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
                    break 'runs;
                }
                next = expected;
                if wants(&header) {
                    let checked = header.check_payload(&rest[BATCH_HEADER_BYTES..len]);
                    checked.map_err(|_| self.damaged(at))?;
                    let taken = taken.get_or_insert(place..place);
                    if taken.end < place {
                        bytes.copy_within(place..place + len, taken.end);
                    }
                    taken.end += len;
                }
            }
            if expected != run.end() {
                return Err(self.damaged(run.at));
            }
        }
        Ok((taken.unwrap_or(0..0), next))
    }
}
