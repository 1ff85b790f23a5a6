//! What a protocol adds to the cutting of replies.

use crate::error::Reason;
use crate::framing::Framing;

/// What to do next with a connection that was just made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Greeting {
    /// Send these bytes, and show me the frames that answer them.
    Say {
        /// Whole commands.
        bytes: Vec<u8>,
        /// How many frames answer them, at least 1.
        replies: u32,
    },
    /// Commands may go out.
    Done,
}

/// The protocol of one connection. It runs on the driver, so nothing in it may block.
pub trait Protocol: Framing {
    /// Says what to do before commands go out: first without a reply, then with all frames that
    /// answer what it said last.
    ///
    /// # Errors
    /// Why this connection is of no use; it ends with [`Reason::Refused`].
    fn greet(&mut self, reply: Option<&[u8]>) -> Result<Greeting, String>;

    /// Takes a frame that nobody asked for.
    fn push(&mut self, frame: &[u8]);

    /// The connection is over; the last thing it is told.
    fn closed(&mut self, reason: &Reason);
}
