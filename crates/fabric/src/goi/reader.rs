//! Reads the pages of one area, from any process.

use std::ops::Range;

use super::{LINK_SLOT, PAGE_RECORDS};
use crate::memory::Memory;
use crate::pages::Pages;
use crate::records::{GoiPage, GoiRecord};
use crate::slot::SLOT_BYTES;

/// See the module.
#[derive(Debug)]
pub struct GoiReader<M> {
    pages: Pages<M>,
}

impl<M: Memory> GoiReader<M> {
    pub(crate) fn new(pages: Pages<M>) -> Self {
        Self { pages }
    }

    /// A page's generation and header; `None` when there is no such page, or it was never used.
    pub fn page(&self, page: u32) -> Option<(u32, GoiPage)> {
        (page < self.pages.pages).then(|| self.pages.header::<GoiPage>(page))?
    }

    /// Record `slot` of a page in this generation, if it is there.
    ///
    /// # Panics
    /// When no page has so many records, or there is no such page.
    #[inline]
    pub fn record(&self, page: u32, generation: u32, slot: u32) -> Option<GoiRecord> {
        assert!(slot < PAGE_RECORDS && page < self.pages.pages);
        self.pages.slot::<GoiRecord>(page, slot, generation)
    }

    /// Makes sure that records which were seen are in memory, and not only in a cache that this host
    /// shares with their writer: then they survive its death, and whoever looks sees them.
    ///
    /// # Panics
    /// When there are no such records or no such page.
    pub fn keep(&self, page: u32, slots: Range<u32>) {
        assert!(slots.end <= PAGE_RECORDS && page < self.pages.pages);
        let at = self.pages.slot_at(page, slots.start);
        let memory = &*self.pages.memory;
        memory.write_back(at, slots.len() as u64 * SLOT_BYTES);
        memory.fence();
    }

    /// The page that follows in the same epoch, if it is linked.
    pub fn link(&self, page: u32, generation: u32) -> Option<u32> {
        assert!(page < self.pages.pages);
        let link = self.pages.slot::<GoiRecord>(page, LINK_SLOT, generation)?;
        u32::try_from(link.blog_at)
            .ok()
            .filter(|page| *page < self.pages.pages)
    }
}
