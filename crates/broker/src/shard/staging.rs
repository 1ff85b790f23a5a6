//! Batches that this thread receives into staging memory: from their start, or after it took their space in the
//! log away.
//!
//! A batch is received into staging memory when its connection has no credit, or when others want its space in
//! the log. Staging memory grows with what arrives. The batch moves to the log when it is whole, so a slow batch
//! holds no space there.

use std::time::Duration;

use embar_frame::Now;
use embar_memory::Memory;
use embar_transport::{RecvBuf, Store};
use embar_wire::limits::BATCH_HEADER_BYTES;

use super::refusals::batch_refused;
use super::state::ShardState;
use super::{Action, Shard};
use crate::clock::Timestamp;
use crate::connection::{Connection, Destination, HeldBatch, IncomingBatch, Input};
use crate::log::{AdmitError, BatchSpace, STAGING_BYTES_MIN, Sender};
use crate::profile::Stage;

/// A batch that takes longer is late: its connection loses its credit, and the rest of the batch goes to staging
/// memory.
const IN_TIME: Duration = Duration::from_secs(1);
/// How long a batch may hold space in the log when others wait for some.
const IN_TIME_WHEN_CONGESTED: Duration = Duration::from_millis(100);
/// A reactor that waits for many bytes of a batch is asked after this time how many are there.
pub(super) const UNSEEN_AT_MOST: Duration = Duration::from_millis(200);
/// Bytes copied from staging memory at once. They are written back while they are in the cache.
const COPY_BYTES: usize = 256 << 10;
/// This broker refuses a batch that comes more slowly while others wait for what it holds.
pub(super) const LEAST_BYTES_PER_SECOND: u64 = 256 << 10;

/// A batch that cannot get memory now, and its bytes.
type Blocked = (IncomingBatch, Vec<u8>);

impl<M: Memory> Connection<M> {
    /// What the log needs to know of the sender of a batch.
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
    /// Receives the rest of a batch into staging memory, as soon as there is enough. A batch in staging memory
    /// gets as much again as it has.
    pub(super) fn grow(
        &mut self,
        connection: &mut Connection<M>,
        batch: IncomingBatch,
        store: Store<M>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        let (batch, bytes) = match (store, batch.destination) {
            (Store::Reserved(reservation), Destination::Log(location)) => {
                let space = BatchSpace {
                    reservation,
                    location,
                };
                self.move_to_staging(connection, batch, space)
            }
            (Store::Heap(bytes), _) => (batch, bytes),
            _ => unreachable!("what is received into the log has a place there"),
        };
        if let Some(blocked) = self.try_grow(connection, batch, bytes, at, out) {
            self.hold(connection, blocked, at);
        }
    }

    fn try_grow(
        &mut self,
        connection: &mut Connection<M>,
        mut batch: IncomingBatch,
        mut bytes: Vec<u8>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) -> Option<Blocked> {
        let has = bytes.len() as u32;
        let more = has.max(STAGING_BYTES_MIN).min(batch.len() - has);
        let by = connection.sender(self.lane);
        if self.node.log().stage(more, &by).is_err() {
            return Some((batch, bytes));
        }
        batch.destination = Destination::Staging(has + more);
        batch.recalled = false;
        bytes.resize((has + more) as usize, 0);
        connection.core.hold(false, at.now);
        let rest = batch.checked..bytes.len();
        self.receive(connection, batch, RecvBuf::heap(bytes, rest), out);
        None
    }

    fn hold(&mut self, connection: &mut Connection<M>, (batch, bytes): Blocked, at: Timestamp) {
        connection.input = Input::Held(HeldBatch {
            batch,
            bytes,
            since: at.now,
        });
        self.pause(connection, at);
    }

    /// Goes on with a batch that waits, if there is memory for it.
    pub(super) fn resume(
        &mut self,
        connection: &mut Connection<M>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        let held = match std::mem::replace(&mut connection.input, Input::Frames) {
            Input::Held(held) => held,
            other => return connection.input = other,
        };
        let HeldBatch {
            mut batch,
            bytes,
            since,
        } = held;
        let began = batch.began;
        // The peer did not cause this wait.
        batch.began = Now(began.0 + (at.now.0 - since.0));
        batch.looked = at.now;
        let blocked = if batch.is_whole() {
            self.try_move_to_log(connection, batch, bytes, at)
        } else {
            self.try_grow(connection, batch, bytes, at, out)
        };
        if let Some((mut batch, bytes)) = blocked {
            batch.began = began;
            connection.input = Input::Held(HeldBatch {
                batch,
                bytes,
                since,
            });
        }
    }

    /// Stores a whole batch of staging memory in the log, as soon as there is space.
    pub(super) fn move_to_log(
        &mut self,
        connection: &mut Connection<M>,
        batch: IncomingBatch,
        bytes: Vec<u8>,
        at: Timestamp,
    ) {
        if let Some(blocked) = self.try_move_to_log(connection, batch, bytes, at) {
            self.hold(connection, blocked, at);
        }
    }

    fn try_move_to_log(
        &mut self,
        connection: &mut Connection<M>,
        batch: IncomingBatch,
        bytes: Vec<u8>,
        at: Timestamp,
    ) -> Option<Blocked> {
        let start = self.meter.start();
        let placed = self.node.log().reserve(batch.header.topic(), batch.len());
        self.meter.stop(Stage::GetCxlBuffer as usize, start);
        let mut space = match placed {
            Ok(space) => space,
            Err(AdmitError::Congested | AdmitError::Full) => return Some((batch, bytes)),
            Err(never) => {
                self.unstage(connection, &batch);
                self.refuse_batch(connection, batch_refused(never), at);
                return None;
            }
        };
        let start = self.meter.start();
        let came = &bytes[BATCH_HEADER_BYTES..batch.len() as usize];
        let mut to = BATCH_HEADER_BYTES;
        for piece in came.chunks(COPY_BYTES) {
            space.reservation.write_through(to, piece);
            to += piece.len();
        }
        self.meter.stop(Stage::CopyAndFlushPayload as usize, start);
        self.staging_memory.give_back(bytes);
        self.unstage(connection, &batch);
        self.update_credit(connection, &batch, at);
        connection.core.hold(false, at.now);
        self.store(connection, &batch.header, space, at);
        // The next batch may be here already, without another receive that would report it.
        self.ready.push(connection.token);
        None
    }

    /// Moves what is there of a batch from the log to staging memory.
    pub(super) fn move_to_staging(
        &self,
        connection: &mut Connection<M>,
        mut batch: IncomingBatch,
        space: BatchSpace<M>,
    ) -> (IncomingBatch, Vec<u8>) {
        let filled = batch.checked;
        let bytes = space.reservation.with_bytes(0..filled, <[u8]>::to_vec);
        let len = filled as u32;
        batch.destination = Destination::Staging(len);
        connection.credit_bytes = 0;
        let by = connection.sender(self.lane);
        self.node.log().move_to_staging(space, len, &by);
        (batch, bytes)
    }

    /// Adds a whole batch to its connection's credit, or takes the credit away if the batch was late.
    pub(super) fn update_credit(
        &self,
        connection: &mut Connection<M>,
        batch: &IncomingBatch,
        at: Timestamp,
    ) {
        let most = u64::from(self.limits.max_batch_bytes);
        let earned = connection.credit_bytes + u64::from(batch.len());
        connection.credit_bytes = if at.now <= batch.began.after(IN_TIME) {
            earned.min(most)
        } else {
            0
        };
    }

    /// Gives back the memory of a batch that will not be whole.
    pub(super) fn discard(
        &self,
        connection: &Connection<M>,
        batch: &IncomingBatch,
        store: Store<M>,
    ) {
        match (store, batch.destination) {
            (Store::Reserved(reservation), Destination::Log(location)) => {
                self.node.log().abandon(BatchSpace {
                    reservation,
                    location,
                });
            }
            _ => self.unstage(connection, batch),
        }
    }

    /// Gives back the memory of the batch that waits, if one does: its connection ends.
    pub(super) fn discard_held(&self, connection: &mut Connection<M>) {
        match std::mem::replace(&mut connection.input, Input::Frames) {
            Input::Held(held) => self.unstage(connection, &held.batch),
            other => connection.input = other,
        }
    }

    fn unstage(&self, connection: &Connection<M>, batch: &IncomingBatch) {
        let Destination::Staging(bytes) = batch.destination else {
            return;
        };
        let by = connection.sender(self.lane);
        self.node.log().unstage(bytes, &by);
    }
}

impl<M: Memory> Shard<M> {
    /// Asks the reactor for the buffers of batches that are late, or that hold space which others need: they go
    /// on in staging memory. Looks for late ones with the tick only, when `looks_at_time`.
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
            let Input::Payload(batch) = &mut connection.input else {
                continue;
            };
            let Destination::Log(location) = &batch.destination else {
                continue;
            };
            let is_over = looks_at_time && batch.began.after(in_time) < at.now;
            if !batch.recalled && (is_over || log.is_late(location)) {
                batch.recalled = true;
                out.push(Action::Recall(connection.token));
            } else if looks_at_time && batch.unseen && batch.began.after(UNSEEN_AT_MOST) < at.now {
                batch.unseen = false;
                out.push(Action::Recall(connection.token));
            }
        }
    }
}

impl IncomingBatch {
    /// Whether all of its bytes are there.
    pub(super) fn is_whole(&self) -> bool {
        self.checked == self.len() as usize
    }

    /// Whether it came at the least rate since the last call that said so.
    pub(super) fn is_fast_enough(&mut self, now: Now) -> bool {
        let came = (self.checked - self.had) as u64;
        let least = (now.0 - self.looked.0) as u128 * u128::from(LEAST_BYTES_PER_SECOND);
        let comes = u128::from(came) * 1_000_000_000 >= least;
        if comes {
            (self.looked, self.had) = (now, self.checked);
        }
        comes
    }
}
