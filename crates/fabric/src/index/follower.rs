//! Follows chains of a broker's index from any process, while the broker appends to them.
//!
//! The broker names pages in its news ([`IndexWriter::announce`](super::IndexWriter::announce)): each of a followed chain when it
//! is opened, before the window shows any record of it. So what a window shows is in a page that was named, or that a look at
//! all pages finds. Where it is in neither, memory has lost it.

use std::collections::{BTreeMap, HashMap};

use embar_memory::Memory;

use super::PAGE_RECORDS;
use crate::news::NewsReader;
use crate::pages::Pages;
use crate::records::{IndexRecord, PageHeader};

/// Finds the records of one broker's chains.
#[derive(Debug)]
pub struct IndexFollower<M> {
    pages: Pages<M>,
    news: NewsReader<M>,
    /// By chain, pages that were in use when they were named, by the offset of their first record.
    chains: HashMap<u32, BTreeMap<u64, Use>>,
    /// Where in `chains` a page is.
    known: HashMap<u32, (u32, u64)>,
    /// Kept for its memory.
    named: Vec<u32>,
}

/// A page in one of its uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Use {
    page: u32,
    generation: u32,
}

/// How far a chain was read.
#[derive(Debug, Clone)]
pub struct IndexCursor {
    chain: u32,
    next: u64,
    /// The page that was read last, and the slot behind its last record.
    place: Option<(Use, u32)>,
}

/// A record that the chain's window shows is not there: memory is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a record of the index is not there: memory is damaged")]
pub struct RecordLost;

impl IndexCursor {
    /// Reads `chain` from the record on that begins at offset `next`.
    pub fn new(chain: u32, next: u64) -> Self {
        Self {
            chain,
            next,
            place: None,
        }
    }

    /// The chain that it reads.
    pub fn chain(&self) -> u32 {
        self.chain
    }

    /// The offset that comes next.
    pub fn next(&self) -> u64 {
        self.next
    }
}

impl<M: Memory> IndexFollower<M> {
    pub(crate) fn new(pages: Pages<M>, news: NewsReader<M>) -> Self {
        Self {
            pages,
            news,
            chains: HashMap::new(),
            known: HashMap::new(),
            named: Vec::new(),
        }
    }

    /// Appends the chains that have grown since the last call, some perhaps more than once. False when it may be any: then the
    /// caller looks at all of them, after this call.
    #[must_use = "when it is false, everything is to be looked at"]
    pub fn take_grown(&mut self, chains: &mut Vec<u32>) -> bool {
        let mut named = std::mem::take(&mut self.named);
        named.clear();
        let is_complete = self.news.take(&mut named);
        if is_complete {
            let looked = named.iter().filter_map(|page| self.look(*page));
            chains.extend(looked);
        } else {
            self.look_at_all();
        }
        self.named = named;
        is_complete
    }

    /// Appends the records that follow each other from a cursor on, at most `limit`. `end` is the end of the chain's window, as it
    /// was before the call.
    ///
    /// # Errors
    /// [`RecordLost`]; what was appended before counts all the same.
    pub fn read(
        &mut self,
        cursor: &mut IndexCursor,
        end: u64,
        limit: usize,
        out: &mut Vec<IndexRecord>,
    ) -> Result<(), RecordLost> {
        let mut has_looked = false;
        let full = out.len() + limit;
        while cursor.next < end && out.len() < full {
            if let Some(record) = self.next_record(cursor) {
                cursor.next = record.base + u64::from(record.count);
                out.push(record);
                continue;
            }
            // Its page may have been named since the last call.
            if std::mem::replace(&mut has_looked, true) {
                return Err(RecordLost);
            }
            self.look_at_all();
        }
        Ok(())
    }

    fn next_record(&self, cursor: &mut IndexCursor) -> Option<IndexRecord> {
        if let Some((page, slot)) = cursor.place
            && let Some((record, behind)) = self.record_in(page, slot, cursor.next)
        {
            cursor.place = Some((page, behind));
            return Some(record);
        }
        let pages = self.chains.get(&cursor.chain)?;
        let (_, page) = pages.range(..=cursor.next).next_back()?;
        let (record, behind) = self.record_in(*page, 0, cursor.next)?;
        cursor.place = Some((*page, behind));
        Some(record)
    }

    /// The record of a page that begins at an offset, from a slot on, and the slot behind it.
    fn record_in(&self, page: Use, from: u32, base: u64) -> Option<(IndexRecord, u32)> {
        for slot in from..PAGE_RECORDS {
            let seen = self.record(page, slot)?;
            if seen.base >= base {
                let is_next = seen.base == base && seen.count > 0;
                let has_end = seen.base.checked_add(seen.count.into()).is_some();
                return (is_next && has_end).then_some((seen, slot + 1));
            }
        }
        None
    }

    fn record(&self, page: Use, slot: u32) -> Option<IndexRecord> {
        let Use { page, generation } = page;
        self.pages.slot(page, slot, generation).found()
    }

    /// Takes in whose a page is now. Returns the chain, if it is one's.
    fn look(&mut self, page: u32) -> Option<u32> {
        // Its number comes from shared memory.
        if page >= self.pages.pages {
            return None;
        }
        let header = self.pages.header::<PageHeader>(page).found();
        let header = header.filter(|(_, header)| header.in_use == 1);
        let found = header.and_then(|(generation, header)| {
            let found = Use { page, generation };
            // Without a record yet, it is named again.
            Some((header.chain, self.record(found, 0)?.base, found))
        });
        let known = self.known.get(&page).copied();
        let now = found.map(|(chain, first, _)| (chain, first));
        if known != now
            && let Some((chain, first)) = known
        {
            self.forget(page, chain, first);
        }
        let (chain, first, found) = found?;
        self.known.insert(page, (chain, first));
        self.chains.entry(chain).or_default().insert(first, found);
        Some(chain)
    }

    fn forget(&mut self, page: u32, chain: u32, first: u64) {
        self.known.remove(&page);
        let Some(pages) = self.chains.get_mut(&chain) else {
            return;
        };
        // Another page may begin there by now.
        if pages.get(&first).is_some_and(|its| its.page == page) {
            pages.remove(&first);
        }
        if pages.is_empty() {
            self.chains.remove(&chain);
        }
    }

    fn look_at_all(&mut self) {
        for page in 0..self.pages.pages {
            self.look(page);
        }
    }
}
