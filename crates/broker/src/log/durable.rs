//! Up to where topics are on all of their disks, as the disks' writer says.

use std::sync::Arc;

use embar_fabric::geometry::topic_record_of;
use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::region::Region;
use embar_fabric::{DiskState, Frontier};
use embar_memory::Memory;
use embar_order::{ChangedChains, Term};

use super::Log;
use super::ordered_topic::OrderedTopic;
use super::undurable::Totals;

/// What the writer announces.
pub(super) struct Frontiers<M: Memory> {
    news: ChangedChains<M>,
    /// Kept for its memory.
    topics: Vec<u32>,
    /// How many times a frontier was raised.
    raised: u64,
    /// Of all topics together.
    undurable: Arc<Totals>,
}

/// Batches of topics that are on disks, and that not all disks have, take at most one part of so many of a broker's log, and of
/// the order's index. Then their publishers wait, and those of other topics do not.
const UNDURABLE_PART: u64 = 2;

impl<M: Memory> Frontiers<M> {
    pub fn new() -> Self {
        Self {
            news: ChangedChains::of_frontiers(),
            topics: Vec::new(),
            raised: 0,
            undurable: Arc::default(),
        }
    }

    /// What is not on all disks of its topic.
    pub fn undurable(&self) -> &Arc<Totals> {
        &self.undurable
    }

    /// How many times a frontier was raised.
    pub fn raised(&self) -> u64 {
        self.raised
    }
}

impl<M: Memory> Log<M> {
    /// Takes in up to where topics are on their disks. True if one is further than before.
    pub(super) fn refresh_frontiers(&mut self) -> bool {
        if self.region.geometry().disks == 0 {
            return false;
        }
        let Some(term) = self.term() else {
            return false;
        };
        let mut topics = std::mem::take(&mut self.frontiers.topics);
        if !self.frontiers.news.take(&self.region, term, &mut topics) {
            topics.clear();
            let durable = self.ordered.values().filter(|topic| topic.disks != 0);
            topics.extend(durable.map(|topic| topic.id));
        }
        topics.sort_unstable();
        topics.dedup();
        let mut is_further = false;
        for topic in topics.drain(..) {
            is_further |= self.refresh_frontier(topic, term);
        }
        self.frontiers.topics = topics;
        is_further
    }

    /// As [`Log::refresh_frontiers`], of one topic.
    pub(super) fn refresh_frontier(&mut self, id: u32, term: Term) -> bool {
        let Some(topic) = self.ordered.get_mut(&id).filter(|topic| topic.disks != 0) else {
            return false;
        };
        let Some((first, next)) = frontier(&self.region, term, id, topic.disks) else {
            return false;
        };
        // What a deposed writer says may be in no part of the journal that counts.
        if !term.lasts(&self.region) {
            return false;
        }
        topic.set_first_on_disks(first);
        if next <= topic.durable() {
            return false;
        }
        topic.raise_durable(next);
        self.frontiers.raised += 1;
        self.order.grown.push(id);
        true
    }

    /// Whether a topic takes no more batches before the disks have more of what there is.
    pub(super) fn awaits_disks(&self, topic: u32) -> bool {
        let is_durable = |topic: &OrderedTopic<M>| topic.disks != 0;
        if !self.ordered.get(&topic).is_some_and(is_durable) {
            return false;
        }
        let undurable = self.frontiers.undurable();
        let records = u64::from(self.region.geometry().goi_pages) * u64::from(PAGE_RECORDS);
        undurable.bytes() > self.payload_file.total_bytes() / UNDURABLE_PART
            || undurable.batches() > records / UNDURABLE_PART
    }

    /// What is wrong with a disk of a topic, if anything is.
    pub fn disk_trouble(&self, topic: u32) -> Option<DiskState> {
        let disks = self.ordered.get(&topic)?.disks;
        let term = self.term().filter(|_| disks != 0)?;
        let numbers = 0..self.region.geometry().disks;
        let rows = numbers.filter(|number| disks & 1 << number != 0);
        let rows = rows.filter_map(|number| self.region.disk_row(term.area, number).found());
        let states = rows
            .filter(|row| row.epoch == term.epoch)
            .filter_map(|row| DiskState::from_number(row.state));
        states
            .filter(|state| matches!(state, DiskState::Failed | DiskState::Full))
            .min_by_key(|state| *state != DiskState::Failed)
    }

    /// The disks of a topic, a bit for each, and up to where all of them have it.
    pub fn on_disks(&self, topic: u32) -> (u8, u64) {
        let ordered = self.ordered.get(&topic);
        ordered.map_or((0, 0), |topic| (topic.disks, topic.durable()))
    }

    /// Up to where a topic is on all of its disks, as far as this broker knows; the end of all positions for one that is in memory
    /// alone.
    pub fn durable(&self, topic: u32) -> u64 {
        let ordered = self.ordered.get(&topic);
        ordered.map_or(u64::MAX, |topic| topic.durable())
    }
}

/// From where on one of these disks has an ordered topic, and up to where all have it, as the writer of a term says.
pub fn frontier<M: Memory>(
    region: &Region<M>,
    term: Term,
    topic: u32,
    disks: u8,
) -> Option<(u64, u64)> {
    let numbers = 0..region.geometry().disks;
    let mut range: Option<(u64, u64)> = None;
    for disk in numbers.filter(|disk| disks & 1 << disk != 0) {
        let row = region.frontier(term.area, disk, topic_record_of(topic), 0);
        let is_said = |row: &Frontier| (row.chain, row.epoch) == (topic, term.epoch);
        let row = row.found().filter(is_said)?;
        let (first, next) = range.unwrap_or((u64::MAX, u64::MAX));
        range = Some((first.min(row.first), next.min(row.next)));
    }
    range
}
