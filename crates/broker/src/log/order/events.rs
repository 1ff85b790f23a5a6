//! Takes in the events of this broker's participant in the order: which batches got their places, what the sequencer
//! answered about others, and which positions were given up before this broker read them.

use embar_fabric::records::{PbrKind, PbrRecord};
use embar_fabric::{GoiRecord, NoticeKind};
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};
use embar_order::{Event, Outcome};
use embar_wire::ack::POSITION_UNKNOWN;
use embar_wire::control::ErrorCode;

use super::{Answer, Submission};
use crate::log::Log;
use crate::log::local_topic::LocalTopic;
use crate::log::ordered_topic::OrderedBatch;

/// Batches that may be looked at for the position of a duplicate's original, at most...
const LOOKUPS_MAX: usize = 1 << 16;
/// ...and how many more with each poll: a publisher that repeats old numbers must not keep the log busy.
const LOOKUPS_PER_POLL: usize = 1 << 10;
/// Names of topics that grew, above which those that stand there twice are removed.
const GROWN_MAX: usize = 1 << 10;

impl<M: Memory> Log<M> {
    /// Takes in what was ordered, and what the sequencer answered. True when there was something, or may be
    /// more.
    pub fn poll_order(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.order.events);
        let grown = self.order.grown.len();
        let more = self.order.participant.poll(&mut events);
        let mut news = more || !events.is_empty();
        self.order.events_seen += events.len() as u64;
        self.order.lookups_left = (self.order.lookups_left + LOOKUPS_PER_POLL).min(LOOKUPS_MAX);
        self.check_doubt();
        for event in events.drain(..) {
            match event {
                Event::Ordered {
                    chain,
                    record,
                    mine,
                } => self.ordered(chain, &record, mine.map(|(_, submission)| submission)),
                Event::Answered {
                    tag,
                    record,
                    outcome,
                    ..
                } => self.answered(tag, &record, &outcome),
                Event::Skipped { chain, first } => self.skipped(chain, first),
            }
        }
        self.order.events = events;
        self.pin_held();
        news |= self.refresh_frontiers();
        news |= self.look_for_damage();
        for i in grown..self.order.grown.len() {
            self.retain(self.order.grown[i]);
        }
        if self.order.grown.len() > GROWN_MAX {
            // No thread has asked for long.
            self.order.grown.sort_unstable();
            self.order.grown.dedup();
        }
        news
    }

    /// An answer that cannot be read leaves open which batch it was for.
    fn check_doubt(&mut self) {
        let in_doubt = self.order.participant.is_in_doubt() && !injected(Canary::DoubtEnds);
        if in_doubt && !self.order.overtaken {
            self.order.overtaken = true;
            tracing::error!(
                "the sequencer's answer to a batch cannot be read: memory is damaged, and nobody can tell which batch it was"
            );
        }
    }

    /// A batch has its position in a topic. `mine` is what this broker submitted for it, if it is its own.
    fn ordered(&mut self, topic: u32, record: &GoiRecord, mine: Option<Submission<M>>) {
        if !self.continues(topic, record) {
            self.order.overtaken = true;
            tracing::error!(
                topic,
                position = record.base,
                "the order is not the one that was read before: memory is damaged"
            );
            return;
        }
        let (submitter, location, span) = match mine {
            Some(Submission::Batch { submitter, space }) => {
                self.admission.settle(space.location.len);
                let span = space.reservation.seal();
                (Some(submitter), Some(space.location), Some(span))
            }
            _ => (None, None, None),
        };
        let (session, epoch) = (record.session, record.session_epoch);
        let next = record.sequence.saturating_add(1);
        self.order.expected.learn(session, epoch, next);
        let followed = self.ordered.get_mut(&topic);
        let followed = followed.expect("`continues` found it");
        followed.append(OrderedBatch::new(record, span), location.as_ref());
        if followed.extents.take_pins_changed() {
            self.update_size(topic);
        }
        if self.order.grown.last() != Some(&topic) {
            self.order.grown.push(topic);
        }
        if let Some(submitter) = submitter {
            self.order.answer(submitter, Answer::Stored(record.base));
        }
    }

    /// The sequencer gave a submission no position.
    fn answered(&mut self, submission: Submission<M>, record: &PbrRecord, outcome: &Outcome) {
        let answer = self.answer_to(record, outcome);
        let submitter = self.release(submission);
        self.order.answer(submitter, answer);
    }

    fn answer_to(&mut self, record: &PbrRecord, outcome: &Outcome) -> Answer {
        let refused = |code| Answer::Refused(code, outcome.mark);
        match outcome.kind {
            NoticeKind::Opened => {
                let (session, epoch, mark) = (outcome.session, outcome.session_epoch, outcome.mark);
                self.order.expected.learn(session, epoch, mark);
                Answer::Opened {
                    session,
                    epoch,
                    first_epoch: outcome.first_epoch,
                    mark,
                }
            }
            NoticeKind::InUse => Answer::InUse(outcome.session_epoch),
            NoticeKind::Closed => Answer::Closed,
            NoticeKind::Duplicate => {
                let topic = self.ordered.get(&record.chain);
                let original = (record.producer, record.sequence);
                let lookups = &mut self.order.lookups_left;
                let position = topic.and_then(|topic| topic.position_of(original, lookups));
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
            // The record was damaged in its lane; the batch was not. Its publisher sends it again.
            NoticeKind::Unreadable if record.kind == PbrKind::Batch as u8 => {
                refused(ErrorCode::HeldFull)
            }
            NoticeKind::Unreadable => refused(ErrorCode::NoSequencer),
        }
    }

    /// Evicts what is above the retention of a topic.
    fn retain(&mut self, id: u32) {
        let exceeds = |log: &Self| match (log.ordered.get(&id), log.local.get(&id)) {
            (Some(topic), _) => topic.exceeds_retention(),
            (None, topic) => topic.is_some_and(LocalTopic::exceeds_retention),
        };
        while exceeds(self) && self.evict_oldest(id) {}
    }
}
