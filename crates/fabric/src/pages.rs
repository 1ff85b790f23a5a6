//! Pages of records: a header that says whose page it is, then slots. All slots of a page carry its
//! generation as their lap; publishing a header, to open a page or to release it, starts the next
//! one, so records of an earlier use are never taken for records of this one, and nothing is ever
//! erased.

use std::sync::Arc;

use embar_memory::Memory;

use crate::geometry::INDEX_PAGE_BYTES;
use crate::records::Record;
use crate::slot::{self, SLOT_BYTES, Seen};

/// Slots of a page, behind its header.
pub(crate) const PAGE_SLOTS: u32 = (INDEX_PAGE_BYTES / SLOT_BYTES) as u32 - 1;

/// Where pages of one owner lie.
#[derive(Debug)]
pub(crate) struct Pages<M> {
    pub memory: Arc<M>,
    pub at: u64,
    pub pages: u32,
    pub nonce: u32,
}

impl<M: Memory> Pages<M> {
    pub fn header_at(&self, page: u32) -> u64 {
        self.at + u64::from(page) * INDEX_PAGE_BYTES
    }

    pub fn slot_at(&self, page: u32, slot: u32) -> u64 {
        self.header_at(page) + u64::from(slot + 1) * SLOT_BYTES
    }

    /// A page's generation and header.
    pub fn header<H: Record>(&self, page: u32) -> Seen<(u32, H)> {
        match slot::peek(&*self.memory, self.header_at(page), self.nonce) {
            Seen::Nothing if self.is_header_lost(page) => Seen::Damaged,
            seen => seen.map(|(generation, body)| (generation, H::from_body(&body))),
        }
    }

    /// Whether a page was used of which no header is seen: one is in memory before any slot is written.
    fn is_header_lost(&self, page: u32) -> bool {
        let is_blank = |at| slot::is_blank(&*self.memory, at, self.nonce);
        let header = self.header_at(page);
        // The page may be opened meanwhile.
        is_blank(header) && !is_blank(self.slot_at(page, 0)) && is_blank(header)
    }

    /// What a slot holds in this generation of its page.
    #[inline]
    pub fn slot<R: Record>(&self, page: u32, slot: u32, generation: u32) -> Seen<R> {
        let at = self.slot_at(page, slot);
        let seen = slot::observe_closely(&*self.memory, at, self.nonce, generation);
        seen.map(|body| R::from_body(&body))
    }

    /// Whether a slot holds what cannot be read, of whatever generation.
    pub fn is_damaged(&self, page: u32, slot: u32) -> bool {
        slot::peek(&*self.memory, self.slot_at(page, slot), self.nonce).is_damaged()
    }

    /// What cannot be read in a page reads as nothing from now on: or it is taken for what is lost of the
    /// page's next use. Only the page's owner calls this.
    pub fn clear_damaged(&self, page: u32) {
        for slot in 0..PAGE_SLOTS {
            if self.is_damaged(page, slot) {
                slot::withdraw(&*self.memory, self.slot_at(page, slot));
            }
        }
    }

    /// Publishes what a slot holds in this generation of its page. See [`slot::publish_later`].
    #[inline]
    pub fn publish_later<R: Record>(&self, page: u32, slot: u32, generation: u32, record: &R) {
        let at = self.slot_at(page, slot);
        slot::publish_later(&*self.memory, at, &record.to_body(), self.nonce, generation);
    }

    /// As [`Pages::publish_later`], and seen by every later observer when this returns.
    #[inline]
    pub fn publish<R: Record>(&self, page: u32, slot: u32, generation: u32, record: &R) {
        let at = self.slot_at(page, slot);
        slot::publish(&*self.memory, at, &record.to_body(), self.nonce, generation);
    }

    /// Publishes a header, which starts this generation of the page.
    pub fn publish_header<H: Record>(&self, page: u32, generation: u32, header: &H) {
        let at = self.header_at(page);
        slot::publish(&*self.memory, at, &header.to_body(), self.nonce, generation);
    }

    /// The generation a page is in. Where its owner died while it wrote the header, the slots show it:
    /// the generation it was starting has none yet. Where the header is lost, it may have been of one
    /// more.
    pub fn generation(&self, page: u32) -> u32 {
        let lap_at = |at: u64| slot::peek(&*self.memory, at, self.nonce).map(|(lap, _)| lap);
        let header = lap_at(self.header_at(page));
        if let Seen::Found(generation) = header {
            return generation;
        }
        let slots = (0..PAGE_SLOTS).filter_map(|slot| lap_at(self.slot_at(page, slot)).found());
        let is_lost = header.is_damaged() || self.is_header_lost(page);
        slots.max().unwrap_or(0) + u32::from(is_lost)
    }
}
