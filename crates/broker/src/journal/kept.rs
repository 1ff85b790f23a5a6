//! The segments that a disk keeps, and which of them nobody needs any more.
//!
//! A segment is shared by all topics, and goes as a whole, the oldest first: when each topic that it has batches of was deleted,
//! or has as much as it is to retain in the segments behind it; or when the disk has more than it is to have.

use std::collections::{BTreeMap, VecDeque};

use embar_disk::Chain;
use embar_disk::format::{Part, SegmentIndex};
use embar_disk::recover::Segment;

/// A segment that is over.
#[derive(Debug)]
struct KeptSegment {
    number: u64,
    /// Where what counts ends in the file.
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
    pub fn push(&mut self, number: u64, bytes: u64, chains: BTreeMap<Chain, Part>) {
        for (chain, part) in &chains {
            *self.chain_bytes.entry(*chain).or_default() += part.bytes;
        }
        self.bytes += bytes;
        self.segments.push_back(KeptSegment {
            number,
            bytes,
            chains,
        });
    }

    /// As it was found.
    pub fn found(segments: &[Segment]) -> Self {
        let mut kept = Self::default();
        for segment in segments {
            let number = segment.header.number;
            kept.push(number, segment.end, segment.chains.clone());
        }
        kept
    }

    /// One more, of which this is the index.
    pub fn push_index(&mut self, index: &SegmentIndex) {
        self.push(index.segment.number, index.end, index.chains());
    }

    /// The first segment that is needed, if there is an older one. `retention` says how many bytes of a chain are to be
    /// retained: 0 for all, nothing for a chain that does not exist any more. The disk is to have at most `limit` bytes.
    pub fn first_needed(
        &self,
        limit: u64,
        retention: impl Fn(&Chain) -> Option<u64>,
    ) -> Option<u64> {
        let mut left = self.chain_bytes.clone();
        let mut bytes = self.bytes;
        let mut needless = 0;
        for segment in &self.segments {
            let is_needed = |(chain, part): (&Chain, &Part)| {
                retention(chain).is_some_and(|bytes| bytes == 0 || left[chain] - part.bytes < bytes)
            };
            if bytes <= limit && segment.chains.iter().any(is_needed) {
                break;
            }
            for (chain, part) in &segment.chains {
                *left.get_mut(chain).expect("it was counted") -= part.bytes;
            }
            bytes -= segment.bytes;
            needless += 1;
        }
        if needless == 0 {
            return None;
        }
        let last = self.segments[needless - 1].number;
        let next = self.segments.get(needless).map(|segment| segment.number);
        Some(next.unwrap_or(last + 1))
    }

    /// Whether all of them are below this one.
    pub fn is_empty_from(&self, first: u64) -> bool {
        self.segments.back().is_none_or(|last| last.number < first)
    }

    /// Forgets the segments below this one; returns their numbers.
    pub fn remove_below(&mut self, first: u64) -> Vec<u64> {
        let mut removed = Vec::new();
        while let Some(segment) = self.segments.pop_front_if(|it| it.number < first) {
            for (chain, part) in &segment.chains {
                let left = self.chain_bytes.get_mut(chain).expect("it was counted");
                *left -= part.bytes;
                if *left == 0 {
                    self.chain_bytes.remove(chain);
                }
            }
            self.bytes -= segment.bytes;
            removed.push(segment.number);
        }
        removed
    }

    /// The first position that they have of a chain.
    pub fn first_of(&self, chain: Chain) -> Option<u64> {
        let mut parts = self.segments.iter().filter_map(|it| it.chains.get(&chain));
        parts.next().map(|part| part.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: u64 = u64::MAX;

    fn chain(topic: u32) -> Chain {
        Chain { topic, row: 0 }
    }

    /// Segments 0, 2, 4 and 6, with 100 bytes of topic 1, and of topic 2 in the first two.
    fn kept() -> Kept {
        let mut kept = Kept::default();
        for number in 0..4 {
            let part = Part {
                first: number * 10,
                next: number * 10 + 10,
                bytes: 100,
            };
            let mut chains = BTreeMap::from([(chain(1), part)]);
            if number < 2 {
                chains.insert(chain(2), part);
            }
            kept.push(number * 2, 1000, chains);
        }
        kept
    }

    #[test]
    fn what_a_topic_is_to_retain_stays() {
        let of = |one: Option<u64>, two: Option<u64>| {
            kept().first_needed(NO_LIMIT, |chain| [one, two][chain.topic as usize - 1])
        };
        assert_eq!(of(Some(0), None), None, "all of one");
        assert_eq!(of(None, None), Some(7), "both are gone");
        assert_eq!(of(Some(200), None), Some(4));
        assert_eq!(of(Some(201), None), Some(2));
        assert_eq!(
            of(Some(1), Some(100)),
            Some(2),
            "the other one is in the way"
        );
        assert_eq!(
            of(Some(1), Some(1)),
            Some(2),
            "as the only segment that has any of it"
        );
    }

    #[test]
    fn a_disk_has_no_more_than_it_is_to_have() {
        assert_eq!(kept().first_needed(4000, |_| Some(0)), None);
        assert_eq!(kept().first_needed(3999, |_| Some(0)), Some(2));
        assert_eq!(kept().first_needed(0, |_| Some(0)), Some(7));
    }

    #[test]
    fn what_was_removed_is_forgotten() {
        let mut kept = kept();
        assert_eq!(kept.remove_below(4), [0, 2]);
        assert_eq!(kept.first_of(chain(1)), Some(20));
        assert_eq!(kept.first_of(chain(2)), None);
        assert_eq!(kept.first_needed(2000, |_| Some(0)), None);
    }
}
