//! Appends to a broker's index and releases what is no longer needed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet, VecDeque};

use embar_memory::Memory;

use super::{Found, PAGE_RECORDS};
use crate::news::NewsWriter;
use crate::pages::Pages;
use crate::records::{IndexRecord, PageHeader};
use crate::slot::{self, Seen};

/// No page is free: release something first, or refuse the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the broker's index is full: release batches, or create the region with more index pages")]
pub struct IndexFull;

/// Writes the index of one broker; its owner has the only one.
#[derive(Debug)]
pub struct IndexWriter<M> {
    pages: Pages<M>,
    chains: BTreeMap<u32, Chain>,
    /// Lowest first, so that the same calls use the same pages.
    free: BinaryHeap<Reverse<u32>>,
    /// The generation that each page is in.
    generations: Vec<u32>,
    /// Where pages of followed chains are named; none in a region without disks.
    news: Option<NewsWriter<M>>,
    /// Empty between two announcements; kept for its memory.
    named: Vec<u32>,
}

#[derive(Debug, Default)]
struct Chain {
    pages: VecDeque<Page>,
    /// One above the last offset; the next record starts there.
    next: u64,
}

#[derive(Debug)]
struct Page {
    page: u32,
    number: u64,
    records: u32,
    /// One above the last offset in the page.
    end: u64,
    /// Nothing is appended any more: something is written behind its records, or it was truncated.
    sealed: bool,
}

impl<M: Memory> IndexWriter<M> {
    /// Takes over what the owner before left, and continues each chain behind all that can be read of it:
    /// in its last page, or in a fresh one where anything else was written there.
    pub(crate) fn attach(pages: Pages<M>, news: Option<NewsWriter<M>>) -> Self {
        let generations = (0..pages.pages)
            .map(|page| pages.generation(page))
            .collect();
        let free = BinaryHeap::with_capacity(pages.pages as usize);
        let mut writer = Self {
            pages,
            chains: BTreeMap::new(),
            free,
            generations,
            news,
            named: Vec::new(),
        };
        for (chain, found) in writer.pages.in_use() {
            writer.adopt(chain, &found);
        }
        let used = writer.chains.values().flat_map(|chain| &chain.pages);
        let used: HashSet<u32> = used.map(|page| page.page).collect();
        writer.free.clear();
        let pages = 0..writer.pages.pages;
        writer
            .free
            .extend(pages.filter(|page| !used.contains(page)).map(Reverse));
        writer
    }

    fn adopt(&mut self, chain: u32, found: &[Found]) {
        let read = self.pages.read_chain(found);
        for lost in read.lost.iter().rev() {
            self.retire(chain, lost.page, lost.number);
        }
        let mut records = read.records.iter();
        let mut adopted = Chain::default();
        for (found, count) in read.pages {
            let last = records
                .nth(count as usize - 1)
                .expect("as many records as were counted");
            let end = last.base + u64::from(last.count);
            let page = Page {
                page: found.page,
                number: found.number,
                records: count,
                end,
                sealed: self.is_written_behind(found.page, count),
            };
            adopted.pages.push_back(page);
            adopted.next = end;
        }
        if !adopted.pages.is_empty() {
            self.chains.insert(chain, adopted);
        }
    }

    /// Whether anything of a page's generation is seen behind so many records: then it has holes, or
    /// what cannot be read.
    fn is_written_behind(&self, page: u32, records: u32) -> bool {
        let generation = self.generations[page as usize];
        let mut slots = records..PAGE_RECORDS;
        slots.any(|slot| {
            let seen = self.pages.slot::<IndexRecord>(page, slot, generation);
            !matches!(seen, Seen::Nothing)
        })
    }

    /// Appends a record; on return every reader sees it. Its payload was committed before.
    ///
    /// # Panics
    ///
    /// When it has no messages, or does not start where the chain's last record ended.
    pub fn append(&mut self, chain: u32, record: &IndexRecord) -> Result<(), IndexFull> {
        assert!(record.count > 0, "a batch without messages");
        if let Some(next) = self.next(chain) {
            assert_eq!(record.base, next, "offsets of chain {chain} are dense");
        }
        let full = |page: &Page| page.sealed || page.records == PAGE_RECORDS;
        if self
            .chains
            .get(&chain)
            .and_then(|c| c.pages.back())
            .is_none_or(full)
        {
            self.open(chain)?;
        }
        let entry = self.chains.get_mut(&chain).expect("it has a page");
        let page = entry.pages.back_mut().expect("it has a page");
        let generation = self.generations[page.page as usize];
        self.pages
            .publish(page.page, page.records, generation, record);
        page.records += 1;
        page.end = record.base + u64::from(record.count);
        entry.next = page.end;
        Ok(())
    }

    /// Names the last pages of these chains to those who follow them, as [`IndexFollower`](super::IndexFollower) says: after the
    /// first record of a page, and before the window shows it; and when there are more.
    pub fn announce(&mut self, chains: &[u32]) {
        let Some(news) = &mut self.news else {
            return;
        };
        let last = |chain| self.chains.get(chain).and_then(|it| it.pages.back());
        self.named
            .extend(chains.iter().filter_map(last).map(|it| it.page));
        news.announce(&self.named);
        self.named.clear();
    }

    /// One above the last offset of a chain; `None` when it has no records.
    ///
    /// A chain whose records were all released still knows, until the writer is dropped.
    pub fn next(&self, chain: u32) -> Option<u64> {
        self.chains.get(&chain).map(|chain| chain.next)
    }

    /// Releases the pages all of whose offsets lie below `offset`. Raise the window first.
    pub fn release_before(&mut self, chain: u32, offset: u64) {
        while let Some(entry) = self.chains.get_mut(&chain)
            && entry.pages.front().is_some_and(|page| page.end <= offset)
        {
            let page = entry.pages.pop_front().expect("looked at just now");
            self.retire(chain, page.page, page.number);
        }
    }

    /// Releases all pages of a chain and forgets it.
    pub fn drop_chain(&mut self, chain: u32) {
        self.release_before(chain, u64::MAX);
        self.chains.remove(&chain);
    }

    /// Takes back the records from offset `next` on: recovery found that what they point to is
    /// not what was acknowledged. No client may have been answered from them.
    ///
    /// # Panics
    ///
    /// When `next` lies inside of a batch.
    pub fn truncate(&mut self, chain: u32, next: u64) {
        while let Some(entry) = self.chains.get_mut(&chain)
            && entry.next > next
            && let Some(mut page) = entry.pages.pop_back()
        {
            let found = Found {
                page: page.page,
                number: page.number,
                generation: self.generations[page.page as usize],
            };
            let mut records = Vec::new();
            self.pages.read_page(found, &mut records);
            let kept = records.partition_point(|record| record.base < next);
            let Some(last) = kept.checked_sub(1).map(|last| records[last]) else {
                entry.next = records.first().map_or(next, |first| first.base);
                self.retire(chain, page.page, page.number);
                continue;
            };
            page.end = last.base + u64::from(last.count);
            assert_eq!(
                page.end, next,
                "offset {next} of chain {chain} lies inside of a batch"
            );
            page.records = kept as u32;
            page.sealed = true;
            entry.next = next;
            entry.pages.push_back(page);
            self.withdraw(&found, next);
        }
    }

    /// Pages that a chain uses.
    pub fn pages_of(&self, chain: u32) -> u32 {
        self.chains
            .get(&chain)
            .map_or(0, |it| it.pages.len() as u32)
    }

    /// Pages that no chain uses.
    pub fn free_pages(&self) -> u32 {
        self.free.len() as u32
    }

    fn open(&mut self, chain: u32) -> Result<(), IndexFull> {
        let Reverse(page) = self.free.pop().ok_or(IndexFull)?;
        let entry = self.chains.entry(chain).or_default();
        let number = entry.pages.back().map_or(0, |last| last.number + 1);
        entry.pages.push_back(Page {
            page,
            number,
            records: 0,
            end: entry.next,
            sealed: false,
        });
        self.publish_header(
            page,
            PageHeader {
                chain,
                in_use: 1,
                page: number,
                ..Default::default()
            },
        );
        Ok(())
    }

    /// Takes back the records of a page from offset `next` on, and what cannot be read, the last first.
    fn withdraw(&self, found: &Found, next: u64) {
        for slot in (0..PAGE_RECORDS).rev() {
            let seen = self
                .pages
                .slot::<IndexRecord>(found.page, slot, found.generation);
            let stays = match seen {
                Seen::Found(record) => record.base < next,
                Seen::Nothing => true,
                Seen::Damaged => false,
            };
            if !stays {
                slot::withdraw(&*self.pages.memory, self.pages.slot_at(found.page, slot));
            }
        }
    }

    fn retire(&mut self, chain: u32, page: u32, number: u64) {
        self.publish_header(
            page,
            PageHeader {
                chain,
                in_use: 0,
                page: number,
                ..Default::default()
            },
        );
        debug_assert!(
            self.free.iter().all(|Reverse(free)| *free != page),
            "page {page} is free already"
        );
        self.free.push(Reverse(page));
    }

    /// Starts the page's next generation.
    fn publish_header(&mut self, page: u32, header: PageHeader) {
        let generation = &mut self.generations[page as usize];
        *generation += 1;
        self.pages.publish_header(page, *generation, &header);
    }
}
