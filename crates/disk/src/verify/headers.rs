//! Which segments are the journal, also where headers are damaged or files are missing.

use std::collections::{BTreeMap, BTreeSet};

use crate::aligned::AlignedBuffer;
use crate::format::{Before, SEGMENT_HEADER_BYTES, SegmentHeader, segment_name, segment_number};
use crate::scan::first_nonce;
use crate::storage::{Storage, StoredFile};

use super::reading::Reading;

/// What the first bytes of a segment are.
#[derive(Clone, Copy, Debug)]
enum Header {
    Begun(SegmentHeader),
    /// Of another disk.
    Foreign,
    /// It cannot be read. The nonce is that of its first commit, if there is one.
    Damaged(Option<u64>),
    /// Its writer died after it had made the file.
    Nothing,
}

/// The headers of all segments, by their numbers.
#[derive(Debug)]
pub(super) struct Headers(BTreeMap<u64, Header>);

/// What a reader of the journal comes to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A segment.
    Read(Place),
    /// One that is not there.
    Missing(u64),
    /// One that has nothing that can be read.
    Damaged(u64),
    /// One of another disk.
    Foreign(u64),
}

/// A segment of the journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub number: u64,
    pub nonce: u64,
    pub header: Option<SegmentHeader>,
    /// How much of it counts, if the next one can be read.
    pub counts: Option<Before>,
}

impl Place {
    fn of(header: SegmentHeader, counts: Option<Before>) -> Self {
        Self {
            number: header.number,
            nonce: header.nonce,
            header: Some(header),
            counts,
        }
    }
}

impl Step {
    pub fn number(&self) -> u64 {
        match self {
            Self::Read(place) => place.number,
            Self::Missing(number) | Self::Damaged(number) | Self::Foreign(number) => *number,
        }
    }
}

impl Headers {
    pub fn read<S: Storage>(
        storage: &S,
        names: &BTreeSet<String>,
        disk: &[u8; 16],
        on_read: &(dyn Fn(u64) + Sync),
    ) -> Self {
        let numbers = names.iter().filter_map(|name| segment_number(name));
        let headers = numbers.map(|number| {
            let header = match storage.open(&segment_name(number)) {
                Ok(file) => header_of(&Reading::new(file, on_read), number, disk),
                Err(_) => Header::Damaged(None),
            };
            (number, header)
        });
        Self(headers.collect())
    }

    /// The highest term.
    pub fn epoch(&self) -> u32 {
        let epochs = self.begun().map(|header| header.epoch);
        epochs.max().unwrap_or(0)
    }

    fn begun(&self) -> impl Iterator<Item = &SegmentHeader> {
        self.0.values().filter_map(|header| match header {
            Header::Begun(header) => Some(header),
            _ => None,
        })
    }

    /// The last segment below a number, or that seems so.
    fn last_below(&self, number: u64) -> Option<Place> {
        let below = self.begun().filter(|header| header.number < number);
        let last = below.max_by_key(|header| (header.epoch, header.number));
        last.map(|header| Place::of(*header, None))
    }

    /// The journal, from its first segment on, and what is in the way.
    pub fn steps(&self) -> Vec<Step> {
        let foreign = { self.0.iter() }.filter(|(_, header)| matches!(header, Header::Foreign));
        let mut steps: Vec<Step> = foreign.map(|(number, _)| Step::Foreign(*number)).collect();
        let last = self.last_below(u64::MAX);
        // Whatever was begun behind the last one may have been the last.
        let behind = last.map_or(0, |last| last.number + 1);
        for (number, header) in self.0.range(behind..) {
            match header {
                Header::Damaged(Some(nonce)) => steps.push(Step::Read(Place {
                    number: *number,
                    nonce: *nonce,
                    header: None,
                    counts: None,
                })),
                Header::Damaged(None) => steps.push(Step::Damaged(*number)),
                _ => {}
            }
        }
        let mut next = last;
        while let Some(place) = next {
            steps.push(Step::Read(place));
            next = match place.header.map(|header| header.before) {
                Some(None) => None,
                Some(Some(before)) if before.number < place.number => {
                    let found = self.named(&before);
                    if found.is_none() {
                        steps.push(Step::Missing(before.number));
                    }
                    found.or_else(|| self.last_below(before.number))
                }
                Some(Some(_)) | None => self.last_below(place.number),
            };
        }
        steps.sort_by_key(Step::number);
        steps
    }

    /// The segment that the next one names.
    fn named(&self, before: &Before) -> Option<Place> {
        match self.0.get(&before.number)? {
            Header::Begun(header) if header.nonce == before.nonce => {
                Some(Place::of(*header, Some(*before)))
            }
            Header::Damaged(nonce) if nonce.is_none_or(|nonce| nonce == before.nonce) => {
                Some(Place {
                    number: before.number,
                    nonce: before.nonce,
                    header: None,
                    counts: Some(*before),
                })
            }
            _ => None,
        }
    }

    /// Segments that are none of these.
    pub fn dead(&self, used: &BTreeSet<u64>) -> Vec<u64> {
        let dead = self.0.keys().filter(|number| !used.contains(number));
        dead.copied().collect()
    }
}

fn header_of<F: StoredFile>(file: &Reading<'_, F>, number: u64, disk: &[u8; 16]) -> Header {
    let mut first = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
    // What cannot be read is noted by the file, and damaged.
    let came = file.read(0, &mut first).unwrap_or(0);
    if let Some(header) = SegmentHeader::decode(&first[..came]) {
        return match header.disk == *disk && header.number == number {
            true => Header::Begun(header),
            false => Header::Foreign,
        };
    }
    // Also one without bytes: its writer died before it had reserved them.
    let is_blank = file.unreadable().is_none() && first[..came].iter().all(|byte| *byte == 0);
    match first_nonce(file).ok().flatten() {
        None if is_blank => Header::Nothing,
        nonce => Header::Damaged(nonce),
    }
}
