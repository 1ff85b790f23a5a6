//! What goes from a disk: segments that nobody needs any more, and topics that were deleted.

use embar_disk::{Chain as ChainName, Progress};
use embar_fabric::Frontier;
use embar_memory::Memory;

use super::Writer;
use super::due::Due;

impl<M: Memory> Writer<M> {
    /// Finds out which segments nobody needs any more; once a commit that says so counts, [`Writer::take_removals`] has them.
    pub(super) fn look_what_is_kept(&mut self) {
        if !self.is_complete || !std::mem::take(&mut self.looks_what_is_kept) {
            return;
        }
        let first = self.first_needed();
        if let Some(first) = first.filter(|first| *first > self.journal.first_kept()) {
            self.journal.keep_from(first);
            self.due.push_back(Due::FirstKept);
        }
    }

    /// The first segment that is over and needed, if there is an older one.
    pub(super) fn first_needed(&self) -> Option<u64> {
        let topic = |chain: &ChainName| self.topics.by_id(chain.topic);
        let retention = |chain: &ChainName| topic(chain).map(|topic| topic.retention_bytes);
        self.kept.first_needed(self.limit, retention)
    }

    /// Numbers of segments that nobody needs any more, once: their files may go.
    pub fn take_removals(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.removals)
    }

    /// Tells of topics that are not on the disk any more, unless another one has their record.
    pub(super) fn tell_gone(&mut self) {
        let journal = &self.journal;
        while let Some((_, topic)) = self
            .gone_said
            .pop_front_if(|(said, _)| journal.counts(*said))
        {
            let record = embar_fabric::geometry::topic_record_of(topic);
            if !self.topics.iter().any(|other| other.record() == record) {
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
