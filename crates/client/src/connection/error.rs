//! Why a connection to a broker could not be made, or ended; and, if the broker ended it by a refusal, what the broker
//! refused.

use std::io;
use std::time::Duration;

use embar_session::{CloseReason, Closed, Side};
use embar_wire::control::{ErrorCode, ErrorReply};
use embar_wire::error::DecodeError;

use crate::io_error::IoError;
use crate::wait::WaitReason;

/// Why a connection to a broker could not be made, or ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The system reported an error.
    #[error(transparent)]
    Io(#[from] IoError),
    /// There is no memory for the connection's buffers.
    #[error("no memory for a connection: {0}")]
    Memory(IoError),
    /// The session ended.
    #[error(transparent)]
    Session(Closed),
    /// The broker refused what was asked, in these words.
    #[error("{message}")]
    Refused {
        /// Why, for programs.
        code: ErrorCode,
        /// Why, for people.
        message: String,
    },
    /// The broker did what the protocol does not allow.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// Something did not come in time.
    #[error("no {missing} in time")]
    Late {
        /// What did not come.
        missing: &'static str,
    },
    /// Batches were in flight, and nothing moved for this long.
    #[error("no progress for {0:?}")]
    Stalled(Duration),
    /// It has not ended: this is what the client still waits for.
    #[error("{0}")]
    Unfinished(WaitReason),
    /// This side ended it, for this reason.
    #[error("{0}")]
    Local(&'static str),
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.into())
    }
}

impl From<&ErrorReply> for ConnectionError {
    fn from(refusal: &ErrorReply) -> Self {
        Self::Refused {
            code: refusal.code,
            message: refusal.message.clone(),
        }
    }
}

impl ConnectionError {
    /// The broker did not answer in time.
    pub(crate) const NO_ANSWER: Self = Self::Late { missing: "answer" };
}

/// What a broker did that the protocol does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct Violation(Kind);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Kind {
    /// Its bytes cannot be read.
    #[error(transparent)]
    Bytes(DecodeError),
    /// What they mean is out of place.
    #[error("{0}")]
    OutOfPlace(String),
}

impl From<DecodeError> for Violation {
    fn from(error: DecodeError) -> Self {
        Self(Kind::Bytes(error))
    }
}

impl From<String> for Violation {
    fn from(what: String) -> Self {
        Self(Kind::OutOfPlace(what))
    }
}

impl From<&str> for Violation {
    fn from(what: &str) -> Self {
        what.to_string().into()
    }
}

/// What the end of a session says about what was asked on it, if anything.
pub(crate) fn refusal_of(closed: &Closed) -> Option<ErrorReply> {
    let by_peer = closed.by == Side::Peer;
    let code = match closed.reason {
        CloseReason::SessionVersion | CloseReason::Protocol => ErrorCode::UnsupportedVersion,
        CloseReason::Refused if by_peer && closed.code != 0 => ErrorCode::from_number(closed.code),
        CloseReason::TooLarge if by_peer => ErrorCode::TooLarge,
        CloseReason::UnknownFrame | CloseReason::BadFrame | CloseReason::BadMessage if by_peer => {
            ErrorCode::BadFrame
        }
        _ => return None,
    };
    Some(ErrorReply::new(code, closed.to_string()))
}
