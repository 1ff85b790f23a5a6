//! Why a command has no result.

use embar_mux::CloseReason;
use thiserror::Error;

use crate::resp::{Malformed, ServerError, WrongType};

/// Why a command has no result. [`Error::may_have_executed`] says whether the server may have executed
/// it nevertheless.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused it, or executed a part of it and then failed, as a script may.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The connection broke after it took the command and before the reply came. The client does not
    /// send such a write again, because executing it twice may be wrong;
    /// [`Request::repeatable`](crate::Request::repeatable) and
    /// [`retry_writes`](crate::Config::retry_writes) allow it.
    #[error("unknown outcome: {0}; the command may have been executed")]
    UnknownOutcome(CloseReason),
    /// No reply came in time.
    #[error("no reply in time; the command may have been executed, or may yet be")]
    TimedOut,
    /// No server took the command until its time was over.
    #[error("not executed: {why}")]
    Unavailable {
        /// What was wrong last.
        why: String,
    },
    /// The limit of commands in flight is reached, and the configuration says not to wait
    /// ([`OnFull::Refuse`](crate::config::OnFull)).
    #[error("not executed: too many commands are in flight; wait, or allow more (max_in_flight)")]
    Busy,
    /// The server refused `MULTI` and executed the commands behind it, which were on their way already,
    /// one by one, perhaps with others in between.
    #[error(
        "executed, but not as a transaction: {0}; allow MULTI, EXEC and DISCARD for this user, or do not use transactions"
    )]
    NotAtomic(ServerError),
    /// The command's keys have different slots, so no node of the cluster can execute it.
    #[error(
        "not executed: its keys have different slots; give them the same hash tag ({{tag}}), or send one command per key"
    )]
    CrossSlot,
    /// The command goes to several nodes of the cluster, which the client does for single commands only.
    #[error(
        "not executed: it goes to several nodes, and so not with others in a pipeline or a transaction; send it by itself"
    )]
    SeveralNodes,
    /// The command went to several nodes, or in parts to those that serve its keys, and some failed.
    #[error("{failed} of {of} failed, the first of them {node}: {error}")]
    OnSomeNodes {
        /// How many failed.
        failed: usize,
        /// How many there were.
        of: usize,
        /// The address of the first node that failed.
        node: String,
        /// The others changed data, or may have.
        executed: bool,
        /// What was wrong there.
        error: Box<Self>,
    },
    /// The command would change the connection, or delay it, for all callers that share it.
    #[error(
        "not executed: {command} does not go over a connection that others use too; use {instead}"
    )]
    NotShared {
        /// The command's name, with its subcommand or option.
        command: &'static str,
        /// What to use instead, in a few words.
        instead: &'static str,
    },
    /// The command is no read whose reply a cache may keep ([`caching`](crate::caching)).
    #[error("not executed: {why}, so no cache keeps its reply; send it by the client itself")]
    NotCacheable {
        /// Why not, in a few words.
        why: &'static str,
    },
    /// The reply has another type than the caller asked for. The server executed the command.
    #[error(transparent)]
    WrongType(#[from] WrongType),
    /// The reply is larger than [`max_reply_bytes`](crate::Config::max_reply_bytes); that of a write in a
    /// [`Pipeline`](crate::pipeline::Pipeline), together with those before it. The server executed the
    /// command.
    #[error("the reply is larger than the limit of {max} bytes; raise max_reply_bytes")]
    ReplyTooLarge {
        /// The limit, bytes.
        max: usize,
    },
    /// The reply is malformed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The client is closed.
    #[error("not executed: the client is closed")]
    Closed,
    /// The configuration makes no sense, or the system cannot serve it.
    #[error("{0}")]
    Config(String),
}

impl Error {
    /// Whether the server executed the command, or may have, or a part of it. False: it certainly changed
    /// nothing.
    ///
    /// Of a command that a server refuses ([`Error::Server`]) that depends on the command, too: one that
    /// fails with `WRONGTYPE` has changed nothing, but a script may have written before. True for an error
    /// in the midst of `EVAL`, `EVALSHA`, `FCALL`, `MIGRATE` or `DEBUG`, and of a command that the crate does
    /// not know, as modules have them; false if the error comes only before anything was executed, as
    /// `NOSCRIPT` and `READONLY` do. The crate believes a script that returns an error with such a word.
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        match self {
            Self::UnknownOutcome(_)
            | Self::NotAtomic(_)
            | Self::TimedOut
            | Self::WrongType(_)
            | Self::ReplyTooLarge { .. }
            | Self::Malformed(_) => true,
            Self::OnSomeNodes {
                executed, error, ..
            } => *executed || error.may_have_executed(),
            Self::Server(error) => error.may_have_executed(),
            Self::Unavailable { .. }
            | Self::Busy
            | Self::CrossSlot
            | Self::SeveralNodes
            | Self::NotShared { .. }
            | Self::NotCacheable { .. }
            | Self::Closed
            | Self::Config(_) => false,
        }
    }

    /// The error of a command of which this is known: whether it may fail after it has changed something.
    pub(crate) fn of_command(self, may_fail_midway: bool) -> Self {
        match self {
            Self::Server(error) => Self::Server(error.answering(may_fail_midway)),
            other => other,
        }
    }
}
