//! What one network thread remembers about one connection.

use std::net::SocketAddr;

use embar_fabric::memory::Memory;
use embar_transport::SendBuf;
use embar_wire::batch::BatchHeader;
use embar_wire::control::{self, Control};
use embar_wire::crc::Crc;
use embar_wire::error::EncodeError;
use embar_wire::limits::BATCH_HEADER_BYTES;
use embar_wire::time::Now;

use crate::log::Place;

/// What the bytes that arrive next mean. The buffer itself is in the reactor
/// while a receive is outstanding.
pub(crate) enum Input {
    /// The start of a frame: its header, and all of it if it is small.
    Head,
    /// The rest of a control frame that is longer than a batch header.
    Control,
    /// A batch's payload, straight into the log.
    Payload(Payload),
    /// Nothing is received: the batch with this header found no room.
    Paused { header: BatchHeader, since: Now },
    /// Anything: it is thrown away until the peer closes.
    Discard,
}

/// A batch on its way into the log.
pub(crate) struct Payload {
    pub header: BatchHeader,
    pub place: Place,
    /// When bytes of it arrived last.
    pub progressed: Now,
    /// Bytes of the reservation that the connection's `crc` covers, counted
    /// from its start.
    pub checked: usize,
}

/// What the peer said it is.
pub(crate) enum Peer {
    /// It has not said hello.
    Stranger,
    /// It may ask anything.
    Client,
    /// It sends batches to one topic.
    Publisher {
        topic: u32,
        acks: bool,
        max_message_bytes: u32,
    },
    /// It is sent a topic's batches.
    Subscriber(Cursor),
}

/// How far a subscriber got.
pub(crate) struct Cursor {
    pub topic: u32,
    /// Offset after what was handed to the reactor.
    pub next: u64,
    /// First offset of what the reactor is sending.
    pub sending: Option<u64>,
    /// It has everything there is, and is listed to be told of more.
    pub waiting: bool,
}

/// Why a connection ends, and until when it may take to do so politely.
pub(crate) struct Ending {
    pub deadline: Now,
    /// What may still be discarded before the connection is cut.
    pub discard_left: usize,
    pub write_closed: bool,
}

pub(crate) struct Connection {
    pub peer_address: Option<SocketAddr>,
    pub peer: Peer,
    pub input: Input,
    /// 64 bytes, of which the first `head_filled` wait to be parsed; empty
    /// while the reactor has them.
    pub head: Vec<u8>,
    pub head_filled: usize,
    /// When the frame that is being received began; for strangers, when they came.
    pub frame_began: Option<Now>,
    /// Of the payload that is being received.
    pub crc: Crc,
    pub receiving: bool,
    pub sending: bool,
    /// Control frames and acks to send next.
    pub out: Vec<u8>,
    /// Number of the batch that `acked` starts with, counted on this connection.
    pub first_acked: u64,
    /// Base offsets that were not yet put into an ack frame.
    pub acked: Vec<u64>,
    pub ending: Option<Ending>,
    /// The token is stale; only outstanding buffers are waited for.
    pub closed: bool,
    pub said_goodbye: bool,
}

impl Connection {
    pub fn new(peer_address: Option<SocketAddr>, now: Now) -> Self {
        Self {
            peer_address,
            peer: Peer::Stranger,
            input: Input::Head,
            head: vec![0; BATCH_HEADER_BYTES],
            head_filled: 0,
            frame_began: Some(now),
            crc: Crc::new(),
            receiving: false,
            sending: false,
            out: Vec::new(),
            first_acked: 0,
            acked: Vec::new(),
            ending: None,
            closed: false,
            said_goodbye: false,
        }
    }

    pub fn push(&mut self, message: &Control) -> Result<(), EncodeError> {
        control::encode(message, &mut self.out)
    }

    /// Takes what is to be sent as one buffer, or gives back an unused one.
    pub fn take_out<M: Memory>(&mut self) -> SendBuf<M> {
        SendBuf::heap(std::mem::take(&mut self.out))
    }

    /// Keeps the allocation of a buffer that was sent.
    pub fn recycle(&mut self, mut sent: Vec<u8>) {
        if self.out.is_empty() && self.out.capacity() < sent.capacity() {
            sent.clear();
            self.out = sent;
        }
    }

    pub fn name(&self) -> String {
        self.peer_address
            .map_or_else(|| "a peer".into(), |a| a.to_string())
    }
}
