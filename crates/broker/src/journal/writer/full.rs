//! What a writer does while its disk has no room for a segment: batches wait, and what makes room is said.
//!
//! In a term that has begun no segment, what the term before has written is what counts, so that it can be read. A segment of its own
//! is made of the reserve only for facts by which older segments become needless.

use std::io;

use embar_disk::{Progress, Storage};
use embar_fabric::DiskState;
use embar_memory::Memory;

use super::Writer;
use super::due::Due;

impl<M: Memory> Writer<M> {
    /// The disk has no room for a segment, until [`Writer::say_room`]: batches wait.
    pub fn say_full(&mut self) {
        self.is_full = true;
        if self.has_begun() {
            return self.say(DiskState::Full);
        }
        self.set_counted();
        self.say(DiskState::FullAtStart);
        self.say_frontiers_if_full();
    }

    /// Says how far all chains are in a term that can begin no segment to say it in: that is as far as the journal has them.
    pub(super) fn say_frontiers_if_full(&mut self) {
        if !self.is_full || self.has_begun() {
            return;
        }
        let chains = self.chains.keys().map(|chain| Progress {
            chain: *chain,
            next: self.journal.next_of(*chain),
        });
        self.counted.extend(chains);
        self.store_frontiers();
    }

    /// There is room for the next segment.
    pub fn say_room(&mut self) {
        self.is_full = false;
        if self.has_begun() {
            self.say(DiskState::Writes);
        }
    }

    /// Whether batches wait until there is room.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Bytes that the reserve is to have: enough for all facts, twice.
    pub fn reserve_bytes(&self) -> u64 {
        const RESERVE_PART: u64 = 8;
        let (_, bytes) = self.journal.next_segment();
        bytes / RESERVE_PART
    }

    /// Makes the next segment of the reserve.
    ///
    /// # Errors
    /// What the system says: that there is no reserve, perhaps.
    pub fn take_reserve<S: Storage>(&mut self, storage: &S) -> io::Result<S::File> {
        embar_disk::take_reserve(storage, &mut self.journal)
    }

    fn has_begun(&self) -> bool {
        self.journal.used() > 0
    }

    /// Whether something is to be said by which segments become needless, and the present one has no room for it.
    pub(super) fn has_facts_that_free(&self) -> bool {
        let frees = |due: &Due| matches!(due, Due::NoTopic(_));
        if self.is_complete {
            let frees = |due: &Due| frees(due) || matches!(due, Due::FirstKept);
            return self.due.iter().any(frees) || self.is_freed_by_ending();
        }
        let first = self.first_needed();
        // One that was deleted before this term, and whose batches are still there.
        let is_gone = |topic: &u32| self.topics.by_id(*topic).is_none();
        let has_gone = self.topics.damaged() == 0 && self.kept.topics().iter().any(is_gone);
        has_gone
            || self.due.iter().any(frees)
            || first.is_some_and(|first| first > self.journal.first_kept())
    }

    /// Whether nobody needs anything of the present segment any more, and of those before it: then the disk has room once it is over.
    pub(super) fn is_freed_by_ending(&self) -> bool {
        if !self.is_full || !self.is_complete || !self.due.is_empty() {
            return false;
        }
        let mut has_bytes = false;
        let all_gone = self.journal.present().all(|(chain, part)| {
            has_bytes |= part.bytes > 0;
            self.retention(chain).is_none()
        });
        all_gone && has_bytes && self.kept.is_empty_from(self.journal.first_kept())
    }
}
