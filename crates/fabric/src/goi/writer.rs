//! Appends to an area's GOI and gives back pages that no reader may need any more.

mod newest;

use embar_memory::canary::{Canary, injected};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use embar_memory::Memory;

use super::{LINK_SLOT, PAGE_RECORDS, PageRef};
use crate::pages::Pages;
use crate::records::{GoiPage, GoiRecord, GoiRoot};
use crate::rows::RowWriter;
use crate::slot::Seen;

/// No page is free: release something first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the order index is full: release ordered batches, or create the region with more of it")]
pub struct GoiFull;

/// Writes the GOI of one area in one epoch; its sequencer has the only one.
#[derive(Debug)]
pub struct GoiWriter<M> {
    pages: Pages<M>,
    area: u16,
    epoch: u32,
    chains: BTreeMap<u32, Chain<M>>,
    /// Pages of older epochs of this area that may still be read, by chain, the oldest last.
    old: BTreeMap<u32, Vec<Old>>,
    /// Highest last, so that the lowest is used first.
    free: Vec<u32>,
    /// The generation that each page is in.
    generations: Vec<u32>,
    /// All chains with pages, what is to be given up first last.
    weights: BTreeSet<(Weight, u32)>,
    /// Of each chain that is among them.
    weight_of: BTreeMap<u32, Weight>,
    /// Pages that were opened in this epoch.
    opened: u64,
    /// The chain that was looked at last by [`GoiWriter::restore_newest`].
    looked_at: u32,
}

/// Pages of a chain, and, of as many, how long ago it opened the newest.
type Weight = (usize, Reverse<u64>);

/// Where a chain goes on in an epoch.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChainStart {
    /// The chain.
    pub chain: u32,
    /// Its order level.
    pub order: u16,
    /// First position that this epoch gives.
    pub start: u64,
    /// First position that is kept.
    pub first: u64,
    /// The page before; none when nothing below is kept.
    pub before: Option<PageRef>,
    /// Memory is damaged there: the order ends for good, and nothing is appended in this epoch or any later
    /// one. The root says so.
    pub is_damaged: bool,
}

impl ChainStart {
    fn root(&self, epoch: u32) -> GoiRoot {
        let before = self.before;
        GoiRoot {
            chain: self.chain,
            epoch,
            start: self.start,
            first: self.first,
            before: before.map_or(0, |page| page.page + 1),
            before_generation: before.map_or(0, |page| page.generation),
            before_area: before.map_or(0, |page| page.area),
            order: self.order,
            damaged: self.is_damaged.into(),
            ..GoiRoot::default()
        }
    }
}

#[derive(Debug)]
struct Chain<M> {
    row: RowWriter<M, GoiRoot>,
    root: GoiRoot,
    pages: VecDeque<Page>,
    next: u64,
    /// The record that ends at `next`, unless its page was given back.
    newest: GoiRecord,
    /// Which of the pages that were opened in this epoch was its last one.
    opened: u64,
}

#[derive(Debug)]
struct Page {
    page: u32,
    records: u32,
    end: u64,
}

/// A page of an older epoch.
#[derive(Debug)]
struct Old {
    page: u32,
    end: u64,
}

impl<M: Memory> GoiWriter<M> {
    pub(crate) fn attach(pages: Pages<M>, area: u16, epoch: u32) -> Self {
        let generations = (0..pages.pages)
            .map(|page| pages.generation(page))
            .collect();
        let mut writer = Self {
            pages,
            area,
            epoch,
            chains: BTreeMap::new(),
            old: BTreeMap::new(),
            free: Vec::new(),
            generations,
            weights: BTreeSet::new(),
            weight_of: BTreeMap::new(),
            opened: 0,
            looked_at: 0,
        };
        for page in (0..writer.pages.pages).rev() {
            match writer.old_page(page) {
                Seen::Found((chain, old)) => writer.old.entry(chain).or_default().push(old),
                Seen::Nothing => writer.free.push(page),
                // A reader that followed the order into it is to find the damage, and nothing newer.
                Seen::Damaged => {}
            }
        }
        writer.old.values_mut().for_each(|old| sort(old));
        let chains: Vec<u32> = writer.old.keys().copied().collect();
        chains.into_iter().for_each(|chain| writer.weigh(chain));
        writer
    }

    fn old_page(&self, page: u32) -> Seen<(u32, Old)> {
        let (generation, header) = match self.pages.header::<GoiPage>(page) {
            Seen::Found(found) => found,
            Seen::Nothing => return Seen::Nothing,
            Seen::Damaged => return Seen::Damaged,
        };
        if header.in_use != 1 {
            return Seen::Nothing;
        }
        // Stale records may lie beyond the end of their epoch: then the page is kept for longer.
        let records = (0..PAGE_RECORDS)
            .map(|slot| self.pages.slot::<GoiRecord>(page, slot, generation))
            .take_while(|seen| *seen != Seen::Nothing)
            .filter_map(Seen::found);
        let end = records.last().map_or(header.start, |last| last.end());
        Seen::Found((header.chain, Old { page, end }))
    }

    /// Gives it another epoch, in which no chain is begun yet.
    ///
    /// # Panics
    /// When one is.
    pub fn set_epoch(&mut self, epoch: u32) {
        assert!(self.chains.is_empty(), "chains belong to an epoch");
        self.epoch = epoch;
    }

    /// Begins a chain in this epoch.
    ///
    /// # Panics
    /// When it was begun already.
    pub fn begin(&mut self, mut row: RowWriter<M, GoiRoot>, at: &ChainStart) {
        let chain = at.chain;
        assert!(!self.has(chain), "chain {chain} was begun already");
        let root = at.root(self.epoch);
        row.store(&root);
        let begun = Chain {
            row,
            root,
            pages: VecDeque::new(),
            next: at.start,
            newest: GoiRecord::default(),
            opened: 0,
        };
        self.chains.insert(chain, begun);
        // What lies beyond was never part of the order, and no reader waits for it to be given up.
        if let Some(old) = self.old.get_mut(&chain) {
            old.iter_mut()
                .for_each(|old| old.end = old.end.min(at.start));
        }
        self.weigh(chain);
    }

    /// Says which of a chain's pages of older epochs the order still leads to, and up to where: what
    /// lies beyond, and in any other page, was never part of it, and no reader waits for it to be
    /// given up.
    pub fn clip_old(&mut self, chain: u32, read: &[(u32, u64)]) {
        let Some(pages) = self.old.get_mut(&chain) else {
            return;
        };
        let read: BTreeMap<u32, u64> = read.iter().copied().collect();
        for old in &mut *pages {
            let until = read.get(&old.page);
            old.end = until.map_or(0, |until| old.end.min(*until));
        }
        sort(pages);
        self.weigh(chain);
    }

    /// Whether the chain was begun.
    pub fn has(&self, chain: u32) -> bool {
        self.chains.contains_key(&chain)
    }

    /// Appends a record. It is sure to be seen only after [`GoiWriter::fence`], and may be before.
    ///
    /// # Panics
    /// When the chain was not begun, or the record does not start where the last one ended.
    pub fn append(&mut self, chain: u32, record: &GoiRecord) -> Result<(), GoiFull> {
        let known = self.chains.get(&chain).expect("a chain is begun first");
        assert_eq!(record.base, known.next, "positions of {chain} are dense");
        if known
            .pages
            .back()
            .is_none_or(|page| page.records == PAGE_RECORDS)
        {
            self.open(chain)?;
        }
        let known = self.chains.get_mut(&chain).expect("it was there just now");
        let page = known.pages.back_mut().expect("one was opened");
        let generation = self.generations[page.page as usize];
        self.pages
            .publish_later(page.page, page.records, generation, record);
        page.records += 1;
        page.end = record.end();
        known.next = record.end();
        known.newest = *record;
        Ok(())
    }

    /// When this returns, all readers see every record that was appended before.
    pub fn fence(&self) {
        if !injected(Canary::GoiFence) {
            self.pages.memory.fence();
        }
    }

    fn open(&mut self, chain: u32) -> Result<(), GoiFull> {
        let page = self.free.pop().ok_or(GoiFull)?;
        let known = self.chains.get_mut(&chain).expect("the caller looked");
        let last = known.pages.back().map(|last| last.page);
        let (before, before_area, before_generation) = match last {
            Some(last) => (last + 1, self.area, self.generations[last as usize]),
            None => {
                let GoiRoot {
                    before,
                    before_area,
                    before_generation,
                    ..
                } = known.root;
                (before, before_area, before_generation)
            }
        };
        let start = known.next;
        self.opened += 1;
        known.opened = self.opened;
        known.pages.push_back(Page {
            page,
            records: 0,
            end: start,
        });
        self.pages.clear_damaged(page);
        self.publish_header(
            page,
            GoiPage {
                chain,
                epoch: self.epoch,
                start,
                before,
                before_generation,
                before_area,
                in_use: 1,
                ..Default::default()
            },
        );
        match last {
            Some(last) => self.link(last, page, start),
            None => {
                let known = self.chains.get_mut(&chain).expect("the caller looked");
                known.root.head = page + 1;
                known.row.store(&known.root);
            }
        }
        self.weigh(chain);
        Ok(())
    }

    fn link(&self, from: u32, to: u32, base: u64) {
        let link = GoiRecord {
            base,
            payload_at: to.into(),
            ..Default::default()
        };
        let generation = self.generations[from as usize];
        self.pages.publish(from, LINK_SLOT, generation, &link);
    }

    /// Raises the first position that this sequencer keeps of a chain: the pages below are wanted
    /// for something else.
    pub fn raise_first(&mut self, chain: u32, first: u64) {
        if let Some(known) = self.chains.get_mut(&chain)
            && first > known.root.first
        {
            known.root.first = first;
            known.row.store(&known.root);
        }
    }

    /// Gives back the pages of a chain all of whose positions lie below `first`, which was raised
    /// before; calls `leaving` with each record of this epoch's before it goes. A chain of which nothing
    /// is left takes no page: it goes on as one that begins in this epoch.
    pub fn release_before(&mut self, chain: u32, first: u64, mut leaving: impl FnMut(&GoiRecord)) {
        self.release_old(chain, first);
        while let Some(known) = self.chains.get_mut(&chain)
            && let Some(page) = known.pages.pop_front_if(|page| page.end <= first)
        {
            let generation = self.generations[page.page as usize];
            (0..page.records)
                .filter_map(|slot| {
                    let seen = self.pages.slot::<GoiRecord>(page.page, slot, generation);
                    seen.found()
                })
                .for_each(|record| leaving(&record));
            known.lead_to_first();
            self.retire(chain, page.page);
        }
        self.weigh(chain);
    }

    fn release_old(&mut self, chain: u32, first: u64) {
        while let Some(pages) = self.old.get_mut(&chain) {
            match pages.pop_if(|oldest| oldest.end <= first) {
                Some(gone) => self.retire(chain, gone.page),
                None if pages.is_empty() => drop(self.old.remove(&chain)),
                None => return,
            }
        }
    }

    /// The chains that were begun, or have pages of older epochs. Some come twice.
    pub fn chains(&self) -> impl Iterator<Item = u32> {
        self.chains.keys().chain(self.old.keys()).copied()
    }

    /// Whether a chain is one of [`GoiWriter::chains`].
    pub fn holds(&self, chain: u32) -> bool {
        self.has(chain) || self.old.contains_key(&chain)
    }

    /// Gives back every page of a chain, and forgets it.
    pub fn drop_chain(&mut self, chain: u32) {
        self.release_old(chain, u64::MAX);
        if let Some(mut known) = self.chains.remove(&chain) {
            known.row.store(&GoiRoot::default());
            for page in known.pages {
                self.retire(chain, page.page);
            }
        }
        self.weigh(chain);
    }

    fn retire(&mut self, chain: u32, page: u32) {
        self.publish_header(
            page,
            GoiPage {
                chain,
                in_use: 0,
                ..Default::default()
            },
        );
        self.free.push(page);
    }

    /// Starts the page's next generation.
    fn publish_header(&mut self, page: u32, header: GoiPage) {
        let generation = &mut self.generations[page as usize];
        *generation += 1;
        self.pages.publish_header(page, *generation, &header);
    }

    /// Pages that no chain uses, and pages in all.
    pub fn space(&self) -> (u32, u32) {
        (self.free.len() as u32, self.pages.pages)
    }

    /// The chain that holds most pages, of this epoch and of older ones in this area, and the end of
    /// the oldest of these: what to give up first when no page is free. Of chains that hold as many it is
    /// the one that has opened none for longest. One that was never part of the order goes before all.
    pub fn largest(&self) -> Option<(u32, u64)> {
        self.by_weight().next()
    }

    /// As [`GoiWriter::largest`], and those that come next.
    pub fn by_weight(&self) -> impl Iterator<Item = (u32, u64)> {
        self.weights.iter().rev().filter_map(|(_, chain)| {
            let old = self.old.get(chain).and_then(|old| old.last());
            let of_now = self.chains.get(chain).and_then(|known| known.pages.front());
            let end = old.map(|oldest| oldest.end).or(of_now.map(|page| page.end));
            Some((*chain, end?))
        })
    }

    /// To be called after a chain's pages have changed.
    fn weigh(&mut self, chain: u32) {
        let old = self.old.get(&chain).map_or(&[][..], |old| &old[..]);
        let known = self.chains.get(&chain);
        let pages = old.len() + known.map_or(0, |known| known.pages.len());
        let is_lost = old.last().is_some_and(|oldest| oldest.end == 0);
        let weight = (
            if is_lost { usize::MAX } else { pages },
            Reverse(known.map_or(0, |known| known.opened)),
        );
        let before = if pages > 0 {
            self.weight_of.insert(chain, weight)
        } else {
            self.weight_of.remove(&chain)
        };
        if let Some(before) = before {
            self.weights.remove(&(before, chain));
        }
        if pages > 0 {
            self.weights.insert((weight, chain));
        }
    }
}

impl<M: Memory> Chain<M> {
    /// Stores the root that leads to the first page that is left.
    fn lead_to_first(&mut self) {
        match self.pages.front() {
            Some(first) => self.root.head = first.page + 1,
            None => {
                self.root = GoiRoot {
                    chain: self.root.chain,
                    epoch: self.root.epoch,
                    start: self.next,
                    first: self.root.first.max(self.next),
                    order: self.root.order,
                    ..GoiRoot::default()
                };
            }
        }
        self.row.store(&self.root);
    }
}

/// The oldest last.
fn sort(old: &mut [Old]) {
    old.sort_unstable_by_key(|old| std::cmp::Reverse(old.end));
}
