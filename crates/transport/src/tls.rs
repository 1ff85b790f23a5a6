//! Encrypted connections, by rustls: the feature `tls`.
//!
//! A [`Channel`] is one end of such a connection without its socket: ciphertext that a reactor
//! received goes in, and what comes out is plaintext for its user, and ciphertext for the reactor
//! to send. Sessions and multiplexed connections both put one between themselves and their
//! reactor.
//!
//! Without the feature the same types exist and no value of them can: code that handles them needs
//! no conditions, and is compiled to nothing.

#[cfg_attr(not(feature = "tls"), path = "tls/absent.rs")]
mod channel;
mod error;

use std::io;

use crate::{RecvBuf, SendBuf};

#[cfg(feature = "tls")]
pub use channel::TlsChannel;
pub use channel::{Acceptor, Channel, TlsTarget};
pub use error::{ServerNameError, TlsError, TlsFault};

/// What is to be done next for a [`Channel`].
#[derive(Debug)]
pub enum Turn {
    /// Plaintext in the user's buffer, or the end.
    Received(RecvBuf, io::Result<usize>),
    /// All of it was encrypted, and handed to the kernel; or a step of a buffer that
    /// [goes in steps](SendBuf::goes_in_steps).
    Sent(SendBuf, io::Result<()>),
    /// The channel has failed, and told the peer why if possible.
    Failed(TlsError),
    /// Everything is said: the connection's writing half is to be shut.
    Shutdown,
    /// Nothing before the next event.
    Wait {
        /// Ciphertext to be sent meanwhile.
        send: Option<SendBuf>,
        /// Where ciphertext is to be received meanwhile.
        receive: Option<RecvBuf>,
    },
}
