//! What can go wrong, in words that say what to do.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a server or a cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no `redis-server` in any folder of `PATH`.
    #[error("redis-server is not installed: apt-get install redis-server")]
    NoServer,
    /// There is no `setpriv` in any folder of `PATH`. Without it a server would outlive a test that is killed.
    #[error("setpriv is not installed: apt-get install util-linux")]
    NoSetpriv,
    /// Somebody else listens on the port that was asked for, or on that of its cluster bus.
    #[error("port {0} (or port {bus} of its cluster bus) is in use: stop what listens there, or take another", bus = u32::from(*.0) + 10_000)]
    PortInUse(u16),
    /// A cluster was asked for that cannot be: the text says why.
    #[error("{0}")]
    Options(String),
    /// A file or process could not be made.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The process ended at once.
    #[error("redis-server ended with {status}; its log:\n{log}")]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// The end of what it wrote.
        log: String,
    },
    /// The process runs and does not answer.
    #[error("redis-server does not answer after {after:?} ({last}); its log:\n{log}")]
    Silent {
        /// How long it was waited for.
        after: Duration,
        /// What the last attempt came to.
        last: CommandError,
        /// The end of what it wrote.
        log: String,
    },
    /// A server refused a command that forms the cluster.
    #[error("the cluster cannot be formed: {0}")]
    Command(#[from] CommandError),
    /// The servers run and did not become a cluster in time.
    #[error("the cluster did not form: {0}")]
    Wait(#[from] WaitError),
}

/// Why a command for the set-up of a test failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// No server behind the socket, or it did not answer in time (it may be paused).
    #[error("the server does not answer: {0}")]
    Io(#[from] io::Error),
    /// The server's own words.
    #[error("the server says: {0}")]
    Server(String),
    /// The reply is no RESP2, or not what this command replies.
    #[error("the reply makes no sense: {0}")]
    Malformed(String),
}

/// A condition that did not come true in time.
#[derive(Debug, thiserror::Error)]
#[error("after {after:?}: {problem}")]
pub struct WaitError {
    /// How long it was waited for.
    pub after: Duration,
    /// What was not as it should be when time was up.
    pub problem: String,
}
