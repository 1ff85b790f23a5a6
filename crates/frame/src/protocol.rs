//! The trait by which a protocol describes its frames: its name and version, which frame headers it
//! allows, and in which shape an end receives each frame.

use thiserror::Error;

use crate::header::FrameHeader;

/// Ids from here to `u16::MAX` belong to the layer that carries a protocol's frames (handshake,
/// heartbeats, endings), which never asks a [`Protocol`] about them.
pub const FIRST_RESERVED_ID: u16 = 0xFF00;

/// Longest [`Protocol::NAME`].
pub const MAX_PROTOCOL_NAME_BYTES: usize = 32;

/// How an end receives a frame, decided by the frame's header alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The receiver sees all of it at once, as one slice.
    Whole,
    /// The receiver sees the first `head` bytes after the frame header, and says where the rest, the
    /// body, is to go.
    Body {
        /// Bytes after the frame header, never more than its length.
        head: u32,
    },
    /// As [`Shape::Body`], but the frame says itself how long the head is: `u32` LE in its first 4
    /// bytes after the frame header, which do not count as head.
    HeadThenBody,
}

/// What speakers of a protocol agree on about their frames, before anything of a frame but its
/// header is read. What the frames mean is not said here.
pub trait Protocol {
    /// Both ends must have the same; at most [`MAX_PROTOCOL_NAME_BYTES`].
    const NAME: &'static str;
    /// Both ends must have the same.
    const VERSION: u32;
    /// Whether frames of [`Shape::Whole`], and those of the layer that carries them, end with a
    /// checksum, which that layer verifies before it shows them:
    /// [`verify_checksum`](crate::verify_checksum). A frame with a body has none; its protocol knows how
    /// to check it. Both ends must have the same.
    const CHECKED: bool = false;

    /// Checks a header whose id is below [`FIRST_RESERVED_ID`]. The caller checks limits that do not
    /// depend on the kind of frame.
    ///
    /// # Errors
    /// [`FrameError`] if no such frame may come: the stream cannot be followed any further.
    fn shape(&self, header: FrameHeader) -> Result<Shape, FrameError>;
}

/// A frame header that cannot be accepted. The stream cannot be followed any further: close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The protocol has no such frame.
    #[error("unknown frame id {id}: the peer speaks another protocol or a newer version")]
    UnknownId {
        /// The id found.
        id: u16,
    },
    /// A flag is set that the protocol does not know.
    #[error(
        "flags {flags:#06x} on a frame with id {id} are unknown: the peer speaks a newer version"
    )]
    UnknownFlags {
        /// The id found.
        id: u16,
        /// All flags found.
        flags: u16,
    },
    /// The frame is longer than this connection accepts.
    #[error(
        "a frame with id {id} of {bytes} bytes exceeds the limit of {limit}: send smaller ones"
    )]
    TooLarge {
        /// The id found.
        id: u16,
        /// Bytes of the whole frame.
        bytes: usize,
        /// Most bytes accepted.
        limit: u32,
    },
    /// The frame is shorter than its fixed part.
    #[error("a frame with id {id} of {bytes} bytes is shorter than its fixed part")]
    TooShort {
        /// The id found.
        id: u16,
        /// Bytes of the whole frame.
        bytes: usize,
    },
}
