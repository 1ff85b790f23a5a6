//! Why a connection ended, a command has no reply, or a connection takes no command.

use std::fmt;
use std::io;

use embar_transport::tls::TlsError;
use thiserror::Error;

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The system could not connect.
    Unreachable(io::ErrorKind),
    /// Connecting and greeting took longer than [`connect_timeout`].
    ///
    /// [`connect_timeout`]: crate::ConnectionLimits::connect_timeout
    ConnectTimeout,
    /// The kernel reported this error; `UnexpectedEof` when the peer closed the connection.
    Io(io::ErrorKind),
    /// Encryption failed. Also when the peer closed the connection before it sent anything, as
    /// servers do that accept encrypted connections only.
    Tls(TlsError),
    /// This end was not ready to connect; why.
    NotReady(String),
    /// The peer did not accept the greeting; its words.
    Refused(String),
    /// The peer sent what its protocol does not allow.
    BadReply(&'static str),
    /// A reply left the connection in a state in which it serves nobody.
    Unusable(&'static str),
    /// The peer owed replies and sent nothing for longer than [`dead_after`], and the oldest command had
    /// no time left.
    ///
    /// [`dead_after`]: crate::ConnectionLimits::dead_after
    Silent,
    /// This end closed it.
    Closed,
    /// The code that writes a command into the ring panicked.
    EncoderPanicked,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(kind) => write!(f, "cannot connect: {kind}"),
            Self::ConnectTimeout => f.write_str("cannot connect: it takes too long"),
            Self::Io(kind) => write!(f, "the connection broke: {kind}"),
            Self::Tls(error) => write!(f, "no connection: {error}"),
            Self::NotReady(why) => write!(f, "no connection: {why}"),
            Self::Refused(words) => write!(f, "the server refused the connection: {words}"),
            Self::BadReply(what) => write!(f, "the server sent nonsense: {what}"),
            Self::Unusable(why) => write!(f, "the connection was given up: {why}"),
            Self::Silent => f.write_str("the server owed replies and said nothing for too long"),
            Self::Closed => f.write_str("the connection was closed"),
            Self::EncoderPanicked => f.write_str("a command's encoder panicked"),
        }
    }
}

/// Why a command has no reply. Exhaustive, so that a client decides for each case whether it sends
/// the command again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// The connection ended before it took all of the command: the peer did not execute it.
    #[error("not sent: {0}")]
    NotSent(CloseReason),
    /// The connection ended after it took the command: the peer may have executed it.
    #[error("sent, but without a reply: {0}")]
    Unknown(CloseReason),
    /// No reply came in time. The peer may have executed the command, or may yet do so.
    #[error("no reply in time")]
    TimedOut,
    /// The reply is larger than [`max_reply_bytes`]; the connection goes on.
    ///
    /// [`max_reply_bytes`]: crate::ConnectionLimits::max_reply_bytes
    #[error("the reply is larger than the limit of {max} bytes")]
    TooLarge {
        /// The limit, bytes.
        max: usize,
    },
}

/// Why a connection did not take a command. Exhaustive, as [`CallError`] is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// The limit of commands in flight, or of bytes that wait to be sent, is reached.
    #[error("too many commands are in flight; wait, or allow more")]
    Full,
    /// The connection is over.
    #[error("not sent: {0}")]
    Closed(CloseReason),
}
