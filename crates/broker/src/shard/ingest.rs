//! Batches on their way in: header, room, payload, check, append, acknowledgement.

use std::io;

use embar_fabric::blog::Reservation;
use embar_fabric::memory::Memory;
use embar_transport::{RecvBuf, Store, Token};
use embar_wire::batch::BatchHeader;
use embar_wire::control::{ErrorCode, ErrorReply};
use embar_wire::crc::Crc;
use embar_wire::error::DecodeError;
use embar_wire::limits::BATCH_HEADER_BYTES;
use embar_wire::message::Messages;

use super::{Action, At, Shard, refusal};
use crate::connection::{Input, Payload, Peer, Session};
use crate::log::{Claimed, NoRoom, Place, Ticket};
use crate::profile::{Counter, Stage};

impl<M: Memory> Shard<M> {
    /// A batch begins. Finds room and asks for the payload.
    pub(super) fn begin_batch(
        &mut self,
        token: Token,
        header: Result<BatchHeader, DecodeError>,
        at: At,
        out: &mut Vec<Action<M>>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let checked = header
            .map_err(|error| refusal(error.code(), error.to_string()))
            .and_then(|header| match connection.peer {
                Peer::Publisher { topic, session, .. } if header.topic() == topic => {
                    of_session(session, &header).map(|()| header)
                }
                Peer::Publisher { .. } => Err(refusal(
                    ErrorCode::BadFrame,
                    format!(
                        "a batch for topic id {} came on a connection opened for another",
                        header.topic()
                    ),
                )),
                _ => Err(refusal(
                    ErrorCode::BadFrame,
                    "a batch came before OpenPublisher: say which topic it is for first".into(),
                )),
            });
        match checked {
            Ok(header) => self.admit(token, header, at, out),
            Err(error) => self.refuse_batch(token, error, at),
        }
    }

    /// Gives the batch room in the log, or pauses the connection until there is some.
    fn admit(&mut self, token: Token, header: BatchHeader, at: At, out: &mut Vec<Action<M>>) {
        let len = BATCH_HEADER_BYTES as u32 + header.payload_len();
        let start = self.meter.start();
        let admitted = self.node.log().admit(header.topic(), len);
        self.meter.stop(Stage::ReserveBLogSpace as usize, start);
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let link = &mut connection.link;
        match admitted {
            Ok(Claimed { reservation, place }) => {
                let checked = BATCH_HEADER_BYTES;
                connection.crc = Crc::new();
                connection.input = Input::Payload(Payload {
                    header,
                    place,
                    progressed: at.now,
                    checked,
                });
                // The time it was held back is not its peer's.
                link.hold(false, at.now);
                let mut buf = RecvBuf::log(reservation, checked..len as usize);
                // One system call takes the payload and the header of the next batch, and no byte
                // of the next payload.
                if let Some(space) = link.lend_ahead(BATCH_HEADER_BYTES) {
                    buf = buf.then(space);
                }
                out.push(Action::Recv(token, buf));
            }
            Err(NoRoom::UnknownTopic) => {
                self.refuse_batch(token, topic_is_gone(), at);
            }
            Err(NoRoom::Damaged) => {
                let what = "the topic's order is damaged, so nothing can be stored behind it: publish to another topic";
                self.refuse_batch(token, refusal(ErrorCode::Internal, what.into()), at);
            }
            Err(NoRoom::Congested | NoRoom::Full) => {
                if !matches!(connection.input, Input::Paused { .. }) {
                    link.hold(true, at.now);
                    connection.input = Input::Paused {
                        header,
                        since: at.now,
                    };
                    self.paused.push(token);
                    self.meter.count(Counter::Pauses as usize, 1);
                }
            }
        }
    }

    /// Tries again for publishers that found no room.
    pub(super) fn retry_paused(&mut self, at: At, out: &mut Vec<Action<M>>) {
        for token in std::mem::take(&mut self.paused) {
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            let Input::Paused { header, .. } = connection.input else {
                continue;
            };
            self.admit(token, header, at, out);
            self.act(token, at, out);
            let still = self.connections.get(&token).map(|c| &c.input);
            if matches!(still, Some(Input::Paused { .. })) {
                self.paused.push(token);
            }
        }
        self.node
            .paused_changed(&mut self.told_paused, self.paused.len());
    }

    /// Part of a payload arrived: it is checked while it is hot.
    pub(super) fn payload_received(
        &mut self,
        token: Token,
        buf: RecvBuf<M>,
        result: &io::Result<usize>,
        ticks: u64,
        at: At,
        out: &mut Vec<Action<M>>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let Input::Payload(payload) = &mut connection.input else {
            return;
        };
        let link = &mut connection.link;
        let alive = matches!(result, Ok(n) if *n > 0);
        if alive {
            self.meter
                .add_ticks(Stage::DrainPayloadToBuffer as usize, ticks, 1);
            payload.progressed = at.now;
        }
        let filled = buf.filled().end;
        let start = self.meter.start();
        let crc = &mut connection.crc;
        buf.with_filled(payload.checked..filled, |bytes| crc.update(bytes));
        self.meter.stop(Stage::VerifyPayload as usize, start);
        link.body_received(filled - payload.checked, at.now);
        payload.checked = filled;
        let whole = buf.remaining() == 0;
        if alive && !whole && !link.is_ending() {
            out.push(Action::Recv(token, buf));
            return;
        }
        let ahead = buf.overflow();
        let (store, space) = buf.into_parts();
        if let Some(space) = space {
            link.ahead_received(space, ahead, at.now);
        }
        link.end_of_stream(result, at.now);
        let input = std::mem::replace(&mut connection.input, Input::Frames);
        if let (Input::Payload(payload), Store::Log(reservation)) = (input, store) {
            if whole {
                self.complete(token, payload, reservation, at);
            } else {
                self.abandon(reservation, payload.place);
            }
        }
    }

    /// All bytes are there.
    fn complete(&mut self, token: Token, payload: Payload, reservation: Reservation<M>, at: At) {
        let Payload { header, place, .. } = payload;
        let start = self.meter.start();
        let checked = self.check(token, &header, &reservation);
        self.meter.stop(Stage::VerifyPayload as usize, start);
        if let Err(error) = checked {
            self.abandon(reservation, place);
            self.refuse_batch(token, error, at);
            return;
        }
        let claimed = Claimed { reservation, place };
        let Some(connection) = self.connections.get_mut(&token) else {
            self.node.log().abandon(claimed);
            return;
        };
        let stored = match connection.peer {
            Peer::Publisher {
                session: Some(session),
                ..
            } => {
                let ticket = Ticket {
                    lane: self.lane,
                    connection: token.bits(),
                    batch: Some(connection.answers.expect()),
                };
                self.submitted = true;
                let mut log = self.node.log();
                log.submit(claimed, header, session.slot, ticket, at.wall, &self.meter)
            }
            _ => {
                let mut log = self.node.log();
                if self.node.leaves_empty() {
                    log.abandon(claimed);
                    drop(log);
                    self.refuse_batch(token, refusal(ErrorCode::Draining, LEAVES.into()), at);
                    return;
                }
                let appended = log.append(claimed, header, at.wall, &self.meter);
                drop(log);
                self.touched.push(header.topic());
                if let Some(base) = appended {
                    self.acknowledge(token, base);
                }
                appended.is_some()
            }
        };
        if !stored {
            self.refuse_batch(token, topic_is_gone(), at);
            return;
        }
        let count = |counter: Counter, n: u64| self.meter.count(counter as usize, n);
        count(Counter::Batches, 1);
        count(Counter::Messages, u64::from(header.message_count()));
        count(
            Counter::Bytes,
            BATCH_HEADER_BYTES as u64 + u64::from(header.payload_len()),
        );
    }

    /// Nothing that subscribers could stumble over may reach the log: checksum,
    /// every message's lengths, the topic's limit.
    fn check(
        &self,
        token: Token,
        header: &BatchHeader,
        reservation: &Reservation<M>,
    ) -> Result<(), ErrorReply> {
        let damaged = |error: DecodeError| {
            let (sequence, producer) = (header.sequence(), header.producer());
            let what = format!("batch {sequence} of producer {producer:#x} is damaged: {error}");
            refusal(error.code(), what)
        };
        let Some(connection) = self.connections.get(&token) else {
            return Ok(());
        };
        let crc = connection.crc.value();
        header
            .check_payload_crc(crc)
            .map_err(|e| damaged(e.into()))?;
        let limit = match connection.peer {
            Peer::Publisher {
                max_message_bytes, ..
            } => max_message_bytes as usize,
            _ => 0,
        };
        reservation.with_bytes(BATCH_HEADER_BYTES..reservation.len(), |payload| {
            for message in Messages::new(payload, header.message_count()) {
                let bytes = message.map_err(|e| damaged(e.into()))?.content_len();
                if bytes > limit {
                    let what = format!("a message of {bytes} bytes is above the topic's limit of {limit}: send smaller ones, or create a topic with --max-message-size");
                    return Err(refusal(ErrorCode::TooLarge, what));
                }
            }
            Ok(())
        })
    }

    pub(super) fn abandon(&mut self, reservation: Reservation<M>, place: Place) {
        self.node.log().abandon(Claimed { reservation, place });
    }

    fn refuse_batch(&mut self, token: Token, error: ErrorReply, at: At) {
        self.meter.count(Counter::RefusedBatches as usize, 1);
        self.refuse(token, error, at);
    }

    /// A batch is readable.
    fn acknowledge(&mut self, token: Token, base: u64) {
        if let Some(connection) = self.connections.get_mut(&token)
            && let Peer::Publisher { acks: true, .. } = connection.peer
        {
            if !connection.answers.has_ready() {
                self.to_flush.push(token);
            }
            connection.answers.push(base);
        }
    }

    /// An ack frame covers all batches of a connection and round, if it has room for them.
    pub(super) fn flush_acks(&mut self, at: At, out: &mut Vec<Action<M>>) {
        let mut tokens = std::mem::take(&mut self.to_flush);
        tokens.retain(|&token| {
            let Some(connection) = self.connections.get_mut(&token) else {
                return false;
            };
            let all = connection.send_acks(at.now);
            self.finish_if_done(token, at);
            self.act(token, at, out);
            !all
        });
        self.to_flush = tokens;
    }
}

/// What a publisher is told whose batch would be all that keeps a broker from leaving.
const LEAVES: &str = "this broker leaves the cluster: publish to another";

/// On an ordered topic a connection carries the batches of one producer.
fn of_session(session: Option<Session>, header: &BatchHeader) -> Result<(), ErrorReply> {
    match session {
        Some(session) if session.producer != header.producer() => Err(refusal(
            ErrorCode::BadFrame,
            format!(
                "a batch of producer {:#x} came on a connection opened for another",
                header.producer()
            ),
        )),
        _ => Ok(()),
    }
}

fn topic_is_gone() -> ErrorReply {
    refusal(
        ErrorCode::UnknownTopic,
        "the topic was deleted: create it again, or publish to another".into(),
    )
}
