//! Finds out what a disk has: the longest part of its journal of which nothing is missing.
//!
//! The segment of the highest term is the last one; each names the one before it, and how many of its commits count. What
//! else there is, a deposed writer left. In the last segment the journal ends where a commit is not whole, unless one
//! behind it says that it counted: then it was lost later, and what lies behind is not thrown away for that.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use embar_memory::canary::{Canary, injected};
use thiserror::Error;

use crate::aligned::AlignedBuffer;
use crate::format::Chain;
use crate::format::{
    ABOUT_SEGMENTS, Before, Part, RunKind, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentIndex,
    decode_first_kept, index_name, segment_name, segment_number,
};
use crate::indexing::Indexing;
use crate::journal::Position;
use crate::scan::{Depth, Scan, first_nonce};
use crate::storage::{Storage, StoredFile};

mod replay;

pub use replay::Sight;
pub(crate) use replay::{Gap, Replay, chain_of};

/// What a disk has.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// What the next term goes on from.
    pub position: Position,
    /// All facts that hold: by what they are about, and their key.
    pub facts: BTreeMap<(u16, u64), Vec<u8>>,
    /// The segments of the journal, in order.
    pub segments: Vec<Segment>,
    /// The indexes of those that are over and have none.
    pub unindexed: Vec<SegmentIndex>,
    /// Files of segments that are no part of the journal: nobody needs them.
    pub dead: Vec<u64>,
    /// The highest term that is on the disk, also where nothing of it counts.
    pub epoch: u32,
    /// Bytes that were written behind the end and do not count, at least.
    pub torn_bytes: u64,
}

/// A segment of the journal.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its header.
    pub header: SegmentHeader,
    /// How much of it counts.
    pub counted: Before,
    /// Where that ends in the file.
    pub end: u64,
    /// What it has of each chain.
    pub chains: BTreeMap<Chain, Part>,
}

impl Segment {
    fn new(header: SegmentHeader, index: &SegmentIndex) -> Self {
        Self {
            header,
            counted: index.segment,
            end: index.end,
            chains: index.chains(),
        }
    }
}

/// Why a disk cannot be used.
#[derive(Debug, Error)]
pub enum RecoverError {
    /// The system refused something.
    #[error("cannot read {name}: {error}")]
    Io {
        /// The file.
        name: String,
        /// What the system says.
        error: io::Error,
    },
    /// A segment of another disk lies in the directory.
    #[error("{name} belongs to another disk: move it back to where it came from")]
    Foreign {
        /// The file.
        name: String,
    },
    /// A segment that is needed is not there, or its header is damaged.
    #[error(
        "{name} is missing or its header is damaged: what lies behind it is left as it is; put back a copy of this file, if there is one"
    )]
    NoSegment {
        /// Its file.
        name: String,
    },
    /// A commit that counted is not whole.
    #[error(
        "commit {commit} of {name} is damaged, and was whole before: what lies behind it is left as it is; put back a copy of this file, if there is one"
    )]
    Damaged {
        /// The segment's file.
        name: String,
        /// The commit's number.
        commit: u32,
    },
    /// A chain goes on behind where it ended: no writer does that.
    #[error(
        "{name} goes on with position {found} of topic {topic}, where {expected} comes next: what is there is left as it is; put back a copy of this file, if there is one"
    )]
    Gap {
        /// The segment's file.
        name: String,
        /// The topic's id.
        topic: u32,
        /// The position that comes next.
        expected: u64,
        /// The position that is there.
        found: u64,
    },
}

/// Reads the journal of the disk `disk`. `see` is shown all batches and facts since all facts were said, and perhaps some
/// before. Of older segments only the indexes are read, if they have any.
///
/// # Errors
/// [`RecoverError`]
pub fn recover<S: Storage>(
    storage: &S,
    disk: &[u8; 16],
    see: &mut dyn FnMut(Sight<'_>),
) -> Result<Recovered, RecoverError> {
    let headers = headers(storage, disk)?;
    let mut recovered = Recovered::default();
    recovered.position.segment = headers.keys().last().map_or(0, |number| number + 1);
    check_behind(storage, &headers)?;
    let begun = headers.values().flatten();
    let Some(last) = begun.max_by_key(|header| (header.epoch, header.number)) else {
        recovered.dead = headers.into_keys().collect();
        return Ok(recovered);
    };
    recovered.epoch = last.epoch;
    let (journal, missing) = chain_to(last, &headers);
    let base = base_of(storage, &journal)?;
    let mut replay = Replay::default();
    for (number, header) in journal.iter().enumerate() {
        let counts = journal.get(number + 1).and_then(|next| next.before);
        let indexed = match counts {
            Some(counts) => index_of(storage, &counts)?,
            None => None,
        };
        let index = match indexed {
            Some(index) if number < base => {
                replay
                    .pass(&index)
                    .map_err(|gap| Wrong::from(gap).of(&segment_name(header.number)))?;
                index
            }
            indexed => {
                let name = segment_name(header.number);
                let file = storage.open(&name).map_err(io_error(&name))?;
                let read = read_segment(&file, header, counts, &mut replay, see);
                let end = read.map_err(|wrong| wrong.of(&name))?;
                recovered.torn_bytes += end.torn_bytes;
                if counts.is_some() && indexed.is_none() {
                    recovered.unindexed.push(end.index.clone());
                }
                end.index
            }
        };
        recovered.position.before = Some(index.segment);
        recovered.segments.push(Segment::new(*header, &index));
    }
    // What was removed on purpose lies before the first that is kept.
    let kept = replay.state.facts.remove(&(ABOUT_SEGMENTS, 0));
    let kept = kept.and_then(|bytes| decode_first_kept(&bytes));
    let kept = kept.unwrap_or(0);
    if let Some(missing) = missing
        && missing >= kept
    {
        let name = segment_name(missing);
        return Err(RecoverError::NoSegment { name });
    }
    recovered.position.first_kept = kept;
    let used: BTreeSet<u64> = journal.iter().map(|segment| segment.number).collect();
    let unused = headers.into_keys().filter(|number| !used.contains(number));
    recovered.dead = unused.collect();
    recovered.position.chains = replay.state.chains;
    recovered.facts = replay.state.facts;
    Ok(recovered)
}

/// The place of the last segment in which all facts were said. They are said at its beginning.
fn base_of<S: Storage>(storage: &S, journal: &[SegmentHeader]) -> Result<usize, RecoverError> {
    for (place, header) in journal.iter().enumerate().rev() {
        let name = segment_name(header.number);
        let file = storage.open(&name).map_err(io_error(&name))?;
        // Behind what counts a deposed writer may have said all that held for it.
        let counts = journal.get(place + 1).and_then(|next| next.before);
        let mut scan = Scan::new(&file, *header, depth_for(counts.as_ref()));
        while counts.is_none_or(|counts| scan.number() < counts.commits)
            && let Some(found) = scan.next(&mut |_, _| {}).map_err(io_error(&name))?
        {
            if found.header.completes_facts {
                return Ok(place);
            }
            if found.runs.iter().any(|run| run.kind == RunKind::Batches) {
                break;
            }
        }
    }
    Ok(0)
}

/// The index of a segment of which so much counts, if it is there.
pub(crate) fn index_of<S: Storage>(
    storage: &S,
    counts: &Before,
) -> Result<Option<SegmentIndex>, RecoverError> {
    let name = index_name(counts.number);
    let file = match storage.open(&name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(io_error(&name))?,
    };
    let len = file.size().map_err(io_error(&name))?;
    let mut bytes = AlignedBuffer::new(usize::try_from(len).unwrap_or(0).max(1));
    let came = file.read(0, &mut bytes).map_err(io_error(&name))?;
    let index = SegmentIndex::decode(&bytes[..came]);
    Ok(index.filter(|index| index.segment == *counts))
}

fn io_error(name: &str) -> impl Fn(io::Error) -> RecoverError + use<> {
    let name = name.to_owned();
    move |error| RecoverError::Io {
        name: name.clone(),
        error,
    }
}

/// The headers of all segments; `None` for those that were never begun, or are damaged.
fn headers<S: Storage>(
    storage: &S,
    disk: &[u8; 16],
) -> Result<BTreeMap<u64, Option<SegmentHeader>>, RecoverError> {
    let names = storage.names().map_err(io_error("the directory"))?;
    let mut headers = BTreeMap::new();
    let mut buffer = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
    for number in names.iter().filter_map(|name| segment_number(name)) {
        let name = segment_name(number);
        let file = storage.open(&name).map_err(io_error(&name))?;
        let came = file.read(0, &mut buffer).map_err(io_error(&name))?;
        let header = SegmentHeader::decode(&buffer[..came]);
        if header.is_some_and(|header| header.disk != *disk || header.number != number) {
            return Err(RecoverError::Foreign { name });
        }
        headers.insert(number, header);
    }
    Ok(headers)
}

/// A segment behind the last one whose header is not whole was never begun, or lost it later: then it has a commit.
fn check_behind<S: Storage>(
    storage: &S,
    headers: &BTreeMap<u64, Option<SegmentHeader>>,
) -> Result<(), RecoverError> {
    let behind = headers
        .iter()
        .rev()
        .take_while(|(_, header)| header.is_none());
    for (number, _) in behind {
        let name = segment_name(*number);
        let file = storage.open(&name).map_err(io_error(&name))?;
        if first_nonce(&file).map_err(io_error(&name))?.is_some() {
            return Err(RecoverError::NoSegment { name });
        }
    }
    Ok(())
}

/// The segments that lead to the last one, and the number of one that is not there.
fn chain_to(
    last: &SegmentHeader,
    headers: &BTreeMap<u64, Option<SegmentHeader>>,
) -> (Vec<SegmentHeader>, Option<u64>) {
    let mut journal = vec![*last];
    let mut first = *last;
    let mut missing = None;
    while let Some(before) = first.before {
        match headers.get(&before.number) {
            Some(Some(header)) if header.nonce == before.nonce && header.number < first.number => {
                journal.push(*header);
                first = *header;
            }
            _ => {
                missing = Some(before.number);
                break;
            }
        }
    }
    journal.reverse();
    (journal, missing)
}

/// Where a segment ends, and what is in it.
struct End {
    index: SegmentIndex,
    torn_bytes: u64,
}

/// What is wrong with a segment.
enum Wrong {
    Io(io::Error),
    Damaged(u32),
    Gap(Gap),
}

impl From<Gap> for Wrong {
    fn from(gap: Gap) -> Self {
        Self::Gap(gap)
    }
}

impl Wrong {
    fn of(self, name: &str) -> RecoverError {
        let name = name.to_owned();
        match self {
            Self::Io(error) => RecoverError::Io { name, error },
            Self::Damaged(commit) => RecoverError::Damaged { name, commit },
            Self::Gap(gap) => RecoverError::Gap {
                name,
                topic: gap.chain.topic,
                expected: gap.expected,
                found: gap.found,
            },
        }
    }
}

/// What the next segment names was synced; who reads it checks its payload. The end of the last was perhaps torn.
fn depth_for(counts: Option<&Before>) -> Depth {
    match counts {
        Some(_) => Depth::Tables,
        None => Depth::Payloads,
    }
}

/// Reads a segment of which as much counts as the next one says, or, in the last, all that is whole.
fn read_segment<F: StoredFile>(
    file: &F,
    segment: &SegmentHeader,
    counts: Option<Before>,
    replay: &mut Replay,
    see: &mut dyn FnMut(Sight<'_>),
) -> Result<End, Wrong> {
    let mut scan = Scan::new(file, *segment, depth_for(counts.as_ref()));
    let mut crc = 0;
    let mut indexing = Indexing::default();
    replay.begin_segment();
    while counts.is_none_or(|counts| scan.number() < counts.commits) {
        let mut gap = None;
        let found = scan.next(&mut |found, bytes| {
            gap = replay.take(found, bytes, see).err();
        });
        let Some(found) = found.map_err(Wrong::Io)? else {
            break;
        };
        if let Some(gap) = gap {
            return Err(gap.into());
        }
        indexing.add(&found.header, &found.runs, found.at);
        crc = found.crc;
    }
    let (number, at) = (scan.number(), scan.at());
    let mut torn_bytes = 0;
    match counts {
        Some(counts) if number < counts.commits => return Err(Wrong::Damaged(number)),
        Some(counts) if crc != counts.crc => return Err(Wrong::Damaged(number.saturating_sub(1))),
        Some(_) => {}
        None => {
            let mut from = at;
            while let Some(behind) = scan.find_behind(from).map_err(Wrong::Io)? {
                if behind.header.synced > number && !injected(Canary::CountedCommit) {
                    return Err(Wrong::Damaged(number));
                }
                from = behind.at + u64::from(behind.header.bytes);
            }
            torn_bytes = from - at;
        }
    }
    let index = SegmentIndex {
        segment: Before {
            number: segment.number,
            nonce: segment.nonce,
            commits: number,
            crc,
        },
        end: at,
        entries: indexing.entries,
    };
    Ok(End { index, torn_bytes })
}
