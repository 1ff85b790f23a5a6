//! What becomes of a session when its cluster loses its memory: a broker of another region answers, and the sequencer there
//! knows of the session what is on the disks, or nothing.
//!
//! The publisher opens its session there anew, and takes it over from the instance that had it when the disks last heard of
//! it. Only then does the mark say which of its batches are left. Connections to the old region end at once, and nothing
//! is handed out until they have: so a number is given anew only where nobody has a batch with it.

use embar_frame::Now;
use embar_wire::acks::Acks;
use embar_wire::control::{ErrorCode, PublisherOpened, SessionHeld};

use super::super::channel::differ;
use super::super::receipt::{Failure, Outcome};
use super::super::session::Sequence;
use super::PublisherCore;
use crate::error::ClientError;

impl PublisherCore {
    /// Whether the broker that answers on this channel is of another region than the session.
    pub(super) fn is_elsewhere(&self, index: usize) -> bool {
        let region = self.channels[index].region;
        let session = self.session.as_ref();
        session.is_some_and(|session| differ(session.region(), region))
    }

    /// A broker of another region announced this publisher to the sequencer there.
    pub(super) fn move_session(&mut self, index: usize, opened: &PublisherOpened, now: Now) {
        let region = self.channels[index].region;
        let Some(session) = &mut self.session else {
            return;
        };
        if !self.channels[index].may_move_from(session.region()) {
            self.channels[index].leave_region();
            return;
        }
        session.reopen(opened, region);
        self.end_epoch();
        for channel in &mut self.channels {
            if differ(channel.region, region) {
                channel.leave_region();
            }
        }
        self.reopen_session(now);
    }

    /// In another region, another instance has the identity. That is the one before this one, if the disks have nothing of
    /// this one.
    pub(super) fn session_held_elsewhere(&mut self, index: usize, held: &SessionHeld, now: Now) {
        let region = self.channels[index].region;
        let Some(session) = &mut self.session else {
            return;
        };
        if !self.channels[index].may_move_from(session.region()) {
            self.channels[index].leave_region();
            return;
        }
        if held.session_epoch >= session.epoch() {
            // Whoever was before this one has an earlier epoch: so it is from a takeover that this one did not hear of.
            self.fail_session(ErrorCode::SessionTaken, now);
            return;
        }
        session.is_held_in(region);
        let terms = self.terms();
        self.channels[index].take_over(&self.config, terms, held.session_epoch, now);
    }

    /// Goes on in the new region, if no connection has a batch any more.
    pub(super) fn reopen_session(&mut self, now: Now) {
        let Some(session) = &mut self.session else {
            return;
        };
        let Some(mark) = session.reopened_at() else {
            return;
        };
        let mut channels = self.channels.iter();
        if channels.any(|channel| channel.in_flight.sequences().next().is_some()) {
            return;
        }
        if session.was_used_by_another(mark) {
            self.fail_session(ErrorCode::SessionTaken, now);
            return;
        }
        // Out of sequence, batches may be stored ahead of the mark; with acks 2, those of this publisher that were acknowledged are.
        let may_be_ahead = !session.is_in_sequence() && !session.is_held_here();
        let are_own = may_be_ahead && session.means_the_same();
        let lost = match are_own && self.config.acks == Acks::Durable {
            true => session.acknowledged_at(mark),
            false => session.acknowledged_from(mark),
        };
        if lost > 0 {
            self.fail_acknowledged_lost(lost, now);
            return;
        }
        let keeps_numbers = may_be_ahead && session.keeps_numbers(mark);
        let gone_on = match keeps_numbers {
            true => session.keep_numbers_from(mark),
            false => session.go_on_at(mark),
        };
        if let Err(what) = gone_on {
            self.fail_protocol(what, now);
            return;
        }
        let epoch = session.epoch();
        let anew = self.resend.split_off(&mark);
        for batch in std::mem::replace(&mut self.resend, anew).into_values() {
            batch.finish(Outcome::StoredSomewhere, &mut self.events);
        }
        if keeps_numbers {
            // The sequencer there knows which of them it has.
            for (&number, batch) in &mut self.resend {
                batch.place(Sequence { epoch, number });
            }
            return;
        }
        self.number_anew(mark);
        if may_be_ahead {
            // The epoch would take what gets numbers that it has placed ahead for the same batches.
            self.end_epoch();
            self.renew_session(now);
        }
    }

    pub(super) fn fail_acknowledged_lost(&mut self, batches: u64, now: Now) {
        let error = ClientError::AcknowledgedLost {
            topic: self.config.topic.clone(),
            producer: self.config.producer,
            batches,
        };
        self.fail(error, Failure::Closed, now);
    }
}
