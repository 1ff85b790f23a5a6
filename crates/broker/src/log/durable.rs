//! Up to where topics are on all of their disks, as the disks' writer says.

use std::collections::BTreeSet;
use std::sync::Arc;

use embar_fabric::geometry::topic_record_of;
use embar_fabric::region::Region;
use embar_fabric::{DiskRow, DiskState, Frontier, goi, index};
use embar_memory::Memory;
use embar_order::{ChangedChains, Term};

use super::Log;
use super::undurable::Totals;
use crate::topics::Topic;

/// What the writer announces.
pub(super) struct Frontiers<M: Memory> {
    news: ChangedChains<M>,
    /// Kept for its memory.
    topics: Vec<u32>,
    /// How many times a frontier was raised.
    raised: u64,
    /// Of all topics of orders 2 and 5 together.
    undurable: Arc<Totals>,
    /// Of all topics of orders 0 and 1.
    undurable_local: Arc<Totals>,
    /// Topics of orders 0 and 1 that are on disks...
    local: BTreeSet<u32>,
    /// ...and those of them that have grown since the disks' writer was told.
    grown: Vec<u32>,
    /// Topics of which a disk took the place of another: no news say that the other one cannot be opened.
    moved: BTreeSet<u32>,
}

/// Batches of topics that are on disks, and that not all disks have, take at most one part of so many of a broker's log, of its
/// index, and of the order's. Then their publishers wait, and those of other topics do not.
const UNDURABLE_PART: u64 = 2;

impl<M: Memory> Frontiers<M> {
    pub fn new() -> Self {
        Self {
            news: ChangedChains::of_frontiers(),
            topics: Vec::new(),
            raised: 0,
            undurable: Arc::default(),
            undurable_local: Arc::default(),
            local: BTreeSet::new(),
            grown: Vec::new(),
            moved: BTreeSet::new(),
        }
    }

    /// A topic of order 0 or 1 is on disks.
    pub fn follow(&mut self, topic: u32) {
        self.local.insert(topic);
    }

    /// A disk of a topic took the place of another.
    pub fn follow_moved(&mut self, topic: u32) {
        self.moved.insert(topic);
    }

    /// What is not on all disks of its topic, of orders 2 and 5.
    pub fn undurable(&self) -> &Arc<Totals> {
        &self.undurable
    }

    /// The same of orders 0 and 1.
    pub fn undurable_local(&self) -> &Arc<Totals> {
        &self.undurable_local
    }

    /// A topic is gone.
    pub fn unfollow(&mut self, topic: u32) {
        self.local.remove(&topic);
        self.moved.remove(&topic);
    }

    /// Whether a topic of order 0 or 1 is on disks.
    pub fn has_local(&self) -> bool {
        !self.local.is_empty()
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
            let durable = self.ordered.values().filter(|topic| topic.disks() != 0);
            topics.extend(durable.map(|topic| topic.id));
            topics.extend(&self.frontiers.local);
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

    /// Takes in up to where topics are on their disks of which no news may come. To be called every so often.
    pub fn refresh_moved(&mut self) {
        let Some(term) = self.term() else { return };
        for topic in self.frontiers.moved.iter().copied().collect::<Vec<u32>>() {
            self.refresh_frontier(topic, term);
        }
    }

    /// As [`Log::refresh_frontiers`], of one topic.
    pub(super) fn refresh_frontier(&mut self, id: u32, term: Term) -> bool {
        let (disks, _) = self.on_disks(id);
        if disks == 0 {
            return false;
        }
        let row = match self.local.contains_key(&id) {
            true => self.region.geometry().frontier_of(self.claim.row()),
            false => Some(0),
        };
        let Some(row) = row else {
            return false;
        };
        let Some((first, next)) = frontier(&self.region, term, (id, row), disks) else {
            return false;
        };
        let former = self.all_disks(id) & !disks;
        // Before the former ones are known, what is read is asked for on all of them.
        let former = first_on_former(&self.region, term, (id, row), former).unwrap_or(0);
        let first = first.min(former);
        // What a deposed writer says may be in no part of the journal that counts.
        if !term.lasts(&self.region) {
            return false;
        }
        let is_further = match (self.local.get_mut(&id), self.ordered.get_mut(&id)) {
            (Some(topic), _) => topic.set_frontier(first, next),
            (None, Some(topic)) => topic.set_frontier(first, next),
            (None, None) => false,
        };
        if is_further {
            self.frontiers.raised += 1;
            self.order.grown.push(id);
        }
        is_further
    }

    /// A topic of order 0 or 1 has one more batch in the index, perhaps in a new page, and the window does not show it yet.
    pub(super) fn tell_disks(&mut self, topic: u32, has_new_page: bool) {
        if !self.frontiers.local.contains(&topic) {
            return;
        }
        if has_new_page {
            self.index.announce(&[topic]);
        }
        if self.frontiers.grown.last() != Some(&topic) {
            self.frontiers.grown.push(topic);
        }
    }

    /// Whether topics of orders 0 and 1 that are on disks have grown since [`Log::announce_grown`].
    pub fn has_grown_for_disks(&self) -> bool {
        !self.frontiers.grown.is_empty()
    }

    /// Announces them to the disks' writer, which the caller wakes afterwards.
    pub fn announce_grown(&mut self) {
        let grown = &mut self.frontiers.grown;
        grown.sort_unstable();
        grown.dedup();
        self.index.announce(grown);
        grown.clear();
    }

    /// Whether a topic takes no more batches before the disks have more of what there is.
    pub(super) fn awaits_disks(&self, topic: u32) -> bool {
        if self.on_disks(topic).0 == 0 {
            return false;
        }
        let (ordered, local) = (&self.frontiers.undurable, &self.frontiers.undurable_local);
        let geometry = self.region.geometry();
        let (batches, records) = match self.local.contains_key(&topic) {
            true => (local.batches(), geometry.index_pages * index::PAGE_RECORDS),
            false => (ordered.batches(), geometry.goi_pages * goi::PAGE_RECORDS),
        };
        ordered.bytes() + local.bytes() > self.payload_file.total_bytes() / UNDURABLE_PART
            || batches > u64::from(records) / UNDURABLE_PART
    }

    /// What is wrong with a disk of a topic, if anything is.
    pub fn disk_trouble(&self, topic: u32) -> Option<DiskState> {
        let (disks, _) = self.on_disks(topic);
        let term = self.term().filter(|_| disks != 0)?;
        let numbers = 0..self.region.geometry().disks;
        let rows = numbers.filter(|number| disks & 1 << number != 0);
        let rows = rows.filter_map(|number| disk_row(&self.region, term, number));
        let states = rows.filter_map(|row| DiskState::from_number(row.state));
        states
            .filter(|state| {
                use DiskState::{Failed, Full, FullAtStart};
                matches!(state, Failed | Full | FullAtStart)
            })
            .min_by_key(|state| *state != DiskState::Failed)
    }

    /// The disks of a topic, a bit for each, and up to where all of them have it.
    pub fn on_disks(&self, topic: u32) -> (u8, u64) {
        match (self.ordered.get(&topic), self.local.get(&topic)) {
            (Some(topic), _) => (topic.disks(), topic.durable()),
            (None, Some(topic)) => (topic.disks(), topic.durable()),
            (None, None) => (0, 0),
        }
    }

    /// All disks that may have something of a topic, a bit for each.
    pub fn all_disks(&self, topic: u32) -> u8 {
        match (self.ordered.get(&topic), self.local.get(&topic)) {
            (Some(topic), _) => topic.all_disks(),
            (None, Some(topic)) => topic.all_disks(),
            (None, None) => 0,
        }
    }

    /// A disk of a topic has taken the place of another.
    pub fn move_to_disks(&mut self, topic: &Topic) {
        match (
            self.ordered.get_mut(&topic.id),
            self.local.get_mut(&topic.id),
        ) {
            (Some(ordered), _) => ordered.move_to_disks(topic),
            (None, Some(local)) => local.move_to_disks(topic),
            (None, None) => return,
        }
        self.frontiers.follow_moved(topic.id);
        if let Some(term) = self.term() {
            self.refresh_frontier(topic.id, term);
        }
    }

    /// Up to where a topic is on all of its disks, as far as this broker knows; the end of all positions for one that is in memory
    /// alone.
    pub fn durable(&self, topic: u32) -> u64 {
        let stats = self.topic_stats(topic);
        // One that was deleted is on none.
        stats.map_or(0, |stats| stats.durable)
    }
}

/// What the writer of a term says of a disk.
pub fn disk_row<M: Memory>(region: &Region<M>, term: Term, disk: u16) -> Option<DiskRow> {
    let row = region.disk_row(term.area, disk).found();
    row.filter(|row| row.epoch == term.epoch)
}

/// From where on one of these disks has a chain of a topic, and up to where all have it, as the writer of a term says. The row is
/// that of [`Region::frontier`].
pub fn frontier<M: Memory>(
    region: &Region<M>,
    term: Term,
    (topic, row): (u32, u16),
    disks: u8,
) -> Option<(u64, u64)> {
    let numbers = 0..region.geometry().disks;
    let mut range: Option<(u64, u64)> = None;
    for disk in numbers.filter(|disk| disks & 1 << disk != 0) {
        let row = region.frontier(term.area, disk, topic_record_of(topic), row);
        let is_said = |row: &Frontier| {
            (row.chain, row.epoch) == (topic, term.epoch) && row.next != Frontier::GONE
        };
        let row = row.found().filter(is_said)?;
        let (first, next) = range.unwrap_or((u64::MAX, u64::MAX));
        range = Some((first.min(row.first), next.min(row.next)));
    }
    range
}

/// From where on any of these disks, which others took the place of, has a chain of a topic, as the writer of a term says; the end of
/// all positions if none has anything. Nothing while one of them has neither said so nor failed. As [`frontier`].
fn first_on_former<M: Memory>(
    region: &Region<M>,
    term: Term,
    (topic, row): (u32, u16),
    disks: u8,
) -> Option<u64> {
    let mut first = u64::MAX;
    for disk in (0..region.geometry().disks).filter(|disk| disks & 1 << disk != 0) {
        match frontier(region, term, (topic, row), 1 << disk) {
            Some((_, 0)) => {}
            Some((its, _)) => first = first.min(its),
            None => {
                let disk = disk_row(region, term, disk)?;
                (disk.state == DiskState::Failed as u32).then_some(())?;
            }
        }
    }
    Some(first)
}

/// Whether a topic that was deleted is on none of its disks any more, as the writer of a term says: it will not come back.
pub fn is_gone<M: Memory>(region: &Region<M>, term: Term, topic: u32, disks: u8) -> bool {
    let mut numbers = (0..region.geometry().disks).filter(|disk| disks & 1 << disk != 0);
    numbers.all(|disk| {
        let row = region.frontier(term.area, disk, topic_record_of(topic), 0);
        match row.found().filter(|row| row.epoch == term.epoch) {
            Some(row) => row.chain != topic || row.next == Frontier::GONE,
            // The writer of this term did not find the topic in the table, and so has not said it.
            None => disk_row(region, term, disk).is_some_and(|disk| {
                // In other states it may tell how much the term before has written.
                let is_own = [DiskState::Writes, DiskState::Full]
                    .iter()
                    .any(|state| disk.state == *state as u32);
                disk.commits > 0 && is_own
            }),
        }
    })
}
