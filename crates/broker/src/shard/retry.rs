//! When a thread tries again for its publishers that wait for memory.
//!
//! Invariants
//! - The thread tries again for all that could get another answer in the round after something was freed, and
//!   for all with each tick. So an overlooked change costs a publisher no more than a tick.
//! - A round costs the same however many wait: one of the next rounds tries the rest.

use embar_memory::Memory;

use super::state::ShardState;
use super::{Action, Shard};
use crate::clock::Timestamp;
use crate::connection::{Connection, Input};
use crate::profile::Counter;

/// Publishers of each kind that one round may try in vain.
const VAIN_TRIES: usize = 16;

/// Which publishers of one kind a round has tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tried {
    /// All that could get something: the others get nothing before something is freed.
    All,
    Some,
}

impl<M: Memory> ShardState<M> {
    /// Adds a connection that waits for memory.
    pub(super) fn pause(&mut self, connection: &mut Connection<M>, at: Timestamp) {
        let token = connection.token;
        connection.core.hold(true, at.now);
        match connection.input {
            Input::Held(_) => self.paused.held.push_back(token),
            _ => self.paused.waiting.push_back(token),
        }
        self.meter.count(Counter::Pauses as usize, 1);
    }

    /// Tries again for a batch that may not begin. What follows it has its turn later in this round.
    fn try_again(
        &mut self,
        connection: &mut Connection<M>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        // The peer did not cause this wait.
        connection.core.hold(false, at.now);
        self.handle_next(connection, at, out);
        if matches!(connection.input, Input::Paused { .. }) {
            connection.core.hold(true, at.now);
        } else {
            self.ready.push(connection.token);
        }
    }
}

impl<M: Memory> Shard<M> {
    /// Tries again for publishers that wait, if something was freed. With the tick, `ticked`, it tries for all of
    /// them.
    pub(super) fn retry_paused(&mut self, ticked: bool, at: Timestamp, out: &mut Vec<Action<M>>) {
        if self.state.paused.len() > 0 {
            let freed = Some(self.state.node.log().freed());
            if ticked || self.state.paused.seen != freed {
                let tried = [
                    self.retry_held(ticked, at, out),
                    self.retry_waiting(ticked, at, out),
                ];
                self.state.paused.seen = freed.filter(|_| tried == [Tried::All; 2]);
            }
        }
        let now = self.state.paused.len();
        self.state
            .node
            .paused_changed(&mut self.state.paused.reported, now);
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
            self.state.resume(connection, at, out);
            self.state.run_steps(connection, at, out);
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
            if !matches!(connection.input, Input::Paused { .. }) {
                continue;
            }
            self.state.try_again(connection, at, out);
            self.state.run_steps(connection, at, out);
            if self.state.release_if_over(connection) {
                self.connections.remove(&token);
                continue;
            }
            if !matches!(connection.input, Input::Paused { .. }) {
                continue;
            }
            if !all && self.state.node.log().is_congested() {
                // The log admits none of the others either. They keep their turn.
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
