//! From bytes to frames: small control frames whole, long ones in a buffer of
//! their own, batches to `ingest`.

use embar_fabric::memory::Memory;
use embar_transport::{RecvBuf, Store, Token};
use embar_wire::error::DecodeError;
use embar_wire::frame::{FrameHeader, FrameId};
use embar_wire::limits::{BATCH_HEADER_BYTES, FRAME_HEADER_BYTES};

use super::{Action, At, Shard, refusal};
use crate::connection::{Input, Peer};
use crate::profile::{Counter, Stage};

/// Size of the buffer into which refused peers' bytes are discarded.
const DISCARD_BUFFER_BYTES: usize = 64 << 10;
/// Unsent replies after which nothing more is received from a connection.
const OUT_LIMIT_BYTES: usize = 1 << 20;

impl<M: Memory> Shard<M> {
    /// Bytes of frames that start, small control frames whole.
    pub(super) fn head_received(
        &mut self,
        token: Token,
        buf: RecvBuf<M>,
        ticks: u64,
        at: At,
        out: &mut Vec<Action<M>>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        connection.head_filled = buf.filled().end;
        if let Store::Heap(head) = buf.into_store() {
            connection.head = head;
        }
        if connection.frame_began.is_none() {
            connection.frame_began = Some(at.now);
        }
        if matches!(connection.peer, Peer::Publisher { .. }) {
            self.meter.add_ticks(Stage::DrainHeader as usize, ticks, 1);
        }
        self.parse_head(token, at, out);
    }

    /// Parses as many frames as the head holds, then asks for what is missing.
    pub(super) fn parse_head(&mut self, token: Token, at: At, out: &mut Vec<Action<M>>) {
        loop {
            let Some(connection) = self.connections.get_mut(&token) else {
                return;
            };
            if connection.ending.is_some() || connection.closed {
                self.receive_more(token, out);
                return;
            }
            let filled = connection.head_filled;
            let Some(header) = connection.head[..filled].first_chunk::<FRAME_HEADER_BYTES>() else {
                break;
            };
            let header = FrameHeader::parse(header);
            let id = match header.check(&self.limits) {
                Ok(id) => id,
                Err(error) => {
                    let is_batch = header.id == FrameId::Batch as u16;
                    self.meter
                        .count(Counter::RefusedBatches as usize, u64::from(is_batch));
                    let error = DecodeError::from(error);
                    self.refuse(token, refusal(error.code(), error.to_string()), at);
                    continue;
                }
            };
            let total = header.frame_bytes();
            if id == FrameId::Batch {
                if filled < BATCH_HEADER_BYTES {
                    break;
                }
                self.begin_batch(token, at, out);
                return;
            }
            if filled < total {
                if total > BATCH_HEADER_BYTES {
                    self.begin_long_control(token, total, out);
                    return;
                }
                break;
            }
            let body: Vec<u8> = connection.head[FRAME_HEADER_BYTES..total].to_vec();
            connection.head.copy_within(total..filled, 0);
            connection.head_filled = filled - total;
            connection.frame_began = (filled > total).then_some(at.now);
            self.handle_control(token, id, &body, at);
        }
        self.receive_more(token, out);
    }

    pub(super) fn begin_long_control(
        &mut self,
        token: Token,
        total: usize,
        out: &mut Vec<Action<M>>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let filled = std::mem::take(&mut connection.head_filled);
        let mut frame = vec![0; total];
        frame[..filled].copy_from_slice(&connection.head[..filled]);
        connection.input = Input::Control;
        connection.receiving = true;
        out.push(Action::Recv(token, RecvBuf::heap(frame, filled..total)));
    }

    pub(super) fn control_received(
        &mut self,
        token: Token,
        buf: RecvBuf<M>,
        at: At,
        out: &mut Vec<Action<M>>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if buf.remaining() > 0 {
            connection.receiving = true;
            out.push(Action::Recv(token, buf));
            return;
        }
        connection.input = Input::Head;
        connection.frame_began = None;
        if let Store::Heap(frame) = buf.into_store()
            && let Some((head, body)) = frame.split_first_chunk::<FRAME_HEADER_BYTES>()
            && let Ok(id) = FrameHeader::parse(head).check(&self.limits)
        {
            self.handle_control(token, id, body, at);
        }
        self.receive_more(token, out);
    }

    /// Asks for the next bytes of a connection that has no receive outstanding.
    pub(super) fn receive_more(&mut self, token: Token, out: &mut Vec<Action<M>>) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.receiving || connection.closed || connection.out.len() > OUT_LIMIT_BYTES {
            return;
        }
        if connection.ending.is_some() {
            connection.input = Input::Discard;
            connection.receiving = true;
            let buf = RecvBuf::heap(vec![0; DISCARD_BUFFER_BYTES], 0..DISCARD_BUFFER_BYTES);
            out.push(Action::Recv(token, buf));
        } else if matches!(connection.input, Input::Head) {
            connection.receiving = true;
            let head = std::mem::take(&mut connection.head);
            out.push(Action::Recv(
                token,
                RecvBuf::heap(head, connection.head_filled..BATCH_HEADER_BYTES),
            ));
        }
    }
}
