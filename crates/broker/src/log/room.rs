//! Makes room in a full log: whose batches go for another, and that no more of them go than must.
//!
//! What is short decides who pays. For memory it is the topic that occupies most above its own limit; for a
//! page of the index the one that has most of them, as others would give none back.
//!
//! Invariants
//! - Nothing goes in vain: what is evicted is a block for the batch, or a page; but for blocks that readers
//!   still send from, of which there are never more than an eighth of the log. Then those readers are cut
//!   first.
//! - What goes beside, because it is older and lies in an extent that cannot go, is at most a quarter of the
//!   log: batches that wait may keep an eighth (`share`), and those extents that they share with it when they
//!   come. Where claims keep more, in every topic, the least goes.
//! - Where no extent is large enough, those go that lie in one block: see `block`.

use embar_memory::{Extent, Memory, PayloadFile};

use super::extents::Oldest;
use super::sizes::Size;
use super::{Log, NoRoom};

/// Blocks that were evicted, and are still sent from, may be this part of the log before no more are evicted.
const LENT_PART: u64 = 8;

/// What goes beside may be this part of the log.
const BESIDE_PART: u64 = 4;

/// What there is too little of.
#[derive(Clone, Copy)]
enum Short {
    Memory,
    Pages,
}

impl<M: Memory> Log<M> {
    /// Tiny batches fill the index before they fill the log. Each batch on its way may open one more
    /// page; no eviction makes room for more of them than there are pages, so it must not begin.
    pub(super) fn promise_index(&mut self) -> Result<(), NoRoom> {
        if self.on_their_way >= self.region.geometry().index_pages / 2 {
            return Err(NoRoom::Congested);
        }
        while self.index.free_pages() <= self.on_their_way {
            let (topic, oldest) = self.next_to_go(Short::Pages).ok_or(NoRoom::Full)?;
            self.evict(topic, &oldest);
        }
        Ok(())
    }

    /// Gives `topic` one more extent with room for `len` bytes.
    pub(super) fn extend(&mut self, topic: u32, len: u32) -> Result<(), NoRoom> {
        let kept = self.kept(topic).ok_or(NoRoom::UnknownTopic)?;
        let wanted = self.extents_of(topic)?.wanted_bytes(kept.bytes, len);
        let extent = match self.blog.allocate(wanted) {
            Some(extent) => extent,
            None => self.make_room(wanted, len)?,
        };
        self.extents_of(topic)?.push(extent);
        self.resized(topic);
        Ok(())
    }

    /// A block of `wanted` bytes, or at least of `len`.
    fn make_room(&mut self, wanted: u32, len: u32) -> Result<Extent<M>, NoRoom> {
        let least = PayloadFile::<M>::block_bytes(len).ok_or(NoRoom::Full)?;
        let mut evicted = 0;
        while !self.lends_too_much() {
            let Some((topic, oldest)) = self.next_to_go(Short::Memory) else {
                return self.blog.allocate(len).ok_or(NoRoom::Full);
            };
            if oldest.bytes < least {
                return match self.blog.allocate(len) {
                    Some(extent) => Ok(extent),
                    None => self.clear_block(least),
                };
            }
            evicted += self.evict(topic, &oldest);
            if let Some(extent) = self.blog.allocate(wanted) {
                return Ok(extent);
            }
            // What was evicted may lie apart: a smaller extent then fits where the wanted one does not.
            if evicted >= u64::from(wanted)
                && let Some(extent) = self.blog.allocate(len)
            {
                return Ok(extent);
            }
        }
        self.blog.allocate(len).ok_or(NoRoom::Full)
    }

    /// Whether so much that was evicted is still sent from that no more is evicted before those readers
    /// are cut. Claims of topics that were deleted are among that.
    pub fn lends_too_much(&self) -> bool {
        let total = self.blog.total_bytes();
        let lent = total - self.blog.free_bytes() - self.sizes.occupied_bytes();
        lent > total / LENT_PART
    }

    /// The topic that is evicted from next, and its extent that goes.
    fn next_to_go(&mut self, short: Short) -> Option<(u32, Oldest)> {
        let beside_max = self.blog.total_bytes() / BESIDE_PART;
        let mut least: Option<(u32, Oldest)> = None;
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
            let Some(oldest) = extents.oldest() else {
                // In each of its extents something is pending.
                extents.want_below(u64::MAX);
                self.recalls += u64::from(extents.take_wants());
                continue;
            };
            if oldest.beside_bytes <= beside_max {
                return Some((topic, oldest));
            }
            if least.is_none_or(|(_, other)| oldest.beside_bytes < other.beside_bytes) {
                least = Some((topic, oldest));
            }
        }
    }

    /// Evicts the oldest extent of a topic, if one can go.
    pub(super) fn evict_oldest(&mut self, topic: u32) -> bool {
        let oldest = self.extents_of(topic).ok().and_then(|its| its.oldest());
        oldest.is_some_and(|oldest| self.evict(topic, &oldest) > 0)
    }

    /// Evicts an extent and what is older; returns the bytes that it gave back.
    pub(super) fn evict(&mut self, topic: u32, oldest: &Oldest) -> u64 {
        let evicted = match self.chains.get_mut(&topic) {
            Some(chain) => {
                let evicted = chain.evict(oldest);
                self.index.release_before(topic, evicted.first);
                self.paged(topic);
                evicted.extents
            }
            None => match self.ordered.get_mut(&topic) {
                Some(ordered) => ordered.evict(oldest).extents,
                None => Vec::new(),
            },
        };
        self.evictions += 1;
        self.resized(topic);
        evicted.iter().map(|extent| u64::from(extent.len())).sum()
    }

    /// A topic's pages of the index are others than before.
    pub(super) fn paged(&mut self, topic: u32) {
        self.pages.set(topic, self.index.pages_of(topic));
    }

    /// The extents of a topic are others than before, or there is less in them.
    pub(super) fn resized(&mut self, topic: u32) {
        let Ok(extents) = self.extents_of(topic) else {
            return self.sizes.set(topic, Size::default());
        };
        let (wants, size) = (extents.take_wants(), extents.size());
        self.recalls += u64::from(wants);
        self.sizes.set(topic, size);
    }
}
