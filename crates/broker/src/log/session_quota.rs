//! What one session may take of lanes and log while its batches wait for a predecessor.
//!
//! The sequencer holds a batch that is ahead of its session until the ones before it have come. Until then it
//! takes a slot of its lane here, and its bytes. No session may take the last of these from the others:
//!
//! - Of what a lane has besides such batches, those that the sequencer has not judged yet take half at
//!   most. However many of them then turn out to be ahead, as much is left again.
//! - Fewer batches of a session are held than it leaves slots free, and no more bytes than it leaves
//!   below the low watermark, above which none are. What goes beyond is refused, to be sent again later;
//!   the batch that its session expects next never is.
//! - A batch that waits keeps its whole extent, and so does one that was placed late, until it is old
//!   itself. When what is kept so, readable or not, has become an eighth of the log and of its topic, no
//!   session of which one is held gets another one held, and from a quarter on none does. A session whose
//!   expected batch is in flight here goes on: nothing of it will wait.

use embar_memory::Memory;
use embar_wire::batch::BatchHeader;
use embar_wire::topic::Order;

use super::order::{OrderState, Submission};
use super::{AdmitError, Location, Log};

/// Bytes that nothing can free by itself may be this part of the log, and of a topic, before it matters...
const STUCK_PART: u64 = 8;
/// ...to sessions that add to them already; and this part for the others.
const STUCK_PART_MAX: u64 = 4;

impl<M: Memory> OrderState<M> {
    /// Submissions of all lanes that are not known to be ahead.
    pub(super) fn unjudged(&self) -> usize {
        let lanes = 0..self.lanes();
        lanes.map(|lane| self.unjudged_of(lane)).sum()
    }

    fn unjudged_of(&self, lane: u16) -> usize {
        let held = self.participant.held(lane);
        self.participant.in_use(lane).saturating_sub(held)
    }

    /// Whether a lane takes one more batch that is not known to be ahead, besides those in flight.
    fn has_unjudged_slot(&self, lane: u16) -> bool {
        let held = self
            .participant
            .held(lane)
            .min(self.participant.in_use(lane));
        let left = self.participant.capacity() - held;
        let unjudged = self.unjudged_of(lane) + self.in_flight;
        unjudged < left.div_ceil(2)
    }
}

impl<M: Memory> Log<M> {
    /// Whether each lane has a slot for one batch more, until that is submitted or abandoned.
    pub(super) fn ensure_lane_slot(&self) -> Result<(), AdmitError> {
        let lanes = 0..self.region.geometry().lanes;
        let full = |lane| !self.order.has_unjudged_slot(lane);
        if lanes.into_iter().any(full) {
            return Err(AdmitError::Congested);
        }
        Ok(())
    }

    /// Whether a batch may wait for the ones before it; `None` when nothing here says so.
    fn is_ahead(&mut self, header: &BatchHeader, session: u32) -> Option<bool> {
        let order = self.ordered.get(&header.topic()).map(|topic| topic.order);
        // Where batches are placed as they come, none waits for another.
        if order != Some(Order::TotalPerPublisher) {
            return Some(false);
        }
        let expected = &mut self.order.expected;
        if let Some(ahead) = expected.is_ahead(session, header) {
            return Some(ahead);
        }
        // The session was renewed at another broker, after the sequencer had stored its row.
        let term = self.order.participant.term()?;
        let is_slot = session < self.region.geometry().sessions;
        let row = is_slot.then(|| self.region.session_row(term.area, session).found())??;
        if (row.chain, row.producer, row.epoch)
            == (header.topic(), header.producer(), header.epoch())
        {
            expected.learn(session, row.epoch, row.expected);
        }
        expected.is_ahead(session, header)
    }

    /// Pins what lies beside batches that the sequencer holds: it cannot be evicted by itself until these are
    /// settled.
    pub(super) fn pin_held(&mut self) {
        let (order, ordered) = (&mut self.order, &mut self.ordered);
        // Seldom any: a batch that comes in time pins nothing.
        let mut topics = Vec::new();
        order.participant.each_newly_held(|submission| {
            if let Submission::Batch { space, .. } = submission
                && let Some(topic) = ordered.get_mut(&space.location.topic)
                && topic.extents.pin(&space.location)
            {
                topics.push(space.location.topic);
            }
        });
        topics.into_iter().for_each(|topic| self.update_size(topic));
    }

    /// Whether a batch that was admitted, and received to this location, would leave the others less than is
    /// held of its session.
    pub(super) fn exceeds_quota(
        &mut self,
        header: &BatchHeader,
        location: &Location,
        session: u32,
        lane: u16,
    ) -> bool {
        let ahead = self.is_ahead(header, session);
        if ahead == Some(false) {
            return false;
        }
        let participant = &self.order.participant;
        let taken = participant.in_use(lane) + self.order.in_flight;
        let slots = participant.capacity().saturating_sub(taken);
        let bytes = self.admission.left_bytes();
        let stuck = self.keeps_more_than(STUCK_PART, location);
        // Cheap, and nearly always the answer.
        if participant.held(lane) < slots && self.admission.reserved_bytes() <= bytes && !stuck {
            return false;
        }
        let held = participant.held_of(header.topic(), session);
        if ahead.is_none() && !held.waits_below(header.epoch(), header.sequence()) {
            return false;
        }
        let too_large = held.bytes + u64::from(header.frame_len()) > bytes;
        let none_left = self.admission.is_above_low();
        let adds = stuck && self.adds_to_the_stuck(header, location, session, held.bytes > 0);
        held.in_lane(lane) >= slots || none_left || adds || held.bytes > 0 && too_large
    }

    /// Whether a batch that is ahead is one too many where an eighth is stuck.
    fn adds_to_the_stuck(
        &self,
        header: &BatchHeader,
        location: &Location,
        session: u32,
        holds: bool,
    ) -> bool {
        let expected = self.order.expected.number(session, header.epoch());
        let participant = &self.order.participant;
        let comes = |number| participant.awaits(header.topic(), session, number);
        if expected.is_some_and(comes) {
            return false;
        }
        holds || self.keeps_more_than(STUCK_PART_MAX, location)
    }

    /// Whether batches that came late, or still wait, keep more than this part of the log, and of the topic if
    /// what lies at this location waits, too.
    fn keeps_more_than(&self, part: u64, location: &Location) -> bool {
        if self.sizes.stuck_bytes() <= self.payload_file.total_bytes() / part {
            return false;
        }
        let topic = self.ordered.get(&location.topic);
        topic.is_some_and(|topic| {
            let extents = &topic.extents;
            let kept = extents.dead_bytes() + extents.pinned_bytes_with(location);
            kept > extents.occupied_bytes() / part
        })
    }
}
