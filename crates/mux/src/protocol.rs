//! The trait that a protocol implements besides its framing: how to greet the peer on a new
//! connection, and what to do with frames that answer no command and when the connection ends.

use std::sync::Arc;

use embar_transport::tls::TlsError;

use crate::error::CloseReason;
use crate::framing::Framing;
use crate::stats::Meters;

/// The next step in greeting a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Greeting {
    /// Send these bytes, then call [`Protocol::greet`] with the frames that answer them.
    Send {
        /// Whole commands.
        bytes: Vec<u8>,
        /// How many frames answer them, at least 1.
        replies: u32,
    },
    /// The greeting is over: callers' commands may go out.
    Done,
}

/// The protocol of one connection. The driver calls it, so none of its methods may block.
pub trait Protocol: Framing {
    /// Decides the next step of the greeting. The driver calls it first without a reply, then with
    /// all frames that answer what it sent last.
    ///
    /// # Errors
    /// Why the connection is of no use; it ends with [`CloseReason::Refused`].
    fn greet(&mut self, reply: Option<&[u8]>) -> Result<Greeting, String>;

    /// The greeting is over, and commands go out from now on.
    fn opened(&mut self) {}

    /// Where to count what happens on this connection. [`Mux::open`](crate::Mux::open) calls it
    /// once. Connections of one [`Mux`](crate::Mux) may share meters.
    fn meters(&self) -> Arc<Meters> {
        Arc::default()
    }

    /// Looks at a part of the reply to a command that is several in one, before its caller does, and also
    /// if nobody waits for it any more. `complete` says that a frame ends with the part, and `is_last`
    /// that it belongs to the last frame of the reply.
    ///
    /// # Errors
    /// Why the connection is of no use after this part; it ends with [`CloseReason::Unusable`].
    #[inline]
    fn part_of_several(
        &mut self,
        _part: &[u8],
        _complete: bool,
        _is_last: bool,
    ) -> Result<(), &'static str> {
        Ok(())
    }

    /// The peer owes replies, and is suspiciously silent: for a quarter of
    /// [`dead_after`](crate::ConnectionLimits::dead_after), and again after each further one as long
    /// as the connection goes on. It may be busy with the oldest command, or gone: who can ask others
    /// about it does so now.
    fn silent(&mut self) {}

    /// Takes a frame that answers no command.
    fn push(&mut self, frame: &[u8]);

    /// Explains why a connection ended with [`CloseReason::Tls`], and what to do about it, in the
    /// words of the program's configuration.
    fn explain(&self, error: &TlsError) -> String {
        error.to_string()
    }

    /// The connection is over. The driver calls no other method after this one.
    fn closed(&mut self, reason: &CloseReason);
}
