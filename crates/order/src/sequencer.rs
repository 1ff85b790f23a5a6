//! The active sequencer: takes records from all lanes, lets the core decide, and publishes the decisions in the
//! area of its candidate.
//!
//! Call order: [`Sequencer::take_over`] once, then [`Sequencer::step`] as often as there may be work, and
//! [`Sequencer::beat`] at intervals. It never waits, and nothing that it does depends on an action of another
//! process.
//!
//! Invariants
//! - A GOI record is visible before any notice, grant or session row that follows from it, and announced in the
//!   news before any notice.
//! - The row of a session is stored before a notice that follows from it, and before the last GOI record is
//!   released that shows the session differently. The session's owner is stored before the row with which it
//!   begins.
//! - A session gives up its place only after the sequencer looked at all brokers and found none that holds it.
//! - It writes nothing outside of its candidate's area.
//! - It gives up pages that brokers still keep only after the root says so and no higher epoch was seen since: a
//!   successor leads readers to our pages, and knows which of them are gone.
//! - It answers all that it holds of a chain before the chain's root goes.

mod attached;
mod lanes;
mod room;
mod takeover;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use embar_fabric::geometry::topic_record_of;
use embar_fabric::{
    ChainStart, Claim, GoiRecord, GoiRoot, GoiWriter, NewsWriter, Notice, NoticeKind, Region,
    RowWriter, SequencerRow, SessionRow, SessionTable,
};
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use crate::action::{Action, Arrival, Outcome, Source};
use crate::core::Core;
use crate::leadership;
use attached::Attachments;
pub use lanes::Intact;
use lanes::Lanes;
use room::Windows;
pub use takeover::TakeoverError;

/// Most records taken in one step.
const RECORDS_PER_STEP: usize = 4096;
/// Most records taken of one lane in one step.
const RECORDS_PER_LANE: usize = 256;

/// Most sessions and chains that one step drops, as their topics were deleted: the sequencer beats in between,
/// however many there are. A chain whose topic record a newer topic takes goes at once: their roots have the same
/// place.
const CLOSED_PER_STEP: usize = 256;

/// Chains whose newest record one beat reads back: so few lines of memory that no step takes long.
const CHAINS_PER_BEAT: usize = 128;

/// What one step did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    /// Records taken from lanes.
    pub taken: usize,
    /// Batches that were placed.
    pub ordered: usize,
    /// Rows (bit by bit) whose brokers have notices to read; all rows where a record of the order was stored again.
    pub notified: u128,
}

/// The sequencer of one term.
pub struct Sequencer<M> {
    region: Region<M>,
    claim: Arc<Claim>,
    row: RowWriter<M, SequencerRow>,
    said: SequencerRow,
    /// The newest chain of each topic record that was ordered, unless it was deleted.
    newest: Vec<Option<u32>>,
    /// By topic record: deleted chains of which something is left.
    closing: BTreeMap<u16, u32>,
    /// Chains whose order ended for good.
    damaged: Vec<u32>,
    lost_sessions: u32,
    core: Core,
    goi: GoiWriter<M>,
    sessions: SessionTable<M>,
    lanes: Lanes<M>,
    arrivals: Vec<Arrival>,
    actions: Vec<Action>,
    notices: Vec<(Source, Outcome)>,
    attachments: Attachments,
    /// Rows whose brokers were notified since the last step.
    notified: u128,
    /// Chains that have grown, or of which something was given up, and that are not announced yet.
    grown: Vec<u32>,
    order_news: NewsWriter<M>,
    given_up: NewsWriter<M>,
    /// The windows that brokers announce to have raised.
    windows: Windows<M>,
    may_give_up: MayGiveUp,
}

/// Whether the order of a chain may be given up below a position: not while it is nowhere else, and has to be.
pub type MayGiveUp = Box<dyn Fn(u32, u64) -> bool + Send>;

impl<M> fmt::Debug for Sequencer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Sequencer");
        shown.field("said", &self.said).finish_non_exhaustive()
    }
}

impl<M: Memory> Sequencer<M> {
    /// The epoch.
    pub fn epoch(&self) -> u32 {
        self.said.epoch
    }

    /// Chains that were taken over up to where memory is damaged. Nothing is ordered in them any more.
    pub fn damaged(&self) -> &[u32] {
        &self.damaged
    }

    /// Sessions that were not taken over, as their rows are damaged. They are unknown from now on.
    pub fn lost_sessions(&self) -> u32 {
        self.lost_sessions
    }

    /// From now on the sequencer gives up only what this allows; before, anything.
    pub fn set_may_give_up(&mut self, may_give_up: MayGiveUp) {
        self.may_give_up = may_give_up;
    }

    /// The core, with its counters.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Takes what is in the lanes, orders it and notifies brokers of the rest. `now` is in nanoseconds of any
    /// clock; `exists` says whether a chain exists, and is asked of chains that this sequencer has not met before.
    pub fn step(&mut self, now: u64, exists: &dyn Fn(u32) -> bool) -> Step {
        self.arrivals.clear();
        self.close_some();
        let most = self.make_room();
        if most == 0 {
            return Step::default();
        }
        let taken = self
            .lanes
            .take(&self.region, &self.core, most, &mut self.arrivals);
        for source in self.lanes.take_unreadable() {
            let outcome = Outcome::only(NoticeKind::Unreadable);
            self.notices.push((source, outcome));
        }
        self.refuse_other_chains(exists);
        self.look_at_brokers(now);
        self.core.arrive(&self.arrivals, now, &mut self.actions);
        self.core.elapse(now, &mut self.actions);
        let ordered = self.carry_out();
        self.publish_notices();
        let step = Step {
            taken,
            ordered,
            notified: std::mem::take(&mut self.notified),
        };
        self.lanes.grant(&mut self.core);
        step
    }

    /// A chain that has a newer one in its topic record was deleted: records that are still under way to it must not
    /// take the root from the newer one. Nor must a chain that never existed, where memory is damaged.
    fn refuse_other_chains(&mut self, exists: &dyn Fn(u32) -> bool) {
        let mut other = None;
        for i in 0..self.arrivals.len() {
            let chain = self.arrivals[i].record.chain;
            // `exists` takes long, and a client that sends to a deleted chain sends much.
            if !self.is_newest(chain) && other.replace(chain) != Some(chain) {
                self.meet_chain(chain, exists);
            }
        }
        if other.is_some() {
            // Also those that came before the newer chain was met.
            let mut arrivals = std::mem::take(&mut self.arrivals);
            arrivals.retain(|arrival| {
                let stays = self.is_newest(arrival.record.chain);
                if !stays {
                    let outcome = Outcome::only(NoticeKind::UnknownSession);
                    self.notices.push((arrival.source, outcome));
                }
                stays
            });
            self.arrivals = arrivals;
        }
    }

    fn is_newest(&self, chain: u32) -> bool {
        self.newest.get(usize::from(topic_record_of(chain))) == Some(&Some(chain))
    }

    /// A chain that is newer than the one in its topic record takes its place.
    fn meet_chain(&mut self, chain: u32, exists: &dyn Fn(u32) -> bool) {
        let Some(newest) = self.newest.get_mut(usize::from(topic_record_of(chain))) else {
            return;
        };
        let ended = self.damaged.contains(&chain);
        if newest.is_none_or(|newest| newest < chain) && !ended && exists(chain) {
            let older = newest.replace(chain);
            // The roots of both have the same place.
            let closing = self.closing.remove(&topic_record_of(chain));
            for older in older.into_iter().chain(closing) {
                self.drop_chain(older);
            }
        }
    }

    /// Drops a chain.
    fn drop_chain(&mut self, chain: u32) {
        self.shrink_chain(chain, usize::MAX);
    }

    /// Drops at most `most` sessions of a chain, and the chain with the last of them; returns how many it dropped.
    /// It answers what it holds of the chain before the root goes: brokers rely on that.
    fn shrink_chain(&mut self, chain: u32, most: usize) -> usize {
        let gone = self.core.shrink_chain(chain, most, &mut self.actions);
        self.carry_out();
        self.publish_notices();
        if self.core.chain_next(chain).is_none() {
            self.goi.drop_chain(chain);
        }
        gone
    }

    /// Does the core's actions, but for the notices; returns how many batches it placed.
    fn carry_out(&mut self) -> usize {
        let (mut ordered, mut fenced) = (0, 0);
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Place { arrival, base } => {
                    self.place(&arrival, base);
                    ordered += 1;
                }
                Action::SaveOwner { session, owner } => self.sessions.store_owner(session, &owner),
                Action::SaveSession { session, row } => {
                    // The row counts what was placed before it.
                    if std::mem::replace(&mut fenced, ordered) != ordered {
                        self.goi.fence();
                    }
                    self.save(session, &row);
                }
                Action::Notify { source, outcome } => self.notices.push((source, outcome)),
            }
        }
        self.actions = actions;
        if fenced != ordered {
            self.goi.fence();
        }
        self.announce_grown();
        ordered
    }

    /// Announces the chains that have grown: brokers look at these alone.
    fn announce_grown(&mut self) {
        self.grown.sort_unstable();
        self.grown.dedup();
        if !injected(Canary::OrderNews) {
            self.order_news.announce(&self.grown);
        }
        self.grown.clear();
    }

    fn save(&mut self, session: u32, row: &SessionRow) {
        if row.in_use == 1 {
            // Brokers know a chain by its root, so the root comes before the first session's row.
            self.begin(row.chain, row.order);
        }
        if !injected(Canary::SessionRowFirst) {
            self.sessions.store(session, row);
        }
        self.core.saved(session, row);
    }

    /// Makes the root of a chain that has none yet, as nothing of it was ever ordered.
    fn begin(&mut self, chain: u32, order: u16) {
        if !self.goi.has(chain) {
            let row = self.root_writer(chain);
            let at = ChainStart {
                chain,
                order,
                ..ChainStart::default()
            };
            self.goi.begin(row, &at);
        }
    }

    fn place(&mut self, arrival: &Arrival, base: u64) {
        let Arrival { source, record } = arrival;
        let chain = record.chain;
        self.begin(chain, record.order_level().into());
        let ordered = GoiRecord {
            base,
            payload_at: record.payload_at,
            producer: record.producer,
            sequence: record.sequence,
            lane_number: source.number as u32,
            len: record.len,
            count: record.count,
            session_epoch: record.session_epoch,
            session: record.session,
            incarnation: source.incarnation as u16,
            row: source.row as u8,
            lane_and_order: GoiRecord::pack_lane_and_order(source.lane, record.extent_order()),
        };
        let appended = self.goi.append(chain, &ordered);
        appended.expect("room is made before records are taken");
        self.lanes.placed(source);
        if self.grown.last() != Some(&chain) {
            self.grown.push(chain);
        }
    }

    fn root_writer(&self, chain: u32) -> RowWriter<M, GoiRoot> {
        self.region
            .goi_root_writer(&self.claim, topic_record_of(chain))
    }

    /// Publishes the notices of this step.
    fn publish_notices(&mut self) {
        for (source, outcome) in self.notices.drain(..) {
            let notice = Notice {
                lane_number: source.number,
                mark: outcome.mark,
                kind: outcome.kind as u32,
                session_epoch: outcome.session_epoch,
                session: outcome.session,
                epoch: self.said.epoch,
                first_epoch: outcome.first_epoch,
                reserved: [0; 20],
            };
            if self.lanes.notify(&source, &notice) {
                self.notified |= 1 << source.row;
            }
        }
    }

    /// Beats, looks for brokers that came or went, gives back pages that no broker reads any more, and stores the
    /// newest records again where memory has lost them. False when a successor has raised a higher epoch: then
    /// nothing that this sequencer does counts any more, and it should end.
    pub fn beat(&mut self, alive: &dyn Fn(u16) -> bool) -> bool {
        if self.is_deposed() {
            return false;
        }
        self.said.beat += 1;
        self.row.store(&self.said);
        self.lanes.look_after(&self.region, alive);
        if !self.attachments.look_after(&self.region, alive) {
            self.core.await_holders();
        }
        self.release();
        self.restore_newest();
        true
    }

    /// Stores the newest records again that memory has lost: nothing shows brokers, which wait for them, that they
    /// are.
    fn restore_newest(&mut self) {
        let restored = self.goi.restore_newest(CHAINS_PER_BEAT);
        if !restored.is_empty() {
            self.order_news.announce(&restored);
            self.notified = u128::MAX;
        }
    }

    fn is_deposed(&self) -> bool {
        leadership::rows(&self.region).any(|(_, row)| row.epoch > self.said.epoch)
    }

    /// A chain does not exist any more: the next steps forget it, and give its pages back.
    pub fn close_chain(&mut self, chain: u32) {
        let topic_record = topic_record_of(chain);
        // Records that are still under way to it do not open it again.
        if let Some(newest) = self.newest.get_mut(usize::from(topic_record)) {
            newest.take_if(|newest| *newest == chain);
        }
        if self.core.chain_next(chain).is_none() && !self.goi.holds(chain) {
            return;
        }
        let other = self.closing.insert(topic_record, chain);
        if let Some(other) = other.filter(|other| *other != chain) {
            self.drop_chain(other);
        }
    }

    /// Whether chains that were closed still have to go: the next step goes on.
    pub fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// As [`Sequencer::close_chain`], for all chains that do not exist any more.
    pub fn retain_chains(&mut self, exists: &dyn Fn(u32) -> bool) {
        for newest in &mut self.newest {
            newest.take_if(|chain| !exists(*chain));
        }
        let known = self.core.chains().map(|(chain, ..)| chain);
        // Of some there are only old pages, as no session opened them in this epoch.
        let gone = known.chain(self.goi.chains());
        let gone: Vec<u32> = gone.filter(|chain| !exists(*chain)).collect();
        gone.into_iter().for_each(|chain| self.close_chain(chain));
    }

    /// Drops as much of the deleted chains as one step may.
    fn close_some(&mut self) {
        let mut most = CLOSED_PER_STEP;
        while most > 0
            && let Some((topic_record, chain)) = self.closing.pop_first()
        {
            most -= 1;
            most -= self.shrink_chain(chain, most);
            if self.core.chain_next(chain).is_some() {
                self.closing.insert(topic_record, chain);
            }
        }
    }
}
