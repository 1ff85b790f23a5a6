//! Reads a broker's index, from any process.

use crate::memory::Memory;
use crate::pages::Pages;
use crate::records::IndexRecord;

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
}
