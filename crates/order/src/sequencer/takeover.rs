//! Becoming the sequencer: raise, cut, rebuild, and only then begin.
//!
//! 1. *Raise*: the candidate's row shows an epoch above all others. From here on nothing that a
//!    predecessor writes counts for anybody.
//! 2. *Cut*: of every chain the dense run of records that the predecessor made visible; the chain goes
//!    on behind it.
//! 3. *Rebuild*: the predecessor's session rows, and the records since.
//! 4. *Begin*: everything that a successor will need is stored in our own area, session rows before
//!    roots; lanes are told of the epoch; then the row says that it is active.
//!
//! A candidate that dies on the way leaves a raised row that names the predecessor. If it was the
//! predecessor's own area that it was writing to (the same candidate, restarted), what is there is
//! complete at every point: a root that was not rewritten leads to the records, and one that was has
//! their sum, and the session rows were all stored before it.

use embar_fabric::canary::{Canary, sings};
use std::sync::Arc;

use embar_fabric::geometry::cell_of;
use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::{
    Claim, GoiReader, GoiRoot, Memory, PageRef, Region, SequencerRow, SequencerState, SessionRow,
};

use super::Sequencer;
use super::lanes::{Intact, Lanes};
use crate::core::{Core, RestoreError};
use crate::limits::{Limits, LimitsError};
use crate::reign;

/// Why a takeover was given up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TakeoverError {
    /// Another candidate has raised a higher epoch meanwhile.
    #[error("another candidate has raised a higher epoch")]
    Overtaken,
    /// Limits that cannot be.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// What the predecessor left makes no sense.
    #[error("what the sequencer before left is damaged: {0}")]
    Damaged(#[from] RestoreError),
    /// The predecessor lives, and gives up pages faster than they are read.
    #[error("the sequencer before goes on giving up what is read: try again")]
    Unsteady,
}

/// How often what a predecessor left is read when it changes meanwhile.
const REBUILDS_MAX: u32 = 1000;

/// Where one chain goes on.
struct Cut {
    chain: u32,
    order: u16,
    start: u64,
    first: u64,
    before: Option<PageRef>,
}

impl<M: Memory> Sequencer<M> {
    /// Takes over. One candidate at a time may be in here: the caller holds the membership's lock.
    /// Chains for which `exists` is false were deleted and are left behind. `intact` says whether the
    /// bytes of what dead brokers left are whole.
    ///
    /// # Errors
    /// [`TakeoverError`]; the row stays raised, so whoever takes over next goes above it.
    ///
    /// # Panics
    /// When the claim is not a candidate's.
    pub fn take_over(
        region: &Region<M>,
        claim: &Arc<Claim>,
        limits: &Limits,
        exists: &dyn Fn(u32) -> bool,
        intact: Intact,
    ) -> Result<Self, TakeoverError> {
        let mut row = region.sequencer_row_writer(claim);
        let (said, predecessor) = raise(region, claim);
        if !sings(Canary::RaiseFirst) {
            row.raise(&said);
        }
        let limits = fit(region, limits);
        let (core, cuts) = match predecessor {
            Some(area) => rebuild(region, area, &limits, exists)?,
            None => (Core::new(limits)?, Vec::new()),
        };
        let mut sequencer = Self {
            region: region.clone(),
            claim: Arc::clone(claim),
            goi: region.goi_writer(claim, said.epoch),
            sessions: region.session_table(claim),
            // Lanes learn of the epoch here, and do not believe it before the row is active.
            lanes: Lanes::new(region, claim, said.epoch, intact),
            row,
            said,
            newest: newest(region, &cuts),
            core,
            arrivals: Vec::new(),
            verdicts: Vec::new(),
            notices: Vec::new(),
        };
        sequencer.store_sessions();
        sequencer.store_roots(&cuts);
        sequencer.said.state = SequencerState::Active as u32;
        if reign::rows(region).any(|(_, row)| row.epoch > sequencer.said.epoch) {
            return Err(TakeoverError::Overtaken);
        }
        sequencer.row.store(&sequencer.said);
        Ok(sequencer)
    }

    fn store_sessions(&mut self) {
        let area = self.region.geometry().area_of(self.claim.row());
        let area = area.expect("only candidates sequence");
        for slot in 0..self.region.geometry().sessions {
            // Also where no session is: the epochs of a place never begin again.
            let row = self.core.session_row(slot);
            let was = self.region.session_row(area, slot);
            if was.unwrap_or_default() != row {
                self.sessions.store(slot, &row);
            }
            self.core.saved(slot, &row);
        }
    }

    fn store_roots(&mut self, cuts: &[Cut]) {
        for cut in cuts {
            let row = self.root_writer(cut.chain);
            self.goi
                .begin(cut.chain, row, cut.order, cut.start, cut.first, cut.before);
            let read = self.old_pages(cut);
            self.goi.clip_old(cut.chain, &read);
        }
        let begun = |cell: u16| cuts.iter().any(|cut| cell_of(cut.chain) == cell);
        let area = self.region.geometry().area_of(self.claim.row());
        for cell in (0..self.region.geometry().topics).filter(|cell| !begun(*cell)) {
            // Of an older reign, and deleted since.
            let old = area.and_then(|area| self.region.goi_root(area, cell));
            if old.is_some_and(|old| old != GoiRoot::default()) {
                let mut row = self.region.goi_root_writer(&self.claim, cell);
                row.store(&GoiRoot::default());
            }
        }
    }
}

impl<M: Memory> Sequencer<M> {
    /// The pages of our own area that the order leads to from before this epoch, each with the
    /// position at which it leaves it.
    fn old_pages(&self, cut: &Cut) -> Vec<(u32, u64)> {
        let area = self.region.geometry().area_of(self.claim.row());
        let mut ours = Vec::new();
        let (mut until, mut before) = (cut.start, cut.before);
        while let Some(PageRef {
            area: its_area,
            page,
            generation,
        }) = before
            && its_area < self.region.geometry().areas()
            && let Some((its, header)) = self.region.goi_reader(its_area).page(page)
            && (its, header.chain, header.in_use) == (generation, cut.chain, 1)
            && header.start < until
        {
            if Some(its_area) == area {
                ours.push((page, until));
            }
            until = header.start;
            before = header.before.checked_sub(1).map(|page| PageRef {
                area: header.before_area,
                page,
                generation: header.before_generation,
            });
        }
        ours
    }
}

/// The limits, made to fit what the region has room for.
fn fit<M: Memory>(region: &Region<M>, limits: &Limits) -> Limits {
    let geometry = region.geometry();
    // What is held may become visible all at once, and must find room in the GOI then.
    let held = geometry.goi_pages.saturating_mul(PAGE_RECORDS) / 4;
    Limits {
        sessions: geometry.sessions,
        chains: geometry.topics.into(),
        held: limits.held.min(held).max(1),
        ..limits.clone()
    }
}

/// The row of a new epoch, and the area of the one before it.
fn raise<M: Memory>(region: &Region<M>, claim: &Claim) -> (SequencerRow, Option<u16>) {
    let highest = reign::rows(region).max_by_key(|(_, row)| row.epoch);
    let said = SequencerRow {
        epoch: highest.map_or(0, |(_, row)| row.epoch) + 1,
        state: SequencerState::Raised as u32,
        incarnation: claim.incarnation(),
        pid: std::process::id(),
        ..SequencerRow::default()
    };
    let (predecessor, predecessor_row) = match highest {
        None => (0, 0),
        Some((area, row)) if reign::is_active(&row) => (row.epoch, row_of(region, area)),
        // It died before it began: whoever was before it is before us.
        Some((_, row)) => (row.predecessor, row.predecessor_row),
    };
    let said = SequencerRow {
        predecessor,
        predecessor_row,
        ..said
    };
    let area = region.geometry().area_of(predecessor_row);
    (said, area.filter(|_| predecessor > 0))
}

fn row_of<M: Memory>(region: &Region<M>, area: u16) -> u16 {
    let row = region.geometry().candidates().nth(area.into());
    row.expect("an area is a candidate's")
}

/// Reads what the predecessor left: sessions, then records, as rows of sessions count only records
/// that are visible.
///
/// A predecessor that does not know yet that it is deposed may give up pages between the two: then
/// neither the rows that were read count their records, nor are they there. So it is all read again.
fn rebuild<M: Memory>(
    region: &Region<M>,
    area: u16,
    limits: &Limits,
    exists: &dyn Fn(u32) -> bool,
) -> Result<(Core, Vec<Cut>), TakeoverError> {
    let mut heads = heads(region, area);
    for _ in 0..REBUILDS_MAX {
        let mut core = Core::new(limits.clone())?;
        for slot in 0..region.geometry().sessions {
            let Some(row) = region.session_row(area, slot) else {
                continue;
            };
            let free = SessionRow {
                epoch: row.epoch,
                ..SessionRow::default()
            };
            let stays = row.in_use == 1 && exists(row.chain);
            core.restore_session(slot, if stays { &row } else { &free })?;
        }
        let cuts = cut(region, area, &mut core, exists)?;
        let now = self::heads(region, area);
        if now == heads {
            return Ok((core, cuts));
        }
        heads = now;
    }
    Err(TakeoverError::Unsteady)
}

/// The oldest page of every chain of an area, and its generation.
fn heads<M: Memory>(region: &Region<M>, area: u16) -> Vec<Option<(u32, u32)>> {
    let pages = region.goi_reader(area);
    let head = |cell| {
        let page = region.goi_root(area, cell)?.head.checked_sub(1)?;
        Some((page, pages.page(page)?.0))
    };
    (0..region.geometry().topics).map(head).collect()
}

/// The chain of each cell.
fn newest<M: Memory>(region: &Region<M>, cuts: &[Cut]) -> Vec<Option<u32>> {
    let mut newest = vec![None; region.geometry().topics.into()];
    for cut in cuts {
        newest[usize::from(cell_of(cut.chain))] = Some(cut.chain);
    }
    newest
}

/// Finds where every chain of the predecessor ends, and tells the core of it and of the records.
fn cut<M: Memory>(
    region: &Region<M>,
    area: u16,
    core: &mut Core,
    exists: &dyn Fn(u32) -> bool,
) -> Result<Vec<Cut>, RestoreError> {
    let pages = region.goi_reader(area);
    let mut cuts = Vec::new();
    for cell in 0..region.geometry().topics {
        let Some(root) = region.goi_root(area, cell) else {
            continue;
        };
        if root.epoch == 0 || cell_of(root.chain) != cell || !exists(root.chain) {
            continue;
        }
        cuts.push(cut_chain(&pages, area, &root, core)?);
    }
    Ok(cuts)
}

fn cut_chain<M: Memory>(
    pages: &GoiReader<M>,
    area: u16,
    root: &GoiRoot,
    core: &mut Core,
) -> Result<Cut, RestoreError> {
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
    };
    let mut at = root.head.checked_sub(1);
    let head = at.and_then(|page| pages.page(page));
    // The pages before the head were released.
    cut.start = head.map_or(cut.start, |(_, header)| header.start);
    core.restore_chain(root.chain, root.order as u8, cut.start)?;
    while let Some(page) = at
        && let Some((generation, header)) = pages.page(page)
        && (header.chain, header.in_use, header.start) == (root.chain, 1, cut.start)
    {
        let this = PageRef {
            area,
            page,
            generation,
        };
        let records = (0..PAGE_RECORDS).map_while(|slot| pages.record(page, generation, slot));
        for record in records {
            let ends = record.base != cut.start || record.count == 0;
            if ends || sings(Canary::DenseCut) {
                return Ok(cut);
            }
            core.replay(root.chain, &record);
            cut.start = record.end();
            // Only now: nobody would find an older page behind one that holds nothing.
            cut.before = Some(this);
        }
        at = pages.link(page, generation);
    }
    Ok(cut)
}
