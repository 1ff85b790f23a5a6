//! How connections end: politely where that is possible, in time in any case.

use std::time::Duration;

use embar_fabric::memory::Memory;
use embar_transport::{RecvBuf, Token};
use embar_wire::control::{Control, ErrorCode, ErrorReply, Goodbye};
use embar_wire::time::Now;

use super::{Action, At, Shard, refusal};
use crate::connection::{Connection, Ending, Input, Peer};
use crate::profile::Counter;

/// How long a refused peer may take to read why, before it is cut.
const LINGER: Duration = Duration::from_secs(1);
/// What a refused peer may still send meanwhile, in bytes.
const DISCARD_LIMIT_BYTES: usize = 64 << 20;

impl<M: Memory> Shard<M> {
    /// Tells a peer why, and closes once it had time to read that.
    pub(super) fn refuse(&mut self, token: Token, error: ErrorReply, at: At) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.ending.is_some() {
            return;
        }
        tracing::info!(peer = connection.name(), code = ?error.code, "refused: {}", error.message);
        // The longest reason fits a control frame; if not, the peer only sees the end.
        let _ = connection.push(&Control::Error(error));
        self.end(token, at);
    }

    /// Ends a connection politely: what is queued is sent, the rest discarded.
    pub(super) fn end(&mut self, token: Token, at: At) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        connection.ending.get_or_insert(Ending {
            deadline: at.now.after(LINGER),
            discard_left: DISCARD_LIMIT_BYTES,
            write_closed: false,
        });
        connection.frame_began = None;
        connection.head_filled = 0;
        if matches!(connection.input, Input::Paused { .. }) {
            connection.input = Input::Discard;
        }
        self.ready.push(token);
    }

    pub(super) fn close(&mut self, token: Token, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if !connection.closed {
            connection.closed = true;
            out.push(Action::Close(token));
        }
        self.forget_if_over(token);
    }

    pub(super) fn forget_if_over(&mut self, token: Token) {
        let over = |c: &Connection| c.closed && !c.receiving && !c.sending;
        if !self.connections.get(&token).is_some_and(over) {
            return;
        }
        if let Some(connection) = self.connections.remove(&token)
            && let Peer::Subscriber(cursor) = connection.peer
            && cursor.waiting
        {
            self.stop_waiting(cursor.topic, token);
        }
        self.node.connection_closed();
    }

    pub(super) fn discarded(&mut self, token: Token, buf: RecvBuf<M>, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let got = buf.filled().len();
        let Some(ending) = &mut connection.ending else {
            return;
        };
        ending.discard_left = ending.discard_left.saturating_sub(got);
        if ending.discard_left == 0 {
            self.close(token, out);
        } else {
            self.receive_more(token, out);
        }
    }

    pub(super) fn deadline_of(&self, connection: &Connection) -> Option<Now> {
        let config = &self.node.config;
        if connection.closed {
            return None;
        }
        if let Some(ending) = &connection.ending {
            return Some(ending.deadline);
        }
        if let Input::Paused { since, .. } = connection.input {
            return Some(since.after(config.backpressure_timeout));
        }
        // Room that is held without bytes coming is room that others wait for.
        if let Input::Payload(payload) = &connection.input
            && self.node.paused() > 0
        {
            let patience = config.frame_timeout.min(config.backpressure_timeout / 2);
            return Some(payload.progressed.after(patience));
        }
        let began = connection.frame_began?;
        let stranger = matches!(connection.peer, Peer::Stranger);
        Some(began.after(if stranger {
            config.hello_timeout
        } else {
            config.frame_timeout
        }))
    }

    /// Ends what has taken too long.
    pub fn tick(&mut self, at: At, out: &mut Vec<Action<M>>) {
        let late = |c: &Connection| self.deadline_of(c).is_some_and(|d| d <= at.now);
        let late: Vec<Token> = self
            .connections
            .iter()
            .filter(|(_, c)| late(c))
            .map(|(t, _)| *t)
            .collect();
        for token in late {
            self.too_late(token, at, out);
        }
    }

    pub(super) fn too_late(&mut self, token: Token, at: At, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        if connection.ending.is_some() {
            self.close(token, out);
            return;
        }
        let error = if matches!(connection.input, Input::Paused { .. }) {
            self.meter.count(Counter::RefusedBatches as usize, 1);
            refusal(
                ErrorCode::Backpressure,
                "the log had no room for this batch in time: publish more slowly, or give the cluster a larger region".into(),
            )
        } else if matches!(connection.peer, Peer::Stranger) {
            refusal(ErrorCode::Timeout, "no Hello came in time".into())
        } else {
            refusal(
                ErrorCode::Timeout,
                "a frame was begun and not completed in time".into(),
            )
        };
        self.refuse(token, error, at);
        self.flush_if_idle(token, out);
        // Room in the log that it holds comes back with its buffer: at its next
        // byte, or when the connection is closed.
    }

    /// From now on peers are told to go elsewhere; ends when they did.
    pub fn drain(&mut self, at: At, out: &mut Vec<Action<M>>) {
        self.draining = true;
        let tokens: Vec<Token> = self.connections.keys().copied().collect();
        for token in tokens {
            self.say_goodbye(token, at);
            self.flush_if_idle(token, out);
        }
    }

    /// Closes whatever is left.
    pub fn cut(&mut self, out: &mut Vec<Action<M>>) {
        let tokens: Vec<Token> = self.connections.keys().copied().collect();
        for token in tokens {
            self.close(token, out);
        }
    }

    pub(super) fn say_goodbye(&mut self, token: Token, at: At) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.said_goodbye || connection.ending.is_some() {
            return;
        }
        connection.said_goodbye = true;
        let goodbye = Goodbye {
            reason: "this broker is stopping".into(),
        };
        let _ = connection.push(&Control::Goodbye(goodbye));
        // A publisher closes by itself when its batches are acknowledged.
        if !matches!(connection.peer, Peer::Publisher { .. }) {
            self.end(token, at);
        }
    }
}
