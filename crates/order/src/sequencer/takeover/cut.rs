//! Where the chains of a predecessor end.

use embar_fabric::canary::{Canary, sings};
use embar_fabric::geometry::cell_of;
use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::{GoiReader, GoiRoot, Memory, PageRef, Region, Seen};

use super::Pulse;
use crate::core::Core;

/// Where one chain goes on.
pub(super) struct Cut {
    pub chain: u32,
    pub order: u16,
    pub start: u64,
    pub first: u64,
    pub before: Option<PageRef>,
    /// Memory is damaged there: it ends for good.
    pub is_damaged: bool,
}

/// Finds where every chain of the predecessor ends, and tells the core of it and of the records. One
/// whose memory is damaged is unknown to the core: nothing is ever ordered behind what is lost, as
/// positions never change.
pub(super) fn cut<M: Memory>(
    region: &Region<M>,
    area: u16,
    core: &mut Core,
    exists: &dyn Fn(u32) -> bool,
    pulse: &mut Pulse<M>,
) -> Vec<Cut> {
    let pages = region.goi_reader(area);
    let mut cuts = Vec::new();
    for cell in 0..region.geometry().topics {
        let cut = match region.goi_root(area, cell) {
            Seen::Nothing => continue,
            Seen::Damaged => chain_of(region, cell, exists).map(Cut::lost),
            Seen::Found(root) => {
                let is_one = root.epoch > 0 && cell_of(root.chain) == cell && exists(root.chain);
                is_one.then(|| cut_chain(&pages, area, &root, core, pulse))
            }
        };
        cuts.extend(cut);
    }
    for cut in cuts.iter().filter(|cut| cut.is_damaged) {
        // Their rows are stored with all others.
        core.drop_chain(cut.chain, &mut Vec::new());
    }
    cuts
}

/// The chain of a cell whose root is lost, as brokers know it.
fn chain_of<M: Memory>(region: &Region<M>, cell: u16, exists: &dyn Fn(u32) -> bool) -> Option<u32> {
    let rows = region.geometry().data_rows();
    let mut windows = rows.filter_map(|row| region.window(row, cell).found());
    windows
        .find(|window| cell_of(window.chain) == cell && exists(window.chain))
        .map(|window| window.chain)
}

impl Cut {
    /// Of a chain of which nothing is known.
    fn lost(chain: u32) -> Self {
        Self {
            chain,
            order: 0,
            start: 0,
            first: 0,
            before: None,
            is_damaged: true,
        }
    }
}

fn cut_chain<M: Memory>(
    pages: &GoiReader<M>,
    area: u16,
    root: &GoiRoot,
    core: &mut Core,
    pulse: &mut Pulse<M>,
) -> Cut {
    let mut cut = Cut {
        chain: root.chain,
        order: root.order,
        start: root.start,
        first: root.first,
        before: root.before.checked_sub(1).map(|page| PageRef {
            area: root.before_area,
            page,
            generation: root.before_generation,
        }),
        is_damaged: root.damaged != 0,
    };
    let mut at = root.head.checked_sub(1);
    let head = at.map_or(Seen::Nothing, |page| pages.page(page));
    cut.is_damaged |= head.is_damaged();
    // The pages before the head were released.
    cut.start = head.found().map_or(cut.start, |(_, header)| header.start);
    let restored = core.restore_chain(root.chain, root.order as u8, cut.start);
    cut.is_damaged |= restored.is_err();
    while let Some(page) = at
        && !cut.is_damaged
    {
        pulse.step();
        let (generation, header) = match pages.page(page) {
            Seen::Found(found) => found,
            seen => {
                cut.is_damaged = seen.is_damaged();
                break;
            }
        };
        if (header.chain, header.in_use, header.start) != (root.chain, 1, cut.start) {
            break;
        }
        let this = PageRef {
            area,
            page,
            generation,
        };
        if !cut_page(pages, this, core, &mut cut) {
            // A page without records is the last one, whatever it links to.
            break;
        }
        at = match pages.link(page, generation) {
            Seen::Found(next) => Some(next),
            Seen::Nothing => None,
            Seen::Damaged => {
                let next = pages.find(root.chain, root.epoch, cut.start);
                cut.is_damaged = next.is_none();
                next
            }
        };
    }
    cut
}

/// Takes the records of a page; whether there may be more pages.
fn cut_page<M: Memory>(
    pages: &GoiReader<M>,
    this: PageRef,
    core: &mut Core,
    cut: &mut Cut,
) -> bool {
    let mut taken = 0;
    for slot in 0..PAGE_RECORDS {
        let record = match pages.record_left(this.page, this.generation, slot) {
            Seen::Found(record) => record,
            seen => {
                cut.is_damaged = seen.is_damaged();
                break;
            }
        };
        if record.base != cut.start || record.count == 0 || sings(Canary::DenseCut) {
            cut.is_damaged = true;
            break;
        }
        core.replay(cut.chain, &record);
        cut.start = record.end();
        // Only now: nobody would find an older page behind one that holds nothing.
        cut.before = Some(this);
        taken += 1;
    }
    // They may have come from a cache that this host shares with a predecessor that stands still.
    pages.keep(this.page, 0..taken);
    taken > 0 && !cut.is_damaged
}
