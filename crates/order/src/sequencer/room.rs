//! Pages of the GOI that the sequencer gives back: because no reader may read them any more, or because it needs the
//! room.

use embar_fabric::geometry::topic_record_of;
use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::news::News;
use embar_fabric::{GoiRecord, NewsReader, Region};
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use super::{RECORDS_PER_STEP, Sequencer};

/// The windows that all brokers announce to have raised.
#[derive(Debug)]
pub(super) struct Windows<M> {
    news: Vec<NewsReader<M>>,
    /// Kept for its memory.
    chains: Vec<u32>,
}

impl<M: Memory> Windows<M> {
    pub fn new(region: &Region<M>) -> Self {
        let rows = region.geometry().data_rows();
        Self {
            news: rows.map(|row| region.news(News::Windows(row))).collect(),
            chains: Vec::new(),
        }
    }

    /// Appends the chains whose windows were raised. False when it may be any chain.
    fn listen(&mut self, chains: &mut Vec<u32>) -> bool {
        let mut all_told = true;
        for news in &mut self.news {
            all_told &= news.take(chains);
        }
        all_told
    }
}

impl<M: Memory> Sequencer<M> {
    /// Makes sure that all that one step may order finds room, and returns how many records the step may take for
    /// that: none once the sequencer is deposed. Any record may release what is held.
    ///
    /// This runs between steps only: then the rows of sessions count nothing that is not in the GOI, so they may be
    /// stored.
    pub(super) fn make_room(&mut self) -> usize {
        let figures = self.core.figures();
        let (per_page, chains) = (PAGE_RECORDS as usize, figures.chains as usize);
        let fixed = 2 + figures.held as usize / per_page;
        // Where there are few pages, most of them stay all the same.
        let a_step = RECORDS_PER_STEP / per_page + chains.min(RECORDS_PER_STEP);
        let wanted = fixed + a_step.min(self.goi.space().1 as usize / 8).max(1);
        while (self.goi.space().0 as usize) < wanted
            && let Some((chain, end)) = self.heaviest_that_may_go()
        {
            self.goi.raise_first(chain, end);
            // Brokers that have not read that far yet have to find out, too.
            self.grown.push(chain);
            self.given_up.announce(&[chain]);
            // Successors lead readers to our pages. One that raises its epoch after this look sees
            // what is given up; one that had before does not, so nothing may be.
            if self.is_deposed() {
                return 0;
            }
            self.release_chain(chain, end);
        }
        let is_short = (self.goi.space().0 as usize) <= fixed;
        if is_short && self.goi.largest().is_some() {
            // What is there may not go: it has to be elsewhere first.
            return 0;
        }
        // A record, and what it releases, is of one chain, which may have to open one more page.
        let free = (self.goi.space().0 as usize).saturating_sub(fixed);
        let of_all = free.saturating_sub(chains) * per_page;
        let of_each = free * per_page / (per_page + 1);
        of_all.max(of_each).clamp(1, RECORDS_PER_STEP)
    }

    /// The chain to give pages of up next, and up to where.
    fn heaviest_that_may_go(&self) -> Option<(u32, u64)> {
        let mut all = self.goi.by_weight();
        all.find(|(chain, end)| (self.may_give_up)(*chain, *end))
    }

    /// Gives back pages below what brokers keep, of the chains whose windows were raised.
    pub(super) fn release(&mut self) {
        let mut chains = std::mem::take(&mut self.windows.chains);
        if !self.windows.listen(&mut chains) {
            chains.clear();
            chains.extend(self.core.chains().map(|(chain, ..)| chain));
        }
        chains.sort_unstable();
        chains.dedup();
        for chain in chains.drain(..) {
            let rows = self.region.geometry().data_rows();
            let windows =
                rows.filter_map(|row| self.region.window(row, topic_record_of(chain)).found());
            let first = windows
                .filter(|window| window.chain == chain)
                .map(|window| window.first)
                .max();
            if let Some(first) = first {
                self.release_chain(chain, first);
            }
        }
        self.windows.chains = chains;
    }

    fn release_chain(&mut self, chain: u32, first: u64) {
        let (core, sessions) = (&mut self.core, &mut self.sessions);
        let leaving = |record: &GoiRecord| {
            if !core.is_covered(record) && !injected(Canary::CoverBeforeRelease) {
                let row = core.session_row(record.session);
                sessions.store(record.session, &row);
                core.saved(record.session, &row);
            }
        };
        self.goi.release_before(chain, first, leaving);
    }
}
