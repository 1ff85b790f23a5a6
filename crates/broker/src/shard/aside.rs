//! Batches that are received beside the log, and how others come to be received there.
//!
//! A batch whose connection has no credit, or whose room is wanted for others, goes on in memory that
//! grows with what arrives. It gets its room in the log when it is whole, so however long it takes, it
//! keeps nothing there.

use std::time::Duration;

use embar_frame::Now;
use embar_memory::Memory;
use embar_transport::{RecvBuf, Store, Token};
use embar_wire::limits::BATCH_HEADER_BYTES;

use super::refusals::never_stored;
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
    pub(super) fn sender(&self, lane: u16, token: Token) -> Sender {
        Sender {
            lane,
            connection: token.bits(),
            peer: self.peer_id,
            credit_bytes: self.credit_bytes,
        }
    }
}

impl<M: Memory> Shard<M> {
    /// A batch goes on in more memory than it has, as soon as there is some: in what it leaves in the
    /// log, or in what it had aside and as much again.
    pub(super) fn widen(
        &mut self,
        token: Token,
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
                self.move_to_staging(token, payload, space)
            }
            (Store::Heap(bytes), _) => (payload, bytes),
            _ => unreachable!("what is received into the log has a place there"),
        };
        if let Some(waits) = self.try_widen(token, payload, bytes, at, out) {
            self.hold(token, waits, at);
        }
    }

    fn try_widen(
        &mut self,
        token: Token,
        mut payload: Payload,
        mut bytes: Vec<u8>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) -> Option<Waits> {
        let connection = self.connections.get_mut(&token)?;
        let has = bytes.len() as u32;
        let more = has.max(STAGING_BYTES_MIN).min(payload.len() - has);
        let by = connection.sender(self.lane, token);
        if self.node.log().stage(more, &by).is_err() {
            return Some((payload, bytes));
        }
        payload.room = Room::Aside(has + more);
        payload.recalled = false;
        bytes.resize((has + more) as usize, 0);
        connection.link.hold(false, at.now);
        let rest = payload.checked..bytes.len();
        self.receive(token, payload, RecvBuf::heap(bytes, rest), out);
        None
    }

    fn hold(&mut self, token: Token, (payload, bytes): Waits, at: Timestamp) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.input = Input::Held(Held {
                payload,
                bytes,
                since: at.now,
            });
            self.pause(token, at);
        }
    }

    /// A batch that waits gets what it waits for, if that is to be had.
    pub(super) fn go_on(&mut self, token: Token, at: Timestamp, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
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
            self.try_place(token, payload, bytes, at)
        } else {
            self.try_widen(token, payload, bytes, at, out)
        };
        if let Some((mut payload, bytes)) = waits
            && let Some(connection) = self.connections.get_mut(&token)
        {
            payload.began = began;
            connection.input = Input::Held(Held {
                payload,
                bytes,
                since,
            });
        }
    }

    /// A whole batch gets its room in the log, as soon as there is some, and is stored.
    pub(super) fn place(&mut self, token: Token, payload: Payload, bytes: Vec<u8>, at: Timestamp) {
        if let Some(waits) = self.try_place(token, payload, bytes, at) {
            self.hold(token, waits, at);
        }
    }

    fn try_place(
        &mut self,
        token: Token,
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
                self.unstage(token, &payload);
                self.refuse_batch(token, never_stored(never), at);
                return None;
            }
        };
        let came = &bytes[BATCH_HEADER_BYTES..payload.len() as usize];
        claimed.reservation.write(BATCH_HEADER_BYTES, came);
        self.unstage(token, &payload);
        self.earn(token, &payload, at);
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.link.hold(false, at.now);
        }
        self.store(token, &payload.header, claimed, at);
        // The next batch may be here already, with nothing to be received that would tell of it.
        self.ready.push(token);
        None
    }

    /// Takes what is there of a batch out of the log.
    pub(super) fn move_to_staging(
        &mut self,
        token: Token,
        mut payload: Payload,
        claimed: BatchSpace<M>,
    ) -> (Payload, Vec<u8>) {
        let filled = payload.checked;
        let bytes = claimed.reservation.with_bytes(0..filled, <[u8]>::to_vec);
        let len = filled as u32;
        payload.room = Room::Aside(len);
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.credit_bytes = 0;
            let by = connection.sender(self.lane, token);
            self.node.log().move_to_staging(claimed, len, &by);
        } else {
            self.node.log().abandon(claimed);
        }
        (payload, bytes)
    }

    /// A batch that came earns its connection credit, if it came in time.
    pub(super) fn earn(&mut self, token: Token, payload: &Payload, at: Timestamp) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let most = u64::from(self.limits.max_batch_bytes);
        let earned = connection.credit_bytes + u64::from(payload.len());
        connection.credit_bytes = if at.now <= payload.began.after(IN_TIME) {
            earned.min(most)
        } else {
            0
        };
    }

    /// A batch will not be whole: what it had goes back.
    pub(super) fn give_up(&mut self, token: Token, payload: &Payload, store: Store<M>) {
        match (store, payload.room) {
            (Store::Reserved(reservation), Room::Log(location)) => {
                self.node.log().abandon(BatchSpace {
                    reservation,
                    location,
                });
            }
            _ => self.unstage(token, payload),
        }
    }

    /// A connection that ends has a batch that waits: that will not be stored.
    pub(super) fn give_up_held(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        match std::mem::replace(&mut connection.input, Input::Frames) {
            Input::Held(held) => self.unstage(token, &held.payload),
            other => connection.input = other,
        }
    }

    fn unstage(&mut self, token: Token, payload: &Payload) {
        let Room::Aside(bytes) = payload.room else {
            return;
        };
        if let Some(connection) = self.connections.get(&token) {
            let by = connection.sender(self.lane, token);
            self.node.log().unstage(bytes, &by);
        }
    }

    /// Asks back the room of batches that do not come in time, or that keep what others could use.
    /// `looks_at_time` with the tick only.
    pub(super) fn recall(&mut self, looks_at_time: bool, at: Timestamp, out: &mut Vec<Action<M>>) {
        if !self.node.takes_data() {
            return;
        }
        let mut log = self.node.log();
        let recalls = log.recalls();
        if !looks_at_time && recalls == self.seen_recalls {
            return;
        }
        self.seen_recalls = recalls;
        let in_time = match self.node.paused() {
            0 => IN_TIME,
            _ => IN_TIME_WHEN_CONGESTED,
        };
        for (token, connection) in &mut self.connections {
            let Input::Payload(payload) = &mut connection.input else {
                continue;
            };
            let Room::Log(location) = &payload.room else {
                continue;
            };
            let is_over = looks_at_time && payload.began.after(in_time) < at.now;
            if !payload.recalled && (is_over || log.is_late(location)) {
                payload.recalled = true;
                out.push(Action::Recall(*token));
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
