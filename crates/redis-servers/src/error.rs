//! Errors of servers and clusters, with messages that say what to do.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a server or a cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no `redis-server` in any folder of `PATH`.
    #[error("redis-server is not installed: apt-get install redis-server")]
    NoServer,
    /// There is no `setpriv` in any folder of `PATH`. Without it a server would outlive a killed test.
    #[error("setpriv is not installed: apt-get install util-linux")]
    NoSetpriv,
    /// Another program listens on the wanted port, or on that of its cluster bus.
    #[error("port {0} (or port {bus} of its cluster bus) is in use: stop what listens there, or take another", bus = u32::from(*.0) + 10_000)]
    PortInUse(u16),
    /// The options make no sense: the text says why.
    #[error("{0}")]
    Options(String),
    /// The system could not make a file or start a process.
    #[error("cannot {what}: {source}")]
    Io {
        /// What this crate tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The process ended at once.
    #[error("redis-server ended with {status}; its log:\n{log}")]
    Ended {
        /// Its exit status.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// The process runs, and does not answer.
    #[error("redis-server does not answer after {after:?} ({last}); its log:\n{log}")]
    Silent {
        /// How long this crate waited for it.
        after: Duration,
        /// The error of the last attempt.
        last: CommandError,
        /// The end of its log.
        log: String,
    },
    /// A server refused a command that forms the cluster.
    #[error("the cluster cannot be formed: {0}")]
    Command(#[from] CommandError),
    /// The servers run, and did not become a cluster in time.
    #[error("the cluster did not form: {0}")]
    Wait(#[from] WaitError),
}

/// Why a command that sets up or checks a test failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// There is no server at the socket, or it did not answer in time (it may be paused).
    #[error("the server does not answer: {0}")]
    Io(#[from] io::Error),
    /// The server refused it; its words.
    #[error("the server says: {0}")]
    Server(String),
    /// The reply is not RESP2, or not a reply to this command.
    #[error("the reply makes no sense: {0}")]
    Malformed(String),
}

/// A condition that did not come true in time.
#[derive(Debug, thiserror::Error)]
#[error("after {after:?}: {problem}")]
pub struct WaitError {
    /// How long this crate waited for it.
    pub after: Duration,
    /// What was wrong when the time was over.
    pub problem: String,
}
