//! Batches of ordered topics on their way through the sequencer: submitted by lane, answered once.
//!
//! Invariants
//! - A batch in flight always finds a slot in its lane: it is admitted only while there is one for it
//!   and for all others that are in flight.
//! - Every submission is answered once, by [`Log::take_answered`] of its lane, unless this broker is
//!   overtaken: see [`Log::is_overtaken`].
//! - A batch that got no position is void before its submitter learns that and its memory may be used again: no
//!   later sequencer takes it for one that still waits.

mod events;

use std::collections::{BTreeSet, VecDeque};

use embar_fabric::geometry::topic_record_of;
use embar_fabric::owner::Claim;
use embar_fabric::records::{PbrKind, PbrRecord};
use embar_fabric::region::Region;
use embar_memory::{Memory, Reservation};
use embar_meter::profile::Recorder;
use embar_order::{Event, Participant, Request, Term};
use embar_wire::batch::BatchHeader;
use embar_wire::control::ErrorCode;
use embar_wire::limits::BATCH_HEADER_BYTES;
use embar_wire::time::WallNs;
use embar_wire::topic::Order;

use super::expected::ExpectedBatches;
use super::ordered_topic::OrderedTopic;
use super::{AdmitError, BatchSpace, LaneSpace, Location, Log};
use crate::profile::Stage;
use crate::topics::Topic;

/// What came of [`Log::rejoin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejoin {
    /// The log has taken up its work.
    Done,
    /// It has taken in some of what was there, and goes on with the next call.
    Progressed,
    /// It waits for the sequencer.
    Waiting,
}

/// Who is answered when a submission is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitter {
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
    /// [`POSITION_UNKNOWN`](embar_wire::ack::POSITION_UNKNOWN).
    Stored(u64),
    /// The batch has no position. The mark is that of the session, when its epoch is over.
    Refused(ErrorCode, u64),
    /// The session is open.
    Opened {
        /// Its slot in the sequencer's table.
        session: u32,
        /// Its epoch.
        epoch: u32,
        /// The epoch with which it began in its slot.
        first_epoch: u32,
        /// Number of the batch that is expected next.
        mark: u64,
    },
    /// Another instance has the session, in this epoch.
    InUse(u32),
    /// The session is closed.
    Closed,
}

/// A submission that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Whose submission it was.
    pub submitter: Submitter,
    /// What became of it.
    pub answer: Answer,
}

/// What the participant gives back when it settles a submission.
pub(super) enum Submission<M: Memory> {
    Batch {
        submitter: Submitter,
        /// Written back. The log writes to it again only if the batch gets no position.
        space: BatchSpace<M>,
    },
    Session(Submitter),
}

/// This broker's part in the global order: its participant, and what it makes of the participant's events.
pub(super) struct OrderState<M: Memory> {
    pub(super) participant: Participant<M, Submission<M>>,
    /// What the sequencer was last known to expect.
    pub(super) expected: ExpectedBatches,
    /// Empty between two polls; kept for its memory.
    events: Vec<Event<Submission<M>>>,
    events_seen: u64,
    /// By lane.
    answered: Vec<VecDeque<Answered>>,
    /// Topics that grew since they were last asked for.
    pub(super) grown: Vec<u32>,
    /// Batches of ordered topics admitted and neither submitted nor abandoned.
    pub(super) in_flight: usize,
    /// How many batches may still be looked at for the positions of duplicates.
    lookups_left: usize,
    join: JoinState,
    pub(super) overtaken: bool,
    /// Topics whose order cannot be followed any further.
    pub(super) damaged: BTreeSet<u32>,
}

/// How far [`Log::rejoin`] has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinState {
    NotYet,
    /// The sequencer takes what this incarnation submits.
    Admitted,
    /// All memory that the order points to is kept.
    Done,
}

impl<M: Memory> OrderState<M> {
    pub fn new(region: &Region<M>, claim: &Claim) -> Self {
        let lanes = usize::from(region.geometry().lanes);
        Self {
            participant: Participant::new(region, claim),
            events: Vec::new(),
            answered: (0..lanes).map(|_| VecDeque::new()).collect(),
            grown: Vec::new(),
            expected: ExpectedBatches::new(region.geometry().sessions),
            in_flight: 0,
            events_seen: 0,
            lookups_left: 0,
            join: JoinState::NotYet,
            overtaken: false,
            damaged: BTreeSet::new(),
        }
    }

    /// Whether a lane takes one more submission, besides the batches in flight.
    fn has_slot(&self, lane: u16) -> bool {
        self.participant.in_use(lane) + self.in_flight < self.participant.capacity()
    }

    pub fn lanes(&self) -> u16 {
        self.answered.len() as u16
    }

    /// Events taken in so far. They answer submissions.
    pub fn events_seen(&self) -> u64 {
        self.events_seen
    }

    /// One batch more is in flight.
    pub fn begin_batch(&mut self) {
        self.in_flight += 1;
    }

    /// A batch was submitted or abandoned.
    pub fn end_batch(&mut self) {
        self.in_flight -= 1;
    }

    pub fn answer(&mut self, submitter: Submitter, answer: Answer) {
        self.answered[usize::from(submitter.lane)].push_back(Answered { submitter, answer });
    }
}

impl<M: Memory> Log<M> {
    /// Takes up work in the order again, where this row's owner before left it. Call this until it is done,
    /// before anything else. It never blocks, but comes to an end only while a sequencer is active.
    pub fn rejoin(&mut self) -> Rejoin {
        let before = self.order.events_seen;
        let more = self.poll_order();
        let came = if self.order.events_seen > before {
            Rejoin::Progressed
        } else {
            Rejoin::Waiting
        };
        match self.order.join {
            JoinState::NotYet if self.order.participant.enter() => {
                self.order.join = JoinState::Admitted;
                came
            }
            // The log has seen everything that was ordered before the sequencer admitted it.
            JoinState::Admitted if !more => {
                self.void_stale();
                self.adopt_ordered();
                self.order.join = JoinState::Done;
                Rejoin::Done
            }
            JoinState::NotYet | JoinState::Admitted => came,
            JoinState::Done => Rejoin::Done,
        }
    }

    /// The term of the sequencer that submissions go to; none before the first one was found.
    pub fn term(&self) -> Option<Term> {
        self.order.participant.term()
    }

    /// How full all lanes are together.
    pub fn lanes(&self) -> LaneSpace {
        let participant = &self.order.participant;
        let lanes = 0..self.region.geometry().lanes;
        let sum = |of: &dyn Fn(u16) -> usize| lanes.clone().map(|lane| of(lane) as u64).sum();
        LaneSpace {
            used: sum(&|lane| participant.in_use(lane)),
            held: sum(&|lane| participant.held(lane)),
            capacity: sum(&|_| participant.capacity()),
        }
    }

    /// Whether submissions of a lane wait for their answer.
    pub fn waits_for_order(&self, lane: u16) -> bool {
        self.order.participant.in_use(lane) > 0
    }

    pub(super) fn open_ordered(&mut self, topic: &Topic) {
        if self.ordered.contains_key(&topic.id) {
            return;
        }
        let first = self.first_kept_by_all(topic.id);
        let found = self.region.window(self.claim.row(), topic.record());
        let has_window = found.found().is_some_and(|window| window.chain == topic.id);
        // A topic that is opened later is new: no window of it can be missing.
        let window_lost = !has_window && self.order.join == JoinState::NotYet;
        let window = self.region.window_writer(&self.claim, topic.record());
        let window = window.announcing_to(self.remote_windows.announcements());
        let undurable = self.frontiers.undurable();
        let ordered = OrderedTopic::new(topic, first, window, window_lost, undurable);
        self.ordered.insert(topic.id, ordered);
        self.order.participant.open_chain(topic.id, first);
        if topic.former_disks != 0 {
            self.frontiers.follow_moved(topic.id);
        }
        if let Some(term) = self.term() {
            self.refresh_frontier(topic.id, term);
        }
    }

    pub(super) fn close_ordered(&mut self, topic: u32) -> bool {
        let Some(mut closed) = self.ordered.remove(&topic) else {
            return false;
        };
        // Readers at other brokers still take bytes from the memory that goes.
        let window = self
            .region
            .window(self.claim.row(), topic_record_of(topic))
            .found();
        if window.is_some_and(|window| window.chain == topic) {
            closed.close();
        }
        for (_, submission) in self.order.participant.close_chain(topic) {
            let submitter = self.release(submission);
            let gone = Answer::Refused(ErrorCode::UnknownTopic, 0);
            self.order.answer(submitter, gone);
        }
        true
    }

    /// Orders 2 and 5: hands a received and checked batch to the sequencer. False when the topic was
    /// deleted meanwhile.
    pub fn submit(
        &mut self,
        space: BatchSpace<M>,
        mut header: BatchHeader,
        session: u32,
        submitter: Submitter,
        wall: WallNs,
        meter: &Recorder,
    ) -> bool {
        let location = space.location;
        if self.exceeds_quota(&header, &location, session, submitter.lane) {
            self.abandon(space);
            let later = Answer::Refused(ErrorCode::HeldFull, 0);
            self.order.answer(submitter, later);
            return true;
        }
        self.end_batch(&location);
        let Some(order) = self.ordered.get(&location.topic).map(|topic| topic.order) else {
            self.admission.settle(location.len);
            return false;
        };
        let mut lap = meter.start();
        // Its position is not known yet; whoever sends it to a subscriber fills it in.
        header.stamp(0, wall);
        let mut space = space;
        space.reservation.write(0, header.as_bytes());
        let record = self.batch_record(&header, &space, order, session);
        space.reservation.write_back();
        meter.lap(Stage::CompleteBatchInCxl as usize, &mut lap);
        let submission = Submission::Batch { submitter, space };
        if self.order.damaged.contains(&location.topic) {
            self.refuse_damaged(submission);
            return true;
        }
        let participant = &mut self.order.participant;
        let submitted = participant.submit(submitter.lane, record, submission);
        assert!(
            submitted.is_ok(),
            "`ensure_lane_slot` keeps a slot for every batch in flight"
        );
        meter.stop(Stage::ReservePbrSlotAndWriteEntry as usize, lap);
        true
    }

    fn batch_record(
        &self,
        header: &BatchHeader,
        space: &BatchSpace<M>,
        order: Order,
        session: u32,
    ) -> PbrRecord {
        let Location {
            topic,
            len,
            extent_order,
            ..
        } = space.location;
        PbrRecord {
            payload_at: space.reservation.at(),
            producer: header.producer(),
            sequence: header.sequence(),
            chain: topic,
            len,
            count: header.message_count(),
            payload_crc: header.payload_crc(),
            session_epoch: header.epoch(),
            session,
            incarnation: self.claim.incarnation(),
            flags: header.flags().bits(),
            kind: PbrKind::Batch as u8,
            orders: PbrRecord::pack_orders(extent_order, order.level()),
        }
    }

    /// Asks the sequencer to open a session, or its next epoch, or to close it.
    ///
    /// # Errors
    /// [`AdmitError`] when the lane is full, or the topic is not there or not ordered.
    pub fn submit_session(
        &mut self,
        topic: u32,
        request: &Request,
        submitter: Submitter,
    ) -> Result<(), AdmitError> {
        let known = self.ordered.get(&topic).ok_or(AdmitError::UnknownTopic)?;
        if !self.order.has_slot(submitter.lane) {
            return Err(AdmitError::Congested);
        }
        let record = PbrRecord {
            chain: topic,
            incarnation: self.claim.incarnation(),
            orders: PbrRecord::pack_orders(0, known.order.level()),
            ..request.record()
        };
        let participant = &mut self.order.participant;
        let submission = Submission::Session(submitter);
        let submitted = participant.submit(submitter.lane, record, submission);
        submitted.map_err(|_| AdmitError::Congested)
    }

    /// As [`Participant::restore_lost`].
    pub fn restore_lost(&mut self, lane: u16) -> bool {
        self.order.participant.restore_lost(lane)
    }

    /// A connection has a session, which the sequencer keeps for it.
    pub fn hold_session(&mut self, session: u32) {
        self.order.participant.hold(session);
    }

    /// A connection that had a session is gone, or has it no more.
    pub fn release_session(&mut self, session: u32) {
        self.order.participant.release(session);
    }

    /// Gives back what a submission has that was not ordered. Its memory is free at once if nothing was
    /// reserved behind it, else together with its extent.
    pub(super) fn release(&mut self, submission: Submission<M>) -> Submitter {
        match submission {
            Submission::Session(submitter) => submitter,
            Submission::Batch { submitter, space } => {
                let BatchSpace {
                    mut reservation,
                    location,
                } = space;
                void(&mut reservation);
                self.admission.settle(location.len);
                if let Ok(extents) = self.extents_of(location.topic) {
                    extents.abandon(&location, reservation);
                    self.update_size(location.topic);
                }
                submitter
            }
        }
    }

    /// Whether this broker has to look what the sequencing process says: of what it orders, or of disks.
    pub fn follows_sequencer(&self) -> bool {
        self.has_ordered() || self.frontiers.has_local()
    }

    /// Whether any topic is ordered, or was and the sequencer has not answered all that was submitted:
    /// until then that takes slots of the lanes.
    pub fn has_ordered(&self) -> bool {
        let lanes = 0..self.region.geometry().lanes;
        !self.ordered.is_empty() || lanes.into_iter().any(|lane| self.waits_for_order(lane))
    }

    /// Appends the topics that grew since the last call.
    pub fn take_grown(&mut self, topics: &mut Vec<u32>) {
        topics.append(&mut self.order.grown);
    }

    /// The next answer for a connection of this lane, in the order in which they came.
    pub fn take_answered(&mut self, lane: u16) -> Option<Answered> {
        self.order.answered[usize::from(lane)].pop_front()
    }

    /// Whether there are answers for a lane. A thread that only takes in what was ordered, as each heartbeat does, leaves them.
    pub fn has_answered(&self, lane: u16) -> bool {
        !self.order.answered[usize::from(lane)].is_empty()
    }

    /// Whether there are answers for any other lane.
    pub fn has_answered_besides(&self, lane: u16) -> bool {
        let mut lanes = self.order.answered.iter().enumerate();
        lanes.any(|(other, answered)| other != usize::from(lane) && !answered.is_empty())
    }
}

/// Overwrites the header of a batch that has no position, so that no sequencer takes the batch for whole.
pub(super) fn void<M: Memory>(reservation: &mut Reservation<M>) {
    reservation.write(0, &[0; BATCH_HEADER_BYTES]);
    reservation.write_back();
}
