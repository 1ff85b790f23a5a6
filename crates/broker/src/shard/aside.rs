//! Batches that are received beside the log, and how others come to be received there.
//!
//! A batch whose connection has no credit, or whose room is wanted for others, goes on in memory that
//! grows with what arrives. It gets its room in the log when it is whole, so however long it takes, it
//! keeps nothing there.

use std::time::Duration;

use embar_frame::Now;
use embar_memory::Memory;
use embar_transport::{RecvBuf, Store};
use embar_wire::limits::BATCH_HEADER_BYTES;

use super::refusals::never_stored;
use super::state::ShardState;
use super::{Action, Shard};
use crate::clock::Timestamp;
use crate::connection::{Connection, Held, Input, Payload, Room};
use crate::log::{AdmitError, BatchSpace, STAGING_BYTES_MIN, Sender};

/// A batch that took longer was not in time: its connection has no credit afterwards, and what is not
/// there by then goes on aside.
const IN_TIME: Duration = Duration::from_secs(1);
/// How long a batch may hold room in the log when others wait for some.
const IN_TIME_WHEN_CONGESTED: Duration = Duration::from_millis(100);
/// A batch that comes more slowly than this is given up when others wait for what it holds.
pub(super) const LEAST_BYTES_PER_SECOND: u64 = 256 << 10;

/// A batch that does not get what it needs now.
type Waits = (Payload, Vec<u8>);

impl<M: Memory> Connection<M> {
    /// Who sends its batches.
    pub(super) fn sender(&self, lane: u16) -> Sender {
        Sender {
            lane,
            connection: self.token.bits(),
            peer: self.peer_id,
            credit_bytes: self.credit_bytes,
        }
    }
}

impl<M: Memory> ShardState<M> {
    /// A batch goes on in more memory than it has, as soon as there is some: in what it leaves in the
    /// log, or in what it had aside and as much again.
    pub(super) fn widen(
        &mut self,
        connection: &mut Connection<M>,
        payload: Payload,
        store: Store<M>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        let (payload, bytes) = match (store, payload.room) {
            (Store::Reserved(reservation), Room::Log(location)) => {
                let space = BatchSpace {
                    reservation,
                    location,
                };
                self.move_to_staging(connection, payload, space)
            }
            (Store::Heap(bytes), _) => (payload, bytes),
            _ => unreachable!("what is received into the log has a place there"),
        };
        if let Some(waits) = self.try_widen(connection, payload, bytes, at, out) {
            self.hold(connection, waits, at);
        }
    }

    fn try_widen(
        &mut self,
        connection: &mut Connection<M>,
        mut payload: Payload,
        mut bytes: Vec<u8>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) -> Option<Waits> {
        let has = bytes.len() as u32;
        let more = has.max(STAGING_BYTES_MIN).min(payload.len() - has);
        let by = connection.sender(self.lane);
        if self.node.log().stage(more, &by).is_err() {
            return Some((payload, bytes));
        }
        payload.room = Room::Aside(has + more);
        payload.recalled = false;
        bytes.resize((has + more) as usize, 0);
        connection.link.hold(false, at.now);
        let rest = payload.checked..bytes.len();
        self.receive(connection, payload, RecvBuf::heap(bytes, rest), out);
        None
    }

    fn hold(&mut self, connection: &mut Connection<M>, (payload, bytes): Waits, at: Timestamp) {
        connection.input = Input::Held(Held {
            payload,
            bytes,
            since: at.now,
        });
        self.pause(connection, at);
    }

    /// A batch that waits gets what it waits for, if that is to be had.
    pub(super) fn go_on(
        &mut self,
        connection: &mut Connection<M>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        let held = match std::mem::replace(&mut connection.input, Input::Frames) {
            Input::Held(held) => held,
            other => return connection.input = other,
        };
        let Held {
            mut payload,
            bytes,
            since,
        } = held;
        let began = payload.began;
        // The time it was held back is not its peer's.
        payload.began = Now(began.0 + (at.now.0 - since.0));
        payload.looked = at.now;
        let waits = if payload.is_whole() {
            self.try_place(connection, payload, bytes, at)
        } else {
            self.try_widen(connection, payload, bytes, at, out)
        };
        if let Some((mut payload, bytes)) = waits {
            payload.began = began;
            connection.input = Input::Held(Held {
                payload,
                bytes,
                since,
            });
        }
    }

    /// A whole batch gets its room in the log, as soon as there is some, and is stored.
    pub(super) fn place(
        &mut self,
        connection: &mut Connection<M>,
        payload: Payload,
        bytes: Vec<u8>,
        at: Timestamp,
    ) {
        if let Some(waits) = self.try_place(connection, payload, bytes, at) {
            self.hold(connection, waits, at);
        }
    }

    fn try_place(
        &mut self,
        connection: &mut Connection<M>,
        payload: Payload,
        bytes: Vec<u8>,
        at: Timestamp,
    ) -> Option<Waits> {
        let placed = self
            .node
            .log()
            .reserve(payload.header.topic(), payload.len());
        let mut claimed = match placed {
            Ok(claimed) => claimed,
            Err(AdmitError::Congested | AdmitError::Full) => return Some((payload, bytes)),
            Err(never) => {
                self.unstage(connection, &payload);
                self.refuse_batch(connection, never_stored(never), at);
                return None;
            }
        };
        let came = &bytes[BATCH_HEADER_BYTES..payload.len() as usize];
        claimed.reservation.write(BATCH_HEADER_BYTES, came);
        self.unstage(connection, &payload);
        self.earn(connection, &payload, at);
        connection.link.hold(false, at.now);
        self.store(connection, &payload.header, claimed, at);
        // The next batch may be here already, with nothing to be received that would tell of it.
        self.ready.push(connection.token);
        None
    }

    /// Takes what is there of a batch out of the log.
    pub(super) fn move_to_staging(
        &self,
        connection: &mut Connection<M>,
        mut payload: Payload,
        claimed: BatchSpace<M>,
    ) -> (Payload, Vec<u8>) {
        let filled = payload.checked;
        let bytes = claimed.reservation.with_bytes(0..filled, <[u8]>::to_vec);
        let len = filled as u32;
        payload.room = Room::Aside(len);
        connection.credit_bytes = 0;
        let by = connection.sender(self.lane);
        self.node.log().move_to_staging(claimed, len, &by);
        (payload, bytes)
    }

    /// A batch that came earns its connection credit, if it came in time.
    pub(super) fn earn(&self, connection: &mut Connection<M>, payload: &Payload, at: Timestamp) {
        let most = u64::from(self.limits.max_batch_bytes);
        let earned = connection.credit_bytes + u64::from(payload.len());
        connection.credit_bytes = if at.now <= payload.began.after(IN_TIME) {
            earned.min(most)
        } else {
            0
        };
    }

    /// A batch will not be whole: what it had goes back.
    pub(super) fn give_up(&self, connection: &Connection<M>, payload: &Payload, store: Store<M>) {
        match (store, payload.room) {
            (Store::Reserved(reservation), Room::Log(location)) => {
                self.node.log().abandon(BatchSpace {
                    reservation,
                    location,
                });
            }
            _ => self.unstage(connection, payload),
        }
    }

    /// A connection that ends has a batch that waits: that will not be stored.
    pub(super) fn give_up_held(&self, connection: &mut Connection<M>) {
        match std::mem::replace(&mut connection.input, Input::Frames) {
            Input::Held(held) => self.unstage(connection, &held.payload),
            other => connection.input = other,
        }
    }

    fn unstage(&self, connection: &Connection<M>, payload: &Payload) {
        let Room::Aside(bytes) = payload.room else {
            return;
        };
        let by = connection.sender(self.lane);
        self.node.log().unstage(bytes, &by);
    }
}

impl<M: Memory> Shard<M> {
    /// Asks back the room of batches that do not come in time, or that keep what others could use.
    /// `looks_at_time` with the tick only.
    pub(super) fn recall(&mut self, looks_at_time: bool, at: Timestamp, out: &mut Vec<Action<M>>) {
        let node = &self.state.node;
        if !node.takes_data() {
            return;
        }
        let mut log = node.log();
        let recalls = log.recalls();
        if !looks_at_time && recalls == self.seen_recalls {
            return;
        }
        self.seen_recalls = recalls;
        let in_time = match node.paused() {
            0 => IN_TIME,
            _ => IN_TIME_WHEN_CONGESTED,
        };
        for connection in self.connections.values_mut() {
            let Input::Payload(payload) = &mut connection.input else {
                continue;
            };
            let Room::Log(location) = &payload.room else {
                continue;
            };
            let is_over = looks_at_time && payload.began.after(in_time) < at.now;
            if !payload.recalled && (is_over || log.is_late(location)) {
                payload.recalled = true;
                out.push(Action::Recall(connection.token));
            }
        }
    }
}

impl Payload {
    /// Whether all of its bytes are there.
    pub(super) fn is_whole(&self) -> bool {
        self.checked == self.len() as usize
    }

    /// Whether it came at the least rate since that was last asked and true.
    pub(super) fn comes(&mut self, now: Now) -> bool {
        let came = (self.checked - self.had) as u64;
        let least = (now.0 - self.looked.0) as u128 * u128::from(LEAST_BYTES_PER_SECOND);
        let comes = u128::from(came) * 1_000_000_000 >= least;
        if comes {
            (self.looked, self.had) = (now, self.checked);
        }
        comes
    }
}
