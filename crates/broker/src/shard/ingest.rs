//! Batches from publishers: header, space, payload, check, append, acknowledgement.

use std::io;
use std::sync::Arc;

use embar_memory::Memory;
use embar_transport::{RecvBuf, Store, Witness};
use embar_wire::acks::Acks;
use embar_wire::batch::BatchHeader;
use embar_wire::check::Checked;
use embar_wire::control::{ErrorCode, ErrorReply};
use embar_wire::error::DecodeError;
use embar_wire::limits::BATCH_HEADER_BYTES;

use super::refusals::{LEAVES, batch_refused};
use super::state::ShardState;
use super::{Action, RECV_RING_BYTES, Shard};
use crate::clock::Timestamp;
use crate::connection::{
    Connection, Destination, IncomingBatch, Input, Peer, Session, SharedCheck,
};
use crate::log::{AdmitError, Admitted, BatchSpace, Submitter};
use crate::profile::{Counter, Stage};
use crate::receive_path::ReceivePath;

/// Of a payload that goes to the log in one piece, a reactor that can wait inside the kernel waits for so many
/// bytes. They are checked afterwards, so they should still be in a cache.
const WANTED_BYTES: usize = 1 << 20;
/// A smaller batch is received as it comes, and the header of the next one with it.
const WANTED_BYTES_MIN: usize = 256 << 10;

/// Batches up to this size are received together with what follows them.
const SMALL_BATCH_BYTES: u32 = 64 << 10;
/// Copied while it is in the first-level cache from its checksum.
const COPIED_AT_ONCE_BYTES: usize = 8 << 10;

impl<M: Memory> ShardState<M> {
    /// Begins a batch: finds memory for it, and asks for its payload.
    pub(super) fn begin_batch(
        &mut self,
        connection: &mut Connection<M>,
        header: Result<BatchHeader, DecodeError>,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        let checked = header
            .map_err(|error| ErrorReply::new(error.code(), error.to_string()))
            .and_then(|header| match connection.peer {
                Peer::Publisher { .. } if !header.is_summed() && !connection.shares_memory() => {
                    Err(ErrorReply::new(
                        ErrorCode::BadFrame,
                        "a batch without a checksum came by a socket: only shared memory carries such batches".into(),
                    ))
                }
                Peer::Publisher { .. } if header.stored_by().is_some() => Err(ErrorReply::new(
                    ErrorCode::BadFrame,
                    "a batch says which broker stores it: its publisher cannot know that".into(),
                )),
                Peer::Publisher { topic, session, .. } if header.topic() == topic => {
                    of_session(session, &header).map(|()| header)
                }
                Peer::Publisher { .. } => Err(ErrorReply::new(
                    ErrorCode::BadFrame,
                    format!(
                        "a batch for topic id {} came on a connection opened for another",
                        header.topic()
                    ),
                )),
                _ => Err(ErrorReply::new(
                    ErrorCode::BadFrame,
                    "a batch came before OpenPublisher: say which topic it is for first".into(),
                )),
            });
        match checked {
            Ok(header) => self.admit(connection, header, at, out),
            Err(error) => self.refuse_batch(connection, error, at),
        }
    }

    /// Receives a batch, or pauses its connection until the log admits it.
    fn admit(
        &mut self,
        connection: &mut Connection<M>,
        header: BatchHeader,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        let by = connection.sender(self.lane);
        // Small batches come in runs, and what is here of their payload with them.
        let came = BATCH_HEADER_BYTES + connection.core.early().len();
        let (topic, len) = (header.topic(), header.frame_len());
        let start = self.meter.start();
        let mut log = self.node.log();
        let stages = self.node.config.receive == ReceivePath::Staging && came < len as usize;
        let admitted = if stages {
            let staged = log.admit_staged(topic, len, came as u32, &by);
            staged.map(Admitted::Staged)
        } else {
            log.admit(topic, len, came as u32, &by)
        };
        drop(log);
        self.meter.stop(Stage::ReserveBLogSpace as usize, start);
        let mut unseen = false;
        let (destination, store) = match admitted {
            Ok(Admitted::InLog(space)) => {
                unseen = self.waits_in_kernel && len as usize >= WANTED_BYTES_MIN;
                let store = Store::Reserved(space.reservation);
                (Destination::Log(space.location), store)
            }
            Ok(Admitted::Staged(bytes)) => {
                let store = Store::Heap(self.staging_memory.take(bytes as usize));
                (Destination::Staging(bytes), store)
            }
            Err(AdmitError::Congested | AdmitError::Full) => {
                connection.core.put_back();
                if !matches!(connection.input, Input::Paused { .. }) {
                    connection.input = Input::Paused { since: at.now };
                    self.pause(connection, at);
                }
                return;
            }
            Err(never) => return self.refuse_batch(connection, batch_refused(never), at),
        };
        let batch = IncomingBatch {
            header,
            destination,
            began: at.now,
            looked: at.now,
            had: 0,
            checked: came,
            recalled: false,
            unseen,
        };
        connection.input = Input::Frames;
        let start = self.meter.start();
        let store = take_early(connection, &header, store);
        self.meter.stop(Stage::VerifyPayload as usize, start);
        connection.core.set_read_ahead(read_ahead(&batch));
        if batch.is_whole() {
            return self.complete(connection, batch, store, at);
        }
        let wanted = if unseen { WANTED_BYTES } else { 0 };
        let buf = match store {
            Store::Reserved(reservation) => {
                // A reactor that copies by itself does so past the caches, and nobody reads this again soon.
                RecvBuf::reserved(reservation, came..len as usize)
                    .wanting(wanted)
                    .witnessed(Arc::<SharedCheck>::clone(&connection.check))
            }
            Store::Heap(bytes) => {
                let all = bytes.len();
                RecvBuf::heap(bytes, came..all)
            }
            Store::Ring(_) | Store::Lent(..) => {
                unreachable!("a payload is received into the log or staging memory")
            }
        };
        self.receive(connection, batch, buf, out);
    }

    /// Asks for bytes of a payload, into a buffer that may hold only some of it.
    pub(super) fn receive(
        &mut self,
        connection: &mut Connection<M>,
        batch: IncomingBatch,
        mut buf: RecvBuf<M>,
        out: &mut Vec<Action<M>>,
    ) {
        // One system call takes the payload, and the header of the next batch or a run of small ones.
        if buf.filled().end + buf.remaining() == batch.len() as usize
            && let Some(space) = connection.core.lend_ahead(read_ahead(&batch))
        {
            buf = buf.then(space);
        }
        connection.input = Input::Payload(batch);
        out.push(Action::Recv(connection.token, buf));
    }

    /// Takes in part of a payload, and adds it to the checksum while it is in the cache.
    pub(super) fn payload_received(
        &mut self,
        connection: &mut Connection<M>,
        buf: RecvBuf<M>,
        result: &io::Result<usize>,
        ticks: u64,
        at: Timestamp,
        out: &mut Vec<Action<M>>,
    ) {
        let Input::Payload(batch) = &mut connection.input else {
            return;
        };
        let core = &mut connection.core;
        let ended = core.is_ending();
        let came = matches!(result, Ok(n) if *n > 0);
        let recalled = matches!(result, Err(error) if error.kind() == io::ErrorKind::Interrupted);
        if came {
            self.meter
                .add_ticks(Stage::DrainPayloadToBuffer as usize, ticks, 1);
        }
        let filled = buf.filled().end;
        let start = self.meter.start();
        let unseen = batch.checked.max(buf.seen());
        buf.with_filled(unseen..filled, |bytes| connection.check.see(bytes));
        self.meter.stop(Stage::VerifyPayload as usize, start);
        core.body_received(filled - batch.checked, at.now);
        batch.checked = filled;
        let whole = batch.is_whole();
        let goes_on = (came || recalled) && !whole && !ended;
        if goes_on && buf.remaining() > 0 && !batch.recalled {
            // What comes slowly is looked at as it comes.
            let wanted = if batch.unseen { buf.wanted() } else { 0 };
            out.push(Action::Recv(connection.token, buf.wanting(wanted)));
            return;
        }
        let ahead = buf.overflow();
        let (store, space) = buf.into_parts();
        if let Some(space) = space {
            core.ahead_received(space, ahead, at.now);
        }
        if !recalled {
            core.end_of_stream(result, at.now);
        }
        let input = std::mem::replace(&mut connection.input, Input::Frames);
        let Input::Payload(batch) = input else {
            return;
        };
        // A refused peer counts on it that this broker stores nothing more, even what is whole by now.
        if whole && !ended {
            self.complete(connection, batch, store, at);
        } else if goes_on {
            self.grow(connection, batch, store, at, out);
        } else {
            self.discard(connection, &batch, store);
        }
    }

    /// Checks a whole batch, and stores it.
    fn complete(
        &mut self,
        connection: &mut Connection<M>,
        mut batch: IncomingBatch,
        store: Store<M>,
        at: Timestamp,
    ) {
        let start = self.meter.start();
        let checked = match &store {
            Store::Reserved(reservation) => check(connection, &batch.header, |see| {
                reservation.with_bytes(BATCH_HEADER_BYTES..reservation.len(), see);
            }),
            Store::Heap(bytes) => check(connection, &batch.header, |see| {
                see(&bytes[BATCH_HEADER_BYTES..]);
            }),
            Store::Ring(_) | Store::Lent(..) => {
                unreachable!("a payload is received into the log or staging memory")
            }
        };
        self.meter.stop(Stage::VerifyPayload as usize, start);
        match checked {
            Ok(checked) => batch.header.sum(checked.crc),
            Err(error) => {
                self.discard(connection, &batch, store);
                self.refuse_batch(connection, error, at);
                return;
            }
        }
        match (store, batch.destination) {
            (Store::Reserved(reservation), Destination::Log(location)) => {
                let space = BatchSpace {
                    reservation,
                    location,
                };
                if self.node.log().is_late(&location) {
                    let (batch, bytes) = self.move_to_staging(connection, batch, space);
                    return self.move_to_log(connection, batch, bytes, at);
                }
                self.update_credit(connection, &batch, at);
                self.store(connection, &batch.header, space, at);
            }
            (Store::Heap(bytes), _) => self.move_to_log(connection, batch, bytes, at),
            _ => unreachable!("what is received into the log has a place there"),
        }
    }

    /// Appends a checked batch, or submits it to the sequencer.
    pub(super) fn store(
        &mut self,
        connection: &mut Connection<M>,
        header: &BatchHeader,
        space: BatchSpace<M>,
        at: Timestamp,
    ) {
        let header = *header;
        let stored = match connection.peer {
            Peer::Publisher {
                session: Some(session),
                ..
            } => {
                let submitter = Submitter {
                    lane: self.lane,
                    connection: connection.token.bits(),
                    batch: Some(connection.acks.expect()),
                };
                self.submitted = true;
                let mut log = self.node.log();
                log.submit(space, header, session.slot, submitter, at.wall, &self.meter)
            }
            _ => {
                let mut log = self.node.log();
                if self.node.leaves_empty() {
                    log.abandon(space);
                    drop(log);
                    self.refuse_batch(
                        connection,
                        ErrorReply::new(ErrorCode::Draining, LEAVES.into()),
                        at,
                    );
                    return;
                }
                let appended = log.append(space, header, at.wall, &self.meter);
                self.has_grown_for_disks |= log.has_grown_for_disks();
                drop(log);
                self.touched.push(header.topic());
                if let Some(base) = appended {
                    self.acknowledge(connection, base);
                }
                appended.is_some()
            }
        };
        if !stored {
            self.refuse_batch(connection, batch_refused(AdmitError::UnknownTopic), at);
            return;
        }
        let count = |counter: Counter, n: u64| self.meter.count(counter as usize, n);
        count(Counter::Batches, 1);
        count(Counter::Messages, u64::from(header.message_count()));
        count(Counter::Bytes, header.frame_len().into());
    }

    pub(super) fn refuse_batch(
        &mut self,
        connection: &mut Connection<M>,
        error: ErrorReply,
        at: Timestamp,
    ) {
        self.meter.count(Counter::RefusedBatches as usize, 1);
        self.refuse(connection, error, at);
    }

    /// Acknowledges a batch that can be read, now or once it is on disks.
    fn acknowledge(&mut self, connection: &mut Connection<M>, base: u64) {
        if matches!(connection.peer, Peer::Publisher { acks, .. } if acks != Acks::None) {
            self.owe_acks(connection);
            let durable_at = self.durable_at(connection, base);
            connection.acks.push(base, durable_at);
            self.await_disks(connection);
        }
    }
}

impl<M: Memory> Shard<M> {
    /// Sends the acknowledgements of this round: one frame for each connection, if one has room for all.
    pub(super) fn flush_acks(&mut self, at: Timestamp, out: &mut Vec<Action<M>>) {
        let mut tokens = std::mem::take(&mut self.state.ack_due);
        tokens.retain(|&token| {
            let Some(connection) = self.connections.get_mut(&token) else {
                return false;
            };
            let all = connection.send_acks(at.now);
            connection.is_ack_due = !all;
            connection.finish_if_done(at.now);
            self.state.run_steps(connection, at, out);
            if self.state.release_if_over(connection) {
                self.connections.remove(&token);
            }
            !all
        });
        self.state.ack_due = tokens;
    }
}

/// How many bytes behind a batch the call that receives its end may take. Behind a large one comes a header, and no byte
/// of a payload that could go straight into the log. Behind a small one comes what is there: copying it costs less than
/// a call for each batch.
fn read_ahead(batch: &IncomingBatch) -> usize {
    match batch.len() {
        ..=SMALL_BATCH_BYTES => RECV_RING_BYTES,
        _ => BATCH_HEADER_BYTES,
    }
}

/// Puts what came with a batch's header where its payload goes, and adds it to the checksum while it is in the cache.
fn take_early<M: Memory>(
    connection: &mut Connection<M>,
    header: &BatchHeader,
    mut store: Store<M>,
) -> Store<M> {
    connection.check.begin(header);
    let mut at = BATCH_HEADER_BYTES;
    for part in connection.core.early().chunks(COPIED_AT_ONCE_BYTES) {
        connection.check.see(part);
        let end = at + part.len();
        match &mut store {
            Store::Reserved(reservation) => reservation.write(at, part),
            Store::Heap(bytes) => bytes[at..end].copy_from_slice(part),
            Store::Ring(_) | Store::Lent(..) => {
                unreachable!("a payload is received into the log or staging memory")
            }
        }
        at = end;
    }
    store
}

/// Checks a batch's checksum, the length of each message, and the topic's limit, so that the log holds nothing
/// that a subscriber cannot read. `payload` shows what came once more, if that is needed.
fn check<M: Memory>(
    connection: &Connection<M>,
    header: &BatchHeader,
    payload: impl FnOnce(&mut dyn FnMut(&[u8])),
) -> Result<Checked, ErrorReply> {
    let checked = connection.check.end(header, payload).map_err(|error| {
        let (sequence, producer) = (header.sequence(), header.producer());
        let what = format!("batch {sequence} of producer {producer:#x} is damaged: {error}");
        ErrorReply::new(error.code(), what)
    })?;
    let limit = match connection.peer {
        Peer::Publisher {
            max_message_bytes, ..
        } => max_message_bytes as usize,
        _ => 0,
    };
    let longest = checked.longest;
    if longest > limit {
        let what = format!(
            "a message of {longest} bytes is above the topic's limit of {limit}: send smaller ones, or create a topic with --max-message-size"
        );
        return Err(ErrorReply::new(ErrorCode::TooLarge, what));
    }
    Ok(checked)
}

/// Checks that a batch is its publisher's: on an ordered topic a connection has the batches of one producer.
fn of_session(session: Option<Session>, header: &BatchHeader) -> Result<(), ErrorReply> {
    match session {
        Some(session) if session.producer != header.producer() => Err(ErrorReply::new(
            ErrorCode::BadFrame,
            format!(
                "a batch of producer {:#x} came on a connection opened for another",
                header.producer()
            ),
        )),
        _ => Ok(()),
    }
}
