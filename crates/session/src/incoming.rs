//! What a core reports to its owner: views of bytes that lie in its receive ring.

use std::fmt;
use std::ops::Range;

use buffa::{DecodeError, DecodeOptions, MessageView};
use embar_frame::FrameHeader;
use embar_transport::ring::{Kept, RecvRing};
use thiserror::Error;

use crate::reason::Closed;
use crate::redirect::Goodbye;

/// The deepest nesting that [`Message::decode`] follows.
pub const MAX_NESTING: u32 = 32;
/// Unknown fields that [`Message::decode`] keeps before it refuses a message. It concerns views that keep
/// such fields; those that `embar-build` generates skip them, and take no memory for any number.
pub const MAX_UNKNOWN_FIELDS: usize = 1024;
/// Memory that [`Message::decode`] lets the elements of repeated fields take, in bytes: one of two
/// bytes on the wire can be a hundred times that in memory.
pub const MAX_ELEMENT_BYTES: usize = 256 << 10;

/// The bounds of what a peer's message may cost to read.
#[inline]
pub(crate) fn bounds() -> DecodeOptions {
    DecodeOptions::new()
        .with_recursion_limit(MAX_NESTING)
        .with_unknown_field_limit(MAX_UNKNOWN_FIELDS)
        .with_element_memory_limit(MAX_ELEMENT_BYTES)
}

/// The next thing that happened on a session. What it borrows is released by the next call of the
/// core.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// The handshake frame of the peer came. An accepting core waits for
    /// [`SessionCore::welcome`](crate::SessionCore::welcome) or
    /// [`SessionCore::refuse`](crate::SessionCore::refuse); a connecting one is open.
    Opened {
        /// The protocol's own part of it.
        greeting: &'a [u8],
    },
    /// A whole frame.
    Message(Message<'a>),
    /// The beginning of a frame with a body. What is missing of the body,
    /// [`SessionCore::body_due`](crate::SessionCore::body_due) bytes, is received by the core's
    /// owner.
    Head(Head<'a>),
    /// The peer ends soon and asks for nothing new.
    Goodbye(Goodbye<'a>),
    /// The peer asks for the state of this process. Answer by
    /// [`SessionCore::reply_status`](crate::SessionCore::reply_status), or ignore it.
    Status,
    /// The answer to [`SessionCore::request_status`](crate::SessionCore::request_status).
    StatusReply {
        /// As the peer wrote it.
        body: &'a [u8],
    },
    /// Something about bodies that come or go in lanes.
    Lane(LaneEvent<'a>),
    /// The session is over. Comes once, and nothing comes after it.
    Closed(Closed),
}

/// What happened in a lane: a body comes or goes there in chunks.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LaneEvent<'a> {
    /// A body begins. The owner answers, now or later, by
    /// [`SessionCore::take_body`](crate::SessionCore::take_body) or
    /// [`SessionCore::refuse_body`](crate::SessionCore::refuse_body). Before that no more of it comes
    /// than [`SessionConfig::lane_window_bytes`](crate::SessionConfig::lane_window_bytes).
    Begun {
        /// Where; there is no other one until it is over.
        lane: u8,
        /// The packet id.
        id: u16,
        /// What comes before the body.
        head: &'a [u8],
        /// Bytes of the body in all.
        len: usize,
    },
    /// The next bytes of a body. What is missing of them,
    /// [`SessionCore::body_due`](crate::SessionCore::body_due) bytes, is received by the core's
    /// owner, as of a [`Head`].
    Chunk {
        /// Where.
        lane: u8,
        /// How many there are.
        len: usize,
        /// What came of them already; copy it.
        early: &'a [u8],
    },
    /// The rest of a body does not come: its sender gave it up.
    Cancelled {
        /// Where.
        lane: u8,
    },
    /// The peer does not want a body that this end sent.
    Refused {
        /// The body's number. A body of which all was sent may be refused as well.
        number: u64,
        /// Why, for people.
        text: &'a str,
    },
}

/// A whole frame, where it was received.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    pub(crate) header: FrameHeader,
    pub(crate) payload: &'a [u8],
    pub(crate) ring: &'a RecvRing,
    /// Of the payload in what is readable.
    pub(crate) start: usize,
    pub(crate) max_kept_bytes: usize,
}

impl<'a> Message<'a> {
    /// The packet id.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u16 {
        self.header.id
    }

    /// The flags, as the protocol defines them.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> u16 {
        self.header.flags
    }

    /// The content, in the receive ring.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The content as a view of a Protobuf message: strings and bytes are borrowed. Bounded by
    /// [`MAX_NESTING`], [`MAX_UNKNOWN_FIELDS`] and [`MAX_ELEMENT_BYTES`].
    ///
    /// # Errors
    /// What the decoder found wrong; a session goes on after it unless its owner decides
    /// otherwise.
    #[inline]
    pub fn decode<V: MessageView<'a>>(&self) -> Result<V, DecodeError> {
        self.decode_with(&bounds())
    }

    /// As [`Message::decode`], with other bounds.
    ///
    /// # Errors
    /// As [`Message::decode`].
    #[inline]
    pub fn decode_with<V: MessageView<'a>>(
        &self,
        options: &DecodeOptions,
    ) -> Result<V, DecodeError> {
        options.decode_view(self.payload)
    }

    /// Keeps the content beyond this call, where it is: the bytes stay in place until the guard
    /// and its clones are dropped, on any thread. Meanwhile the ring cannot use the room from
    /// there on again; when it runs out, the session is not read until guards are dropped.
    ///
    /// # Errors
    /// [`KeepLimit`] if too much of the ring would be blocked: copy the content instead.
    pub fn keep(&self) -> Result<Kept, KeepLimit> {
        let readable = self.ring.readable().len();
        let blocked = self.ring.pinned().max(readable - self.start);
        if blocked > self.max_kept_bytes {
            return Err(KeepLimit {
                blocked,
                limit: self.max_kept_bytes,
            });
        }
        let end = self.start + self.payload.len();
        Ok(self.ring.keep(Range {
            start: self.start,
            end,
        }))
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({}, {} bytes)", self.id(), self.payload.len())
    }
}

/// The beginning of a frame with a body, where it was received.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub(crate) header: FrameHeader,
    pub(crate) head: &'a [u8],
    pub(crate) body: usize,
    pub(crate) early: &'a [u8],
}

impl<'a> Head<'a> {
    /// The frame's header, as it came.
    #[inline]
    #[must_use]
    pub fn header(&self) -> FrameHeader {
        self.header
    }

    /// The packet id.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u16 {
        self.header.id
    }

    /// The flags, as the protocol defines them.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> u16 {
        self.header.flags
    }

    /// What comes before the body.
    #[inline]
    #[must_use]
    pub fn head(&self) -> &'a [u8] {
        self.head
    }

    /// Bytes of the body in all.
    #[inline]
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.body
    }

    /// What came of the body already; copy it. Empty if the core's read-ahead does not reach
    /// beyond the head.
    #[inline]
    #[must_use]
    pub fn early(&self) -> &'a [u8] {
        self.early
    }
}

impl fmt::Debug for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (head, early) = (self.head.len(), self.early.len());
        write!(
            f,
            "Head({}, {head} bytes, body {early} of {})",
            self.id(),
            self.body
        )
    }
}

/// Too much of the receive ring would be blocked by kept messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "keeping it would block {blocked} bytes of the receive ring, the limit is {limit}: drop what was kept before, or copy it"
)]
#[non_exhaustive]
pub struct KeepLimit {
    /// Bytes from the oldest kept one to what came last.
    pub blocked: usize,
    /// [`SessionConfig::max_kept_bytes`](crate::SessionConfig::max_kept_bytes).
    pub limit: usize,
}
