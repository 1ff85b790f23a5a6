//! Pages of the GOI that are given back: because nobody may read them any more, or because the room
//! is needed.

use embar_fabric::canary::{Canary, sings};
use embar_fabric::geometry::cell_of;
use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::{GoiRecord, Memory};

use super::{RECORDS_PER_STEP, Sequencer};

impl<M: Memory> Sequencer<M> {
    /// Makes sure that all that one step may order finds room, and says how many records it may
    /// take for that: none once it is deposed. What is held may be released by any record.
    ///
    /// It is done between steps only: then the rows of sessions count nothing that is not in the
    /// GOI, so they may be stored.
    pub(super) fn make_room(&mut self) -> usize {
        let figures = self.core.figures();
        let per_page = PAGE_RECORDS as usize;
        // Every chain may have to open one more page.
        let fixed = figures.chains as usize + 2 + figures.held as usize / per_page;
        // Where there are few pages, most of them are to be kept all the same.
        let a_step = (RECORDS_PER_STEP / per_page).min(self.goi.space().1 as usize / 8);
        let wanted = fixed + a_step.max(1);
        while (self.goi.space().0 as usize) < wanted
            && let Some((chain, end)) = self.goi.largest()
        {
            self.goi.raise_first(chain, end);
            // Successors lead readers to our pages. One that raises its epoch after this look sees
            // what is given up; one that had before does not, so nothing may be.
            if self.is_deposed() {
                return 0;
            }
            self.release_chain(chain, end);
        }
        let free = self.goi.space().0 as usize;
        (free.saturating_sub(fixed) * per_page).clamp(1, RECORDS_PER_STEP)
    }

    /// Gives back pages below what brokers keep.
    pub(super) fn release(&mut self) {
        let chains: Vec<u32> = self.core.chains().map(|(chain, ..)| chain).collect();
        for chain in chains {
            let rows = self.region.geometry().data_rows();
            let windows = rows.filter_map(|row| self.region.window(row, cell_of(chain)));
            let first = windows
                .filter(|window| window.chain == chain)
                .map(|window| window.first)
                .max();
            if let Some(first) = first {
                self.release_chain(chain, first);
            }
        }
    }

    fn release_chain(&mut self, chain: u32, first: u64) {
        let (core, sessions) = (&mut self.core, &mut self.sessions);
        let leaving = |record: &GoiRecord| {
            if !core.is_covered(record) && !sings(Canary::CoverBeforeRelease) {
                let row = core.session_row(record.session);
                sessions.store(record.session, &row);
                core.saved(record.session, &row);
            }
        };
        self.goi.release_before(chain, first, leaving);
    }
}
