//! Reads the pages of one area, from any process.

use std::ops::Range;

use embar_memory::Memory;

use super::{LINK_SLOT, PAGE_RECORDS};
use crate::pages::Pages;
use crate::records::{GoiPage, GoiRecord};
use crate::slot::{SLOT_BYTES, Seen};

/// Reads the GOI of one area: records by page and slot, and the links between pages.
#[derive(Debug)]
pub struct GoiReader<M> {
    pages: Pages<M>,
}

impl<M: Memory> GoiReader<M> {
    pub(crate) fn new(pages: Pages<M>) -> Self {
        Self { pages }
    }

    /// How many pages there are.
    pub fn pages(&self) -> u32 {
        self.pages.pages
    }

    /// A page's generation and header; nothing when there is no such page, or it was never used.
    pub fn page(&self, page: u32) -> Seen<(u32, GoiPage)> {
        if page >= self.pages.pages {
            return Seen::Nothing;
        }
        self.pages.header(page)
    }

    /// Record `slot` of a page in this generation, if it is there.
    ///
    /// # Panics
    /// When no page has so many records, or there is no such page.
    #[inline]
    pub fn record(&self, page: u32, generation: u32, slot: u32) -> Seen<GoiRecord> {
        assert!(slot < PAGE_RECORDS && page < self.pages.pages);
        match self.pages.slot(page, slot, generation) {
            Seen::Nothing if self.is_lost(page, generation, slot) => Seen::Damaged,
            seen => seen,
        }
    }

    /// Whether a record that is not seen was there, as something is that became visible after it.
    fn is_lost(&self, page: u32, generation: u32, slot: u32) -> bool {
        let look = |slot| self.pages.slot::<GoiRecord>(page, slot, generation);
        // Those that were lost with it show nothing.
        let is_followed = || {
            let mut behind = (slot + 1..=LINK_SLOT).map(|slot| (slot, look(slot)));
            let shown = behind
                .find(|(slot, seen)| *seen != Seen::Nothing || !self.pages.is_damaged(page, *slot));
            shown.is_some_and(|(_, seen)| seen != Seen::Nothing)
        };
        // All records of a page are in memory before its link is stored.
        let is_passed = look(LINK_SLOT) != Seen::Nothing
            || is_followed()
                && (self.pages.is_damaged(page, slot) || self.pages.memory.is_coherent());
        // It may have come meanwhile, or the page is used for something else.
        is_passed
            && look(slot) == Seen::Nothing
            && self
                .page(page)
                .found()
                .is_some_and(|(now, _)| now == generation)
    }

    /// As [`GoiReader::record`], of a page that is not written any more: what cannot be read counts as
    /// damaged, whatever it was.
    ///
    /// # Panics
    /// As there.
    pub fn record_left(&self, page: u32, generation: u32, slot: u32) -> Seen<GoiRecord> {
        match self.record(page, generation, slot) {
            Seen::Nothing if self.pages.is_damaged(page, slot) => Seen::Damaged,
            seen => seen,
        }
    }

    /// The page of a chain that begins at a position in an epoch: where the link to it is damaged.
    pub fn find(&self, chain: u32, epoch: u32, start: u64) -> Option<u32> {
        (0..self.pages.pages).find(|page| {
            let header = self.page(*page).found();
            header.is_some_and(|(_, header)| {
                (header.chain, header.epoch, header.start, header.in_use)
                    == (chain, epoch, start, 1)
            })
        })
    }

    /// Makes sure that records which were seen are in memory, and not only in a cache that this host
    /// shares with their writer: then they survive its death, and all readers see them.
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

    /// Whether what lies in the place of a page's link cannot be read: it may be the link, or one of another
    /// use of the page.
    pub fn has_unreadable_link(&self, page: u32) -> bool {
        assert!(page < self.pages.pages);
        self.pages.is_damaged(page, LINK_SLOT)
    }

    /// The page that follows in the same epoch, if it is linked.
    pub fn link(&self, page: u32, generation: u32) -> Seen<u32> {
        assert!(page < self.pages.pages);
        let link = match self.pages.slot::<GoiRecord>(page, LINK_SLOT, generation) {
            Seen::Found(link) => u32::try_from(link.payload_at).ok(),
            Seen::Nothing => return Seen::Nothing,
            Seen::Damaged => None,
        };
        let link = link.filter(|page| *page < self.pages.pages);
        link.map_or(Seen::Damaged, Seen::Found)
    }
}
