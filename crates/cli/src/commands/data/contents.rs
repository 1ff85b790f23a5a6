//! What a directory has, also where its journal cannot be recovered.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use embar_broker::topics::Topic;
use embar_disk::format::Part;
use embar_disk::format::{Before, SEGMENT_HEADER_BYTES, SegmentHeader, segment_name};
use embar_disk::recover::{RecoverError, Recovered, recover};
use embar_disk::scan::Depth;
use embar_disk::verify::Verified;
use embar_disk::{AlignedBuffer, Chain, Directory, DiskView, Storage, StoredFile};
use serde::Serialize;

use super::topics::{Facts, Topics, broker_of, sessions};

/// How often a journal is read whose end moves.
const LOOKS: u32 = 4;

/// What a directory has.
pub struct Contents {
    /// All segments, those that are no part of the journal last.
    pub segments: Vec<SegmentReport>,
    /// All topics.
    pub topics: Vec<TopicReport>,
    /// Names of topics.
    pub names: Topics,
    /// Sessions of publishers.
    pub sessions: usize,
    /// The highest term.
    pub term: u32,
    /// Bytes behind the end that do not count.
    pub torn_bytes: u64,
    /// Why a cluster would not start with it.
    pub refused: Option<RecoverError>,
    counted: BTreeMap<u64, Before>,
}

/// What a segment is to the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Another one follows it.
    Sealed,
    /// The journal ends in it.
    Last,
    /// It is no part of the journal.
    Dead,
    /// No writer has begun it yet.
    Blank,
}

/// A segment.
#[derive(Debug, Serialize)]
pub struct SegmentReport {
    pub number: u64,
    pub file: String,
    pub state: State,
    /// None if the header cannot be read.
    pub term: Option<u32>,
    pub created_ns: Option<u64>,
    /// Commits that count.
    pub commits: u32,
    /// Up to where they reach in the file; 0 of those that are no part of the journal.
    pub counted_bytes: u64,
    pub file_bytes: u64,
    /// What the file takes of the device, less than it has where something was given back.
    pub device_bytes: u64,
}

/// A topic, or what a broker has of it.
#[derive(Debug, Serialize)]
pub struct TopicReport {
    pub id: u32,
    /// None if it was deleted.
    pub name: Option<String>,
    pub order: Option<u8>,
    /// At orders 0 and 1, whose positions these are.
    pub broker: Option<u16>,
    pub first: u64,
    pub next: u64,
    pub bytes: u64,
}

impl Contents {
    /// Reads them.
    ///
    /// # Errors
    /// What the system says of the directory.
    pub fn read(view: &DiskView) -> io::Result<Self> {
        let directory = view.directory();
        let mut looks = 0;
        let refused = loop {
            looks += 1;
            match recover(directory, view.disk(), &mut |_| {}) {
                Ok(recovered) => return Self::of_recovered(directory, recovered),
                // What was not there yet may be by now.
                Err(RecoverError::Damaged { .. }) if looks < LOOKS => {}
                Err(error) => break error,
            }
        };
        let verified = view.verify(Depth::Tables, &|_| {})?;
        Ok(Self {
            refused: Some(refused),
            ..Self::of_verified(directory, verified)?
        })
    }

    /// How much counts of a segment; nothing of a dead one.
    pub fn commits_of(&self, segment: u64) -> u32 {
        self.counted.get(&segment).map_or(0, |it| it.commits)
    }

    fn of_recovered(directory: &Directory, recovered: Recovered) -> io::Result<Self> {
        let segments = recovered.segments.into_iter();
        let segments = segments.map(|it| SegmentPart {
            number: it.header.number,
            header: Some(it.header),
            counted: it.counted,
            end: it.end,
            chains: it.chains,
        });
        Self::new(
            directory,
            segments.collect(),
            &recovered.dead,
            &recovered.facts,
            &recovered.position.chains,
            (recovered.epoch, recovered.torn_bytes),
        )
    }

    fn of_verified(directory: &Directory, verified: Verified) -> io::Result<Self> {
        let segments = verified.segments.into_iter();
        let segments = segments.map(|it| SegmentPart {
            number: it.number,
            header: it.header,
            counted: it.counted,
            end: it.end,
            chains: it.chains,
        });
        Self::new(
            directory,
            segments.collect(),
            &verified.dead,
            &verified.facts,
            &verified.chains,
            (verified.epoch, verified.torn_bytes),
        )
    }

    fn new(
        directory: &Directory,
        parts: Vec<SegmentPart>,
        dead: &[u64],
        facts: &Facts,
        next: &BTreeMap<Chain, u64>,
        (term, torn_bytes): (u32, u64),
    ) -> io::Result<Self> {
        let names = Topics::of(facts);
        let last = parts.last().map(|it| it.number);
        let mut segments = Vec::new();
        for part in &parts {
            segments.push(SegmentReport {
                number: part.number,
                file: segment_name(part.number),
                state: match Some(part.number) == last {
                    true => State::Last,
                    false => State::Sealed,
                },
                term: part.header.map(|header| header.epoch),
                created_ns: part.header.map(|header| header.created),
                commits: part.counted.commits,
                counted_bytes: part.end,
                file_bytes: file_bytes(directory, part.number)?,
                device_bytes: device_bytes(directory, part.number),
            });
        }
        for number in dead {
            let first = first_bytes(directory, *number)?;
            let header = SegmentHeader::decode(&first);
            segments.push(SegmentReport {
                number: *number,
                file: segment_name(*number),
                state: match first.iter().all(|byte| *byte == 0) {
                    true => State::Blank,
                    false => State::Dead,
                },
                term: header.map(|header| header.epoch),
                created_ns: header.map(|header| header.created),
                commits: 0,
                counted_bytes: 0,
                file_bytes: file_bytes(directory, *number)?,
                device_bytes: device_bytes(directory, *number),
            });
        }
        Ok(Self {
            segments,
            topics: topics_of(&parts, &names, next),
            names,
            sessions: sessions(facts),
            term,
            torn_bytes,
            refused: None,
            counted: parts.iter().map(|it| (it.number, it.counted)).collect(),
        })
    }
}

/// A segment of the journal, whoever found it.
struct SegmentPart {
    number: u64,
    header: Option<SegmentHeader>,
    counted: Before,
    end: u64,
    chains: BTreeMap<Chain, Part>,
}

/// All topics, those that were deleted last.
fn topics_of(
    parts: &[SegmentPart],
    names: &Topics,
    next: &BTreeMap<Chain, u64>,
) -> Vec<TopicReport> {
    let mut chains: BTreeMap<Chain, Part> = BTreeMap::new();
    for (chain, part) in parts.iter().flat_map(|it| &it.chains) {
        let all = chains.entry(*chain).or_insert(Part { bytes: 0, ..*part });
        all.first = all.first.min(part.first);
        all.next = all.next.max(part.next);
        all.bytes += part.bytes;
    }
    for (chain, next) in next {
        chains.entry(*chain).or_insert(Part {
            first: *next,
            next: *next,
            bytes: 0,
            newest: 0,
        });
    }
    let report = |topic: Option<&Topic>, chain: Chain, part: &Part| TopicReport {
        id: chain.topic,
        name: topic.map(|topic| topic.name.clone()),
        order: topic.map(|topic| topic.order.level()),
        broker: broker_of(chain),
        first: part.first,
        next: part.next,
        bytes: part.bytes,
    };
    let mut topics: Vec<TopicReport> = { chains.iter() }
        .map(|(chain, part)| report(names.get(chain.topic), *chain, part))
        .collect();
    topics.sort_by_key(|topic| (topic.name.is_none(), topic.id, topic.broker));
    topics
}

/// The header of a segment, unless it is damaged or was never written.
///
/// # Errors
/// What the system says of its file.
pub fn header_of(directory: &Directory, number: u64) -> io::Result<Option<SegmentHeader>> {
    let first = first_bytes(directory, number)?;
    Ok(SegmentHeader::decode(&first))
}

fn first_bytes(directory: &Directory, number: u64) -> io::Result<Vec<u8>> {
    let mut first = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
    let file = directory.open(&segment_name(number))?;
    let came = file.read(0, &mut first)?;
    Ok(first[..came].to_vec())
}

fn file_bytes(directory: &Directory, number: u64) -> io::Result<u64> {
    directory.open(&segment_name(number))?.size()
}

/// One that goes meanwhile takes nothing.
fn device_bytes(directory: &Directory, number: u64) -> u64 {
    /// What the system counts blocks in, whatever those of the device are.
    const BLOCK_BYTES: u64 = 512;
    let path = directory.path().join(segment_name(number));
    fs::symlink_metadata(path).map_or(0, |said| said.blocks() * BLOCK_BYTES)
}
