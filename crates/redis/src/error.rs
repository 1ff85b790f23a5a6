//! Why a command has no result.

use embar_mux::CloseReason;
use thiserror::Error;

use crate::resp::{Malformed, ServerError, WrongType};

/// Why a command has no result. [`Error::may_have_executed`] tells whether the server may have done
/// it nevertheless.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused it.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// It was written to a server, and the connection broke before the reply came. It is not sent
    /// again by itself, because doing it twice may be wrong; see `retry_writes` for what is safe to
    /// repeat.
    #[error("unknown outcome: {0}; the command may have been executed")]
    UnknownOutcome(CloseReason),
    /// No reply came in time.
    #[error("no reply in time; the command may have been executed, or may yet be")]
    TimedOut,
    /// Until its time was over no server could be reached that takes it.
    #[error("not executed: {why}")]
    Unavailable {
        /// What was wrong last.
        why: String,
    },
    /// As many commands as allowed are in flight, and the client was told not to wait.
    #[error("not executed: too many commands are in flight; wait, or allow more (max_in_flight)")]
    Busy,
    /// The server refused `MULTI`, and executed commands of the transaction one by one, others
    /// perhaps in between: those behind `MULTI` were on their way already.
    #[error(
        "executed, but not as a transaction: {0}; allow MULTI, EXEC and DISCARD for this user, or do not use transactions"
    )]
    NotAtomic(ServerError),
    /// Its keys have different slots, so no node of the cluster can execute it.
    #[error(
        "not executed: its keys have different slots; give them the same hash tag ({{tag}}), or send one command per key"
    )]
    CrossSlot,
    /// It would change the connection, or hold it up, for all others who use it.
    #[error(
        "not executed: {command} does not go over a connection that others use too; use {instead}"
    )]
    NotShared {
        /// Its name, with the subcommand or option that matters.
        command: &'static str,
        /// What to use for it, in a few words.
        instead: &'static str,
    },
    /// The reply is of another type than was asked for. The command was executed.
    #[error(transparent)]
    WrongType(#[from] WrongType),
    /// The reply is larger than `max_reply_bytes`. The command was executed.
    #[error("the reply is larger than the limit of {max} bytes; raise max_reply_bytes")]
    ReplyTooLarge {
        /// The limit, bytes.
        max: usize,
    },
    /// The reply cannot be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The client was closed.
    #[error("not executed: the client is closed")]
    Closed,
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
}

impl Error {
    /// Whether the server may have executed the command, or has. False: it certainly has not.
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        match self {
            Self::UnknownOutcome(_)
            | Self::NotAtomic(_)
            | Self::TimedOut
            | Self::WrongType(_)
            | Self::ReplyTooLarge { .. }
            | Self::Malformed(_) => true,
            Self::Server(_)
            | Self::Unavailable { .. }
            | Self::Busy
            | Self::CrossSlot
            | Self::NotShared { .. }
            | Self::Closed
            | Self::Config(_) => false,
        }
    }
}
