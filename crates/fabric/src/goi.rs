//! The global order index: one record per ordered batch, in pages that belong to one chain and one
//! epoch each, in the area of the candidate that sequenced it.
//!
//! The first line of a page says whose it is, where it begins and what page comes before it, which
//! may lie in another area; then come [`PAGE_RECORDS`] records and one slot for the link to the page
//! that follows in the same area and epoch. All of a page's slots carry its generation as their lap;
//! publishing a header, to open a page or to release it, starts the next one.
//!
//! A page is opened before it is linked and linked before anything is published in it, so whoever
//! follows the records finds the next page, or nothing yet. [`GoiRoot`] leads to the first page of
//! an epoch that is still there, and to the page before the epoch.
//!
//! [`GoiRoot`]: crate::records::GoiRoot

mod reader;
mod writer;

pub use reader::GoiReader;
pub use writer::{GoiFull, GoiWriter};

use std::sync::Arc;

use crate::geometry::INDEX_PAGE_BYTES;
use crate::memory::Memory;
use crate::records::{GoiPage, GoiRecord, Record};
use crate::slot::{self, SLOT_BYTES, commit_word};

/// Records of a GOI page.
pub const PAGE_RECORDS: u32 = (INDEX_PAGE_BYTES / SLOT_BYTES) as u32 - 2;
/// The slot of a page's link.
const LINK_SLOT: u32 = PAGE_RECORDS;

/// Names a page in one of its uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRef {
    /// The area it lies in.
    pub area: u16,
    /// Its number there.
    pub page: u32,
    /// Which use of it.
    pub generation: u32,
}

/// Where one area's pages lie.
#[derive(Debug)]
pub(crate) struct Pages<M> {
    pub memory: Arc<M>,
    pub at: u64,
    pub pages: u32,
    pub nonce: u32,
}

impl<M: Memory> Pages<M> {
    fn header_at(&self, page: u32) -> u64 {
        self.at + u64::from(page) * INDEX_PAGE_BYTES
    }

    fn slot_at(&self, page: u32, slot: u32) -> u64 {
        self.header_at(page) + u64::from(slot + 1) * SLOT_BYTES
    }

    fn header(&self, page: u32) -> Option<(u32, GoiPage)> {
        let (generation, body) = slot::peek(&*self.memory, self.header_at(page), self.nonce)?;
        Some((generation, GoiPage::from_body(&body)))
    }

    /// A record, or in the last slot the link.
    fn slot(&self, page: u32, slot: u32, generation: u32) -> Option<GoiRecord> {
        let commit = commit_word(self.nonce, generation);
        let body = slot::observe(&*self.memory, self.slot_at(page, slot), commit)?;
        Some(GoiRecord::from_body(&body))
    }

    /// The generation a page is in. Where its owner died while it wrote the header, the records
    /// tell: the generation it was starting has none yet.
    fn generation(&self, page: u32) -> u32 {
        let lap_at = |at: u64| slot::peek(&*self.memory, at, self.nonce).map(|(lap, _)| lap);
        let slots = (0..=LINK_SLOT).filter_map(|slot| lap_at(self.slot_at(page, slot)));
        let header = lap_at(self.header_at(page));
        slots.chain(header).max().unwrap_or(0)
    }
}
