//! What a subscriber makes of a broker's refusals.

use embar_frame::Now;
use embar_wire::control::{ErrorCode, ErrorReply};

use super::super::channel::Interruption;
use super::super::model::{Event, OnEvicted};
use super::SubscriberCore;
use crate::directory::TopicRequest;
use crate::error::{ClientError, ReadError};

impl SubscriberCore {
    /// A broker said why it ends the connection.
    pub(super) fn refused(&mut self, index: usize, refusal: ErrorReply, now: Now) {
        let channel = &mut self.channels[index];
        match refusal.code {
            ErrorCode::OffsetOutOfRange => {
                // Of an order, others may have brought more than this one was asked for.
                let ordered = self.merge.next();
                let wanted = ordered
                    .or(channel.position)
                    .or_else(|| channel.wanted_offset());
                match (wanted, refusal.first_available) {
                    (Some(position), Some(first_available)) if first_available > position => {
                        self.evicted(index, position, first_available, now);
                    }
                    // It has not yet seen as much of the order as whoever the position is from: it may have come back
                    // a moment ago. Whether nobody has is known when the time to open is over.
                    _ if self.ordered == Some(true) => {
                        self.behind = Some(refusal.into());
                    }
                    _ if refusal.retryable => {}
                    _ => self.fail(ClientError::from(refusal), now),
                }
            }
            // The broker may be slow to hear of the topic. The head knows.
            ErrorCode::UnknownTopic if channel.peer.may_learn_topic(now) => {
                self.directory.request_topic(TopicRequest::Describe, now);
            }
            ErrorCode::UnknownTopic => self.fail_unknown_topic(now),
            // The same: it may know only the one that was before.
            ErrorCode::TopicReplaced if channel.peer.may_learn_topic(now) => {
                self.directory.request_topic(TopicRequest::Describe, now);
            }
            ErrorCode::TopicReplaced => self.fail_topic_replaced(now),
            ErrorCode::UnsupportedVersion | ErrorCode::InvalidName | ErrorCode::InvalidArgument => {
                self.fail(ClientError::from(refusal), now);
            }
            ErrorCode::OutOfReach => channel.out_of_reach = true,
            // What comes next is damaged where the broker has it, or something of what was asked for.
            ErrorCode::Damaged => match channel.position {
                Some(position) => {
                    if let Interruption::Fatal(error) = channel.damaged(position, refusal.message) {
                        self.fail(error, now);
                    }
                }
                None => self.fail(ClientError::from(refusal), now),
            },
            _ => {}
        }
    }

    fn evicted(&mut self, index: usize, position: u64, first_available: u64, now: Now) {
        let channel = &mut self.channels[index];
        let broker = channel.peer.broker;
        if self.config.on_evicted == OnEvicted::Fail {
            let error = ReadError::Evicted {
                broker,
                position,
                first_available,
            };
            self.fail(error, now);
            return;
        }
        self.events.push_back(Event::Skipped {
            broker: channel.owner(),
            to: first_available,
            messages: first_available - position,
        });
        channel.restart_at(first_available, now);
        self.tick(now);
    }

    pub(super) fn fail_unknown_topic(&mut self, now: Now) {
        let topic = self.config.topic.clone();
        self.fail(ClientError::UnknownTopic { topic }, now);
    }

    pub(super) fn fail_topic_replaced(&mut self, now: Now) {
        let topic = self.config.topic.clone();
        self.fail(ClientError::TopicReplaced { topic }, now);
    }
}
