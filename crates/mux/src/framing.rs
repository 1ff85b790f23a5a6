//! What a protocol tells the multiplexer about the bytes it receives.

use thiserror::Error;

/// Finds where replies end. One per connection; it remembers how far it got within a reply.
pub trait Framing: Send + 'static {
    /// Looks at `bytes`, which follow those taken before, up to the end of one frame at most. It
    /// takes at least one byte, and it takes all of them if the frame does not end there: what it
    /// needs of them later it remembers itself.
    ///
    /// # Errors
    /// When these can be no bytes of a peer that speaks the protocol, or when a limit is exceeded;
    /// the connection ends.
    fn advance(&mut self, bytes: &[u8]) -> Result<Part, BadReply>;
}

/// The next bytes of a stream of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// How many bytes it is.
    pub taken: usize,
    /// What they belong to.
    pub kind: Kind,
    /// Whether they are the last ones of their frame.
    pub complete: bool,
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The answer to the command that has waited longest.
    Reply,
    /// Something that nobody asked for.
    Push,
}

/// The peer sent what its protocol does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{what}")]
pub struct BadReply {
    /// What, in a few words.
    pub what: &'static str,
}
