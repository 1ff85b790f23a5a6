//! Becoming the sequencer: raise, cut, rebuild, and only then begin.
//!
//! 1. *Raise*: the candidate's row shows an epoch above all others. From here on nothing that a predecessor writes
//!    counts. Only after that the candidate settles who its predecessor is: the one that was active last. A
//!    candidate that becomes active after our raise never counts.
//! 2. *Cut*: of every chain the dense run of records that the predecessor made visible. The chain goes on behind it
//!    or, where memory is damaged, ends there for good.
//! 3. *Rebuild*: the predecessor's session rows, and the records since.
//! 4. *Begin*: the candidate stores everything that a successor will need in its own area, session rows before
//!    roots. It grants lanes for the epoch; then its row says that it is active.
//!
//! Any number of candidates may be in here at once, and any of them may stand still for as long as it likes: none
//! waits for another. Epochs differ, as each area has its own (those that leave its number when divided by the
//! number of areas), and the highest one wins.
//!
//! A candidate that dies on the way leaves a raised row that names the predecessor. It may have been writing to the
//! predecessor's own area (the same candidate, restarted). What is there is complete at every point: a root that
//! was not rewritten leads to the records, a root that was has their sum, and all session rows were stored before
//! it.

mod cut;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use embar_fabric::geometry::topic_record_of;
use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::{
    ChainStart, Claim, GoiRoot, GoiWriter, PageRef, Region, RowWriter, Seen, SequencerRow,
    SequencerState, SessionOwner, SessionRow, SessionTable,
};
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use super::Sequencer;
use super::attached::Attachments;
use super::lanes::{Intact, Lanes};
use super::room::Windows;
use crate::core::{Core, RestoreError};
use crate::leadership;
use crate::limits::{Limits, LimitsError};
use cut::cut;

/// Why a candidate gave up a takeover.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TakeoverError {
    /// Another candidate has raised a higher epoch meanwhile.
    #[error("another candidate has raised a higher epoch")]
    Overtaken,
    /// Limits that cannot be.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// Epochs are used up.
    #[error(
        "no epoch is left above {0}: the rows of the sequencers are damaged; start with a fresh region"
    )]
    NoEpoch(u32),
    /// The predecessor lives, and gives up pages faster than the candidate reads them.
    #[error("the sequencer before goes on giving up what is read: try again")]
    Unsteady,
}

/// How often a candidate reads what a predecessor left, when that changes meanwhile.
const REBUILDS_MAX: u32 = 1000;
/// The sequencer gives out places from the lowest on, so those that were ever used lie together: behind so many
/// without a row there is none. (One may be missing where memory is damaged.) A takeover reads no more.
const EMPTY_RUN: u32 = 256;
/// How often a candidate reads a session whose row and owner are at odds.
const OWNER_LOOKS: u32 = 8;
/// Pages or rows between two beats: well below a lease.
const STEPS_PER_BEAT: u32 = 512;

/// Rounds that a candidate whose row cannot be read may have raised without any other having seen them.
const HIDDEN_ROUNDS: u32 = 1 << 10;

/// What a predecessor left, as far as it can be read.
struct Left {
    core: Core,
    cuts: Vec<ChainStart>,
    /// Sessions whose rows cannot be read, or make no sense.
    lost_sessions: u32,
}

impl Left {
    fn nothing(limits: Limits) -> Result<Self, LimitsError> {
        Ok(Self {
            core: Core::new(limits)?,
            cuts: Vec::new(),
            lost_sessions: 0,
        })
    }
}

impl<M: Memory> Sequencer<M> {
    /// Takes over. Leaves behind chains for which `exists` is false, as they were deleted. `intact` says whether
    /// the bytes of what dead brokers left are whole.
    ///
    /// # Errors
    /// [`TakeoverError`]; the row stays raised, so the next candidate raises above it.
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
        // What takes long and concerns no other process comes before others wait for us.
        let mut goi = region.goi_writer(claim, 0);
        let sessions = region.session_table(claim);
        let mut pulse = raise(region, claim)?;
        goi.set_epoch(pulse.said.epoch);
        let limits = fit(region, limits);
        let left = match pulse.predecessor(region) {
            Some(area) => rebuild(region, area, &limits, exists, &mut pulse)?,
            None => Left::nothing(limits)?,
        };
        let (mut sequencer, cuts) =
            Self::succeed(region, claim, (goi, sessions), left, pulse, intact);
        sequencer.store_sessions();
        sequencer.store_roots(&cuts);
        sequencer.said.state = SequencerState::Active as u32;
        sequencer.said.beat += 1;
        if leadership::rows(region).any(|(_, row)| row.epoch > sequencer.said.epoch) {
            return Err(TakeoverError::Overtaken);
        }
        sequencer.row.store(&sequencer.said);
        Ok(sequencer)
    }

    /// A sequencer that goes on with what its predecessor left, and where it cuts the chains. Its row does not show
    /// yet that it is active.
    fn succeed(
        region: &Region<M>,
        claim: &Arc<Claim>,
        (goi, sessions): (GoiWriter<M>, SessionTable<M>),
        left: Left,
        Pulse { row, said, .. }: Pulse<M>,
        intact: Intact,
    ) -> (Self, Vec<ChainStart>) {
        let damaged = left.cuts.iter().filter(|cut| cut.is_damaged);
        let sequencer = Self {
            region: region.clone(),
            claim: Arc::clone(claim),
            goi,
            sessions,
            // Brokers see the epoch here, and do not count it before the row is active.
            lanes: Lanes::new(region, claim, said.epoch, intact),
            row,
            said,
            newest: newest(region, &left.cuts),
            closing: BTreeMap::new(),
            damaged: damaged.map(|cut| cut.chain).collect(),
            lost_sessions: left.lost_sessions,
            core: left.core,
            arrivals: Vec::new(),
            actions: Vec::new(),
            notices: Vec::new(),
            attachments: Attachments::new(region),
            notified: 0,
            grown: Vec::new(),
            order_news: region.order_news_writer(claim),
            given_up: region.given_up_writer(claim),
            windows: Windows::new(region),
            may_give_up: Box::new(|_, _| true),
        };
        (sequencer, left.cuts)
    }

    fn say_alive(&mut self) {
        self.said.beat += 1;
        self.row.store(&self.said);
    }

    fn store_sessions(&mut self) {
        let area = self.region.geometry().area_of(self.claim.row());
        let area = area.expect("only candidates sequence");
        let mut empty = 0;
        for slot in 0..self.region.geometry().sessions {
            if slot % STEPS_PER_BEAT == 0 {
                self.say_alive();
            }
            // Also places without a session: the epochs of a place never begin again.
            let row = self.core.session_row(slot);
            let seen = self.region.session_row(area, slot);
            let is_empty = seen == Seen::Nothing && row == SessionRow::default();
            empty = if is_empty { empty + 1 } else { 0 };
            if empty == EMPTY_RUN {
                break;
            }
            let owner = self.core.session_owner(slot);
            if owner.is_some() && owner != self.region.session_owner(area, slot).found() {
                self.sessions.store_owner(slot, &owner.unwrap_or_default());
            }
            let was = match seen {
                Seen::Nothing => Some(SessionRow::default()),
                seen => seen.found(),
            };
            if was != Some(row) {
                self.sessions.store(slot, &row);
            }
            self.core.saved(slot, &row);
        }
    }

    fn store_roots(&mut self, cuts: &[ChainStart]) {
        for cut in cuts {
            self.say_alive();
            let row = self.root_writer(cut.chain);
            self.goi.begin(row, cut);
            let read = self.old_pages(cut);
            self.goi.clip_old(cut.chain, &read);
        }
        let begun: HashSet<u16> = cuts.iter().map(|cut| topic_record_of(cut.chain)).collect();
        let area = self.region.geometry().area_of(self.claim.row());
        for topic_record in
            (0..self.region.geometry().topics).filter(|topic_record| !begun.contains(topic_record))
        {
            // The chain is of an older term, and was deleted since.
            let old = area.map_or(Seen::Nothing, |area| {
                self.region.goi_root(area, topic_record)
            });
            if old != Seen::Nothing && old != Seen::Found(GoiRoot::default()) {
                let mut row = self.region.goi_root_writer(&self.claim, topic_record);
                row.store(&GoiRoot::default());
            }
        }
    }
}

impl<M: Memory> Sequencer<M> {
    /// The pages of our own area that the order of earlier epochs leads to, each with the position at which the
    /// order leaves it.
    fn old_pages(&mut self, cut: &ChainStart) -> Vec<(u32, u64)> {
        let area = self.region.geometry().area_of(self.claim.row());
        let (mut ours, mut walked) = (Vec::new(), 0_u32);
        let (mut until, mut before) = (cut.start, cut.before);
        while let Some(PageRef {
            area: its_area,
            page,
            generation,
        }) = before
            && its_area < self.region.geometry().areas()
            && let Seen::Found((its, header)) = self.region.goi_reader(its_area).page(page)
            && (its, header.chain, header.in_use) == (generation, cut.chain, 1)
            && header.start < until
        {
            walked += 1;
            if walked.is_multiple_of(STEPS_PER_BEAT) {
                self.say_alive();
            }
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

/// The limits, reduced to what the region has room for.
fn fit<M: Memory>(region: &Region<M>, limits: &Limits) -> Limits {
    let geometry = region.geometry();
    // All that is held may become visible at once, and must find room in the GOI then.
    let held = geometry.goi_pages.saturating_mul(PAGE_RECORDS) / 4;
    Limits {
        sessions: geometry.sessions,
        chains: geometry.topics.into(),
        held: limits.held.min(held).max(1),
        ..limits.clone()
    }
}

/// The row of a candidate that takes over, and beats meanwhile: others would take a silent candidate for one that
/// stands still.
struct Pulse<M> {
    row: RowWriter<M, SequencerRow>,
    said: SequencerRow,
    steps: u32,
}

impl<M: Memory> Pulse<M> {
    /// The area of the predecessor.
    fn predecessor(&self, region: &Region<M>) -> Option<u16> {
        let area = region.geometry().area_of(self.said.predecessor_row);
        area.filter(|_| self.said.predecessor > 0)
    }

    /// To be called for each page or row.
    fn step(&mut self) {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_BEAT) && !injected(Canary::RaiseFirst) {
            self.said.beat += 1;
            self.row.store(&self.said);
        }
    }
}

/// Raises an epoch above all others.
fn raise<M: Memory>(region: &Region<M>, claim: &Claim) -> Result<Pulse<M>, TakeoverError> {
    let (areas, area) = (
        region.geometry().areas(),
        region.geometry().area_of(claim.row()),
    );
    let raised = leadership::rows(region).map(|(_, row)| row.epoch).max();
    let highest = raised.unwrap_or(0).max(leadership::adopted(region));
    let hidden = if leadership::is_damaged(region) {
        HIDDEN_ROUNDS
    } else {
        0
    };
    let round = highest / u32::from(areas) + 1 + hidden;
    let epoch = round.checked_mul(areas.into());
    let epoch = epoch.and_then(|epoch| epoch.checked_add(area?.into()));
    let (predecessor, predecessor_row) = latest_term(region);
    let said = SequencerRow {
        epoch: epoch.ok_or(TakeoverError::NoEpoch(highest))?,
        state: SequencerState::Raised as u32,
        incarnation: claim.incarnation(),
        pid: std::process::id(),
        predecessor,
        predecessor_row,
        ..SequencerRow::default()
    };
    let row = region.sequencer_row_writer(claim);
    let mut pulse = Pulse {
        row,
        said,
        steps: 0,
    };
    if injected(Canary::RaiseFirst) {
        return Ok(pulse);
    }
    pulse.row.raise(&said);
    if leadership::rows(region).any(|(_, row)| row.epoch > said.epoch) {
        return Err(TakeoverError::Overtaken);
    }
    // A candidate that raised before us may have become active since: then it counted.
    let (predecessor, predecessor_row) = latest_term(region);
    if predecessor != said.predecessor {
        pulse.said = SequencerRow {
            predecessor,
            predecessor_row,
            ..said
        };
        pulse.row.raise(&pulse.said);
    }
    Ok(pulse)
}

/// The epoch and row of the candidate that was active last. A row that was raised and is not active yet names the
/// one before it.
fn latest_term<M: Memory>(region: &Region<M>) -> (u32, u16) {
    let terms = leadership::rows(region).map(|(area, row)| {
        if leadership::is_active(&row) {
            (row.epoch, row_of(region, area))
        } else {
            (row.predecessor, row.predecessor_row)
        }
    });
    // Where a row is lost, brokers still show for which epoch they began their lanes.
    let adopted = leadership::adopted(region);
    let adopted = (
        adopted,
        row_of(region, leadership::area_of(region, adopted)),
    );
    let said = terms.max().unwrap_or((0, 0));
    if adopted.0 > said.0 { adopted } else { said }
}

fn row_of<M: Memory>(region: &Region<M>, area: u16) -> u16 {
    let row = region.geometry().candidates().nth(area.into());
    row.expect("an area is a candidate's")
}

/// Reads what the predecessor left: sessions, then records, as rows of sessions count only records that are
/// visible.
///
/// A predecessor that does not know yet that it is deposed may give up pages between the two. Then neither do the
/// rows that were read count the records of these pages, nor are the records there. So it is all read again.
fn rebuild<M: Memory>(
    region: &Region<M>,
    area: u16,
    limits: &Limits,
    exists: &dyn Fn(u32) -> bool,
    pulse: &mut Pulse<M>,
) -> Result<Left, TakeoverError> {
    let mut heads = heads(region, area);
    for _ in 0..REBUILDS_MAX {
        let mut left = Left::nothing(limits.clone())?;
        let mut empty = 0;
        for slot in 0..region.geometry().sessions {
            pulse.step();
            let seen = session(region, area, slot);
            empty = if seen == Seen::Nothing { empty + 1 } else { 0 };
            if empty == EMPTY_RUN {
                break;
            }
            left.restore_session(slot, seen, exists);
        }
        left.cuts = cut(region, area, &mut left.core, exists, pulse);
        let now = self::heads(region, area);
        if now == heads {
            return Ok(left);
        }
        heads = now;
    }
    Err(TakeoverError::Unsteady)
}

/// A session and its owner. A predecessor that does not know yet that it is deposed may change them meanwhile;
/// where they stay at odds, it died between the two.
fn session<M: Memory>(
    region: &Region<M>,
    area: u16,
    slot: u32,
) -> Seen<(SessionRow, SessionOwner)> {
    let mut last = Seen::Nothing;
    for _ in 0..OWNER_LOOKS {
        let row = match region.session_row(area, slot) {
            Seen::Found(row) => row,
            Seen::Nothing => return Seen::Nothing,
            Seen::Damaged => return Seen::Damaged,
        };
        let owner = match region.session_owner(area, slot) {
            // No client could prove that the session is its own.
            Seen::Damaged if row.in_use == 1 => return Seen::Damaged,
            seen => seen.found().unwrap_or_default(),
        };
        if row.in_use == 0 || row.first_epoch == owner.first_epoch {
            return Seen::Found((row, owner));
        }
        last = Seen::Found((row, SessionOwner::default()));
    }
    last
}

impl Left {
    /// A session whose row is lost is unknown from now on, and its place is not used again, as its epochs are
    /// unknown.
    fn restore_session(
        &mut self,
        slot: u32,
        seen: Seen<(SessionRow, SessionOwner)>,
        exists: &dyn Fn(u32) -> bool,
    ) {
        let free = |epoch: u32| SessionRow {
            epoch,
            ..SessionRow::default()
        };
        let restored = match seen {
            Seen::Nothing => return,
            Seen::Found((row, owner)) if row.in_use == 1 && exists(row.chain) => {
                self.core.restore_session(slot, &row, &owner)
            }
            Seen::Found((row, owner)) => self.core.restore_session(slot, &free(row.epoch), &owner),
            Seen::Damaged => Err(RestoreError::NoEpoch { session: slot }),
        };
        if restored.is_err() {
            self.lost_sessions += 1;
            let owner = SessionOwner::default();
            let retired = self.core.restore_session(slot, &free(u32::MAX), &owner);
            debug_assert_eq!(retired, Ok(()), "limits were made to fit the region");
        }
    }
}

/// The oldest page of every chain of an area, and its generation.
fn heads<M: Memory>(region: &Region<M>, area: u16) -> Vec<Option<(u32, u32)>> {
    let pages = region.goi_reader(area);
    let head = |topic_record| {
        let page = region
            .goi_root(area, topic_record)
            .found()?
            .head
            .checked_sub(1)?;
        Some((page, pages.page(page).found()?.0))
    };
    (0..region.geometry().topics).map(head).collect()
}

/// The chain of each topic record, but for those that are damaged.
fn newest<M: Memory>(region: &Region<M>, cuts: &[ChainStart]) -> Vec<Option<u32>> {
    let mut newest = vec![None; region.geometry().topics.into()];
    for cut in cuts.iter().filter(|cut| !cut.is_damaged) {
        newest[usize::from(topic_record_of(cut.chain))] = Some(cut.chain);
    }
    newest
}
