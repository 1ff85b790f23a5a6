//! Batches of ordered topics: submitted to the sequencer, followed in the order, read from wherever
//! they lie.
//!
//! Invariants
//! - A batch on its way always finds room in its lane: it is admitted only while there is some for it
//!   and for all others that are on their way.
//! - Every submission is answered once, by [`Log::take_settled`] of its lane, unless this broker is
//!   overtaken: see [`Log::is_overtaken`].
//! - A batch that got no place is whole no more when that is told and its memory may be used again: no
//!   later sequencer takes it for one that nobody was told of.

use std::collections::{BTreeSet, VecDeque};

use embar_fabric::NoticeKind;
use embar_fabric::geometry::cell_of;
use embar_fabric::owner::Claim;
use embar_fabric::records::{PbrKind, PbrRecord};
use embar_fabric::region::Region;
use embar_memory::canary::{Canary, injected};
use embar_memory::{Memory, Reservation};
use embar_meter::profile::Recorder;
use embar_order::{Event, Outcome, Participant, Request, Term};
use embar_wire::ack::POSITION_UNKNOWN;
use embar_wire::batch::BatchHeader;
use embar_wire::control::ErrorCode;
use embar_wire::limits::BATCH_HEADER_BYTES;
use embar_wire::time::WallNs;

use super::expected::Expected;
use super::ordered::{Entry, Ordered};
use super::{Claimed, Log, NoRoom, Place};
use crate::profile::Stage;
use crate::topics::Topic;

/// Batches that may be looked at for the position of a duplicate's original...
const LOOKS_MAX: usize = 1 << 16;
/// ...and how many more with each poll: whoever repeats old numbers must not keep the log busy.
const LOOKS_PER_POLL: usize = 1 << 10;

/// Topics that grew, of which none is named twice if there are more.
const GROWN_MAX: usize = 1 << 10;

/// What came of [`Log::rejoin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejoin {
    /// It has taken up its work.
    Done,
    /// It has taken in some of what is there already.
    GoesOn,
    /// The sequencer has nothing to tell, yet.
    Waits,
}

/// Whose submission it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The lane, and so the thread, it came by.
    pub lane: u16,
    /// The connection, as its reactor names it.
    pub connection: u64,
    /// The batch's number among those of the connection; none if a session was asked for.
    pub batch: Option<u64>,
}

/// What became of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The batch is in the order, with its first message at this position, or
    /// [`POSITION_UNKNOWN`].
    Stored(u64),
    /// The batch has no place. The mark is that of the session, when its epoch is over.
    Refused(ErrorCode, u64),
    /// The session is open.
    Opened {
        /// Its place in the sequencer's table.
        session: u32,
        /// Its epoch.
        epoch: u32,
        /// The epoch with which it began at its place.
        first_epoch: u32,
        /// Number of the batch that is expected next.
        mark: u64,
    },
    /// Another instance has the session, in this epoch.
    Held(u32),
    /// The session is closed.
    Closed,
}

/// A submission that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Which one.
    pub ticket: Ticket,
    /// What became of it.
    pub answer: Answer,
}

/// What the participant gives back with a settled submission.
pub(super) enum Tag<M: Memory> {
    Batch {
        ticket: Ticket,
        place: Place,
        /// Written back; it is written on only if the batch gets no place.
        reservation: Reservation<M>,
    },
    Session(Ticket),
}

/// See the module.
pub(super) struct Ordering<M: Memory> {
    pub(super) participant: Participant<M, Tag<M>>,
    /// What the sequencer was last known to expect.
    pub(super) expected: Expected,
    events: Vec<Event<Tag<M>>>,
    /// By lane.
    settled: Vec<VecDeque<Settled>>,
    /// Topics that grew since they were last asked for.
    pub(super) grown: Vec<u32>,
    /// Batches of ordered topics admitted and neither submitted nor abandoned.
    pub(super) on_their_way: usize,
    /// News taken in so far.
    seen: u64,
    /// Batches that may still be looked at for the positions of duplicates.
    looks: usize,
    /// Admitted by the sequencer, and all memory that the order points to is kept.
    entered: Entered,
    pub(super) overtaken: bool,
    /// Topics whose order cannot be followed any further.
    pub(super) damaged: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    NotYet,
    Admitted,
    Done,
}

impl<M: Memory> Ordering<M> {
    pub fn new(region: &Region<M>, claim: &Claim) -> Self {
        let lanes = usize::from(region.geometry().lanes);
        Self {
            participant: Participant::new(region, claim),
            events: Vec::new(),
            settled: (0..lanes).map(|_| VecDeque::new()).collect(),
            grown: Vec::new(),
            expected: Expected::new(region.geometry().sessions),
            on_their_way: 0,
            seen: 0,
            looks: 0,
            entered: Entered::NotYet,
            overtaken: false,
            damaged: BTreeSet::new(),
        }
    }

    /// Whether a lane takes one more, besides those on their way.
    fn has_room(&self, lane: u16) -> bool {
        self.participant.in_use(lane) + self.on_their_way < self.participant.capacity()
    }

    pub fn lanes(&self) -> u16 {
        self.settled.len() as u16
    }

    /// News taken in so far: by them submissions are answered.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    pub fn begun(&mut self) {
        self.on_their_way += 1;
    }

    pub fn ended(&mut self) {
        self.on_their_way -= 1;
    }

    pub fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.settled[usize::from(ticket.lane)].push_back(Settled { ticket, answer });
    }
}

impl<M: Memory> Log<M> {
    /// Takes up work in the order again, where this row's owner before left it. To be called until
    /// it is done, before anything else; it waits for nobody, but a sequencer must be active for it
    /// to come about.
    pub fn rejoin(&mut self) -> Rejoin {
        let before = self.ordering.seen;
        let more = self.poll_order();
        let came = if self.ordering.seen > before {
            Rejoin::GoesOn
        } else {
            Rejoin::Waits
        };
        match self.ordering.entered {
            Entered::NotYet if self.ordering.participant.enter() => {
                self.ordering.entered = Entered::Admitted;
                came
            }
            // Everything that was ordered before we were admitted has been seen now.
            Entered::Admitted if !more => {
                self.void_leftovers();
                self.adopt_ordered();
                self.ordering.entered = Entered::Done;
                Rejoin::Done
            }
            Entered::NotYet | Entered::Admitted => came,
            Entered::Done => Rejoin::Done,
        }
    }

    /// The sequencer that submissions go to; none before the first was met.
    pub fn term(&self) -> Option<Term> {
        self.ordering.participant.term()
    }

    /// Whether submissions of a lane wait for their answer.
    pub fn waits_for_order(&self, lane: u16) -> bool {
        self.ordering.participant.in_use(lane) > 0
    }

    pub(super) fn open_ordered(&mut self, topic: &Topic) {
        if self.ordered.contains_key(&topic.id) {
            return;
        }
        let first = self.first_elsewhere(topic.id);
        let found = self.region.window(self.claim.row(), topic.cell());
        let is_there = found.found().is_some_and(|window| window.chain == topic.id);
        // Of a topic that is new nothing can be missing.
        let is_unsure = !is_there && self.ordering.entered == Entered::NotYet;
        let window = self.region.window_writer(&self.claim, topic.cell());
        let window = (window.announcing_to(self.elsewhere.told()), is_unsure);
        let named = (topic.id, topic.order);
        let ordered = Ordered::new(named, topic.retention_bytes, first, window);
        self.ordered.insert(topic.id, ordered);
        self.ordering.participant.open_chain(topic.id, first);
    }

    pub(super) fn close_ordered(&mut self, topic: u32) -> bool {
        let Some(mut closed) = self.ordered.remove(&topic) else {
            return false;
        };
        // Whoever still reads it elsewhere takes bytes from the memory that goes.
        let window = self.region.window(self.claim.row(), cell_of(topic)).found();
        if window.is_some_and(|window| window.chain == topic) {
            closed.close();
        }
        for (_, tag) in self.ordering.participant.close_chain(topic) {
            let ticket = self.forget(tag);
            let gone = Answer::Refused(ErrorCode::UnknownTopic, 0);
            self.ordering.answer(ticket, gone);
        }
        true
    }

    /// Orders 2 and 5: hands a received and checked batch to the sequencer. False when the topic was
    /// deleted meanwhile.
    pub fn submit(
        &mut self,
        claimed: Claimed<M>,
        mut header: BatchHeader,
        session: u32,
        ticket: Ticket,
        wall: WallNs,
        meter: &Recorder,
    ) -> bool {
        if self.takes_too_much(&header, &claimed.place, session, ticket.lane) {
            self.abandon(claimed);
            let later = Answer::Refused(ErrorCode::HeldFull, 0);
            self.ordering.answer(ticket, later);
            return true;
        }
        let Claimed {
            mut reservation,
            place,
        } = claimed;
        self.received(&place);
        let Some(topic) = self.ordered.get(&place.topic) else {
            self.intake.settle(place.len);
            return false;
        };
        let mut lap = meter.start();
        // Its position is not known yet; whoever sends it to a subscriber fills it in.
        header.stamp(0, wall);
        reservation.write(0, header.as_bytes());
        let record = PbrRecord {
            blog_at: reservation.at(),
            producer: header.producer(),
            sequence: header.sequence(),
            chain: place.topic,
            len: place.len,
            count: header.message_count(),
            payload_crc: header.payload_crc(),
            session_epoch: header.epoch(),
            session,
            incarnation: self.claim.incarnation(),
            flags: header.flags().bits(),
            kind: PbrKind::Batch as u8,
            orders: PbrRecord::pack_orders(place.order, topic.order.level()),
        };
        reservation.write_back();
        meter.lap(Stage::CompleteBatchInCxl as usize, &mut lap);
        let tag = Tag::Batch {
            ticket,
            place,
            reservation,
        };
        if self.ordering.damaged.contains(&place.topic) {
            self.refuse_damaged(tag);
            return true;
        }
        let submitted = self.ordering.participant.submit(ticket.lane, record, tag);
        assert!(
            submitted.is_ok(),
            "admit keeps room in the lane for every batch on its way"
        );
        meter.stop(Stage::ReservePbrSlotAndWriteEntry as usize, lap);
        true
    }

    /// Asks the sequencer to open a session, or its next epoch, or to close it.
    ///
    /// # Errors
    /// [`NoRoom`] when the lane is full, or the topic is not there or not ordered.
    pub fn submit_session(
        &mut self,
        topic: u32,
        request: &Request,
        ticket: Ticket,
    ) -> Result<(), NoRoom> {
        let order = self.ordered.get(&topic).ok_or(NoRoom::UnknownTopic)?.order;
        if !self.ordering.has_room(ticket.lane) {
            return Err(NoRoom::Congested);
        }
        let record = PbrRecord {
            chain: topic,
            incarnation: self.claim.incarnation(),
            orders: PbrRecord::pack_orders(0, order.level()),
            ..request.record()
        };
        let submitted = self
            .ordering
            .participant
            .submit(ticket.lane, record, Tag::Session(ticket));
        submitted.map_err(|_| NoRoom::Congested)
    }

    /// As [`Participant::restore_lost`].
    pub fn restore_lost(&mut self, lane: u16) -> bool {
        self.ordering.participant.restore_lost(lane)
    }

    /// A connection has a session, which is kept for it.
    pub fn hold_session(&mut self, session: u32) {
        self.ordering.participant.hold(session);
    }

    /// A connection that had a session is gone, or has it no more.
    pub fn release_session(&mut self, session: u32) {
        self.ordering.participant.release(session);
    }

    /// Takes in what was ordered and what the sequencer told. True when there was something, or may be
    /// more.
    pub fn poll_order(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.ordering.events);
        let grown = self.ordering.grown.len();
        let more = self.ordering.participant.poll(&mut events);
        let mut news = more || !events.is_empty();
        self.ordering.seen += events.len() as u64;
        self.ordering.looks = (self.ordering.looks + LOOKS_PER_POLL).min(LOOKS_MAX);
        let in_doubt = self.ordering.participant.is_in_doubt() && !injected(Canary::DoubtEnds);
        if in_doubt && !self.ordering.overtaken {
            self.ordering.overtaken = true;
            tracing::error!(
                "the sequencer's answer to a batch cannot be read: memory is damaged, and nobody can tell which batch it was"
            );
        }
        for event in events.drain(..) {
            match event {
                Event::Ordered { chain, record, .. } if !self.continues(chain, &record) => {
                    self.ordering.overtaken = true;
                    tracing::error!(
                        topic = chain,
                        position = record.base,
                        "the order is not the one that was read before: memory is damaged"
                    );
                }
                Event::Ordered {
                    chain,
                    record,
                    mine,
                } => {
                    let (ticket, place, span) = match mine {
                        Some((
                            _,
                            Tag::Batch {
                                ticket,
                                place,
                                reservation,
                            },
                        )) => {
                            self.intake.settle(place.len);
                            (Some(ticket), Some(place), Some(reservation.seal()))
                        }
                        _ => (None, None, None),
                    };
                    let (session, epoch) = (record.session, record.session_epoch);
                    let behind = record.sequence.saturating_add(1);
                    self.ordering.expected.learn(session, epoch, behind);
                    let topic = self.ordered.get_mut(&chain);
                    let topic = topic.expect("closed topics are followed no more");
                    topic.append(Entry::new(&record, span), place.as_ref());
                    if topic.extents.take_pins_changed() {
                        self.resized(chain);
                    }
                    if self.ordering.grown.last() != Some(&chain) {
                        self.ordering.grown.push(chain);
                    }
                    if let Some(ticket) = ticket {
                        self.ordering.answer(ticket, Answer::Stored(record.base));
                    }
                }
                Event::Answered {
                    tag,
                    record,
                    outcome,
                    ..
                } => {
                    let answer = self.answer_to(&record, &outcome);
                    let ticket = self.forget(tag);
                    self.ordering.answer(ticket, answer);
                }
                Event::Skipped { chain, first } => self.skipped(chain, first),
            }
        }
        self.ordering.events = events;
        self.pin_held();
        news |= self.look_for_damage();
        for i in grown..self.ordering.grown.len() {
            self.retain_ordered(self.ordering.grown[i]);
        }
        if self.ordering.grown.len() > GROWN_MAX {
            // Nobody has asked for long.
            self.ordering.grown.sort_unstable();
            self.ordering.grown.dedup();
        }
        news
    }

    /// Evicts what is above the retention of a topic.
    fn retain_ordered(&mut self, id: u32) {
        let exceeds = |log: &Self| log.ordered.get(&id).is_some_and(Ordered::exceeds_retention);
        while exceeds(self) && self.evict_oldest(id) {}
    }

    /// A submission that was not ordered: its memory is free at once if nothing lies behind it, or with
    /// its extent.
    pub(super) fn forget(&mut self, tag: Tag<M>) -> Ticket {
        match tag {
            Tag::Session(ticket) => ticket,
            Tag::Batch {
                ticket,
                place,
                mut reservation,
            } => {
                void(&mut reservation);
                self.intake.settle(place.len);
                if let Ok(extents) = self.extents_of(place.topic) {
                    extents.abandon(&place, reservation);
                    self.resized(place.topic);
                }
                ticket
            }
        }
    }

    fn answer_to(&mut self, record: &PbrRecord, outcome: &Outcome) -> Answer {
        let refused = |code| Answer::Refused(code, outcome.mark);
        match outcome.kind {
            NoticeKind::Opened => {
                let (session, epoch, mark) = (outcome.session, outcome.session_epoch, outcome.mark);
                self.ordering.expected.learn(session, epoch, mark);
                Answer::Opened {
                    session,
                    epoch,
                    first_epoch: outcome.first_epoch,
                    mark,
                }
            }
            NoticeKind::InUse => Answer::Held(outcome.session_epoch),
            NoticeKind::Closed => Answer::Closed,
            NoticeKind::Duplicate => {
                let topic = self.ordered.get(&record.chain);
                let original = (record.producer, record.sequence);
                let looks = &mut self.ordering.looks;
                let position = topic.and_then(|topic| topic.position_of(original, looks));
                Answer::Stored(position.unwrap_or(POSITION_UNKNOWN))
            }
            NoticeKind::Fenced => refused(ErrorCode::Fenced),
            NoticeKind::UnknownSession => refused(ErrorCode::UnknownSession),
            NoticeKind::BeyondWindow => refused(ErrorCode::BeyondWindow),
            NoticeKind::HeldFull => refused(ErrorCode::HeldFull),
            NoticeKind::SessionsFull => refused(ErrorCode::ClusterFull),
            NoticeKind::TakenOver => refused(ErrorCode::SessionTaken),
            NoticeKind::GivenUp => refused(ErrorCode::SessionGivenUp),
            NoticeKind::WrongSecret => refused(ErrorCode::WrongSecret),
            NoticeKind::Malformed => refused(ErrorCode::InvalidArgument),
            // The record was damaged in its lane; the batch was not. Whoever sent it sends it again.
            NoticeKind::Unreadable if record.kind == PbrKind::Batch as u8 => {
                refused(ErrorCode::HeldFull)
            }
            NoticeKind::Unreadable => refused(ErrorCode::NoSequencer),
        }
    }

    /// Whether any topic is ordered, or was and the sequencer has not answered all that was submitted:
    /// until then that takes slots of the lanes.
    pub fn has_ordered(&self) -> bool {
        let lanes = 0..self.region.geometry().lanes;
        !self.ordered.is_empty() || lanes.into_iter().any(|lane| self.waits_for_order(lane))
    }

    /// Appends the topics that grew since the last call.
    pub fn take_grown(&mut self, topics: &mut Vec<u32>) {
        topics.append(&mut self.ordering.grown);
    }

    /// Answers for a lane's connections, in the order in which they came to be known.
    pub fn take_settled(&mut self, lane: u16) -> Option<Settled> {
        self.ordering.settled[usize::from(lane)].pop_front()
    }

    /// Whether there are answers for any other lane.
    pub fn has_settled_besides(&self, lane: u16) -> bool {
        let mut lanes = self.ordering.settled.iter().enumerate();
        lanes.any(|(other, settled)| other != usize::from(lane) && !settled.is_empty())
    }
}

/// Makes a batch that has no place one that nobody takes for whole.
pub(super) fn void<M: Memory>(reservation: &mut Reservation<M>) {
    reservation.write(0, &[0; BATCH_HEADER_BYTES]);
    reservation.write_back();
}
