//! Cuts a stream of bytes into frames, without I/O and without ever reading too far.
//!
//! A batch's payload does not go through this reader: it stops at the header, and the caller
//! receives the payload where it belongs, for instance straight into the log.

use std::ops::Range;

use crate::ack::Ack;
use crate::batch::BatchHeader;
use crate::control::{self, Control};
use crate::error::DecodeError;
use crate::frame::{FrameHeader, FrameId};
use crate::limits::{BATCH_HEADER_BYTES, FRAME_HEADER_BYTES, LINE_BYTES, Limits};

/// What arrived.
#[derive(Debug)]
pub enum Event<'a> {
    /// A control message.
    Control(Control),
    /// An acknowledgement.
    Ack(Ack<'a>),
    /// A batch begins.
    Batch {
        /// Its header, checked.
        header: BatchHeader,
        /// The start of the payload, as far as it has arrived already. Copy it; what is missing
        /// ([`FrameReader::payload_due`]) must be received elsewhere. Empty if the reader was
        /// made with a read-ahead of 64 bytes.
        early: &'a [u8],
    },
}

/// Reads frames from bytes that arrive in any pieces.
///
/// Call [`FrameReader::next`] until it returns `None`. Then, if [`FrameReader::payload_due`] is not
/// 0, receive that many bytes outside and report them to [`FrameReader::payload_received`];
/// otherwise receive into [`FrameReader::space`] (or a lent buffer) and report how many bytes came.
/// After an error the stream cannot be followed any further.
#[derive(Debug)]
pub struct FrameReader {
    limits: Limits,
    read_ahead: usize,
    /// Grows only as bytes arrive, never to what a length field says.
    buffer: Vec<u8>,
    filled: Range<usize>,
    /// Bytes that the frame at hand needs in all before it can be told.
    need: usize,
    payload_due: usize,
    lent: bool,
}

impl FrameReader {
    /// A reader at the start of a stream. It asks for up to `read_ahead` bytes at once (at least
    /// 64): 64 never takes a byte of a payload, more saves system calls when frames are small.
    #[must_use]
    pub fn new(limits: Limits, read_ahead: usize) -> Self {
        Self {
            limits,
            read_ahead: read_ahead.max(LINE_BYTES),
            buffer: Vec::new(),
            filled: 0..0,
            need: FRAME_HEADER_BYTES,
            payload_due: 0,
            lent: false,
        }
    }

    /// Changes the limits for frames to come, as after a handshake.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Payload bytes of the last batch that must be received outside of this reader.
    #[must_use]
    pub fn payload_due(&self) -> usize {
        self.payload_due
    }

    /// Reports payload bytes that were received outside.
    ///
    /// # Panics
    /// If these are more than were due: they belong to the next frame, which is lost.
    pub fn payload_received(&mut self, bytes: usize) {
        assert!(bytes <= self.payload_due, "received past the payload");
        self.payload_due -= bytes;
    }

    /// Bytes received and not yet told.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.filled.len()
    }

    /// Where to put the bytes that come next; never empty.
    ///
    /// # Panics
    /// If payload is due, a frame is waiting to be told, or the buffer is lent.
    pub fn space(&mut self) -> &mut [u8] {
        self.make_room();
        &mut self.buffer[self.filled.end..]
    }

    /// Reports that `bytes` bytes were put into [`FrameReader::space`].
    ///
    /// # Panics
    /// If that is more than the space.
    pub fn received(&mut self, bytes: usize) {
        assert!(
            bytes <= self.buffer.len() - self.filled.end,
            "more than the space"
        );
        self.filled.end += bytes;
    }

    /// As [`FrameReader::space`], for I/O that owns its buffer meanwhile: the buffer, and where in
    /// it to put the bytes. Return it by [`FrameReader::give_back`].
    ///
    /// # Panics
    /// As [`FrameReader::space`].
    #[must_use]
    pub fn lend(&mut self) -> (Vec<u8>, Range<usize>) {
        self.make_room();
        self.lent = true;
        let buffer = std::mem::take(&mut self.buffer);
        let space = self.filled.end..buffer.len();
        (buffer, space)
    }

    /// Takes the lent buffer back, with `bytes` more bytes in it.
    ///
    /// # Panics
    /// If it is not lent, or `bytes` is more than the space was.
    pub fn give_back(&mut self, buffer: Vec<u8>, bytes: usize) {
        assert!(self.lent, "no buffer is lent");
        self.lent = false;
        self.buffer = buffer;
        self.received(bytes);
    }

    fn make_room(&mut self) {
        assert!(!self.lent, "the buffer is lent");
        assert!(self.payload_due == 0, "payload is due: receive it first");
        assert!(
            self.filled.len() < self.need,
            "a frame is waiting: call next"
        );
        self.buffer.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        if self.filled.is_empty() && self.buffer.len() > self.read_ahead {
            // One large frame must not cost its memory for the rest of the connection.
            self.buffer.truncate(self.read_ahead);
            self.buffer.shrink_to_fit();
        }
        let wanted = self.need.max(self.read_ahead);
        let earned = self.read_ahead.max(2 * self.filled.len());
        let len = wanted.min(earned);
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
    }

    /// The next frame, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`DecodeError`] for anything that breaks the rules or limits.
    #[expect(
        clippy::should_implement_trait,
        reason = "items borrow from the reader"
    )]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, DecodeError> {
        if self.payload_due > 0 {
            return Ok(None);
        }
        let bytes = &self.buffer[self.filled.clone()];
        let Some(header) = bytes.first_chunk() else {
            self.need = FRAME_HEADER_BYTES;
            return Ok(None);
        };
        let header = FrameHeader::parse(header);
        let id = header.check(&self.limits)?;
        self.need = match id {
            FrameId::Batch => BATCH_HEADER_BYTES,
            _ => header.frame_bytes(),
        };
        if bytes.len() < self.need {
            return Ok(None);
        }
        if id == FrameId::Batch {
            return self.batch().map(Some);
        }
        let start = self.filled.start;
        self.filled.start += self.need;
        let body = &self.buffer[start + FRAME_HEADER_BYTES..self.filled.start];
        Ok(Some(match id {
            FrameId::Ack => Event::Ack(Ack::parse(body)?),
            id => Event::Control(control::decode(id, body)?),
        }))
    }

    fn batch(&mut self) -> Result<Event<'_>, DecodeError> {
        let bytes = &self.buffer[self.filled.clone()];
        let header = BatchHeader::parse(bytes, self.limits.max_batch_bytes)?;
        let payload = header.payload_len() as usize;
        let early = payload.min(bytes.len() - BATCH_HEADER_BYTES);
        self.payload_due = payload - early;
        let start = self.filled.start + BATCH_HEADER_BYTES;
        self.filled.start = start + early;
        let early = &self.buffer[start..start + early];
        Ok(Event::Batch { header, early })
    }
}
