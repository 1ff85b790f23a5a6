//! Why there is no reply.

use std::fmt;
use std::io;

use embar_transport::tls::TlsError;
use thiserror::Error;

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It could not be made.
    Unreachable(io::ErrorKind),
    /// It could not be made in time.
    ConnectTimeout,
    /// The kernel says so; `UnexpectedEof` when the peer closed it.
    Io(io::ErrorKind),
    /// It could not be encrypted, or not any longer; or the peer ended it before it said anything,
    /// as one does that wants connections to be encrypted.
    Tls(TlsError),
    /// The peer did not accept the greeting; its words.
    Refused(String),
    /// The peer sent what its protocol does not allow.
    BadReply(&'static str),
    /// Nothing came for too long although the peer owed replies.
    Silent,
    /// This end closed it.
    Closed,
    /// The code that writes a command into the ring panicked.
    EncoderPanicked,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(kind) => write!(f, "cannot connect: {kind}"),
            Self::ConnectTimeout => f.write_str("cannot connect: it takes too long"),
            Self::Io(kind) => write!(f, "the connection broke: {kind}"),
            Self::Tls(error) => write!(f, "no connection: {error}"),
            Self::Refused(words) => write!(f, "the server refused the connection: {words}"),
            Self::BadReply(what) => write!(f, "the server sent nonsense: {what}"),
            Self::Silent => f.write_str("the server owed replies and said nothing for too long"),
            Self::Closed => f.write_str("the connection was closed"),
            Self::EncoderPanicked => f.write_str("a command's encoder panicked"),
        }
    }
}

/// Why a command has no reply.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// The connection ended before all of the command was written to it: the peer did not execute
    /// it.
    #[error("not sent: {0}")]
    NotSent(Reason),
    /// The connection ended after the command was written: the peer may have executed it.
    #[error("sent, but without a reply: {0}")]
    Unknown(Reason),
    /// No reply came in time. The peer may have executed the command, or may yet do so.
    #[error("no reply in time")]
    TimedOut,
    /// The reply is larger than this end takes; the connection goes on.
    #[error("the reply is larger than the limit of {max} bytes")]
    TooLarge {
        /// The limit, bytes.
        max: usize,
    },
}

/// Why a command was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// As many commands as allowed wait for a reply, or to be sent.
    #[error("too many commands are in flight; wait, or allow more")]
    Full,
    /// The connection is over.
    #[error("not sent: {0}")]
    Closed(Reason),
}
