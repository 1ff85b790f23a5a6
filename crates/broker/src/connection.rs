//! The state of one connection of a network thread, and what it sends.

mod ack_queue;
mod check;
mod from_disk;

use std::sync::Arc;

pub(crate) use ack_queue::AckQueue;
pub(crate) use check::SharedCheck;
pub(crate) use from_disk::{FromDisk, Pieces as DiskPieces};

use embar_frame::{CHECKSUM_BYTES, FRAME_HEADER_BYTES, Now};
use embar_memory::Memory;
use embar_session::{CloseReason, SendError, SessionCore};
use embar_transport::{Body, Peer as Origin, Token};
use embar_wire::ack::{ack_len, write_ack};
use embar_wire::acks::Acks;
use embar_wire::batch::BatchHeader;
use embar_wire::control::EncodeError;
use embar_wire::control::{self, Control, ErrorReply, Secret};
use embar_wire::frame::{FrameId, LogProtocol};
use embar_wire::isolation::Isolation;
use embar_wire::share::Share;

use crate::connections::Counted;
use crate::log::Location;
use crate::peers::PeerId;

/// Part of the send ring that one answer may take. A longer answer goes beside the ring.
pub(crate) const REPLY_SHARE: usize = 4;

/// What a connection receives at the moment.
pub(crate) enum Input {
    /// Frames: the session's core asks for them.
    Frames,
    /// A batch's payload, into the log or into staging memory. The reactor has the buffer.
    Payload(IncomingBatch),
    /// Nothing: the batch waits for more staging memory or, when it is whole, for space in the log.
    Held(HeldBatch),
    /// Nothing: the log admits no batch at the moment. The core still has its header.
    Paused { since: Now },
}

/// A batch that is being received.
pub(crate) struct IncomingBatch {
    pub header: BatchHeader,
    pub destination: Destination,
    /// When it began, plus the time in which this broker received nothing for it.
    pub began: Now,
    /// When it last came fast enough, or began...
    pub looked: Now,
    /// ...and how many of its bytes were there then.
    pub had: usize,
    /// Bytes of the batch that are there, counted from its start. The connection's `check` has seen them.
    pub checked: usize,
    /// The reactor was asked to give its buffer back.
    pub recalled: bool,
    /// The reactor may keep the buffer until many bytes are there, and was not asked yet how many are.
    pub unseen: bool,
}

/// Where a batch is received.
#[derive(Clone, Copy)]
pub(crate) enum Destination {
    /// In the log.
    Log(Location),
    /// In so many bytes of staging memory.
    Staging(u32),
}

/// A batch for which this broker receives nothing until it has memory.
pub(crate) struct HeldBatch {
    pub batch: IncomingBatch,
    pub bytes: Vec<u8>,
    pub since: Now,
}

impl IncomingBatch {
    /// Bytes of the batch, its header included.
    pub fn len(&self) -> u32 {
        self.header.frame_len()
    }
}

/// What the peer said it is.
pub(crate) enum Peer {
    /// Neither publisher nor subscriber yet.
    Client,
    /// It sends batches to one topic.
    Publisher {
        topic: u32,
        /// When a batch is acknowledged.
        acks: Acks,
        max_message_bytes: u32,
        /// With orders 2 and 5.
        session: Option<Session>,
    },
    /// It gets the batches of one topic.
    Subscriber(Cursor),
}

/// The session of a publisher to an ordered topic.
#[derive(Clone, Copy)]
pub(crate) struct Session {
    pub producer: u64,
    /// The client's instance.
    pub instance: u64,
    /// What proves that it is the client's.
    pub secret: Secret,
    /// Its place in the sequencer's table.
    pub slot: u32,
    /// Its epoch, by the last answer to this connection.
    pub epoch: u32,
}

/// A request on behalf of a connection that the sequencer has to answer, or disks. This broker reads nothing more from the
/// connection before that.
#[derive(Clone, Copy)]
pub(crate) enum PendingRequest {
    /// To open the session. Then the connection is a publisher's.
    Open {
        topic: u32,
        /// When a batch is acknowledged.
        acks: Acks,
        max_message_bytes: u32,
        producer: u64,
        instance: u64,
        secret: Secret,
    },
    /// To begin the next epoch.
    Renew,
    /// To close the session.
    Close,
    /// To have a topic on its disks.
    Create { topic: u32 },
    /// To have a topic that was deleted on its disks no more.
    Delete { topic: u32, disks: u8 },
}

/// How far a subscriber is.
pub(crate) struct Cursor {
    pub topic: u32,
    /// Offset after what the core got.
    pub next: u64,
    /// First offset of what the core sends.
    pub sending: Option<u64>,
    /// Other brokers whose memory the core sends from: by row, the lowest position.
    pub foreign: Vec<(u16, u64)>,
    /// Whether the sequencer orders the topic's batches.
    pub is_ordered: bool,
    /// Whether the topic is on disks.
    pub is_durable: bool,
    /// It has everything that there is, and is among the waiting subscribers.
    pub waiting: bool,
    /// It looks for a batch of its share, and is among the searching subscribers.
    pub is_searching: bool,
    /// Which batches of an ordered topic it gets.
    pub share: Share,
    /// Up to where it reads a topic that is on disks.
    pub isolation: Isolation,
    /// What it reads there.
    pub disk: FromDisk,
}

/// An answer that is too long for the send ring. This broker reads nothing more from the connection before the
/// core has sent it.
pub(crate) struct LongReply {
    /// The answer, until the core takes it.
    frame: Option<Vec<u8>>,
    pub since: Now,
}

/// Why a connection did not send an answer.
pub(crate) enum NotSent {
    /// No control frame can carry it.
    Encode(EncodeError),
    /// The session has ended, or its ring is full.
    Session(SendError),
}

/// One connection: its session, what it receives, and what it has to send.
pub(crate) struct Connection<M: Memory> {
    /// Its number at the reactor.
    pub token: Token,
    /// The other end.
    pub origin: Origin,
    pub peer_id: PeerId,
    pub counted: Counted,
    /// Bytes of batches that came in time since one did not. A batch that is still to come may claim as many in
    /// the log.
    pub credit_bytes: u64,
    pub peer: Peer,
    pub core: SessionCore<LogProtocol, M>,
    pub input: Input,
    /// Of the payload that is being received.
    pub check: Arc<SharedCheck>,
    /// Acknowledgements of its batches.
    pub acks: AckQueue,
    /// This round sends its acknowledgements.
    pub is_ack_due: bool,
    pub pending: Option<PendingRequest>,
    /// When this broker sent that request.
    pub pending_since: Now,
    /// The topic in which another instance has its producer. The peer learned that instance's epoch for this
    /// topic only, so it can take over in no other.
    pub in_use_in: Option<u32>,
    pub long_reply: Option<LongReply>,
    /// [`crate::node::Node::membership`] when this peer last got the list of brokers.
    pub known_membership: u64,
    /// The peer said goodbye: the session ends when its last batch is acknowledged.
    pub said_goodbye: bool,
}

impl<M: Memory> Connection<M> {
    pub fn new(
        token: Token,
        origin: Origin,
        counted: Counted,
        core: SessionCore<LogProtocol, M>,
    ) -> Self {
        Self {
            token,
            origin,
            peer_id: PeerId::of(origin.tcp()),
            counted,
            credit_bytes: 0,
            peer: Peer::Client,
            core,
            input: Input::Frames,
            check: Arc::default(),
            acks: AckQueue::default(),
            is_ack_due: false,
            pending: None,
            pending_since: Now(0),
            in_use_in: None,
            long_reply: None,
            known_membership: 0,
            said_goodbye: false,
        }
    }

    /// Whether its session has ended, and all of its buffers are back.
    pub fn is_over(&self) -> bool {
        self.core.is_over() && !matches!(self.input, Input::Payload(_))
    }

    /// Whether the peer and this process read each other's memory.
    pub fn shares_memory(&self) -> bool {
        matches!(self.origin, Origin::Shm)
    }

    /// Ends the session of a peer that said goodbye, once it has all answers.
    pub fn finish_if_done(&mut self, now: Now) {
        if self.said_goodbye && self.acks.is_empty() && self.pending.is_none() {
            self.core.finish(now);
        }
    }

    /// Sends an answer through the ring, or beside it if it is too long for that.
    pub fn reply(&mut self, message: &Control, now: Now) -> Result<(), NotSent> {
        let len = control::body_len(message).map_err(NotSent::Encode)?;
        if FRAME_HEADER_BYTES + len <= self.core.ring().capacity() / REPLY_SHARE {
            return self.reply_in_ring(message, len);
        }
        if let Some(max) = self
            .longest_frame_of_peer()
            .filter(|max| len > *max as usize)
        {
            return Err(NotSent::Session(SendError::TooLong { bytes: len, max }));
        }
        let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + len + CHECKSUM_BYTES);
        control::encode(message, &mut frame).map_err(NotSent::Encode)?;
        self.long_reply = Some(LongReply {
            frame: Some(frame),
            since: now,
        });
        Ok(())
    }

    fn reply_in_ring(&mut self, message: &Control, len: usize) -> Result<(), NotSent> {
        let id = message.id() as u16;
        let sent = self.core.send_with(id, len, |out| {
            control::encode_body(message, out).expect("`len` is its length");
        });
        sent.map_err(NotSent::Session)
    }

    /// What the peer accepts, if that is less than what the ring can hold: a session's core knows no more than
    /// that. A peer that asks for lists accepts the longest control frame.
    fn longest_frame_of_peer(&self) -> Option<u32> {
        let ring = self.core.ring().capacity() - FRAME_HEADER_BYTES - CHECKSUM_BYTES;
        let max = self.core.limits()?.max_frame_bytes;
        ((max as usize) < ring).then_some(max)
    }

    /// Gives the long answer to the core as soon as the core takes it, and forgets it when it is sent.
    pub fn push_long_reply(&mut self) {
        let Some(reply) = &mut self.long_reply else {
            return;
        };
        if !self.core.may_send_body() {
            return;
        }
        match reply.frame.take() {
            Some(frame) => self.core.send_body(frame, Body::Empty),
            None => self.long_reply = None,
        }
    }

    /// Sends the acknowledgements that the ring has room for. True if these are all.
    pub fn send_acks(&mut self, now: Now) -> bool {
        while let Some((first, status, bases)) = self.acks.next_run() {
            let ack = |out: &mut [u8]| write_ack(first, status, bases, out);
            let id = FrameId::Ack as u16;
            let count = bases.len();
            match self.core.send_with(id, ack_len(count), ack) {
                Ok(()) => self.acks.sent(count),
                Err(SendError::Full) => return false,
                Err(error) => {
                    // The peer is gone, or accepts no acknowledgement.
                    self.core
                        .fail(CloseReason::TooLarge, &error.to_string(), now);
                    self.acks.sent(count);
                }
            }
        }
        true
    }

    /// Sends the peer the reason, and ends the session once the peer had time to read it. To the peer an Error
    /// frame also means that of the batches that only this broker has, those are not stored that it did not
    /// acknowledge before. So the acknowledgements go first. If they find no room, no Error frame is sent.
    pub fn refuse(&mut self, error: ErrorReply, now: Now) {
        let all_acked = self.send_acks(now);
        let code = error.code.number();
        let error = Control::Error(error);
        let len = control::body_len(&error);
        let sent = all_acked && len.is_ok_and(|len| self.reply_in_ring(&error, len).is_ok());
        if sent {
            self.core.finish(now);
        } else if let Control::Error(error) = error {
            // The session is not open, or its ring has no room: CLOSE needs none, and settles nothing.
            self.core.refuse(code, &error.message, now);
        }
    }

    pub fn name(&self) -> String {
        match self.origin {
            Origin::Tcp(address) | Origin::Quic(address) => address.to_string(),
            Origin::Unix => "a peer by Unix socket".into(),
            Origin::Shm => "a peer by shared memory".into(),
        }
    }
}
