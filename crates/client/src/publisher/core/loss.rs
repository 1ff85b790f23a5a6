//! What a lost connection means for its batches, and what ends the publisher.

use std::sync::Arc;

use embar_wire::batch::{BatchFlags, BatchHeader};
use embar_wire::control::{ErrorCode, ErrorReply};
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
use embar_wire::time::Now;

use super::super::flight::Batch;
use super::super::receipt::{Failure, Outcome};
use super::{Event, OnBrokerLoss, PublisherCore};
use crate::error::Error;

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

    pub(super) fn fail(&mut self, error: Error, failure: Failure, now: Now) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some((error.clone(), failure));
        self.open_by = None;
        self.events.push_back(Event::Failed(error));
        self.directory.stop(now);
        for batch in std::mem::take(&mut self.waiting) {
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
            flag_as_possible_duplicate(&mut batch.bytes);
            self.events.push_back(Event::Resent);
            self.waiting.push_front(batch);
        }
    }
}

/// Sending the same bytes again would only be refused again.
fn is_final(refusal: &ErrorReply) -> bool {
    let transient = matches!(
        refusal.code,
        ErrorCode::ChecksumMismatch
            | ErrorCode::Backpressure
            | ErrorCode::Draining
            | ErrorCode::Timeout
    );
    !refusal.retryable && !transient
}

fn flag_as_possible_duplicate(bytes: &mut Arc<Vec<u8>>) {
    let bytes =
        Arc::get_mut(bytes).expect("the driver gave up its reference before it reported the loss");
    let mut header = BatchHeader::parse(bytes, MAX_BATCH_BYTES)
        .expect("a submitted batch starts with a good header");
    header.add_flags(BatchFlags::POSSIBLE_DUPLICATE);
    bytes[..BATCH_HEADER_BYTES].copy_from_slice(header.as_bytes());
}
