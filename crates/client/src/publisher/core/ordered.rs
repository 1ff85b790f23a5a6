//! The part of the publisher's core for topics with one order over all brokers: numbers its batches, takes in what
//! brokers answer to them, and gets the next epoch of its session.
//!
//! Batches with a number that no connection has lie in `resend`, by number, and go before those without. When an epoch
//! ends, nothing is handed out until the next one is granted and no connection carries a number that it gives anew: so
//! batches stay in the order in which they were published. The same goes for a session that is opened anew, see `reopening`.

use std::time::Duration;

use embar_frame::Now;
use embar_wire::control::{ErrorCode, PublisherOpened, SessionHeld, SessionOpened};

use super::super::in_flight::{Answered, Batch};
use super::super::receipt::{Failure, Outcome, Position};
use super::super::session::{Sequence, Session};
use super::PublisherCore;
use super::loss::{ends_session, is_transient};
use crate::backoff::BackoffLimits;
use crate::error::ClientError;
use crate::peer::Phase;

/// Between the refusal of a batch for want of room and the next attempt.
pub(super) const AGAIN: BackoffLimits = BackoffLimits {
    first_ns: 4_000_000,
    max_ns: 250_000_000,
};

impl PublisherCore {
    /// Ends in good order: the sequencer may forget the session. Nothing happens if a batch is not resolved. Call
    /// [`PublisherCore::stop`] next.
    pub fn close_session(&mut self, now: Now) {
        let is_idle = self.queued.is_empty() && self.resend.is_empty() && self.failed.is_none();
        if is_idle
            && self.session.as_ref().is_some_and(Session::is_idle)
            && let Some(channel) = self
                .channels
                .iter_mut()
                .find(|channel| channel.takes_requests())
        {
            channel.close_session(now);
        }
    }

    /// A broker announced this publisher to the sequencer.
    pub(super) fn session_announced(&mut self, index: usize, opened: &PublisherOpened, now: Now) {
        if self.is_elsewhere(index) {
            self.move_session(index, opened, now);
            return;
        }
        let region = self.channels[index].region;
        match &mut self.session {
            None => self.session = Some(Session::new(opened, region)),
            // A late announcement of ours began it anew.
            Some(session) if !session.is_in(opened.session, opened.first_epoch) => {
                self.fail_session(ErrorCode::SessionGivenUp, now);
            }
            Some(session) if session.epoch() < opened.session_epoch => self.end_epoch(),
            // It may have been on its way while the epoch changed.
            Some(_) => {}
        }
    }

    /// Another publisher has the identity, and knows the secret. It is taken over from that one, unless this one had it
    /// before.
    pub(super) fn session_held(&mut self, index: usize, held: &SessionHeld, now: Now) {
        if self.is_elsewhere(index) {
            self.session_held_elsewhere(index, held, now);
            return;
        }
        let has = self.session.as_ref().map(Session::epoch);
        if has.is_some_and(|epoch| held.session_epoch >= epoch) {
            self.fail_session(ErrorCode::SessionTaken, now);
            return;
        }
        // Where it is this one's by now, the answer was on its way while another channel took it over.
        let takes_over = has.map_or(held.session_epoch, |_| 0);
        let terms = self.terms();
        self.channels[index].take_over(&self.config, terms, takes_over, now);
    }

    /// The next epoch, as a channel was told that asked for it.
    pub(super) fn session_granted(&mut self, index: usize, granted: SessionOpened, now: Now) {
        if self.channels[index].peer.phase != Phase::Open {
            // It may be of a region that is lost. Another channel is asked.
            return;
        }
        let mut session = self.session.iter();
        if session.any(|it| !it.is_in(granted.session, granted.first_epoch)) {
            self.fail_session(ErrorCode::SessionGivenUp, now);
            return;
        }
        if let Some(renewal) = self.session.as_mut().and_then(Session::renewal)
            && renewal.asked == Some(index)
        {
            renewal.asked = None;
            renewal.granted = Some(granted);
        }
    }

    /// What is asked of a channel that is gone is asked of another.
    pub(super) fn session_unasked(&mut self, index: usize) {
        if let Some(renewal) = self.session.as_mut().and_then(Session::renewal) {
            renewal.asked.take_if(|asked| *asked == index);
        }
    }

    pub(super) fn take_answers(&mut self, index: usize, now: Now) {
        // Batches that are refused together wait together.
        let mut resend_at = None;
        while let Some(answered) = self.channels[index].in_flight.next_answer() {
            self.answered(index, answered, &mut resend_at, now);
        }
    }

    fn answered(
        &mut self,
        index: usize,
        answered: Answered,
        resend_at: &mut Option<Now>,
        now: Now,
    ) {
        let (mut batch, waited_ns) = (answered.batch, answered.waited_ns);
        let outcome = match answered.answer {
            Ok(Some(offset)) => Outcome::Stored(Position {
                broker: None,
                offset,
            }),
            Ok(None) => Outcome::StoredSomewhere,
            // Of an older epoch only numbers are on their way that are stored, as was said when the epoch changed. Whether
            // the disks have them, too, the sequencer says when they come in this epoch.
            Err(ErrorCode::Fenced) if self.is_of_older_epoch(&batch) => {
                let epoch = self.session.as_ref().map(Session::epoch);
                if let (Some(epoch), Some(Sequence { number, .. })) = (epoch, batch.sequence) {
                    batch.place(Sequence { epoch, number });
                }
                self.recover(batch, None, now);
                return;
            }
            Err(code) => {
                self.channels[index].peer.refused_one(code);
                match code {
                    ErrorCode::BeyondWindow if self.is_lowest(&batch) && batch.was_beyond => {
                        // It was the lowest when it was sent: what the sequencer waits for was acknowledged.
                        self.fail_acknowledged_lost(1, now);
                    }
                    code if is_transient(code) => {
                        let is_beyond = code == ErrorCode::BeyondWindow;
                        batch.was_beyond |= is_beyond && self.is_lowest(&batch);
                        batch.resend_at = *resend_at.get_or_insert_with(|| {
                            let wait = self.resend_backoff.failed(&mut self.random);
                            now.after(Duration::from_nanos(wait))
                        });
                    }
                    ErrorCode::Fenced => self.end_epoch(),
                    code if ends_session(code) => self.fail_session(code, now),
                    ErrorCode::UnknownTopic => self.fail_unknown_topic(now),
                    _ => {
                        let message = "a batch was refused, and nothing behind it can be stored";
                        let message = message.into();
                        self.fail(ClientError::Refused { code, message }, Failure::Closed, now);
                    }
                }
                self.recover(batch, None, now);
                return;
            }
        };
        if let (Some(session), Some(sequence)) = (&mut self.session, batch.sequence) {
            session.settle(sequence.number);
        }
        self.resend_backoff.succeeded();
        batch.resolve(outcome, waited_ns, &mut self.events);
    }

    /// Whether all numbers before this batch's are resolved.
    fn is_lowest(&self, batch: &Batch) -> bool {
        let lowest = self.session.as_ref().map(Session::lowest);
        batch.sequence.map(|sequence| sequence.number) == lowest
    }

    fn is_of_older_epoch(&self, batch: &Batch) -> bool {
        // While a session is opened anew, batches in flight are of another region, where epochs were others.
        let known = self.session.as_ref().filter(|it| !it.is_reopening());
        let epoch = known.map(Session::epoch);
        batch.sequence.map(|sequence| sequence.epoch) < epoch
    }

    /// Takes back what no connection has, and hands out nothing more for now.
    pub(super) fn end_epoch(&mut self) {
        if let Some(session) = &mut self.session {
            session.end_epoch();
        }
        for index in 0..self.channels.len() {
            for batch in self.channels[index].take_assigned() {
                self.queue_resend(batch);
            }
        }
    }

    /// Asks for the next epoch, or begins it, if the last one is over.
    pub(super) fn renew_session(&mut self, now: Now) {
        let Some(session) = &mut self.session else {
            return;
        };
        if session.is_reopening() {
            self.reopen_session(now);
            return;
        }
        let epoch = session.epoch();
        let Some(renewal) = session.renewal() else {
            return;
        };
        let Some(granted) = renewal.granted.clone() else {
            if renewal.asked.is_none() {
                let mut channels = self.channels.iter_mut();
                renewal.asked = channels.position(|channel| {
                    let able = channel.takes_requests();
                    if able {
                        channel.renew_session(epoch, now);
                    }
                    able
                });
            }
            return;
        };
        let channels = self.channels.iter();
        let mut carried = channels.flat_map(|channel| channel.in_flight.sequences());
        let is_carried = carried.any(|sequence| sequence.number >= granted.mark);
        drop(carried);
        if is_carried {
            // Its answer, or the end of its connection, will come.
            return;
        }
        if session.was_taken(&granted) {
            self.fail_session(ErrorCode::SessionTaken, now);
            return;
        }
        if let Err(what) = session.renew(&granted) {
            self.fail_protocol(what, now);
            return;
        }
        // The sequencer knows what it has below the mark, and says when the disks have it.
        let (epoch, mark) = (granted.session_epoch, granted.mark);
        for (&number, batch) in self.resend.range_mut(..mark) {
            batch.place(Sequence { epoch, number });
        }
        self.number_anew(mark);
    }

    /// Gives batches new numbers, in their order, of which the numbers from `mark` on are not used.
    pub(super) fn number_anew(&mut self, mark: u64) {
        let Some(session) = &mut self.session else {
            return;
        };
        for (_, mut batch) in self.resend.split_off(&mark) {
            if batch.written && !session.is_in_sequence() {
                batch.flag_as_possible_duplicate();
            }
            let sequence = session.give_again();
            batch.place(sequence);
            self.resend.insert(sequence.number, batch);
        }
    }

    /// The next batch to hand out, if there is one.
    pub(super) fn next_batch(&mut self) -> Option<Batch> {
        let Some(session) = &mut self.session else {
            return self.queued.pop_front();
        };
        if session.is_renewing() {
            return None;
        }
        if !self.resend.is_empty() {
            let mut due = self.resend.iter();
            let (&number, _) = due.find(|(_, batch)| batch.resend_at == Now(0))?;
            return self.resend.remove(&number);
        }
        self.queued.front()?;
        let sequence = session.give()?;
        let mut batch = self.queued.pop_front()?;
        batch.place(sequence);
        Some(batch)
    }

    pub(super) fn queue_resend(&mut self, batch: Batch) {
        if let Some(sequence) = batch.sequence {
            self.resend.insert(sequence.number, batch);
        }
    }

    /// Batches that waited for room are due.
    pub(super) fn end_waits(&mut self, now: Now) {
        for batch in self.resend.values_mut() {
            if batch.resend_at <= now {
                batch.resend_at = Now(0);
            }
        }
    }

    pub(super) fn waits_end_at(&self) -> Option<Now> {
        let waits = self.resend.values().map(|batch| batch.resend_at);
        waits.filter(|at| *at > Now(0)).min()
    }

    pub(super) fn fail_session(&mut self, code: ErrorCode, now: Now) {
        let topic = self.config.topic.clone();
        let producer = self.config.producer;
        let error = match code {
            ErrorCode::SessionTaken => ClientError::SessionTaken { topic, producer },
            ErrorCode::SessionGivenUp => ClientError::SessionGivenUp { topic, producer },
            ErrorCode::WrongSecret => ClientError::WrongSecret { topic, producer },
            _ => ClientError::SessionLost { topic, producer },
        };
        self.fail(error, Failure::Closed, now);
    }

    pub(super) fn fail_protocol(&mut self, what: String, now: Now) {
        let peer = "the sequencer".into();
        self.fail(ClientError::Protocol { peer, what }, Failure::Closed, now);
    }
}
