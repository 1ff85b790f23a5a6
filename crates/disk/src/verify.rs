//! Reads all that a disk has, and says what of it is not as it was written.
//!
//! [`recover`](crate::recover::recover) finds what a writer goes on from, reads no more than it needs, and stops where
//! something is damaged. This goes on behind it, so that it tells all damage, with the positions that are lost. It changes
//! nothing, and takes a journal that is being written as it is: where something is not there yet it looks twice.

mod damage;
mod headers;
mod one;
mod reading;
mod runs;
mod segment;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::aligned::AlignedBuffer;
use crate::format::Chain;
use crate::format::{
    ABOUT_SEGMENTS, ABOUT_TOPIC, Before, Part, SegmentHeader, SegmentIndex, decode_first_kept,
    index_name, parts_of, segment_name,
};
use crate::positions::Positions;
use crate::scan::Depth;
use crate::storage::{Storage, StoredFile};

pub use damage::{Damage, Lost, Wrong};
use headers::{Headers, Place, Step};
pub use one::{SegmentVerified, verify_segment};
use reading::Reading;
use segment::{Read, Walk};

/// What a disk has, and what of it is damaged.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// The segments of the journal that are there, in order.
    pub segments: Vec<Segment>,
    /// Segments that are no part of the journal. Nobody needs them, and of these only the headers were read.
    pub dead: Vec<u64>,
    /// All facts that hold, as far as they can be read: by what they are about, and their key.
    pub facts: BTreeMap<(u16, u64), Vec<u8>>,
    /// By chain, the position that comes next, as far as it is known.
    pub chains: BTreeMap<Chain, u64>,
    /// By chain, the positions that are whole.
    pub whole: BTreeMap<Chain, Positions>,
    /// Commits that count and can be read, at least their tables.
    pub commits: u64,
    /// Batches that are whole.
    pub batches: u64,
    /// The highest term that is on the disk.
    pub epoch: u32,
    /// Bytes that were written behind the end and do not count, at least. They are no damage.
    pub torn_bytes: u64,
    /// Segments that have an index.
    pub indexes: BTreeSet<u64>,
    /// What is damaged.
    pub damage: Vec<Damage>,
}

/// A segment that is there.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its number.
    pub number: u64,
    /// Its header, unless that is damaged.
    pub header: Option<SegmentHeader>,
    /// How much of it counts.
    pub counted: Before,
    /// Where that ends in the file.
    pub end: u64,
    /// Its nonce.
    pub nonce: u64,
    /// How much of it counts by what the next one says, if that can be read.
    pub counts: Option<Before>,
    /// All facts that hold are said in it.
    pub says_all_facts: bool,
    /// What it has of each chain.
    pub chains: BTreeMap<Chain, Part>,
}

/// How often a journal is read of which something is given back meanwhile.
const LOOKS: u32 = 3;

/// Reads the journal of the disk `disk`. At [`Depth::Payloads`] it checks every checksum that there is, at [`Depth::Tables`] all
/// but those of batches. `on_read` is called with the bytes of each read.
///
/// # Errors
/// What the system says of the directory. Files that cannot be read are damage.
pub fn verify<S: Storage>(
    storage: &S,
    disk: &[u8; 16],
    depth: Depth,
    on_read: &(dyn Fn(u64) + Sync),
) -> io::Result<Verified> {
    let mut looks = 1;
    loop {
        let (verified, is_outdated) = look(storage, disk, depth, on_read)?;
        if !is_outdated || looks == LOOKS {
            return Ok(verified);
        }
        looks += 1;
    }
}

/// Reads the journal once. Also says whether batches were perhaps given back after a deletion that this look has not come upon.
fn look<S: Storage>(
    storage: &S,
    disk: &[u8; 16],
    depth: Depth,
    on_read: &(dyn Fn(u64) + Sync),
) -> io::Result<(Verified, bool)> {
    let names: BTreeSet<String> = storage.names()?.into_iter().collect();
    let headers = Headers::read(storage, &names, disk, on_read);
    let mut verifier = Verifier {
        storage,
        names,
        depth,
        on_read,
        walk: Walk::default(),
        verified: Verified {
            epoch: headers.epoch(),
            ..Verified::default()
        },
    };
    let steps = headers.steps();
    for step in &steps {
        match step {
            Step::Read(place) => verifier.read(place)?,
            Step::Missing(number) => verifier.miss(*number, Wrong::Missing),
            Step::Damaged(number) => verifier.miss(*number, Wrong::Header),
            Step::Foreign(number) => verifier.miss(*number, Wrong::Foreign),
        }
    }
    let used = steps.iter().map(Step::number).collect();
    let (mut verified, is_outdated) = verifier.sum_up();
    verified.dead.extend(headers.dead(&used));
    verified.dead.sort_unstable();
    Ok((verified, is_outdated))
}

/// Goes through the segments of a journal.
struct Verifier<'a, S> {
    storage: &'a S,
    names: BTreeSet<String>,
    depth: Depth,
    on_read: &'a (dyn Fn(u64) + Sync),
    walk: Walk,
    verified: Verified,
}

impl<S: Storage> Verifier<'_, S> {
    fn miss(&mut self, number: u64, what: Wrong) {
        self.walk.miss(&segment_name(number), what);
    }

    fn read(&mut self, place: &Place) -> io::Result<()> {
        let number = place.number;
        let name = segment_name(number);
        let file = match self.storage.open(&name) {
            Ok(file) => Reading::new(file, self.on_read),
            // It was removed meanwhile, or cannot be had.
            Err(error) => {
                let what = match error.kind() {
                    io::ErrorKind::NotFound => Wrong::Missing,
                    _ => Wrong::Closed(error.to_string()),
                };
                self.miss(number, what);
                return Ok(());
            }
        };
        let before = self.walk.damage.len();
        if place.header.is_none() {
            self.walk.note(&name, Wrong::Header, Vec::new());
        }
        if self.names.contains(&index_name(number)) {
            self.verified.indexes.insert(number);
        }
        let index = place.counts.and_then(|counts| self.index_of(&counts));
        let part = segment::Part {
            name: &name,
            number,
            nonce: place.nonce,
            counts: place.counts,
            index: index.as_ref(),
        };
        let read = self.walk.read(&part, &file, self.depth)?;
        if let Some(what) = file.unreadable() {
            self.walk.note(&name, what, Vec::new());
        }
        let is_whole = self.walk.damage.len() == before;
        if index.is_some_and(|index| !agrees(&index, &read, is_whole)) {
            let name = index_name(number);
            self.walk.note(&name, Wrong::OtherIndex, Vec::new());
        }
        self.verified.torn_bytes += read.torn_bytes;
        self.verified.segments.push(Segment {
            number,
            header: place.header,
            counted: read.counted,
            end: read.end,
            nonce: place.nonce,
            counts: place.counts,
            says_all_facts: read.says_all_facts,
            chains: parts_of(&read.indexing.entries),
        });
        Ok(())
    }

    /// The index of a segment of which so much counts, if it has one that is whole.
    fn index_of(&mut self, counts: &Before) -> Option<SegmentIndex> {
        let name = index_name(counts.number);
        if !self.names.contains(&name) {
            return None;
        }
        let read = self.storage.open(&name).and_then(|file| {
            let bytes = usize::try_from(file.size()?).unwrap_or(0);
            let mut buffer = AlignedBuffer::new(bytes.max(1));
            let came = file.read(0, &mut buffer)?;
            (self.on_read)(came as u64);
            Ok(SegmentIndex::decode(&buffer[..came]))
        });
        let what = match read {
            Ok(Some(index)) if index.segment == *counts => return Some(index),
            Ok(Some(_)) => Wrong::OtherIndex,
            Ok(None) => Wrong::Index,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Wrong::Closed(error.to_string()),
        };
        self.walk.note(&name, what, Vec::new());
        None
    }

    /// What is known in the end, and whether it is outdated: what one place has lost may be whole at another, and nobody misses what was removed.
    fn sum_up(mut self) -> (Verified, bool) {
        self.walk.end();
        let mut verified = self.verified;
        let mut state = self.walk.replay.state;
        let kept = state.facts.remove(&(ABOUT_SEGMENTS, 0));
        let kept = kept
            .and_then(|bytes| decode_first_kept(&bytes))
            .unwrap_or(0);
        let whole = self.walk.whole;
        let holds = |lost: &Lost| {
            let topic = lost.chain.topic.into();
            state.facts.contains_key(&(ABOUT_TOPIC, topic))
        };
        let holes: BTreeSet<usize> = self.walk.holes.into_iter().collect();
        let mut is_outdated = false;
        for (place, mut damage) in self.walk.damage.into_iter().enumerate() {
            if holes.contains(&place) {
                match damage.lost.iter().any(holds) {
                    true => is_outdated = true,
                    // Its topic is gone, and so is it.
                    false => continue,
                }
            }
            let number = damage.file.split('.').next();
            let number = number.and_then(|it| it.parse::<u64>().ok());
            if number.is_some_and(|it| it < kept) {
                continue;
            }
            let lost = std::mem::take(&mut damage.lost);
            for lost in lost {
                let positions = lost.positions();
                let missing = match whole.get(&lost.chain) {
                    Some(whole) => whole.missing_in(&positions).ranges().collect(),
                    None => vec![positions],
                };
                let missing = missing.into_iter().filter(|it| !it.is_empty());
                damage
                    .lost
                    .extend(missing.map(|it| Lost::new(lost.chain, it)));
            }
            verified.damage.push(damage);
        }
        let old = verified.segments.iter().filter(|it| it.number < kept);
        verified.dead.extend(old.map(|it| it.number));
        verified.segments.retain(|it| it.number >= kept);
        verified.facts = state.facts;
        verified.chains = state.chains;
        verified.whole = whole;
        verified.commits = self.walk.commits;
        verified.batches = self.walk.batches;
        (verified, is_outdated)
    }
}

/// Whether an index says what is in its segment, as far as that is whole.
fn agrees(index: &SegmentIndex, read: &Read, is_whole: bool) -> bool {
    let entries = &read.indexing.entries;
    match is_whole {
        true => index.entries == *entries && index.end == read.end,
        false => {
            let all: BTreeSet<_> = index.entries.iter().map(|it| (it.at, it.topic)).collect();
            entries.iter().all(|it| all.contains(&(it.at, it.topic)))
        }
    }
}
