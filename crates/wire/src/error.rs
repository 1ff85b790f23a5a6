//! What can be wrong with bytes from elsewhere, and with what a caller wants to send.

use thiserror::Error;

use crate::control::ErrorCode;
use crate::frame::FrameId;
use crate::limits::{
    MAX_HEADER_NAME_BYTES, MAX_HEADERS_BYTES, MAX_KEY_BYTES, MAX_TOPIC_NAME_BYTES,
};

/// A frame header that cannot be accepted. The stream cannot be followed any further: close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The id is not one of [`FrameId`].
    #[error("unknown frame id {id}: the peer speaks another protocol or a newer version")]
    UnknownId {
        /// The id found.
        id: u16,
    },
    /// A flag is set that this version does not know.
    #[error("unknown flags {flags:#06x} on a {id:?} frame: the peer speaks a newer version")]
    UnknownFlags {
        /// The kind of frame.
        id: FrameId,
        /// All flags found.
        flags: u16,
    },
    /// The frame is longer than this connection accepts.
    #[error("a {id:?} frame of {bytes} bytes exceeds the limit of {limit}: send smaller ones")]
    TooLarge {
        /// The kind of frame.
        id: FrameId,
        /// Bytes of the whole frame.
        bytes: usize,
        /// Most bytes accepted.
        limit: u32,
    },
    /// Flags that the protocol does not know, on any kind of frame.
    #[error(
        "flags {flags:#06x} on a frame with id {id} are unknown: the peer speaks a newer version"
    )]
    FlagsNotKnown {
        /// The id found.
        id: u16,
        /// All flags found.
        flags: u16,
    },
    /// The frame is shorter than its fixed part.
    #[error("a {id:?} frame of {bytes} bytes is shorter than its fixed part")]
    TooShort {
        /// The kind of frame.
        id: FrameId,
        /// Bytes of the whole frame.
        bytes: usize,
    },
}

/// A frame that is not as it was sent. Nothing of it can be trusted, not even where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a frame's checksum is {found:#010x}, that of its bytes {computed:#010x}: it was damaged on its way"
)]
pub struct ChecksumError {
    /// What the frame says.
    pub found: u32,
    /// What its bytes give.
    pub computed: u32,
}

/// A batch header or its payload that cannot be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    /// Fewer bytes than the batch needs.
    #[error("a batch needs {need} bytes, {have} are there")]
    Truncated {
        /// Bytes at hand.
        have: usize,
        /// Bytes of the header, or of the whole batch.
        need: usize,
    },
    /// The frame is not a batch.
    #[error("frame id {id} where a batch was expected")]
    NotABatch {
        /// The id found.
        id: u16,
    },
    /// The header's checksum does not match.
    #[error(
        "batch header checksum is {found:#010x}, its bytes give {computed:#010x}: damaged on its way or in memory"
    )]
    HeaderChecksum {
        /// As stored.
        found: u32,
        /// Of the bytes at hand.
        computed: u32,
    },
    /// The payload's checksum does not match.
    #[error(
        "batch payload checksum is {found:#010x}, its bytes give {computed:#010x}: damaged on its way or in memory"
    )]
    PayloadChecksum {
        /// As stored in the header.
        found: u32,
        /// Of the bytes at hand.
        computed: u32,
    },
    /// The payload's length is not a positive multiple of 64 within the limit.
    #[error("a payload of {bytes} bytes is not a positive multiple of 64 within the limit")]
    PayloadLength {
        /// The length found.
        bytes: usize,
    },
    /// No message, or more than the payload can hold.
    #[error("{count} messages cannot be in {payload_bytes} bytes of payload")]
    MessageCount {
        /// The count found.
        count: u32,
        /// The payload's length.
        payload_bytes: u32,
    },
    /// A flag, compression codec or foreign format that this version does not know.
    #[error("batch flags {flags:#06x} are unknown to this version: publish without them")]
    UnknownFlags {
        /// All flags found.
        flags: u16,
    },
    /// A field that must be 0 is not.
    #[error("a reserved field of the batch header is not 0")]
    Reserved,
}

/// A message record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The record says it is longer than the payload.
    #[error("message {index} needs {need} bytes, {have} are left in its batch")]
    Truncated {
        /// Position of the message in its batch, from 0.
        index: u32,
        /// Bytes the record claims, padding included.
        need: u64,
        /// Bytes left.
        have: usize,
    },
    /// The headers block is malformed.
    #[error("message {index} has malformed headers")]
    Headers {
        /// Position of the message in its batch, from 0.
        index: u32,
    },
    /// More than padding follows the last message.
    #[error("{bytes} bytes after the last message are not padding")]
    Trailing {
        /// Bytes after the last message.
        bytes: usize,
    },
}

/// An ack frame that cannot be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AckError {
    /// The length does not match the count, or is beyond the limit.
    #[error("an ack of {bytes} bytes does not hold {count} batches")]
    Length {
        /// Bytes of the body.
        bytes: usize,
        /// Batches it claims to acknowledge.
        count: u32,
    },
}

/// A control message that cannot be accepted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ControlError {
    /// The id is not that of a control message.
    #[error("{id:?} is not a control message")]
    NotControl {
        /// The id found.
        id: FrameId,
    },
    /// The body is not valid Protobuf of that message.
    #[error("malformed {id:?}: {reason}")]
    Malformed {
        /// The kind of message.
        id: FrameId,
        /// What the Protobuf decoder says.
        reason: buffa::DecodeError,
    },
    /// What came with the session's handshake is not valid Protobuf.
    #[error("malformed greeting: {reason}")]
    Greeting {
        /// What the Protobuf decoder says.
        reason: buffa::DecodeError,
    },
    /// A field that must be there is missing or has a value that this version does not know.
    #[error("field `{field}` is missing or has an unknown value: the peer may be newer")]
    Field {
        /// Its name in the schema.
        field: &'static str,
    },
}

/// Anything that can be wrong with a stream of frames.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// In a frame header.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// In a batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// In a message of a batch.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// In an ack.
    #[error(transparent)]
    Ack(#[from] AckError),
    /// In a control message.
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl DecodeError {
    /// The code to answer the peer with.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Frame(FrameError::TooLarge { .. }) => ErrorCode::TooLarge,
            Self::Batch(BatchError::HeaderChecksum { .. } | BatchError::PayloadChecksum { .. }) => {
                ErrorCode::ChecksumMismatch
            }
            Self::Control(ControlError::Field { .. }) => ErrorCode::InvalidArgument,
            _ => ErrorCode::BadFrame,
        }
    }
}

/// A control message that is too large to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a {id:?} message of {bytes} bytes exceeds the limit of {limit}")]
pub struct EncodeError {
    /// The kind of message.
    pub id: FrameId,
    /// Bytes of its body.
    pub bytes: usize,
    /// Most bytes that fit a control frame.
    pub limit: u32,
}

/// A message that a batch does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PushError {
    /// Not enough room left: seal this batch and push to the next.
    #[error("the batch is full: seal it and push to the next")]
    Full,
    /// It would not fit an empty batch either.
    #[error(
        "a message of {bytes} bytes does not fit a batch of {limit}: raise the batch size or split the message"
    )]
    TooLarge {
        /// Bytes of the record with header and padding.
        bytes: usize,
        /// Bytes that an empty batch has for records.
        limit: usize,
    },
    /// The key is too long.
    #[error("a key of {bytes} bytes exceeds {max}", max = MAX_KEY_BYTES)]
    KeyTooLong {
        /// Bytes of the key.
        bytes: usize,
    },
    /// A header name is too long.
    #[error("a header name of {bytes} bytes exceeds {max}", max = MAX_HEADER_NAME_BYTES)]
    HeaderNameTooLong {
        /// Bytes of the name.
        bytes: usize,
    },
    /// The headers together are too long.
    #[error("headers of {bytes} bytes exceed {max}", max = MAX_HEADERS_BYTES)]
    HeadersTooLong {
        /// Bytes of all headers with their length fields.
        bytes: usize,
    },
}

/// A topic name that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// No characters.
    #[error("a topic name must not be empty")]
    Empty,
    /// Too many characters.
    #[error("a topic name of {bytes} bytes exceeds {max}", max = MAX_TOPIC_NAME_BYTES)]
    TooLong {
        /// Bytes of the name.
        bytes: usize,
    },
    /// `.` or `..`.
    #[error("a topic must not be named `.` or `..`")]
    Dots,
    /// A character outside of the allowed set.
    #[error("a topic name must not contain {found:?}: use letters, digits, `.`, `_` and `-`")]
    Character {
        /// The first such character.
        found: char,
    },
}
