//! Ends connections. The broker sends a peer the reason and gives it some time to read that. Deadlines end the
//! connections of peers that do not do their part.

use embar_frame::Now;
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};
use embar_session::CloseReason;
use embar_wire::control::{ErrorCode, ErrorReply};

use super::creating::DISK_PATIENCE;
use super::order::SEQUENCER_PATIENCE;
use super::refusals::{NO_ROOM_IN_TIME, STOPPING};
use super::staging::{LEAST_BYTES_PER_SECOND, UNSEEN_AT_MOST};
use super::state::ShardState;
use super::{Action, Shard, TICK};
use crate::clock::Timestamp;
use crate::connection::{Connection, HeldBatch, Input, Peer, PendingRequest};
use crate::profile::Counter;

impl<M: Memory> ShardState<M> {
    /// Sends a peer the reason, and closes once it had time to read that. From now on this broker stores nothing
    /// that the peer sends.
    pub(super) fn refuse(
        &mut self,
        connection: &mut Connection<M>,
        error: ErrorReply,
        at: Timestamp,
    ) {
        if connection.core.is_ending() {
            return;
        }
        tracing::info!(peer = connection.name(), code = ?error.code, "refused: {}", error.message);
        connection.refuse(error, at.now);
        self.ready.push(connection.token);
    }

    /// Whether a connection is over. Then this gives back what the broker holds for it, and the caller removes it.
    pub(super) fn release_if_over(&mut self, connection: &Connection<M>) -> bool {
        if !connection.is_over() {
            return false;
        }
        match &connection.peer {
            Peer::Subscriber(cursor) => {
                if cursor.waiting {
                    self.waiting.remove(cursor.topic, connection.token);
                }
                if cursor.is_searching {
                    self.searching.remove(connection.token);
                }
            }
            Peer::Publisher {
                session: Some(session),
                ..
            } => self.node.log().release_session(session.slot),
            _ => {}
        }
        self.node
            .connection_closed(connection.origin, connection.counted);
        true
    }

    /// When [`Shard::tick`] has to look at a connection: the deadline of its core, or its own.
    fn deadline_of(&self, connection: &Connection<M>) -> Option<Now> {
        let own = self.own_deadline_of(connection);
        [connection.core.next_tick(), own]
            .into_iter()
            .flatten()
            .min()
    }

    fn own_deadline_of(&self, connection: &Connection<M>) -> Option<Now> {
        let config = &self.node.config;
        if connection.core.is_ending() {
            return None;
        }
        match &connection.input {
            Input::Paused { since } | Input::Held(HeldBatch { since, .. }) => {
                return Some(since.after(config.backpressure_timeout));
            }
            // Others wait for what a slow batch holds.
            Input::Payload(batch) if self.node.paused() > 0 && !injected(Canary::SlowGivenUp) => {
                let mut patience = config.frame_timeout.min(config.backpressure_timeout / 2);
                if batch.unseen {
                    // What the kernel or another thread has of it shows up by then.
                    patience = patience.max(UNSEEN_AT_MOST + 2 * TICK);
                }
                return Some(batch.looked.after(patience));
            }
            Input::Payload(_) | Input::Frames => {}
        }
        if let Some(PendingRequest::Open { .. } | PendingRequest::Renew) = connection.pending {
            return Some(connection.pending_since.after(SEQUENCER_PATIENCE));
        }
        if let Some(PendingRequest::Create { .. } | PendingRequest::Delete { .. }) =
            connection.pending
        {
            return Some(connection.pending_since.after(DISK_PATIENCE));
        }
        let reply = connection.long_reply.as_ref()?;
        (!config.idle_timeout.is_zero()).then(|| reply.since.after(config.idle_timeout))
    }

    fn check_own_deadline(&mut self, connection: &mut Connection<M>, at: Timestamp) {
        let deadline = self.own_deadline_of(connection);
        if deadline.is_none_or(|deadline| deadline > at.now) {
            return;
        }
        if let Input::Payload(batch) = &mut connection.input
            && batch.is_fast_enough(at.now)
        {
            return;
        }
        if let Some(PendingRequest::Create { topic }) = connection.pending {
            return self.creation_failed(connection, topic, at);
        }
        if let Some(PendingRequest::Delete { .. }) = connection.pending {
            return self.deletion_failed(connection, at);
        }
        if connection.pending.is_some() && matches!(connection.input, Input::Frames) {
            // A later answer of the sequencer finds no connection: the client asks again on another one.
            return self.session_refused(connection, ErrorCode::NoSequencer, at);
        }
        let error = match &connection.input {
            Input::Paused { .. } | Input::Held(_) => {
                self.meter.count(Counter::RefusedBatches as usize, 1);
                ErrorReply::new(ErrorCode::Backpressure, NO_ROOM_IN_TIME.into())
            }
            Input::Payload(_) => ErrorReply::new(
                ErrorCode::Timeout,
                format!(
                    "a batch came more slowly than {} KiB/s while others waited for what it held: send smaller ones",
                    LEAST_BYTES_PER_SECOND >> 10
                ),
            ),
            Input::Frames => ErrorReply::new(
                ErrorCode::Timeout,
                "an answer was not read in time: read what is asked for".into(),
            ),
        };
        self.refuse(connection, error, at);
    }

    fn send_goodbye(
        &mut self,
        connection: &mut Connection<M>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        if !connection.core.is_open() {
            let code = ErrorCode::Draining.number();
            connection.core.refuse(code, STOPPING, at.now);
            self.run_steps(connection, at, out);
            return;
        }
        connection.core.goodbye(STOPPING);
        self.run_steps(connection, at, out);
        // A publisher closes its connection itself when its batches are acknowledged.
        let is_publisher = matches!(connection.peer, Peer::Publisher { .. });
        if !is_publisher && !connection.is_over() {
            let reason = CloseReason::Shutdown;
            connection.core.fail(reason, STOPPING, at.now);
            self.run_steps(connection, at, out);
        }
    }
}

impl<M: Memory> Shard<M> {
    /// Ends what has taken too long, lets cores send their heartbeats, and sends streams the list of brokers when
    /// it has changed. Restores submissions that the sequencer has not taken for long.
    pub fn tick(&mut self, at: Timestamp) {
        self.ticked = true;
        self.tick_arriving(at);
        self.announce_membership(at);
        let state = &mut self.state;
        state.submitted |= state.node.takes_data() && state.node.log().restore_lost(state.lane);
        for connection in self.connections.values_mut() {
            let deadline = state.deadline_of(connection);
            if deadline.is_none_or(|deadline| deadline > at.now) {
                continue;
            }
            connection.send_acks(at.now);
            connection.core.tick(at.now);
            state.check_own_deadline(connection, at);
            // Its space in the log comes back with its buffer: at its next byte, or when the connection is
            // closed.
            state.ready.push(connection.token);
        }
    }

    /// Says goodbye to all peers, and refuses new ones. The shard is empty when all have left.
    pub fn drain(&mut self, at: Timestamp, out: &mut Vec<Action<M>>) {
        if std::mem::replace(&mut self.state.draining, true) {
            return;
        }
        let state = &mut self.state;
        self.connections.retain(|_, connection| {
            state.send_goodbye(connection, at, out);
            !state.release_if_over(connection)
        });
        self.refuse_arriving(at, out);
    }

    /// Closes all connections at once.
    pub fn close_all(&mut self, at: Timestamp, out: &mut Vec<Action<M>>) {
        let state = &mut self.state;
        self.connections.retain(|_, connection| {
            connection.core.close(CloseReason::Shutdown, STOPPING);
            state.run_steps(connection, at, out);
            !state.release_if_over(connection)
        });
        self.close_arriving(at, out);
    }
}
