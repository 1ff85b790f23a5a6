//! What a protocol adds to the cutting of replies.

use std::sync::Arc;

use embar_transport::tls::TlsError;

use crate::error::Reason;
use crate::framing::Framing;
use crate::stats::Meters;

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

    /// Commands go out from now on.
    fn opened(&mut self) {}

    /// Where to count what happens on this connection; asked once. Several connections may have the
    /// same if one [`Mux`](crate::Mux) made them.
    fn meters(&self) -> Arc<Meters> {
        Arc::default()
    }

    /// Takes a frame that nobody asked for.
    fn push(&mut self, frame: &[u8]);

    /// Says why a connection ended with [`Reason::Tls`], and what is to be done about it in the words
    /// of who configured it.
    fn explain(&self, error: &TlsError) -> String {
        error.to_string()
    }

    /// The connection is over; the last thing it is told.
    fn closed(&mut self, reason: &Reason);
}
