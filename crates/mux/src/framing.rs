//! The trait that finds where each reply ends in the bytes that were received. A protocol
//! implements it; it runs on every byte.

use thiserror::Error;

/// Finds the ends of frames. Each connection has its own, which remembers how far it got within a
/// frame.
pub trait Framing: Send + 'static {
    /// Looks at `bytes`, which follow the bytes taken before, and takes them up to the end of one
    /// frame at most. It takes at least one byte. If the frame does not end in `bytes`, it takes all
    /// of them and remembers by itself what it needs of them later.
    ///
    /// # Errors
    /// When no peer that speaks the protocol sends such bytes, or when they exceed a limit; the
    /// connection ends.
    fn advance(&mut self, bytes: &[u8]) -> Result<Part, BadReply>;
}

/// The next bytes of a stream of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// How many bytes the framing took.
    pub taken: usize,
    /// The kind of the frame to which they belong.
    pub kind: FrameKind,
    /// Whether the frame ends with them.
    pub complete: bool,
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// The answer to the command that has waited longest.
    Reply,
    /// A message that answers no command.
    Push,
}

/// The peer sent what its protocol does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{what}")]
pub struct BadReply {
    /// What is wrong, in a few words.
    pub what: &'static str,
}
