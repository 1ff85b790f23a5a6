//! What one network thread remembers about one connection.

mod answers;

pub(crate) use answers::Answers;

use std::net::SocketAddr;

use embar_frame::{CHECKSUM_BYTES, Crc, FRAME_HEADER_BYTES, Now};
use embar_memory::Memory;
use embar_session::{CloseReason, SendError, SessionCore};
use embar_transport::{Body, Token};
use embar_wire::ack::{ack_len, write_ack};
use embar_wire::batch::BatchHeader;
use embar_wire::control::EncodeError;
use embar_wire::control::{self, Control, ErrorReply, Secret};
use embar_wire::frame::{FrameId, LogProtocol};

use crate::connections::Counted;
use crate::log::Location;
use crate::peers::PeerId;

/// Part of the send ring that one answer may take; what is longer goes beside the ring.
pub(crate) const REPLY_SHARE: usize = 4;

/// What is being received.
pub(crate) enum Input {
    /// Frames: the link asks for them.
    Frames,
    /// A batch's payload, into the log or aside. The buffer is in the reactor.
    Payload(Payload),
    /// Nothing: the batch is in these bytes, as far as it came, and waits for more memory aside or,
    /// when it is whole, for its room in the log.
    Held(Held),
    /// Nothing: the batch with this header, which was taken from the link, found no room.
    Paused { header: BatchHeader, since: Now },
}

/// A batch on its way into the log.
pub(crate) struct Payload {
    pub header: BatchHeader,
    pub room: Room,
    /// When it began, and later by the time in which nothing was received for it.
    pub began: Now,
    /// When it was last seen to come fast enough, or began...
    pub looked: Now,
    /// ...and how much of it was there then.
    pub had: usize,
    /// Bytes of the batch that are there and that the connection's `crc` covers, counted from its
    /// start.
    pub checked: usize,
    /// Its room in the log is wanted for others.
    pub recalled: bool,
}

/// What a batch that is being received has.
#[derive(Clone, Copy)]
pub(crate) enum Room {
    /// Its place in the log.
    Log(Location),
    /// So many bytes of memory beside it.
    Aside(u32),
}

/// A batch that nothing is received for.
pub(crate) struct Held {
    pub payload: Payload,
    pub bytes: Vec<u8>,
    pub since: Now,
}

impl Payload {
    /// Bytes of the batch, its header included.
    pub fn len(&self) -> u32 {
        self.header.frame_len()
    }
}

/// What the peer said it is.
pub(crate) enum Peer {
    /// It may ask anything.
    Client,
    /// It sends batches to one topic.
    Publisher {
        topic: u32,
        acks: bool,
        max_message_bytes: u32,
        /// With orders 2 and 5.
        session: Option<Session>,
    },
    /// It is sent a topic's batches.
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
    /// Its epoch, as this connection last heard.
    pub epoch: u32,
}

/// What the sequencer was asked for this connection. Until it answers nothing more is taken in.
#[derive(Clone, Copy)]
pub(crate) enum Asked {
    /// To open the session: then it becomes a publisher.
    Open {
        topic: u32,
        max_message_bytes: u32,
        producer: u64,
        instance: u64,
        secret: Secret,
    },
    /// The next epoch.
    Renew,
    /// To close the session.
    Close,
}

/// How far a subscriber got.
pub(crate) struct Cursor {
    pub topic: u32,
    /// Offset after what was handed to the link.
    pub next: u64,
    /// First offset of what is being sent.
    pub sending: Option<u64>,
    /// Other brokers' memory that is being sent from: by row, the lowest position.
    pub foreign: Vec<(u16, u64)>,
    /// Whether the topic's batches are ordered by the sequencer.
    pub is_ordered: bool,
    /// It has everything there is, and is listed to be told of more.
    pub waiting: bool,
}

/// An answer that is too long for the send ring. Until it was handed over nothing more is taken in.
pub(crate) struct LongReply {
    /// Until the link takes it.
    frame: Option<Vec<u8>>,
    pub since: Now,
}

/// Why an answer was not sent.
pub(crate) enum NotSent {
    /// No control frame can carry it.
    Encode(EncodeError),
    /// The session has ended, or its ring is full.
    Session(SendError),
}

pub(crate) struct Connection<M: Memory> {
    /// Its number at the reactor.
    pub token: Token,
    pub peer_address: Option<SocketAddr>,
    pub peer_id: PeerId,
    pub counted: Counted,
    /// Bytes of batches that came in time since one did not: so much room in the log it may claim
    /// for a batch that is still to come.
    pub credit_bytes: u64,
    pub peer: Peer,
    pub link: SessionCore<LogProtocol, M>,
    pub input: Input,
    /// Of the payload that is being received.
    pub crc: Crc,
    /// What is to be told of its batches.
    pub answers: Answers,
    /// It is among those whose acknowledgements this round sends.
    pub is_due: bool,
    pub asked: Option<Asked>,
    /// When it was.
    pub asked_at: Now,
    /// The topic in which it was told that another instance has its producer: of no other does it know the
    /// epoch from which it takes over.
    pub held_in: Option<u32>,
    pub long_reply: Option<LongReply>,
    /// The brokers as this peer knows them: [`crate::node::Node::roster`].
    pub roster: u64,
    /// The peer said goodbye, and the session ends with the acknowledgement of its last batch.
    pub leaving: bool,
}

impl<M: Memory> Connection<M> {
    pub fn new(
        token: Token,
        peer_address: Option<SocketAddr>,
        counted: Counted,
        link: SessionCore<LogProtocol, M>,
    ) -> Self {
        Self {
            token,
            peer_address,
            peer_id: PeerId::of(peer_address),
            counted,
            credit_bytes: 0,
            peer: Peer::Client,
            link,
            input: Input::Frames,
            crc: Crc::new(),
            answers: Answers::default(),
            is_due: false,
            asked: None,
            asked_at: Now(0),
            held_in: None,
            long_reply: None,
            roster: 0,
            leaving: false,
        }
    }

    /// Whether its session has ended, and all of its buffers are back.
    pub fn is_over(&self) -> bool {
        self.link.is_over() && !matches!(self.input, Input::Payload(_))
    }

    /// Ends the session of a peer that said goodbye, unless acknowledgements are due to it.
    pub fn finish_if_done(&mut self, now: Now) {
        if self.leaving && self.answers.is_empty() && self.asked.is_none() {
            self.link.finish(now);
        }
    }

    /// Sends an answer through the ring. One that is too long for that takes the long way.
    pub fn reply(&mut self, message: &Control, now: Now) -> Result<(), NotSent> {
        let len = control::body_len(message).map_err(NotSent::Encode)?;
        if FRAME_HEADER_BYTES + len <= self.link.ring().capacity() / REPLY_SHARE {
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
        let sent = self.link.send_with(id, len, |out| {
            control::encode_body(message, out).expect("its length was told before");
        });
        sent.map_err(NotSent::Session)
    }

    /// What the peer accepts, if that is less than what the ring can hold: a link does not tell
    /// more. Who asks for lists accepts the longest control frame.
    fn longest_frame_of_peer(&self) -> Option<u32> {
        let ring = self.link.ring().capacity() - FRAME_HEADER_BYTES - CHECKSUM_BYTES;
        let max = self.link.limits()?.max_frame_bytes;
        ((max as usize) < ring).then_some(max)
    }

    /// Gives the long answer to the link as soon as it may, and forgets it when it was handed over.
    pub fn push_long_reply(&mut self) {
        let Some(reply) = &mut self.long_reply else {
            return;
        };
        if !self.link.may_send_body() {
            return;
        }
        match reply.frame.take() {
            Some(frame) => self.link.send_body(frame, Body::Empty),
            None => self.long_reply = None,
        }
    }

    /// Acknowledges what there is room for; true if that is all.
    pub fn send_acks(&mut self, now: Now) -> bool {
        while let Some((first, status, bases)) = self.answers.next_run() {
            let ack = |out: &mut [u8]| write_ack(first, status, bases, out);
            let id = FrameId::Ack as u16;
            let count = bases.len();
            match self.link.send_with(id, ack_len(count), ack) {
                Ok(()) => self.answers.told(count),
                Err(SendError::Full) => return false,
                Err(error) => {
                    // Nobody to tell, or nobody who could understand it.
                    self.link
                        .fail(CloseReason::TooLarge, &error.to_string(), now);
                    self.answers.told(count);
                }
            }
        }
        true
    }

    /// Tells the peer why, and ends the session politely. An Error frame says as well that of the
    /// batches that nobody else has, those are not stored that were not acknowledged before it. So the
    /// acknowledgements go first, and where they find no room there is none for it.
    pub fn refuse(&mut self, error: ErrorReply, now: Now) {
        let all_told = self.send_acks(now);
        let code = error.code.number();
        let error = Control::Error(error);
        let len = control::body_len(&error);
        let told = all_told && len.is_ok_and(|len| self.reply_in_ring(&error, len).is_ok());
        if told {
            self.link.finish(now);
        } else if let Control::Error(error) = error {
            // The session is not open, or its ring has no room: CLOSE needs none, and settles nothing.
            self.link.refuse(code, &error.message, now);
        }
    }

    pub fn name(&self) -> String {
        self.peer_address
            .map_or_else(|| "a peer".into(), |a| a.to_string())
    }
}
