//! What a lost connection means for its batches, and what ends the publisher.

use embar_wire::control::{ErrorCode, ErrorReply};
use embar_wire::time::Now;

use super::super::flight::Batch;
use super::super::receipt::{Failure, Outcome};
use super::{Event, OnBrokerLoss, PublisherCore};
use crate::error::Error;

/// Bytes may be damaged on their way, so a batch with a number is sent again this often although it was refused for good.
const MAX_REFUSALS: u32 = 8;

impl PublisherCore {
    /// A broker said why it ends the connection.
    pub(super) fn refused(&mut self, index: usize, refusal: &ErrorReply, carried: bool, now: Now) {
        let ErrorReply { code, message, .. } = refusal.clone();
        match code {
            ErrorCode::UnknownTopic if carried => self.fail_unknown_topic(now),
            ErrorCode::UnknownTopic if self.lanes[index].peer.may_hear_of_topic(now) => {
                // A broker that was not reached before may be slow to hear of the topic; so may one that restarts.
                // The head knows, and only a publisher that never got through may bring a topic into being.
                let create = self.config.auto_create && self.topic_id.is_none();
                self.directory.wish_topic(create, now);
            }
            ErrorCode::UnknownTopic => self.fail_unknown_topic(now),
            // The same: it may know only the one that was before.
            ErrorCode::TopicReplaced if self.lanes[index].peer.may_hear_of_topic(now) => {
                self.directory.wish_topic(false, now);
            }
            ErrorCode::TopicReplaced => self.fail_topic_replaced(now),
            code if ends_session(code) => self.fail_session(code, now),
            ErrorCode::UnsupportedVersion | ErrorCode::InvalidName | ErrorCode::InvalidArgument
                if !self.opened =>
            {
                self.fail(
                    Error::Refused { code, message },
                    Failure::Refused(code),
                    now,
                );
            }
            _ => {}
        }
    }

    pub(super) fn fail_unknown_topic(&mut self, now: Now) {
        let topic = self.config.topic.clone();
        self.fail(
            Error::UnknownTopic { topic },
            Failure::Refused(ErrorCode::UnknownTopic),
            now,
        );
    }

    pub(super) fn fail_topic_replaced(&mut self, now: Now) {
        let topic = self.config.topic.clone();
        self.fail(
            Error::TopicReplaced { topic },
            Failure::Refused(ErrorCode::UnknownTopic),
            now,
        );
    }

    pub(super) fn fail(&mut self, error: Error, failure: Failure, now: Now) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some((error.clone(), failure));
        self.open_by = None;
        self.events.push_back(Event::Failed(error));
        self.directory.stop(now);
        let numbered = std::mem::take(&mut self.again).into_values();
        for batch in numbered.chain(std::mem::take(&mut self.waiting)) {
            batch.give_up(failure, &mut self.events);
        }
        for lane in &mut self.lanes {
            lane.peer.leave("the publisher is closed", now);
        }
    }

    /// Decides about a batch that was on a connection which is gone.
    pub(super) fn recover(&mut self, mut batch: Batch, refusal: Option<&ErrorReply>, now: Now) {
        if let Some((_, failure)) = self.failed {
            batch.give_up(failure, &mut self.events);
        } else if batch.sequence.is_some() {
            self.recover_numbered(batch, refusal, now);
        } else if !batch.written {
            self.waiting.push_front(batch);
        } else if let Some(refusal) = refusal.filter(|refusal| is_final(refusal)) {
            batch.finish(
                Outcome::Failed(Failure::Refused(refusal.code)),
                &mut self.events,
            );
        } else if self.config.on_broker_loss == OnBrokerLoss::InDoubt
            || self.config.expires(&batch) <= now
        {
            batch.give_up(Failure::InDoubt, &mut self.events);
        } else {
            batch.flag_as_possible_duplicate();
            self.events.push_back(Event::Resent);
            self.waiting.push_front(batch);
        }
    }

    /// Its number is stored once, however often it is sent; were it not sent again, nothing behind it would be stored.
    fn recover_numbered(&mut self, mut batch: Batch, refusal: Option<&ErrorReply>, now: Now) {
        if batch.written {
            self.events.push_back(Event::Resent);
            if let Some(ErrorReply { code, message, .. }) = refusal.filter(|it| is_final(it)) {
                batch.refusals += 1;
                if batch.refusals >= MAX_REFUSALS {
                    let (code, message) = (*code, message.clone());
                    self.fail(Error::Refused { code, message }, Failure::Closed, now);
                    batch.give_up(Failure::Closed, &mut self.events);
                    return;
                }
            }
        }
        self.send_again(batch);
    }
}

/// Sending the same bytes again would only be refused again.
fn is_final(refusal: &ErrorReply) -> bool {
    !refusal.retryable && !is_transient(refusal.code)
}

/// The session is not this publisher's, or is over.
pub(super) fn ends_session(code: ErrorCode) -> bool {
    use ErrorCode::{SessionGivenUp, SessionTaken, UnknownSession, WrongSecret};
    matches!(
        code,
        SessionGivenUp | SessionTaken | UnknownSession | WrongSecret
    )
}

/// Nothing is wrong with the batch as it was sealed.
pub(super) fn is_transient(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::ChecksumMismatch
            | ErrorCode::Backpressure
            | ErrorCode::Draining
            | ErrorCode::Timeout
            | ErrorCode::BeyondWindow
            | ErrorCode::HeldFull
            | ErrorCode::NoSequencer
    )
}
