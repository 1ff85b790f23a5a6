//! Finds where each chain of the predecessor ends, and replays the predecessor's records to the new core.

use std::collections::{BTreeSet, HashMap};

use embar_fabric::geometry::topic_record_of;
use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::records::Window;
use embar_fabric::{ChainStart, GoiPage, GoiReader, GoiRoot, PageRef, Region, Seen};
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use super::Pulse;
use crate::core::Core;

/// The pages in use.
#[derive(Default)]
struct Opened {
    /// By chain, epoch and first position.
    pages: HashMap<(u32, u32, u64), u32>,
    /// The chains that have any, by topic record.
    chains: HashMap<u16, BTreeSet<u32>>,
}

impl Opened {
    fn read<M: Memory>(pages: &GoiReader<M>, pulse: &mut Pulse<M>) -> Self {
        let mut opened = Self::default();
        for page in 0..pages.pages() {
            pulse.step();
            let Seen::Found((_, header)) = pages.page(page) else {
                continue;
            };
            if header.in_use == 1 {
                let beginning = (header.chain, header.epoch, header.start);
                opened.pages.insert(beginning, page);
                let of_record = opened.chains.entry(topic_record_of(header.chain));
                of_record.or_default().insert(header.chain);
            }
        }
        opened
    }

    /// A chain of a topic record that has pages.
    fn chain(&self, topic_record: u16, exists: &dyn Fn(u32) -> bool) -> Option<u32> {
        let mut chains = self.chains.get(&topic_record)?.iter().copied();
        chains.find(|chain| exists(*chain))
    }
}

/// Finds where every chain of the predecessor ends, and replays the records to the core. A chain whose memory is
/// damaged stays unknown to the core: nothing is ever ordered behind what is lost, as positions never change.
pub(super) fn cut<M: Memory>(
    region: &Region<M>,
    area: u16,
    core: &mut Core,
    exists: &dyn Fn(u32) -> bool,
    pulse: &mut Pulse<M>,
) -> Vec<ChainStart> {
    let pages = region.goi_reader(area);
    let opened = Opened::read(&pages, pulse);
    let mut cuts = Vec::new();
    for topic_record in 0..region.geometry().topics {
        pulse.step();
        let cut = match region.goi_root(area, topic_record) {
            // A root is stored before the chain's first page and record: where either is known, it is lost.
            Seen::Nothing => {
                let told =
                    chain_in_windows(region, topic_record, |it| it.next > 0 && exists(it.chain));
                told.or_else(|| opened.chain(topic_record, exists))
                    .map(lost)
            }
            Seen::Damaged => {
                let told = chain_in_windows(region, topic_record, |it| exists(it.chain));
                told.or_else(|| opened.chain(topic_record, exists))
                    .map(lost)
            }
            Seen::Found(root) => {
                let is_one = root.epoch > 0
                    && topic_record_of(root.chain) == topic_record
                    && exists(root.chain);
                is_one.then(|| cut_chain((&pages, area), &root, &opened, core, pulse))
            }
        };
        cuts.extend(cut);
    }
    if injected(Canary::DamageEnds) {
        cuts.iter_mut().for_each(|cut| cut.is_damaged = false);
    }
    for cut in cuts.iter().filter(|cut| cut.is_damaged) {
        // Their rows are stored with all others.
        core.drop_chain(cut.chain, &mut Vec::new());
    }
    cuts
}

/// The chain of a topic record whose root is lost, as brokers know it.
fn chain_in_windows<M: Memory>(
    region: &Region<M>,
    topic_record: u16,
    counts: impl Fn(&Window) -> bool,
) -> Option<u32> {
    let rows = region.geometry().data_rows();
    let mut windows = rows.filter_map(|row| region.window(row, topic_record).found());
    let its_own = windows.find(|it| topic_record_of(it.chain) == topic_record && counts(it))?;
    Some(its_own.chain)
}

/// A chain of which nothing is known.
fn lost(chain: u32) -> ChainStart {
    ChainStart {
        chain,
        is_damaged: true,
        ..ChainStart::default()
    }
}

/// The cut at the start of the term.
fn at_root(root: &GoiRoot) -> ChainStart {
    ChainStart {
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
    }
}

/// The cut behind the last record of a chain that the predecessor made visible.
fn cut_chain<M: Memory>(
    (pages, area): (&GoiReader<M>, u16),
    root: &GoiRoot,
    opened: &Opened,
    core: &mut Core,
    pulse: &mut Pulse<M>,
) -> ChainStart {
    let mut cut = at_root(root);
    let mut at = root.head.checked_sub(1);
    if let Some(page) = at {
        match page_of(pages, root.chain, page) {
            // The pages before the head were released.
            Some((_, header)) => cut.start = header.start,
            None => cut.is_damaged = true,
        }
    }
    let restored = core.restore_chain(root.chain, root.order as u8, cut.start);
    cut.is_damaged |= restored.is_err();
    while let Some(page) = at
        && !cut.is_damaged
    {
        pulse.step();
        // A header is stored before anything names its page, and what names the page changes before it goes.
        let found = page_of(pages, root.chain, page);
        let Some((generation, _)) = found.filter(|(_, header)| header.start == cut.start) else {
            cut.is_damaged = true;
            break;
        };
        let this = PageRef {
            area,
            page,
            generation,
        };
        if cut_page(pages, this, core, &mut cut) < PAGE_RECORDS {
            break;
        }
        let link = pages.link(page, generation);
        at = match link {
            Seen::Found(next) => Some(next),
            // Perhaps the link is lost: then there is a page that it led to.
            Seen::Nothing | Seen::Damaged => {
                let beginning = (root.chain, root.epoch, cut.start);
                opened.pages.get(&beginning).copied()
            }
        };
        cut.is_damaged = link.is_damaged() && at.is_none();
    }
    cut
}

/// A page in use by a chain, and its generation.
fn page_of<M: Memory>(pages: &GoiReader<M>, chain: u32, page: u32) -> Option<(u32, GoiPage)> {
    let found = pages.page(page).found();
    found.filter(|(_, header)| (header.chain, header.in_use) == (chain, 1))
}

/// Takes the records of a page; how many there are.
fn cut_page<M: Memory>(
    pages: &GoiReader<M>,
    this: PageRef,
    core: &mut Core,
    cut: &mut ChainStart,
) -> u32 {
    let mut taken = 0;
    for slot in 0..PAGE_RECORDS {
        let record = match pages.record_left(this.page, this.generation, slot) {
            Seen::Found(record) => record,
            seen => {
                cut.is_damaged = seen.is_damaged();
                break;
            }
        };
        if record.base != cut.start || record.count == 0 || injected(Canary::DenseCut) {
            cut.is_damaged = true;
            break;
        }
        core.replay(cut.chain, &record);
        cut.start = record.end();
        // Only now: no reader would find an older page behind one that holds nothing.
        cut.before = Some(this);
        taken += 1;
    }
    // They may have come from a cache that this host shares with a predecessor that stands still.
    pages.keep(this.page, 0..taken);
    taken
}
