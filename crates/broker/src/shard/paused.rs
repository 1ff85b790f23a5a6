//! Publishers of one thread that wait for room, and when they are tried again.
//!
//! Invariants
//! - Whoever waits is tried again in the round after something was freed, as far as it could get another
//!   answer; and with each tick, whatever happened. So nothing that is overlooked makes anybody wait for
//!   longer than that.
//! - A round costs the same however many wait: those that are not tried in it are in one of the next.

use std::collections::VecDeque;

use embar_memory::Memory;
use embar_transport::Token;

use super::state::ShardState;
use super::{Action, Shard};
use crate::clock::Timestamp;
use crate::connection::{Connection, Input};
use crate::log::Freed;
use crate::profile::Counter;

/// Publishers of each kind that may be tried in vain in one round.
const VAIN_TRIES: usize = 16;

/// See the module.
#[derive(Default)]
pub(super) struct Paused {
    /// Those whose batches have begun, and wait for more memory or their place in the log. They come
    /// first, as they hold something.
    held: VecDeque<Token>,
    /// Those whose batches may not begin.
    waiting: VecDeque<Token>,
    /// How many of these the other threads know of.
    told: usize,
    /// What was freed when all of them were last tried; none if some were not.
    seen: Option<Freed>,
}

/// What came of trying the publishers of one kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tried {
    /// None of them gets anything before something is freed.
    All,
    Some,
}

impl<M: Memory> ShardState<M> {
    /// A connection waits for room.
    pub(super) fn pause(&mut self, connection: &mut Connection<M>, at: Timestamp) {
        let token = connection.token;
        connection.link.hold(true, at.now);
        match connection.input {
            Input::Held(_) => self.paused.held.push_back(token),
            _ => self.paused.waiting.push_back(token),
        }
        self.meter.count(Counter::Pauses as usize, 1);
    }
}

impl<M: Memory> Shard<M> {
    /// Tries again for publishers that found no room, if there may be some; with the tick for all of
    /// them.
    pub(super) fn retry_paused(&mut self, ticked: bool, at: Timestamp, out: &mut Vec<Action<M>>) {
        let count = |paused: &Paused| paused.held.len() + paused.waiting.len();
        if count(&self.state.paused) > 0 {
            let freed = Some(self.state.node.log().freed());
            if ticked || self.state.paused.seen != freed {
                let tried = [
                    self.retry_held(ticked, at, out),
                    self.retry_waiting(ticked, at, out),
                ];
                self.state.paused.seen = freed.filter(|_| tried == [Tried::All; 2]);
            }
        }
        let now = count(&self.state.paused);
        self.state
            .node
            .paused_changed(&mut self.state.paused.told, now);
    }

    fn retry_held(&mut self, all: bool, at: Timestamp, out: &mut Vec<Action<M>>) -> Tried {
        let mut vain = 0;
        for _ in 0..self.state.paused.held.len() {
            let Some(token) = self.state.paused.held.pop_front() else {
                break;
            };
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            self.state.go_on(connection, at, out);
            self.state.act(connection, at, out);
            if self.state.release_if_over(connection) {
                self.connections.remove(&token);
            } else if matches!(connection.input, Input::Held(_)) {
                self.state.paused.held.push_back(token);
                vain += 1;
                if vain == VAIN_TRIES && !all {
                    return Tried::Some;
                }
            }
        }
        Tried::All
    }

    fn retry_waiting(&mut self, all: bool, at: Timestamp, out: &mut Vec<Action<M>>) -> Tried {
        let mut vain = 0;
        for _ in 0..self.state.paused.waiting.len() {
            let Some(token) = self.state.paused.waiting.pop_front() else {
                break;
            };
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            let Input::Paused { header, .. } = connection.input else {
                continue;
            };
            self.state.admit(connection, header, at, out);
            self.state.act(connection, at, out);
            if self.state.release_if_over(connection) {
                self.connections.remove(&token);
                continue;
            }
            if !matches!(connection.input, Input::Paused { .. }) {
                continue;
            }
            if !all && self.state.node.log().is_congested() {
                // So are all others. They keep their turn.
                self.state.paused.waiting.push_front(token);
                return Tried::All;
            }
            self.state.paused.waiting.push_back(token);
            vain += 1;
            if vain == VAIN_TRIES && !all {
                return Tried::Some;
            }
        }
        Tried::All
    }
}
