//! Decides what becomes of the batches of a lost connection (sent again, failed, or in doubt), and which refusals of
//! brokers end the publisher.

use embar_frame::Now;
use embar_wire::acks::Acks;
use embar_wire::control::{ErrorCode, ErrorReply};

use super::super::channel::LostConnection;
use super::super::in_flight::Batch;
use super::super::model::{Event, OnBrokerLoss};
use super::super::receipt::Failure;
use super::PublisherCore;
use crate::connection::ConnectionError;
use crate::directory::TopicRequest;
use crate::error::ClientError;

/// Bytes may be damaged on their way, so a batch with a number is sent again this often although it was refused for good.
const MAX_REFUSALS: u32 = 8;

impl PublisherCore {
    /// A broker said why it ends the connection.
    pub(super) fn refused(&mut self, index: usize, refusal: &ErrorReply, carried: bool, now: Now) {
        match refusal.code {
            ErrorCode::UnknownTopic if carried => self.fail_unknown_topic(now),
            ErrorCode::UnknownTopic if self.channels[index].peer.may_learn_topic(now) => {
                // A broker that was not reached before may be slow to hear of the topic; so may one that restarts.
                // The head knows, and only a publisher that never got through may bring a topic into being.
                let request = match self.config.auto_create && self.topic_id.is_none() {
                    true => TopicRequest::Create {
                        replication_factor: self.config.least_replication_factor(),
                    },
                    false => TopicRequest::Describe,
                };
                self.directory.request_topic(request, now);
            }
            ErrorCode::UnknownTopic => self.fail_unknown_topic(now),
            // The same: it may know only the one that was before.
            ErrorCode::TopicReplaced if self.channels[index].peer.may_learn_topic(now) => {
                self.directory.request_topic(TopicRequest::Describe, now);
            }
            ErrorCode::TopicReplaced => self.fail_topic_replaced(now),
            code if ends_session(code) => self.fail_session(code, now),
            ErrorCode::UnsupportedVersion | ErrorCode::InvalidName | ErrorCode::InvalidArgument
                if !self.opened =>
            {
                let failure = Failure::Refused(refusal.code);
                self.fail(refusal.clone().into(), failure, now);
            }
            _ => {}
        }
    }

    pub(super) fn fail_unknown_topic(&mut self, now: Now) {
        let topic = self.config.topic.clone();
        self.fail(
            ClientError::UnknownTopic { topic },
            Failure::Refused(ErrorCode::UnknownTopic),
            now,
        );
    }

    pub(super) fn fail_topic_replaced(&mut self, now: Now) {
        let topic = self.config.topic.clone();
        self.fail(
            ClientError::TopicReplaced { topic },
            Failure::Refused(ErrorCode::UnknownTopic),
            now,
        );
    }

    pub(super) fn fail(&mut self, error: ClientError, failure: Failure, now: Now) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some((error.clone(), failure));
        self.open_by = None;
        self.events.push_back(Event::Failed(error));
        self.directory.stop(now);
        let numbered = std::mem::take(&mut self.resend).into_values();
        for batch in numbered.chain(std::mem::take(&mut self.queued)) {
            batch.give_up(failure, &mut self.events);
        }
        for channel in &mut self.channels {
            let why = ConnectionError::Local("the publisher is closed");
            channel.peer.leave(why, now);
        }
    }

    /// Decides about the batches of a connection that is gone.
    pub(super) fn recover_all(&mut self, lost: LostConnection, now: Now) {
        for batch in lost.assigned.into_iter().rev() {
            self.take_back(batch);
        }
        for mut batch in lost.carried.into_iter().rev() {
            let mut refusal = lost.refusal.as_ref();
            if batch.sequence.is_none() {
                // The end of a session, without an Error frame, says nothing of its batches.
                refusal = refusal.filter(|_| lost.by_error);
                if refusal.is_some() && self.config.acks == Acks::Readable {
                    // It is not acknowledged, so this broker has not stored it. With a higher level it may be stored,
                    // and the disks do not have it yet.
                    batch.written = batch.is_possible_duplicate();
                }
            }
            self.recover(batch, refusal, now);
        }
    }

    /// A batch that was to be sent, and was not.
    fn take_back(&mut self, batch: Batch) {
        if let Some((_, failure)) = self.failed {
            batch.give_up(failure, &mut self.events);
        } else if batch.sequence.is_some() {
            self.queue_resend(batch);
        } else {
            self.queued.push_front(batch);
        }
    }

    /// Decides about a batch that was sent, and is not acknowledged.
    pub(super) fn recover(&mut self, batch: Batch, refusal: Option<&ErrorReply>, now: Now) {
        if let Some((_, failure)) = self.failed {
            batch.give_up(failure, &mut self.events);
        } else if batch.sequence.is_some() {
            self.recover_numbered(batch, refusal, now);
        } else {
            self.recover_unnumbered(batch, refusal, now);
        }
    }

    fn recover_unnumbered(&mut self, mut batch: Batch, refusal: Option<&ErrorReply>, now: Now) {
        let is_final = refusal.filter(|refusal| is_final(refusal));
        let is_left_alone = batch.written && self.config.on_broker_loss == OnBrokerLoss::InDoubt;
        if is_final.is_some() || is_left_alone || self.config.expires(batch.sealed_at) <= now {
            let failure = match is_final {
                Some(refusal) if !batch.written => Failure::Refused(refusal.code),
                _ => Failure::TimedOut,
            };
            batch.give_up(failure, &mut self.events);
            return;
        }
        if batch.written {
            batch.flag_as_possible_duplicate();
        }
        self.events.push_back(Event::Resent);
        self.queued.push_front(batch);
    }

    /// Its number is stored once, however often it is sent; were it not sent again, nothing behind it would be stored.
    fn recover_numbered(&mut self, mut batch: Batch, refusal: Option<&ErrorReply>, now: Now) {
        self.events.push_back(Event::Resent);
        if let Some(refusal) = refusal.filter(|it| is_final(it)) {
            batch.refusals += 1;
            if batch.refusals >= MAX_REFUSALS {
                self.fail(refusal.clone().into(), Failure::Closed, now);
                batch.give_up(Failure::Closed, &mut self.events);
                return;
            }
        }
        self.queue_resend(batch);
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
            | ErrorCode::DiskUnavailable
            | ErrorCode::Draining
            | ErrorCode::Timeout
            | ErrorCode::BeyondWindow
            | ErrorCode::HeldFull
            | ErrorCode::NoSequencer
    )
}
