//! Reads a broker's index, from any process.

use embar_memory::Memory;

use super::{Found, PAGE_RECORDS};
use crate::pages::Pages;
use crate::records::{IndexRecord, PageHeader};
use crate::slot::Seen;

/// Reads the index of one broker.
#[derive(Debug)]
pub struct IndexReader<M> {
    pages: Pages<M>,
}

impl<M: Memory> IndexReader<M> {
    pub(crate) fn new(pages: Pages<M>) -> Self {
        Self { pages }
    }

    /// Every chain with its records in the order of their offsets. They have holes only where memory is
    /// damaged.
    ///
    /// What the records say of the payload is not checked here. Records below the chain's window
    /// may be among them, and the memory they point to may be used again already.
    pub fn scan(&self) -> Vec<(u32, Vec<IndexRecord>)> {
        let chains = self.pages.in_use().into_iter();
        chains
            .map(|(chain, pages)| (chain, self.pages.read_chain(&pages).records))
            .filter(|(_, records)| !records.is_empty())
            .collect()
    }

    /// Whether damage may hide records of a chain behind the last one that [`IndexReader::scan`] finds.
    ///
    /// It may if something is written behind that record, in the chain's pages, that cannot be read. It also may
    /// if the header of any page cannot be read: that page may be of any chain.
    ///
    /// A broker that has lost a chain's window knows its next offset by its records alone. Where some may be hidden,
    /// the end of the last one may be an offset that was given already. Ask before the index has a writer: that
    /// gives back the pages of which no record can be read, and nothing shows them any more.
    pub fn may_go_on(&self, chain: u32) -> bool {
        let pages = &self.pages;
        if (0..pages.pages).any(|page| pages.header::<PageHeader>(page).is_damaged()) {
            return true;
        }
        let own = pages.in_use().remove(&chain).unwrap_or_default();
        let slots = |found: Found| (0..PAGE_RECORDS).rev().map(move |slot| (found, slot));
        let mut behind = own.into_iter().rev().flat_map(slots);
        let last = behind.find_map(|(found, slot)| {
            match pages.slot::<IndexRecord>(found.page, slot, found.generation) {
                Seen::Nothing => pages.is_damaged(found.page, slot).then_some(true),
                seen => Some(seen.is_damaged()),
            }
        });
        last.unwrap_or(false)
    }
}
