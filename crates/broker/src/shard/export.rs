//! Batches to subscribers: from the log to the socket, without a copy by this broker.

use embar_memory::Memory;
use embar_session::CloseReason;
use embar_transport::{Body, Token};
use embar_wire::control::{ErrorCode, ErrorReply};

use super::refusals::{OVERTAKEN, disk_unavailable, no_help_from_disks};
use super::state::ShardState;
use super::{Action, Shard};
use crate::clock::Timestamp;
use crate::connection::{Connection, Peer};
use crate::log::{Read, Wanted};
use crate::profile::Counter;

/// Most bytes for one send: enough to make system calls rare, and few enough that a reader pins no more than a
/// part of an extent.
const RUN_BYTES: usize = 4 << 20;

impl<M: Memory> ShardState<M> {
    /// Sends a subscriber what comes next, or adds it to the waiting ones.
    pub(super) fn send_next(&mut self, connection: &mut Connection<M>, at: Timestamp) {
        if connection.long_reply.is_some() || !connection.core.may_send_body() {
            return;
        }
        let Peer::Subscriber(cursor) = &mut connection.peer else {
            return;
        };
        cursor.sending = None;
        if cursor.is_searching {
            // It has its turn when it comes, whatever else it does.
            return;
        }
        if self.send_piece(connection, at.now) {
            return;
        }
        let Peer::Subscriber(cursor) = &mut connection.peer else {
            return;
        };
        let core = &mut connection.core;
        let wanted = Wanted {
            topic: cursor.topic,
            from: cursor.next,
            share: cursor.share,
            isolation: cursor.isolation,
        };
        let mut left = self.searching.allowance();
        let allowed = left;
        let read = self
            .node
            .log()
            .read(&wanted, RUN_BYTES, &mut left, || core.pieces());
        if left < allowed {
            self.searching.passed_over(allowed - left);
            let counter = Counter::PassedOver as usize;
            self.meter.count(counter, (allowed - left) as u64);
        }
        match read {
            Read::Batches { span, next } => {
                cursor.sending = Some(cursor.next);
                cursor.next = next;
                connection.core.send_body(Vec::new(), Body::Span(span));
            }
            Read::Pieces {
                pieces,
                first,
                next,
                foreign,
            } => {
                cursor.sending = Some(first);
                cursor.next = next;
                cursor.foreign = foreign;
                connection.core.send_body(Vec::new(), Body::Pieces(pieces));
            }
            Read::Skipped { next } => {
                cursor.next = next;
                cursor.is_searching = true;
                self.searching.add(connection.token);
            }
            Read::Damaged => {
                let what = format!(
                    "position {} cannot be read: memory of the cluster is damaged; what can be read of the rest begins above it",
                    cursor.next
                );
                self.refuse(connection, ErrorReply::new(ErrorCode::Damaged, what), at);
            }
            Read::OutOfReach { broker } => {
                let what = format!(
                    "the memory of broker {broker} cannot be mapped here at the moment: read at another broker, and see this one's log"
                );
                self.refuse(connection, ErrorReply::new(ErrorCode::OutOfReach, what), at);
            }
            Read::End => {
                if !cursor.waiting {
                    cursor.waiting = true;
                    let token = connection.token;
                    let follows = cursor.is_ordered || cursor.is_durable;
                    self.waiting.add(cursor.topic, follows, token);
                }
            }
            Read::OnDisk { .. } if cursor.share.is_help() => {
                self.refuse(connection, no_help_from_disks(), at);
            }
            Read::OnDisk { first } => {
                let token = connection.token;
                self.read_disks(token, cursor, first);
            }
            Read::Evicted { first } => {
                let wanted = cursor.next;
                let mut error = ErrorReply::new(
                    ErrorCode::OffsetOutOfRange,
                    format!(
                        "offset {wanted} was evicted, the first one kept is {first}: read from there, or keep more with a larger region"
                    ),
                );
                error.first_available = Some(first);
                self.refuse(connection, error, at);
            }
            Read::UnknownTopic => self.refuse(
                connection,
                ErrorReply::new(ErrorCode::UnknownTopic, "the topic was deleted".into()),
                at,
            ),
        }
    }

    /// Closes the connection of a subscriber that this broker sends other brokers' memory which they have evicted
    /// meanwhile. The subscriber finds by checksums that what it got of it is worthless.
    pub(super) fn check_still_retained(&self, connection: &mut Connection<M>) {
        let Peer::Subscriber(cursor) = &mut connection.peer else {
            return;
        };
        if cursor.foreign.is_empty() {
            return;
        }
        let kept = self.node.log().was_kept(cursor.topic, &cursor.foreign);
        if !connection.core.is_sending_body() {
            cursor.foreign.clear();
        }
        if !kept {
            close_late(connection);
        }
    }
}

impl<M: Memory> Shard<M> {
    /// Lists the subscribers that wait for what this or another thread appended, and the publishers that wait for disks.
    pub(super) fn wake_waiting(&mut self, out: &mut Vec<Action<M>>) {
        let state = &mut self.state;
        let mut touched = std::mem::take(&mut state.touched);
        if !touched.is_empty() {
            touched.sort_unstable();
            touched.dedup();
            if state.node.notify_others(state.lane, &touched) {
                out.push(Action::WakeOthers);
            }
        }
        if !state.node.take_notified(state.lane, &mut touched) {
            touched.extend(state.waiting.topics());
            touched.extend(state.awaiting_disks.keys());
        }
        for topic in touched.drain(..) {
            self.wake_topic(topic);
            self.wake_publishers(topic);
        }
        self.state.touched = touched;
    }

    fn wake_topic(&mut self, topic: u32) {
        let ready = &mut self.state.ready;
        self.state.waiting.take(topic, |token| {
            let Some(connection) = self.connections.get_mut(&token) else {
                return;
            };
            if let Peer::Subscriber(cursor) = &mut connection.peer {
                cursor.waiting = false;
                ready.push(token);
            }
        });
    }

    /// Publishers of a topic that may be durable up to further than before: those that have nothing more to wait for are
    /// forgotten.
    fn wake_publishers(&mut self, topic: u32) {
        let state = &mut self.state;
        let Some(mut tokens) = state.awaiting_disks.remove(&topic) else {
            return;
        };
        let durable = state.node.log().durable(topic);
        tokens.retain(|token| {
            let Some(connection) = self.connections.get_mut(token) else {
                return false;
            };
            if connection.acks.durable(durable) {
                state.owe_acks(connection);
            }
            connection.acks.awaits_disks()
        });
        if !tokens.is_empty() {
            state.awaiting_disks.insert(topic, tokens);
        }
    }

    /// Publishers that wait for disks which take nothing are told so: they come again later.
    pub(super) fn refuse_in_disk_trouble(&mut self, at: Timestamp) {
        let state = &mut self.state;
        let topics: Vec<u32> = state.awaiting_disks.keys().copied().collect();
        for topic in topics {
            let Some(trouble) = state.node.log().disk_trouble(topic) else {
                continue;
            };
            for token in state.awaiting_disks.remove(&topic).unwrap_or_default() {
                if let Some(connection) = self.connections.get_mut(&token)
                    && connection.acks.awaits_disks()
                {
                    state.refuse(connection, disk_unavailable(trouble), at);
                    state.ready.push(token);
                }
            }
        }
    }

    /// Closes the connections of subscribers whose unfinished send lies in memory that is to be used again: an
    /// Error frame cannot follow half a batch. They learn the first offset that is retained when they come back.
    pub(super) fn close_overtaken(&mut self, at: Timestamp, out: &mut Vec<Action<M>>) {
        let node = &self.state.node;
        if !node.takes_data() {
            return;
        }
        let log = node.log();
        if std::mem::replace(&mut self.seen_evictions, log.evictions()) == self.seen_evictions {
            return;
        }
        let overtaken: Vec<Token> = self
            .connections
            .values()
            .filter_map(|connection| {
                let Peer::Subscriber(cursor) = &connection.peer else {
                    return None;
                };
                let sending = cursor.sending?;
                let kept = log
                    .topic_stats(cursor.topic)
                    .is_some_and(|e| e.first <= sending);
                (!kept).then_some(connection.token)
            })
            .collect();
        // Subscribers of other threads may pin evicted memory, too.
        if log.lends_too_much() {
            out.push(Action::WakeOthers);
        }
        drop(log);
        for token in overtaken {
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            close_late(connection);
            self.state.run_steps(connection, at, out);
            if self.state.release_if_over(connection) {
                self.connections.remove(&token);
            }
        }
    }
}

fn close_late<M: Memory>(connection: &mut Connection<M>) {
    tracing::warn!(
        peer = connection.name(),
        "subscriber too slow: what it was being sent is evicted; closed"
    );
    connection.core.close(CloseReason::Full, OVERTAKEN);
}
