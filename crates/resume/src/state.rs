//! What a program may know of a session: how it stands, what a restart cost, and how it ended.

use std::fmt;
use std::time::Instant;

use embar_session::{Closed, Side};

/// How a session stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It has never been open.
    Connecting {
        /// Attempts to connect so far, this one included.
        attempt: u32,
    },
    /// It is open, on its first connection.
    Open,
    /// Its connection is lost. A client connects again by itself, a server waits for that.
    Resuming {
        /// Attempts to connect so far, this one included; 0 at a server.
        attempt: u32,
        /// When the connection was lost.
        since: Instant,
    },
    /// It is open, on another connection. Nothing was lost or doubled.
    Resumed,
    /// It is open, but the server knows nothing of what was before. At clients only.
    Restarted(Restart),
    /// It is over.
    Closed(Ended),
}

impl State {
    /// Whether messages travel.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Open | Self::Resumed | Self::Restarted(_))
    }

    /// How it ended, if it did.
    #[must_use]
    pub fn ended(&self) -> Option<&Ended> {
        match self {
            Self::Closed(ended) => Some(ended),
            _ => None,
        }
    }
}

/// Why a server began a session anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhyFresh {
    /// It is the first of this client.
    New,
    /// The server knows no such session: it was restarted, or is another one.
    Unknown,
    /// A newer token of the session is in use.
    OldToken,
    /// The client was away for longer than the server's window.
    Expired,
    /// Too many others were away at the same time.
    Evicted,
    /// The session had ended at the server.
    Ended,
    /// The server before it was drained. All that was sent to it is handled, and nothing is in doubt.
    Moved,
}

/// What became of a client's messages when a server began its session anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restart {
    /// Why.
    pub why: WhyFresh,
    /// Messages that were sent and not acknowledged: the server before may have handled some of them, from the first on.
    pub in_doubt: u64,
    /// Whether those are sent again ([`InDoubt`](crate::InDoubt)); if not, they are dropped.
    pub sent_again: bool,
    /// Messages that were never sent, and go out now.
    pub unsent: u64,
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// One end closed it politely.
    Finished {
        /// Which.
        by: Side,
    },
    /// One end refused or ended it, with a code and a text of its own.
    Refused {
        /// Which.
        by: Side,
        /// Its code.
        code: u32,
        /// Its text, for people.
        text: String,
    },
    /// Another connection has resumed it, with its token.
    TakenOver,
    /// The client did not come back within the window.
    Expired,
    /// Too many sessions were without a connection, and this one for the longest time.
    Evicted,
    /// The replay buffer was full, and the policy is to close then.
    Full,
    /// The other end broke the rules of resumption: it acknowledged what it was not sent, or said what cannot be read.
    BadPeer {
        /// What it did.
        text: String,
    },
    /// The client went to another server because this one is drained. All is acknowledged.
    Moved,
    /// The client tried for long enough. The last attempt ended like this.
    GaveUp(Closed),
    /// The connection ended in a way after which it makes no sense to connect again.
    Connection(Closed),
    /// The handler panicked.
    Panicked,
    /// The keeper or connector was dropped.
    Stopped,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished { by } => write!(f, "finished by {}", of(*by)),
            Self::Refused { by, code, text } => {
                write!(f, "refused by {} with code {code}: {text}", of(*by))
            }
            Self::TakenOver => f.write_str("another connection has resumed the session"),
            Self::Expired => f.write_str("the client did not come back in time"),
            Self::Evicted => f.write_str("too many sessions were without a connection"),
            Self::Full => f.write_str("too much waited to be acknowledged"),
            Self::BadPeer { text } => write!(f, "the other end broke the rules: {text}"),
            Self::Moved => f.write_str("the client went to another server"),
            Self::GaveUp(last) => write!(f, "no server could be reached in time: {last}"),
            Self::Connection(why) => why.fmt(f),
            Self::Panicked => f.write_str("the handler panicked"),
            Self::Stopped => f.write_str("this end has stopped"),
        }
    }
}

fn of(side: Side) -> &'static str {
    match side {
        Side::Local => "this end",
        Side::Peer => "the other end",
        Side::Network => "the network",
    }
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// Why.
    pub why: End,
    /// Messages of this end that the other one has not acknowledged: it may have handled some, from the first on.
    pub unacknowledged: u64,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (why, count) = (&self.why, self.unacknowledged);
        write!(f, "{why}; {count} messages are not acknowledged")
    }
}

impl std::error::Error for Ended {}
