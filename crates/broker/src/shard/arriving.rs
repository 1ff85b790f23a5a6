//! Connections that have not greeted yet. A connection of the log, with its rings, is made when its
//! HELLO is there: whoever connects and says nothing takes a few hundred bytes.

use embar_memory::Memory;
use embar_session::{Arrival, CloseReason, Side, Step};
use embar_transport::{Peer as Origin, Token};
use embar_wire::control::ErrorCode;
use embar_wire::frame::LogProtocol;

use super::refusals::STOPPING;
use super::{Action, Shard};
use crate::clock::Timestamp;
use crate::connection::Connection;
use crate::connections::Counted;

/// A connection that has not greeted yet.
pub(super) struct Arriving {
    pub arrival: Arrival<LogProtocol>,
    pub origin: Origin,
    pub counted: Counted,
}

impl<M: Memory> Shard<M> {
    /// Passes the steps of a connection that arrives to the driver, and makes a connection of the log of it when it
    /// has greeted.
    pub(super) fn arrive(&mut self, token: Token, at: Timestamp, out: &mut Vec<Action<M>>) {
        let Some(arriving) = self.arriving.get_mut(&token) else {
            return;
        };
        loop {
            while let Some(step) = arriving.arrival.poll() {
                out.push(match step {
                    Step::Recv(buf) => Action::Recv(token, buf),
                    Step::Send(buf) => Action::Send(token, buf),
                    Step::ShutdownWrite => Action::ShutdownWrite(token),
                    Step::Close => {
                        out.push(Action::Close(token));
                        return self.forget_arriving(token);
                    }
                });
            }
            if !arriving.arrival.has_greeted() {
                return;
            }
            let protocol = LogProtocol {
                limits: self.state.limits,
            };
            let (config, rings) = (&self.session_config, &self.rings);
            match arriving.arrival.session(protocol, config, rings, at.now) {
                Ok(core) => {
                    let (origin, counted) = (arriving.origin, arriving.counted);
                    self.arriving.remove(&token);
                    let connection = Connection::new(token, origin, counted, core);
                    self.connections.insert(token, connection);
                    return self.exchange(token, at, out);
                }
                Err(error) => {
                    tracing::warn!(
                        peer = %arriving.origin,
                        "cannot take a connection: no memory for its rings: {error}; raise vm.max_map_count, or accept fewer with max_connections"
                    );
                    let reason = CloseReason::TooManySessions;
                    let text = "this broker has no memory for another connection";
                    arriving.arrival.refuse(reason, 0, text, at.now);
                }
            }
        }
    }

    fn forget_arriving(&mut self, token: Token) {
        let Some(arriving) = self.arriving.remove(&token) else {
            return;
        };
        if let Some(closed) = arriving.arrival.closed() {
            match closed.by {
                Side::Local => tracing::info!(peer = %arriving.origin, "{closed}"),
                _ => tracing::debug!(peer = %arriving.origin, "{closed}"),
            }
        }
        let node = &self.state.node;
        node.connection_closed(arriving.origin, arriving.counted);
    }

    /// Ends those that have taken too long.
    pub(super) fn tick_arriving(&mut self, at: Timestamp) {
        for (token, arriving) in &mut self.arriving {
            let deadline = arriving.arrival.next_tick();
            if deadline.is_some_and(|deadline| deadline <= at.now) {
                arriving.arrival.tick(at.now);
                self.state.ready.push(*token);
            }
        }
    }

    /// Refuses all of them, as this broker stops.
    pub(super) fn refuse_arriving(&mut self, at: Timestamp, out: &mut Vec<Action<M>>) {
        for token in self.arriving.keys().copied().collect::<Vec<_>>() {
            if let Some(arriving) = self.arriving.get_mut(&token) {
                let code = ErrorCode::Draining.number();
                let reason = CloseReason::Refused;
                arriving.arrival.refuse(reason, code, STOPPING, at.now);
            }
            self.arrive(token, at, out);
        }
    }

    /// Closes all of them at once.
    pub(super) fn close_arriving(&mut self, at: Timestamp, out: &mut Vec<Action<M>>) {
        for token in self.arriving.keys().copied().collect::<Vec<_>>() {
            if let Some(arriving) = self.arriving.get_mut(&token) {
                arriving.arrival.cut();
            }
            self.arrive(token, at, out);
        }
    }
}
