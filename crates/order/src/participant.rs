//! A data broker's part in ordering: it submits batches to the sequencer, follows what the sequencer ordered, and
//! learns the outcome of each submission.
//!
//! Call order: [`Participant::open_chain`] for every ordered chain, [`Participant::submit`] as batches complete,
//! [`Participant::poll`] whenever there may be news. Nothing here waits.
//!
//! Invariants
//! - A participant settles each submission exactly once: by its GOI record ([`Event::Ordered`] with its tag) or by
//!   a notice ([`Event::Answered`]).
//! - The sequencer finds every session held that has a batch which is not settled.
//! - A participant reports the records of a chain dense and in order, and only those that count (see
//!   [`leadership`](mod@crate::leadership)).
//! - Before it submits anything to a new sequencer, it has reported everything that the predecessor ordered: what
//!   is still unsettled then was not ordered.

mod attached;
mod lane;

use std::collections::{BTreeMap, BTreeSet};

use embar_fabric::geometry::topic_record_of;
use embar_fabric::{Claim, GoiRecord, PbrRecord, Region, Seen};
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use crate::action::Outcome;
use crate::changed_chains::ChangedChains;
use crate::follower::{Follower, Found};
use crate::leadership::{self, Leadership, Term};
use attached::Holds;
use lane::{Lane, session_of};

/// Most records that one poll takes of one chain.
const RECORDS_PER_POLL: usize = 1024;

/// What a poll found.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// The next batch of a chain.
    Ordered {
        /// The chain.
        chain: u32,
        /// The batch: where it is, and where its bytes are.
        record: GoiRecord,
        /// Lane and tag, if this broker submitted it.
        mine: Option<(u16, T)>,
    },
    /// A submission was not ordered.
    Answered {
        /// The lane of the submission.
        lane: u16,
        /// Its tag.
        tag: T,
        /// The record.
        record: PbrRecord,
        /// Why, or what happened instead.
        outcome: Outcome,
    },
    /// The sequencer released positions of a chain before they were read here; the chain goes on at `first`.
    ///
    /// What this broker submitted to the chain and is not settled may be among them, or may not: the broker can no
    /// longer find out. A broker that has such batches ends, and its next incarnation goes on.
    Skipped {
        /// The chain.
        chain: u32,
        /// First position that is kept.
        first: u64,
    },
}

/// What the sequencer holds of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holding {
    by_lane: Vec<usize>,
    /// Bytes in all.
    pub bytes: u64,
    /// Its newest epoch among them, and their lowest number in that.
    lowest: Option<(u32, u64)>,
}

impl Holding {
    /// Batches that this broker submitted to a lane.
    pub fn in_lane(&self, lane: u16) -> usize {
        self.by_lane[usize::from(lane)]
    }

    /// Whether a batch of this epoch with a lower number waits: then the batch `number` will wait, too.
    pub fn waits_below(&self, epoch: u32, number: u64) -> bool {
        let lowest = self.lowest.filter(|(newest, _)| *newest == epoch);
        lowest.is_some_and(|(_, lowest)| lowest < number)
    }

    fn add(&mut self, record: &PbrRecord) {
        self.bytes += u64::from(record.len);
        let (epoch, number) = (record.session_epoch, record.sequence);
        self.lowest = match self.lowest {
            Some((newest, _)) if newest > epoch => self.lowest,
            Some((newest, lowest)) if newest == epoch => Some((epoch, lowest.min(number))),
            _ => Some((epoch, number)),
        };
    }
}

/// The lane's ring is full of unsettled submissions: submit again after a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lane is full of batches that wait for their place in the order")]
pub struct LaneFull;

/// Submits a broker's batches and reports what became of them. `T` comes back with a settled submission.
#[derive(Debug)]
pub struct Participant<M, T> {
    region: Region<M>,
    row: u16,
    incarnation: u32,
    /// The term whose sequencer the lanes are begun for.
    term: Option<Term>,
    entry: Entry,
    lanes: Vec<Lane<M, T>>,
    holds: Holds<M>,
    chains: BTreeMap<u32, Follower<M>>,
    /// Closed chains that may still take slots of lanes.
    closed: BTreeSet<u32>,
    changed: ChangedChains<M>,
    /// Chains that may have more than was read.
    due: Vec<u32>,
    /// Chains that cannot be followed any further; they stay due.
    damaged: BTreeSet<u32>,
    /// The highest epoch that any broker of the region has seen active.
    seen: u32,
    /// Of the chain being read; kept for its memory.
    read: Vec<GoiRecord>,
}

/// How far an incarnation is in joining.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// The sequencer may still order what older incarnations left.
    Asked,
    /// It orders nothing of that any more, but not all that it ordered is reported.
    Admitted,
    /// All of it is reported.
    Done,
}

impl<M: Memory, T> Participant<M, T> {
    /// The part of the claimed row.
    pub fn new(region: &Region<M>, claim: &Claim) -> Self {
        // All lanes: older incarnations may have used more than this one will.
        let lanes =
            (0..region.geometry().lanes).map(|lane| Lane::new(region.lane_writer(claim, lane)));
        Self {
            row: claim.row(),
            incarnation: claim.incarnation(),
            term: None,
            entry: Entry::Asked,
            lanes: lanes.collect(),
            holds: Holds::new(region, claim),
            chains: BTreeMap::new(),
            closed: BTreeSet::new(),
            changed: ChangedChains::of_order(),
            due: Vec::new(),
            damaged: BTreeSet::new(),
            seen: leadership::adopted(region),
            read: Vec::new(),
            region: region.clone(),
        }
    }

    /// Begins to follow a chain from a position on, unless it is followed already.
    pub fn open_chain(&mut self, chain: u32, from: u64) {
        self.chains.entry(chain).or_insert_with(|| {
            self.due.push(chain);
            Follower::new(&self.region, chain, from)
        });
    }

    /// A chain may have more to read: the next poll looks.
    pub fn look_again(&mut self, chain: u32) {
        self.due.push(chain);
    }

    /// Follows a chain no more, as it was deleted. Gives back the tags of its unsettled submissions, which will
    /// never be settled.
    pub fn close_chain(&mut self, chain: u32) -> Vec<(u16, T)> {
        self.chains.remove(&chain);
        self.damaged.remove(&chain);
        let tags = self.disown(chain);
        if self.lanes.iter_mut().any(|lane| lane.is_closing(chain)) {
            self.closed.insert(chain);
        }
        tags
    }

    /// Gives back the tags of a chain's unsettled submissions and asks for them no more, as their outcome cannot be
    /// known. They keep their slots of lanes until the sequencer has answered them.
    pub fn disown(&mut self, chain: u32) -> Vec<(u16, T)> {
        let mut left = Vec::new();
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            let tags = lane.close_chain(chain).into_iter();
            left.extend(tags.map(|tag| (number as u16, tag)));
        }
        left
    }

    /// The chains that cannot be followed any further, as their order is damaged. The caller disowns what it
    /// submitted to them; until then the participant submits nothing to a new sequencer.
    pub fn damaged(&self) -> impl Iterator<Item = u32> {
        self.damaged.iter().copied()
    }

    /// Whether the sequencer published an answer to a submission that cannot be read, as memory is damaged. A
    /// broker with such a submission ends, and its next incarnation goes on.
    pub fn is_in_doubt(&self) -> bool {
        self.lanes.iter().any(Lane::is_unreadable)
    }

    /// The position that comes next of a chain, if it is followed.
    pub fn next(&self, chain: u32) -> Option<u64> {
        self.chains.get(&chain).map(Follower::next)
    }

    /// The term whose sequencer gets the submissions; none before the first was met.
    pub fn term(&self) -> Option<Term> {
        self.term
    }

    /// Asks to be admitted. The caller calls this between polls until it is true: then no sequencer will order
    /// anything of this broker's older incarnations any more, and the participant has reported all that was
    /// ordered. Memory that no record points to is free then. The broker submits nothing before.
    pub fn enter(&mut self) -> bool {
        if self.entry == Entry::Asked && self.is_admitted() {
            self.entry = Entry::Admitted;
        }
        self.entry == Entry::Done
    }

    fn is_admitted(&mut self) -> bool {
        let Some(term) = self.term else {
            return false;
        };
        let admitted = |lane: u16| {
            let grant = self.region.lane_grant(term.area, self.row, lane).found();
            grant.is_some_and(|g| g.epoch == term.epoch && g.incarnation == self.incarnation)
        };
        // All lanes, whichever of them older incarnations have used.
        if !(0..self.lanes.len() as u16).all(admitted) {
            return false;
        }
        // A sequencer that finds this on its lanes takes nothing of what was left. A poll of the same term, which
        // lasts, follows before the broker uses any memory.
        if !injected(Canary::AdmittedFlag) {
            self.lanes.iter_mut().for_each(Lane::set_admitted);
        }
        true
    }

    /// Unsettled submissions of a lane, and those that the sequencer has not even taken; at
    /// [`Participant::capacity`] the lane is full.
    pub fn in_use(&self, lane: u16) -> usize {
        self.lanes[usize::from(lane)].in_use()
    }

    /// Submissions of a lane that the sequencer holds, as they wait for a predecessor.
    pub fn held(&self, lane: u16) -> usize {
        self.lanes[usize::from(lane)].held()
    }

    /// Calls `each` with the tags of batches that the participant found held since the last call.
    pub fn each_newly_held(&mut self, mut each: impl FnMut(&T)) {
        for lane in &mut self.lanes {
            lane.newly_held().for_each(&mut each);
        }
    }

    /// What the sequencer holds of a session. Looks at all unsettled submissions.
    pub fn held_of(&self, chain: u32, session: u32) -> Holding {
        let mut holding = Holding::default();
        for lane in &self.lanes {
            let mut batches = 0;
            for record in lane.held_of(chain, session) {
                batches += 1;
                holding.add(record);
            }
            holding.by_lane.push(batches);
        }
        holding
    }

    /// Whether this batch of a session was submitted and is not settled. Looks at all unsettled submissions.
    pub fn awaits(&self, chain: u32, session: u32, number: u64) -> bool {
        let mut lanes = self.lanes.iter();
        lanes.any(|lane| lane.awaits(chain, session, number))
    }

    /// Whether there are batches of a chain that were submitted and are not settled.
    pub fn awaits_places(&self, chain: u32) -> bool {
        self.lanes.iter().any(|lane| lane.awaits_places(chain))
    }

    /// Submissions that a lane has room for.
    pub fn capacity(&self) -> usize {
        self.region.geometry().lane_slots as usize
    }

    /// Submits a record to the sequencer; a later poll reports its outcome.
    ///
    /// # Errors
    /// [`LaneFull`], with the tag.
    pub fn submit(&mut self, lane: u16, record: PbrRecord, tag: T) -> Result<(), (LaneFull, T)> {
        let session = session_of(&record);
        session.inspect(|session| self.holds.hold(*session));
        let submitted = self.lanes[usize::from(lane)].submit(record, tag);
        if submitted.is_err() {
            session.inspect(|session| self.holds.release(*session));
        }
        submitted
    }

    /// A connection has a session: the sequencer does not give it up for others. To be called once for each
    /// connection.
    pub fn hold(&mut self, session: u32) {
        self.holds.hold(session);
    }

    /// A connection that had a session has it no more.
    pub fn release(&mut self, session: u32) {
        self.holds.release(session);
    }

    fn release_settled(&mut self) {
        for lane in &mut self.lanes {
            lane.take_released().for_each(|it| self.holds.release(it));
        }
    }

    /// Stores a submission again that memory lost before the sequencer could read it, so that it does not hold up
    /// its lane. The caller calls this at intervals: it reads the submission back that has waited since the call
    /// before. Returns whether the submission was lost.
    pub fn restore_lost(&mut self, lane: u16) -> bool {
        self.lanes[usize::from(lane)].restore_lost()
    }

    /// Takes in all news. True when there is more than one call takes in.
    pub fn poll(&mut self, events: &mut Vec<Event<T>>) -> bool {
        let more = self.take_in(events);
        self.release_settled();
        more
    }

    fn take_in(&mut self, events: &mut Vec<Event<T>>) -> bool {
        let leadership = Leadership::observe(&self.region);
        // An older term shows where the row of the active candidate is lost.
        let Some(next) = leadership.term.filter(|next| next.epoch >= self.seen) else {
            return false;
        };
        if self.term != Some(next) {
            return self.adopt(next, events);
        }
        let row = self.row;
        let unknown = self.unknown(next);
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if lane.in_use() > 0 {
                lane.look(&self.region, next, (row, self.incarnation), number as u16);
            }
        }
        let Some(more) = self.follow(next, events) else {
            return true;
        };
        // The sequencer orders what a notice follows from before it publishes the notice: it must be read first.
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if more {
                lane.forget_look();
            } else {
                lane.accept(number as u16, events);
            }
        }
        if !more {
            for chain in unknown {
                let mut more_of_it = false;
                for lane in &mut self.lanes {
                    more_of_it |= lane.give_up(chain);
                }
                if !more_of_it {
                    self.closed.remove(&chain);
                }
            }
        }
        if !more && self.entry == Entry::Admitted {
            self.entry = Entry::Done;
        }
        more
    }

    /// Closed chains that the sequencer does not know any more, or not yet. It makes a chain's root before it takes
    /// the first record of the chain, and answers all that it holds before the root goes: it has answered or
    /// ordered whatever it had taken before.
    fn unknown(&self, term: Term) -> Vec<u32> {
        let is_unknown =
            |chain: &u32| match self.region.goi_root(term.area, topic_record_of(*chain)) {
                Seen::Found(it) => (it.chain, it.epoch) != (*chain, term.epoch),
                Seen::Nothing => true,
                Seen::Damaged => false,
            };
        self.closed.iter().copied().filter(is_unknown).collect()
    }

    /// Finds out which chains may have more: all of them when the announcements do not say, as in a new term.
    fn listen(&mut self, term: Term) {
        if !self.changed.take(&self.region, term, &mut self.due) {
            self.due.clear();
            self.due.extend(self.chains.keys());
        }
        self.due.sort_unstable();
        self.due.dedup();
    }

    /// Reads on in every chain that may have more. `None` when what was read does not count.
    fn follow(&mut self, term: Term, events: &mut Vec<Event<T>>) -> Option<bool> {
        self.listen(term);
        let mut due = std::mem::take(&mut self.due);
        let more = self.follow_these(term, &due, events);
        if more.is_some() {
            // The others were read to their ends: the sequencer announces when they grow.
            due.clear();
            due.append(&mut self.due);
            due.extend(&self.damaged);
        }
        self.due = due;
        more
    }

    fn follow_these(
        &mut self,
        term: Term,
        due: &[u32],
        events: &mut Vec<Event<T>>,
    ) -> Option<bool> {
        for chain in due {
            let Some(follower) = self.chains.get_mut(chain) else {
                continue;
            };
            let mark = follower.mark();
            self.read.clear();
            let found = follower.read(term, RECORDS_PER_POLL, &mut self.read);
            if self.read.is_empty() && found == Found::End && !follower.is_damaged() {
                if !self.damaged.is_empty() {
                    self.damaged.remove(chain);
                }
                continue;
            }
            if !term.lasts(&self.region) && !injected(Canary::LastsAfterFollow) {
                follower.back_to(mark);
                self.lanes.iter_mut().for_each(Lane::forget_look);
                self.due.clear();
                return None;
            }
            if follower.is_damaged() {
                self.damaged.insert(*chain);
            } else {
                self.damaged.remove(chain);
            }
            let chain = *chain;
            for record in self.read.drain(..) {
                let mine = settle(&mut self.lanes, self.row, self.incarnation, &record);
                events.push(Event::Ordered {
                    chain,
                    record,
                    mine,
                });
            }
            match found {
                Found::End => {}
                Found::More => self.due.push(chain),
                Found::Gone { first } => {
                    self.due.push(chain);
                    follower.seek(first);
                    events.push(Event::Skipped { chain, first });
                }
            }
        }
        if !term.lasts(&self.region) && !injected(Canary::LastsAfterNotices) {
            self.lanes.iter_mut().for_each(Lane::forget_look);
            self.due.clear();
            return None;
        }
        Some(!self.due.is_empty())
    }

    /// Takes in what was ordered before this term, then submits to its sequencer all that was not.
    fn adopt(&mut self, term: Term, events: &mut Vec<Event<T>>) -> bool {
        if !injected(Canary::FollowToStart) && !self.follow_to_start(term, events) {
            return true;
        }
        for lane in &mut self.lanes {
            lane.begin(term.epoch);
        }
        self.closed.clear();
        self.seen = term.epoch;
        self.term = Some(term);
        true
    }

    /// Whether all that was ordered before this term is taken in, or never will be, as it is damaged, and no
    /// submission waits for it any more.
    fn follow_to_start(&mut self, term: Term, events: &mut Vec<Event<T>>) -> bool {
        if self.follow(term, events) != Some(false) {
            return false;
        }
        let behind = |(chain, follower): (&u32, &Follower<M>)| {
            follower
                .start_of(term)
                .is_some_and(|start| follower.next() < start)
                && (!follower.is_damaged() || self.awaits_places(*chain))
        };
        !self.chains.iter().any(behind)
    }
}

/// Finds the submission that a record of the GOI is the place of.
fn settle<M: Memory, T>(
    lanes: &mut [Lane<M, T>],
    row: u16,
    incarnation: u32,
    record: &GoiRecord,
) -> Option<(u16, T)> {
    let ours = u16::from(record.row) == row && record.incarnation == incarnation as u16;
    let lane = lanes.get_mut(usize::from(record.lane())).filter(|_| ours)?;
    Some((record.lane(), lane.place(record)?))
}
