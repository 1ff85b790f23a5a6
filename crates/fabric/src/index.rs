//! A broker's index: one record per appended batch, in pages that belong to one chain each.
//!
//! The first line of a page says whose it is, which number it has in its chain and which
//! generation it is in; the other 63 hold records, whose lap is the page's generation. Publishing
//! a header (to open a page or to release it) starts a generation, so the records of an earlier
//! use are never taken for records of this one, and nothing is ever erased.
//!
//! Pages of a chain are opened and released in the order of their numbers, records are published
//! in the order of their offsets, each before the next begins. So what is found after a crash is
//! one run without holes; where there is a hole all the same, memory is damaged: readers find
//! what lies on either side, and see by the offsets that something is missing. Released records
//! may still be found: the window says what counts.

mod follower;
mod reader;
mod writer;

pub use follower::{IndexCursor, IndexFollower, RecordLost};
pub use reader::IndexReader;
pub use writer::{IndexFull, IndexWriter};

use std::collections::BTreeMap;

use embar_memory::Memory;

use crate::pages::{PAGE_SLOTS, Pages};
use crate::records::{IndexRecord, PageHeader};
use crate::slot::Seen;

/// Records of a page.
pub const PAGE_RECORDS: u32 = PAGE_SLOTS;

/// A page in use, as it was found.
#[derive(Debug, Clone, Copy)]
struct Found {
    page: u32,
    number: u64,
    generation: u32,
}

/// One chain, with all of it that can be read.
#[derive(Debug, Default)]
struct Chain {
    records: Vec<IndexRecord>,
    /// The pages that hold them, each with the number of its records.
    pages: Vec<(Found, u32)>,
    /// Pages of which nothing can be read, or nothing was written.
    lost: Vec<Found>,
}

impl<M: Memory> Pages<M> {
    /// All pages in use, by chain, in the order of their numbers.
    fn in_use(&self) -> BTreeMap<u32, Vec<Found>> {
        let mut chains: BTreeMap<u32, Vec<Found>> = BTreeMap::new();
        for page in 0..self.pages {
            if let Seen::Found((generation, header)) = self.header::<PageHeader>(page)
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

    /// Reads the pages of one chain.
    fn read_chain(&self, pages: &[Found]) -> Chain {
        let mut chain = Chain::default();
        for found in pages {
            match self.read_page(*found, &mut chain.records) {
                0 => chain.lost.push(*found),
                count => chain.pages.push((*found, count)),
            }
        }
        chain
    }

    /// Appends a page's records to those before, and returns how many: all that lie above them.
    fn read_page(&self, found: Found, records: &mut Vec<IndexRecord>) -> u32 {
        let before = records.len();
        // The last first: what was published before a record that is found is there by then. So a hole
        // is one although the page may be written meanwhile.
        let seen = (0..PAGE_RECORDS).rev().filter_map(|slot| {
            self.slot::<IndexRecord>(found.page, slot, found.generation)
                .found()
        });
        let seen: Vec<_> = seen.collect();
        for record in seen.into_iter().rev() {
            let end = records
                .last()
                .map_or(0, |last| last.base + u64::from(last.count));
            let is_one = record.count > 0 && record.base.checked_add(record.count.into()).is_some();
            if is_one && record.base >= end {
                records.push(record);
            }
        }
        (records.len() - before) as u32
    }
}
