//! Pages of records: a header that says whose page it is, then slots. All slots of a page carry its
//! generation as their lap; publishing a header, to open a page or to release it, starts the next
//! one, so records of an earlier use are never taken for records of this one, and nothing is ever
//! erased.

use std::sync::Arc;

use crate::geometry::INDEX_PAGE_BYTES;
use crate::memory::Memory;
use crate::records::Record;
use crate::slot::{self, SLOT_BYTES, commit_word};

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
    pub fn header<H: Record>(&self, page: u32) -> Option<(u32, H)> {
        let (generation, body) = slot::peek(&*self.memory, self.header_at(page), self.nonce)?;
        Some((generation, H::from_body(&body)))
    }

    /// What a slot holds in this generation of its page.
    #[inline]
    pub fn slot<R: Record>(&self, page: u32, slot: u32, generation: u32) -> Option<R> {
        let commit = commit_word(self.nonce, generation);
        let body = slot::observe(&*self.memory, self.slot_at(page, slot), commit)?;
        Some(R::from_body(&body))
    }

    /// The generation a page is in. Where its owner died while it wrote the header, the slots tell:
    /// the generation it was starting has none yet.
    pub fn generation(&self, page: u32) -> u32 {
        let lap_at = |at: u64| slot::peek(&*self.memory, at, self.nonce).map(|(lap, _)| lap);
        let slots = (0..PAGE_SLOTS).filter_map(|slot| lap_at(self.slot_at(page, slot)));
        let header = lap_at(self.header_at(page));
        slots.chain(header).max().unwrap_or(0)
    }
}
