//! Evicts in a full log: which batches go for another one, and that no more of them go than must.
//!
//! What is short decides which topic loses. For memory it is the topic that occupies most above its own limit;
//! for a page of the index the one that has most of them, as others would give none back.
//!
//! Invariants
//! - Nothing is evicted in vain: it gives a block for the batch, or a page. The exception are blocks that
//!   readers still send from, which are at most an eighth of the log; then those readers are cut first. And
//!   blocks that are lent to readers of this machine, at most another eighth: they are not waited for.
//!   While another program has locked more of the payload file than that, nothing goes.
//! - Of a topic that is on disks nothing goes that one of them does not have.
//! - What goes beside a victim, because it is older and lies in an extent that cannot go, is at most a quarter
//!   of the log: batches that wait may keep an eighth (`session_quota`), and the extents that they share with
//!   others when they come. Where pending batches keep more in every topic, the least goes.
//! - Where no extent is large enough, those go that lie in one block: see `clear_block`.

use embar_memory::{Extent, Memory, PayloadFile};

use super::extents::Victim;
use super::sizes::Size;
use super::{AdmitError, Log};

/// Blocks that were evicted and are still sent from may be this part of the log. Above it, no more are evicted. Blocks that
/// are lent to readers do not count: those may stand still for ever, and have a bound of their own
/// ([`Span::lend`](embar_memory::Span::lend)).
const SENT_PART: u64 = 8;

/// What goes beside a victim may be this part of the log.
const BESIDE_PART: u64 = 4;

/// What there is too little of.
#[derive(Clone, Copy)]
enum Short {
    Memory,
    Pages,
}

impl<M: Memory> Log<M> {
    /// Makes sure that the index has a page for one batch more: small batches fill the index before they fill
    /// the log. Each batch in flight may open one more page, and eviction frees no more than there are.
    pub(super) fn ensure_index_page(&mut self) -> Result<(), AdmitError> {
        if self.in_flight >= self.region.geometry().index_pages / 2 {
            return Err(AdmitError::Congested);
        }
        while self.index.free_pages() <= self.in_flight {
            let (topic, victim) = self.next_victim(Short::Pages).ok_or(AdmitError::Full)?;
            self.evict(topic, &victim);
        }
        Ok(())
    }

    /// Gives `topic` one more extent with room for `len` bytes.
    pub(super) fn extend(&mut self, topic: u32, len: u32) -> Result<(), AdmitError> {
        let stats = self.topic_stats(topic).ok_or(AdmitError::UnknownTopic)?;
        let wanted = self.extents_of(topic)?.wanted_bytes(stats.bytes, len);
        let extent = match self.payload_file.allocate(wanted) {
            Some(extent) => extent,
            None => self.reclaim(wanted, len)?,
        };
        self.extents_of(topic)?.push(extent);
        self.update_size(topic);
        Ok(())
    }

    /// Evicts for a block of `wanted` bytes, or at least of `len`.
    fn reclaim(&mut self, wanted: u32, len: u32) -> Result<Extent<M>, AdmitError> {
        let least = PayloadFile::<M>::block_bytes(len).ok_or(AdmitError::Full)?;
        let mut evicted = 0;
        while !self.lends_too_much() && !self.payload_file.is_locked_by_others() {
            let Some((topic, victim)) = self.next_victim(Short::Memory) else {
                return self.payload_file.allocate(len).ok_or(AdmitError::Full);
            };
            if victim.bytes < least {
                return match self.payload_file.allocate(len) {
                    Some(extent) => Ok(extent),
                    None => self.clear_block(least),
                };
            }
            evicted += self.evict(topic, &victim);
            if let Some(extent) = self.payload_file.allocate(wanted) {
                return Ok(extent);
            }
            // The evicted extents may not be neighbours: then a smaller one fits where the wanted one does not.
            if evicted >= u64::from(wanted)
                && let Some(extent) = self.payload_file.allocate(len)
            {
                return Ok(extent);
            }
        }
        self.payload_file.allocate(len).ok_or(AdmitError::Full)
    }

    /// Whether so much that was evicted is still being sent that no more is evicted before those readers are cut.
    /// Pending batches of topics that were deleted count as well.
    pub fn lends_too_much(&self) -> bool {
        self.payload_file.pinned_bytes() > self.payload_file.total_bytes() / SENT_PART
    }

    /// The next extent to evict, with its topic.
    fn next_victim(&mut self, short: Short) -> Option<(u32, Victim)> {
        let beside_max = self.payload_file.total_bytes() / BESIDE_PART;
        let mut least: Option<(u32, Victim)> = None;
        let mut above = None;
        loop {
            let next = match short {
                Short::Memory => self.sizes.most(above),
                Short::Pages => self.pages.most(above),
            };
            let Some(topic) = next else {
                return least;
            };
            above = Some(topic);
            let Ok(extents) = self.extents_of(topic) else {
                continue;
            };
            if extents.await_disks() {
                continue;
            }
            let Some(victim) = extents.victim() else {
                // In each of its extents something is pending.
                extents.want_below(u64::MAX);
                self.recalls += u64::from(extents.take_wants());
                continue;
            };
            if victim.beside_bytes <= beside_max {
                return Some((topic, victim));
            }
            if least.is_none_or(|(_, other)| victim.beside_bytes < other.beside_bytes) {
                least = Some((topic, victim));
            }
        }
    }

    /// Evicts the oldest extent of a topic, if one can go.
    pub(super) fn evict_oldest(&mut self, topic: u32) -> bool {
        let victim = self.extents_of(topic).ok().and_then(|its| its.victim());
        victim.is_some_and(|victim| self.evict(topic, &victim) > 0)
    }

    /// Evicts an extent and what is older; returns the bytes that it gave back.
    pub(super) fn evict(&mut self, topic: u32, victim: &Victim) -> u64 {
        let mut evicted = std::mem::take(&mut self.evicted);
        if let Some(local) = self.local.get_mut(&topic) {
            local.evict(victim, &mut evicted);
            self.index.release_before(topic, local.first);
            self.update_pages(topic);
        } else if let Some(ordered) = self.ordered.get_mut(&topic) {
            ordered.evict(victim, &mut evicted);
        }
        self.evictions += 1;
        self.update_size(topic);
        let bytes = evicted.iter().map(|extent| u64::from(extent.len())).sum();
        // Memory goes last: behind window and index.
        evicted.clear();
        self.evicted = evicted;
        bytes
    }

    /// Takes note of how many pages of the index a topic has now.
    pub(super) fn update_pages(&mut self, topic: u32) {
        self.pages.set(topic, self.index.pages_of(topic));
    }

    /// Takes note of what a topic takes of the log now.
    pub(super) fn update_size(&mut self, topic: u32) {
        let Ok(extents) = self.extents_of(topic) else {
            return self.sizes.set(topic, Size::default());
        };
        let (wants, size) = (extents.take_wants(), extents.size());
        self.recalls += u64::from(wants);
        self.sizes.set(topic, size);
    }
}
