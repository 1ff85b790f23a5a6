//! The segments that a disk keeps, and which of them nobody needs any more.
//!
//! A segment is shared by all topics, and goes as a whole, the oldest first: when of each topic that it has batches of all that it has
//! is needless. That is when the topic was deleted, or has as much as it is to retain in the segments behind it, or when the newest
//! of these batches is older than the topic is to retain them. A segment goes, too, when the disk has more than it is to have.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use embar_disk::Chain;
use embar_disk::format::{Before, Part, SegmentIndex};
use embar_disk::recover::Segment;

/// What is to be retained of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Retention {
    /// So many bytes; 0 for all.
    pub bytes: u64,
    /// What was written in so many nanoseconds; 0 for all.
    pub age_ns: u64,
}

impl Retention {
    /// Whether all of a part is older than that, at a time in nanoseconds since the Unix epoch.
    pub fn is_too_old(&self, part: &Part, now: u64) -> bool {
        self.age_ns > 0 && now.saturating_sub(part.newest) >= self.age_ns
    }

    /// Whether a part is needless with so many bytes of its chain behind it.
    fn passes(&self, part: &Part, behind: u64, now: u64) -> bool {
        let has_enough = self.bytes > 0 && behind >= self.bytes;
        has_enough || self.is_too_old(part, now)
    }
}

/// A segment that is over.
#[derive(Debug)]
struct KeptSegment {
    /// Which one, and how much of it counts.
    counted: Before,
    /// What it takes of the disk: up to where what counts ends in the file, without what was given back.
    bytes: u64,
    chains: BTreeMap<Chain, Part>,
}

/// All segments of a journal that are over.
#[derive(Debug, Default)]
pub(super) struct Kept {
    segments: VecDeque<KeptSegment>,
    /// What they have of each chain.
    chain_bytes: BTreeMap<Chain, u64>,
    bytes: u64,
}

impl Kept {
    /// One more.
    pub fn push(&mut self, counted: Before, bytes: u64, chains: BTreeMap<Chain, Part>) {
        for (chain, part) in &chains {
            *self.chain_bytes.entry(*chain).or_default() += part.bytes;
        }
        self.bytes += bytes;
        self.segments.push_back(KeptSegment {
            counted,
            bytes,
            chains,
        });
    }

    /// As it was found.
    pub fn found(segments: &[Segment]) -> Self {
        let mut kept = Self::default();
        for segment in segments {
            kept.push(segment.counted, segment.end, segment.chains.clone());
        }
        kept
    }

    /// One more, of which this is the index.
    pub fn push_index(&mut self, index: &SegmentIndex) {
        self.push(index.segment, index.end, index.chains());
    }

    /// When the newest batch was written; 0 if there is none.
    pub fn newest(&self) -> u64 {
        let parts = self.segments.iter().flat_map(|it| it.chains.values());
        parts.map(|part| part.newest).max().unwrap_or(0)
    }

    /// The first segment that is needed, if there is an older one. `retention` says what is to be retained of a chain: nothing of one
    /// that does not exist any more. The disk is to have at most `limit` bytes. `now` is the time by which ages are judged, in
    /// nanoseconds since the Unix epoch.
    pub fn first_needed(
        &self,
        limit: u64,
        now: u64,
        retention: impl Fn(&Chain) -> Option<Retention>,
    ) -> Option<u64> {
        // What the segments have that are needless.
        let mut passed: BTreeMap<Chain, u64> = BTreeMap::new();
        let mut bytes = self.bytes;
        let mut needless = 0;
        for segment in &self.segments {
            let is_needed = |(chain, part): (&Chain, &Part)| {
                let before = passed.get(chain).copied().unwrap_or(0);
                let behind = self.chain_bytes[chain] - before - part.bytes;
                retention(chain).is_some_and(|its| !its.passes(part, behind, now))
            };
            if bytes <= limit && segment.chains.iter().any(is_needed) {
                break;
            }
            for (chain, part) in &segment.chains {
                *passed.entry(*chain).or_default() += part.bytes;
            }
            bytes -= segment.bytes;
            needless += 1;
        }
        if needless == 0 {
            return None;
        }
        let last = self.segments[needless - 1].counted.number;
        let next = self.segments.get(needless).map(|it| it.counted.number);
        Some(next.unwrap_or(last + 1))
    }

    /// Whether all of them are below this one.
    pub fn is_empty_from(&self, first: u64) -> bool {
        self.segments
            .back()
            .is_none_or(|last| last.counted.number < first)
    }

    /// Forgets the segments below this one; returns their numbers.
    pub fn remove_below(&mut self, first: u64) -> Vec<u64> {
        let mut removed = Vec::new();
        while let Some(segment) = self.segments.pop_front_if(|it| it.counted.number < first) {
            for (chain, part) in &segment.chains {
                forget_part(&mut self.chain_bytes, *chain, part);
            }
            self.bytes -= segment.bytes;
            removed.push(segment.counted.number);
        }
        removed
    }

    /// The topics of which they have batches.
    pub fn topics(&self) -> BTreeSet<u32> {
        self.chain_bytes.keys().map(|chain| chain.topic).collect()
    }

    /// A segment that has batches of topics that are gone, and these topics, once: their batches can be given back.
    pub fn take_gone(&mut self, gone: &BTreeSet<u32>) -> Option<(Before, BTreeSet<u32>)> {
        if gone.is_empty() {
            return None;
        }
        let has_some = |it: &&mut KeptSegment| it.chains.keys().any(|it| gone.contains(&it.topic));
        let segment = self.segments.iter_mut().find(has_some)?;
        let mut taken = BTreeSet::new();
        segment.chains.retain(|chain, part| {
            let is_gone = gone.contains(&chain.topic);
            if is_gone {
                forget_part(&mut self.chain_bytes, *chain, part);
                taken.insert(chain.topic);
            }
            !is_gone
        });
        Some((segment.counted, taken))
    }

    /// So many bytes of a segment were given back.
    pub fn gave_back(&mut self, number: u64, bytes: u64) {
        let mut segments = self.segments.iter_mut();
        if let Some(segment) = segments.find(|it| it.counted.number == number) {
            let bytes = bytes.min(segment.bytes);
            segment.bytes -= bytes;
            self.bytes -= bytes;
        }
    }

    /// The first position that they have of a chain.
    pub fn first_of(&self, chain: Chain) -> Option<u64> {
        let mut parts = self.segments.iter().filter_map(|it| it.chains.get(&chain));
        parts.next().map(|part| part.first)
    }
}

fn forget_part(chain_bytes: &mut BTreeMap<Chain, u64>, chain: Chain, part: &Part) {
    let left = chain_bytes.get_mut(&chain).expect("it was counted");
    *left -= part.bytes;
    if *left == 0 {
        chain_bytes.remove(&chain);
    }
}

#[cfg(test)]
mod tests;
