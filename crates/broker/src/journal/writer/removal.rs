//! What goes from a disk: segments that nobody needs any more, and topics that were deleted.

use std::collections::BTreeSet;

use embar_disk::format::Before;
use embar_disk::{Chain as ChainName, Progress};
use embar_fabric::Frontier;
use embar_memory::Memory;

use super::Writer;
use super::due::Due;
use crate::log::is_gone;
use crate::topics::Topic;

impl<M: Memory> Writer<M> {
    /// Finds out which segments nobody needs any more; once a commit that says so counts, [`Writer::take_removals`] has them.
    pub(super) fn look_what_is_kept(&mut self) {
        let first = self.first_needed();
        if let Some(first) = first.filter(|first| *first > self.journal.first_kept()) {
            self.journal.keep_from(first);
            self.due.push_back(Due::FirstKept);
        }
    }

    /// The first segment that is over and needed, if there is an older one.
    pub(super) fn first_needed(&self) -> Option<u64> {
        let retention = |chain: &ChainName| self.retention(chain);
        let now = self.ages.judged();
        self.kept.first_needed(self.limits.bytes, now, retention)
    }

    /// Numbers of segments that nobody needs any more, once: their files may go.
    pub fn take_removals(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.removals)
    }

    /// A segment that is over and has batches of topics that are gone, and these topics, once: their batches may be
    /// [given back](embar_disk::give_back). They are gone when the journal of no disk says any more that they are there, and that counts:
    /// so they do not come back, from this disk or from another one. A late writer that is deposed may give them back as well, as a
    /// topic that is gone for it stays so. But the segment is over for it only if it has begun the next one; who takes over after its last
    /// look at the term finds that one, and reads the end of the journal elsewhere.
    pub fn take_gone(&mut self) -> Option<(Before, BTreeSet<u32>)> {
        let is_said = |said: u64| self.journal.counts(said);
        if !self.looks_what_is_gone
            || self.has_failed
            || self.topics.damaged() > 0
            || !self.complete_said.is_some_and(is_said)
        {
            return None;
        }
        let unsaid: BTreeSet<u32> = { self.due.iter() }
            .filter_map(|due| match due {
                Due::NoTopic(topic) => Some(*topic),
                _ => None,
            })
            .chain(self.gone_said.iter().map(|(_, topic)| *topic))
            .collect();
        let all_disks = u8::MAX;
        let mut gone = self.kept.topics();
        gone.retain(|topic| {
            self.topics.by_id(*topic).is_none()
                && self.chains_of(*topic).next().is_none()
                && !unsaid.contains(topic)
                && is_gone(&self.region, self.term, *topic, all_disks)
        });
        let taken = self.kept.take_gone(&gone);
        self.looks_what_is_gone = taken.is_some();
        taken.filter(|_| self.term.lasts(&self.region))
    }

    /// So many bytes of a segment were given back.
    pub fn gave_back(&mut self, segment: u64, bytes: u64) {
        self.kept.gave_back(segment, bytes);
    }

    /// Tells of topics that are not on the disk any more, unless another one has their record.
    pub(super) fn tell_gone(&mut self) {
        let journal = &self.journal;
        while let Some((_, topic)) = self
            .gone_said
            .pop_front_if(|(said, _)| journal.counts(*said))
        {
            self.looks_what_is_gone = true;
            let record = embar_fabric::geometry::topic_record_of(topic);
            let has_record = |other: &Topic| {
                other.record() == record && other.all_disks() & 1 << self.number != 0
            };
            if !self.topics.iter().any(has_record) {
                let gone = Frontier {
                    next: Frontier::GONE,
                    chain: topic,
                    epoch: self.term.epoch,
                    ..Frontier::default()
                };
                self.frontiers.store(record, 0, &gone);
            }
        }
    }

    /// A commit counts that says that this segment is the first that is kept.
    pub(super) fn forget_segments(&mut self, first_kept: u64) {
        // A successor has to find a commit that says so, before it finds that they are gone.
        if !self.term.lasts(&self.region) {
            return;
        }
        self.said.first_kept = first_kept;
        let removed = self.kept.remove_below(first_kept);
        if removed.is_empty() {
            return;
        }
        self.removals.extend(removed);
        for chain in self.chains.keys() {
            let first = self.kept.first_of(*chain);
            let first = first.or(self.segment_begins.get(chain).copied());
            let first = first.unwrap_or(0);
            if self.firsts.insert(*chain, first) != Some(first)
                && let Some(next) = self.synced.get(chain)
            {
                let (chain, next) = (*chain, *next);
                self.counted.push(Progress { chain, next });
            }
        }
    }
}
