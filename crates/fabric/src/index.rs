//! A broker's index: one record per appended batch, in pages that belong to one chain each.
//!
//! The first line of a page says whose it is, which number it has in its chain and which
//! generation it is in; the other 63 hold records, whose lap is the page's generation. Publishing
//! a header (to open a page or to release it) starts a generation, so the records of an earlier
//! use are never taken for records of this one, and nothing is ever erased.
//!
//! Pages of a chain are opened and released in the order of their numbers, records are published
//! in the order of their offsets, each before the next begins. So what is found after a crash is
//! one run without holes; where there is a hole all the same, memory is damaged, and the chain
//! ends before it. Released records may still be found: the window says what counts.

mod reader;
mod writer;

pub use reader::IndexReader;
pub use writer::{IndexFull, IndexWriter};

use std::collections::BTreeMap;

use crate::memory::Memory;
use crate::pages::{PAGE_SLOTS, Pages};
use crate::records::{IndexRecord, PageHeader};

/// Records of a page.
pub const PAGE_RECORDS: u32 = PAGE_SLOTS;

/// A page in use, as it was found.
#[derive(Debug, Clone, Copy)]
struct Found {
    page: u32,
    number: u64,
    generation: u32,
}

/// One chain, as far as it can be read without a hole.
#[derive(Debug, Default)]
struct Chain {
    records: Vec<IndexRecord>,
    /// The pages that hold them, each with the number of its records.
    pages: Vec<(Found, u32)>,
    /// Pages beyond the first hole.
    lost: Vec<Found>,
}

impl<M: Memory> Pages<M> {
    /// All pages in use, by chain, in the order of their numbers.
    fn in_use(&self) -> BTreeMap<u32, Vec<Found>> {
        let mut chains: BTreeMap<u32, Vec<Found>> = BTreeMap::new();
        for page in 0..self.pages {
            if let Some((generation, header)) = self.header::<PageHeader>(page)
                && header.in_use == 1
            {
                let found = Found {
                    page,
                    number: header.page,
                    generation,
                };
                chains.entry(header.chain).or_default().push(found);
            }
        }
        for pages in chains.values_mut() {
            pages.sort_by_key(|found| found.number);
        }
        chains
    }

    /// Reads the pages of one chain up to the first hole.
    fn read_chain(&self, pages: &[Found]) -> Chain {
        let mut chain = Chain::default();
        for (i, found) in pages.iter().enumerate() {
            let follows = i == 0 || pages[i - 1].number.checked_add(1) == Some(found.number);
            let (count, whole) = if follows {
                self.read_page(*found, &mut chain.records)
            } else {
                (0, false)
            };
            if count > 0 {
                chain.pages.push((*found, count));
            }
            if !whole || count == 0 {
                let lost_from = if count > 0 { i + 1 } else { i };
                chain.lost.extend(&pages[lost_from..]);
                break;
            }
        }
        chain
    }

    /// Appends a page's records to those before; returns how many, and whether they all followed
    /// each other.
    fn read_page(&self, found: Found, records: &mut Vec<IndexRecord>) -> (u32, bool) {
        for slot in 0..PAGE_RECORDS {
            let Some(record) = self.slot::<IndexRecord>(found.page, slot, found.generation) else {
                return (slot, true);
            };
            let end_of_last = records.last().map(|last| last.base + u64::from(last.count));
            let follows = end_of_last.is_none_or(|end| end == record.base)
                && record.count > 0
                && record.base.checked_add(record.count.into()).is_some();
            if !follows {
                return (slot, false);
            }
            records.push(record);
        }
        (PAGE_RECORDS, true)
    }
}
