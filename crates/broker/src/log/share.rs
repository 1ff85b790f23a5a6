//! What one session may take of lanes and log while its batches wait for a predecessor.
//!
//! A batch ahead of its session is held by the sequencer until the ones before it have come, and so
//! long takes a slot of its lane here and its bytes. Nobody may take the last of that from the others:
//!
//! - Of what a lane has besides such batches, those that the sequencer has not judged yet take half at
//!   most. However many of them then turn out to be ahead, as much is left again.
//! - Fewer batches of a session are held than it leaves slots free, and no more bytes than it leaves
//!   below the low watermark, above which none are. What goes beyond is refused, to be sent again later;
//!   the batch that its session expects next never is.
//! - A batch that waits keeps its whole extent, and so does one that was placed late, until it is old
//!   itself. When what is kept so, readable or not, has become an eighth of the log and of its topic, no
//!   session of which one is held gets another one held, and from a quarter on none does. A session whose
//!   expected batch is on its way here goes on: nothing of it will wait.

use embar_memory::Memory;
use embar_wire::batch::BatchHeader;
use embar_wire::topic::Order;

use super::order::{self, Tag};
use super::{Log, NoRoom, Place};

/// What cannot go by itself may be this part of the log, and of a topic, before it matters...
const STUCK_PART: u64 = 8;
/// ...to sessions that add to it already; and this part for the others.
const STUCK_PART_MAX: u64 = 4;

impl<M: Memory> order::Ordering<M> {
    /// Submissions of all lanes that nobody knows to be ahead.
    pub(super) fn unjudged(&self) -> usize {
        let lanes = 0..self.lanes();
        lanes.map(|lane| self.unjudged_of(lane)).sum()
    }

    fn unjudged_of(&self, lane: u16) -> usize {
        let held = self.participant.held(lane);
        self.participant.in_use(lane).saturating_sub(held)
    }

    /// Whether a lane takes one more batch that nobody knows to be ahead, besides those on their way.
    fn has_share(&self, lane: u16) -> bool {
        let held = self
            .participant
            .held(lane)
            .min(self.participant.in_use(lane));
        let left = self.participant.capacity() - held;
        let unjudged = self.unjudged_of(lane) + self.on_their_way;
        unjudged < left.div_ceil(2)
    }
}

impl<M: Memory> Log<M> {
    /// Room in some lane for one batch more, until it is submitted or abandoned.
    pub(super) fn promise_lane(&self) -> Result<(), NoRoom> {
        let lanes = 0..self.region.geometry().lanes;
        let full = |lane| !self.ordering.has_share(lane);
        if lanes.into_iter().any(full) {
            return Err(NoRoom::Congested);
        }
        Ok(())
    }

    /// Whether a batch may wait for the ones before it; `None` when nobody here can know.
    fn is_ahead(&mut self, header: &BatchHeader, session: u32) -> Option<bool> {
        let order = self.ordered.get(&header.topic()).map(|topic| topic.order);
        // Where batches are placed as they come, none waits for another.
        if order != Some(Order::TotalPerPublisher) {
            return Some(false);
        }
        let expected = &mut self.ordering.expected;
        if let Some(ahead) = expected.is_ahead(session, header) {
            return Some(ahead);
        }
        // Another broker was asked for this epoch. It was answered after the session's row was stored.
        let term = self.ordering.participant.term()?;
        let is_place = session < self.region.geometry().sessions;
        let row = is_place.then(|| self.region.session_row(term.area, session).found())??;
        if (row.chain, row.producer, row.epoch)
            == (header.topic(), header.producer(), header.epoch())
        {
            expected.learn(session, row.epoch, row.expected);
        }
        expected.is_ahead(session, header)
    }

    /// What lies beside a batch that waits for others cannot go by itself until that has come.
    pub(super) fn pin_held(&mut self) {
        let (ordering, ordered) = (&mut self.ordering, &mut self.ordered);
        // Seldom any: a batch that comes in time pins nothing.
        let mut topics = Vec::new();
        ordering.participant.each_newly_held(|tag| {
            if let Tag::Batch { place, .. } = tag
                && let Some(topic) = ordered.get_mut(&place.topic)
                && topic.extents.pin(place)
            {
                topics.push(place.topic);
            }
        });
        topics.into_iter().for_each(|topic| self.resized(topic));
    }

    /// Whether a batch that was admitted, and received to this place, would leave the others less than is
    /// held of its session.
    pub(super) fn takes_too_much(
        &mut self,
        header: &BatchHeader,
        place: &Place,
        session: u32,
        lane: u16,
    ) -> bool {
        let ahead = self.is_ahead(header, session);
        if ahead == Some(false) {
            return false;
        }
        let participant = &self.ordering.participant;
        let taken = participant.in_use(lane) + self.ordering.on_their_way;
        let slots = participant.capacity().saturating_sub(taken);
        let bytes = self.intake.left_bytes();
        let stuck = self.keeps_more_than(STUCK_PART, place);
        // Cheap, and nearly always the answer.
        if participant.held(lane) < slots && self.intake.reserved_bytes() <= bytes && !stuck {
            return false;
        }
        let held = participant.held_of(header.topic(), session);
        if ahead.is_none() && !held.waits_below(header.epoch(), header.sequence()) {
            return false;
        }
        let too_large = held.bytes + u64::from(header.frame_len()) > bytes;
        let none_left = self.intake.is_above_low();
        let adds = stuck && self.adds_to_the_stuck(header, place, session, held.bytes > 0);
        held.in_lane(lane) >= slots || none_left || adds || held.bytes > 0 && too_large
    }

    /// Whether a batch that is ahead is one too many where an eighth is stuck.
    fn adds_to_the_stuck(
        &self,
        header: &BatchHeader,
        place: &Place,
        session: u32,
        holds: bool,
    ) -> bool {
        let expects = self.ordering.expected.expects(session, header.epoch());
        let participant = &self.ordering.participant;
        let comes = |number| participant.awaits(header.topic(), session, number);
        if expects.is_some_and(comes) {
            return false;
        }
        holds || self.keeps_more_than(STUCK_PART_MAX, place)
    }

    /// Whether more than this part of the log is kept by the few bytes that came late into it, or still
    /// wait, and of the topic, if what lies at this place waits, too.
    fn keeps_more_than(&self, part: u64, place: &Place) -> bool {
        if self.sizes.stuck_bytes() <= self.blog.total_bytes() / part {
            return false;
        }
        let topic = self.ordered.get(&place.topic);
        topic.is_some_and(|topic| {
            let extents = &topic.extents;
            let kept = extents.dead_bytes() + extents.pinned_bytes_with(place);
            kept > extents.occupied_bytes() / part
        })
    }
}
