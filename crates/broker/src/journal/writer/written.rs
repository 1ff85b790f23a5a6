//! What counts after a write: the disk's row says how much of the journal, the frontiers how far each chain.

use std::io;

use embar_disk::format::Run;
use embar_fabric::{DiskState, Frontier};
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use super::Writer;

impl<M: Memory> Writer<M> {
    /// A commit was written and synced, or not. Stores how much counts by that, and how far each chain is. True if a chain is
    /// further than before.
    ///
    /// # Errors
    /// What the system said. Then this writer takes nothing any more; whether the disk [failed](Writer::fail) or is
    /// [full](Writer::say_full), the caller says.
    ///
    /// # Panics
    /// When it is not on its way.
    pub fn written(&mut self, ticket: u64, written: io::Result<()>) -> io::Result<bool> {
        if self.has_failed {
            return Ok(false);
        }
        match written {
            Ok(()) => Ok(self.synced(ticket)),
            Err(_) if injected(Canary::FailedWrite) => Ok(self.synced(ticket)),
            Err(error) => {
                self.has_failed = true;
                Err(error)
            }
        }
    }

    fn synced(&mut self, ticket: u64) -> bool {
        self.journal.synced(ticket, &mut self.counted);
        let counts = |said: &mut (u64, u64)| self.journal.counts(said.0);
        if let Some((_, first_kept)) = self.first_kept_said.take_if(counts) {
            self.forget_segments(first_kept);
        }
        let is_first = injected(Canary::DiskRowFirst) && self.store_frontiers();
        self.say_counted();
        self.tell_gone();
        self.store_frontiers() || is_first
    }

    /// Stores how far chains are by what counts since the last call. True if any is further.
    pub(super) fn store_frontiers(&mut self) -> bool {
        let mut changed = std::mem::take(&mut self.changed);
        for progress in self.counted.drain(..) {
            let (chain, topic) = (progress.chain, progress.chain.topic);
            let row = match chain.row {
                Run::ORDERED => Some(0),
                row => self.region.geometry().frontier_of(row),
            };
            // The records of deleted topics are others' by now.
            let Some(row) = row.filter(|_| self.chains.contains_key(&chain)) else {
                continue;
            };
            // One that is said again, as less of it is kept, is as far as it was, and may come behind a newer one.
            let synced = self.synced.entry(chain).or_default();
            *synced = progress.next.max(*synced);
            let frontier = Frontier {
                next: *synced,
                first: self.firsts.get(&chain).copied().unwrap_or(0),
                chain: topic,
                epoch: self.term.epoch,
                ..Frontier::default()
            };
            let record = embar_fabric::geometry::topic_record_of(topic);
            self.frontiers.store(record, row, &frontier);
            changed.push(topic);
        }
        self.frontier_news.announce(&changed);
        let is_further = !changed.is_empty();
        changed.clear();
        self.changed = changed;
        is_further
    }

    /// The disk takes nothing any more in this term.
    pub fn fail(&mut self) {
        self.has_failed = true;
        self.say(DiskState::Failed);
    }

    /// Whether this writer takes nothing any more.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// What counted before still does. A segment that could not be begun is none.
    pub(super) fn say(&mut self, state: DiskState) {
        self.said.state = state as u32;
        self.row.store(&self.said);
    }

    fn say_counted(&mut self) {
        self.set_counted();
        self.say(match self.is_full {
            true => DiskState::Full,
            false => DiskState::Writes,
        });
    }

    pub(super) fn set_counted(&mut self) {
        let (next_segment, _) = self.journal.next_segment();
        self.said.next_segment = next_segment;
        if let Some(counted) = self.journal.counted() {
            self.said.segment = counted.number;
            self.said.nonce = counted.nonce;
            self.said.commits = counted.commits;
            self.said.crc = counted.crc;
        }
    }
}
