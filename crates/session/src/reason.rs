//! Why a session ended, and who ended it.

use std::fmt;
use std::io;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Why a session ended. Those with a number travel to the peer in a CLOSE frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum CloseReason {
            $($(#[$doc])* $name,)*
            /// The peer, or the network, closed the connection between two frames without a word.
            Disconnected,
            /// The connection ended in the middle of a frame.
            CutFrame,
            /// One end did not accept the other's certificate.
            Certificate,
            /// The encryption failed: the peer speaks no TLS, or none that this end accepts, or
            /// somebody changed what was on its way.
            Tls,
            /// The encrypted connection was cut without the sign that it is complete: something
            /// may be missing at its end.
            TlsTruncated,
            /// The operating system reported an error.
            Io(io::ErrorKind),
        }

        impl CloseReason {
            /// Those that travel, in ascending order of their numbers.
            pub const ALL_ON_WIRE: &[CloseReason] = &[$(Self::$name,)*];

            /// Its name, for tables and labels.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                    Self::Disconnected => "Disconnected",
                    Self::CutFrame => "CutFrame",
                    Self::Certificate => "Certificate",
                    Self::Tls => "Tls",
                    Self::TlsTruncated => "TlsTruncated",
                    Self::Io(_) => "Io",
                }
            }

            /// Its number in a CLOSE frame; 0 for what only one end can know.
            #[must_use]
            pub fn number(self) -> i32 {
                match self {
                    $(Self::$name => $number,)*
                    _ => 0,
                }
            }

            /// The reason of a number; one that only a newer version knows is
            /// [`CloseReason::Refused`].
            #[must_use]
            pub fn from_number(number: i32) -> Self {
                match number {
                    $($number => Self::$name,)*
                    _ => Self::Refused,
                }
            }
        }

        impl fmt::Display for CloseReason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => f.write_str($text),)*
                    Self::Disconnected => f.write_str("the connection was closed"),
                    Self::CutFrame => f.write_str("the connection ended inside of a frame"),
                    Self::Certificate => f.write_str("a certificate was not accepted"),
                    Self::Tls => f.write_str("the encryption failed"),
                    Self::TlsTruncated => {
                        f.write_str("the encrypted connection was cut off, something may be missing")
                    }
                    Self::Io(kind) => write!(f, "the connection failed: {kind}"),
                }
            }
        }
    };
}

reasons! {
    /// Everything is said.
    Finished = 1, "finished";
    /// The other end does not want this session; its own code and text say why.
    Refused = 2, "refused";
    /// The first bytes are not those of a session.
    NotSession = 3, "the peer does not speak sessions: check the address";
    /// The versions of the session layer differ.
    SessionVersion = 4, "the versions of the session layer differ: use the same release";
    /// The peer speaks another protocol, or another version of it, on its sessions.
    Protocol = 5, "the two ends speak different protocols";
    /// A frame with an id that the protocol does not know.
    UnknownFrame = 6, "a frame with an unknown id came";
    /// A frame is longer than what was agreed on.
    TooLarge = 7, "a frame exceeds the limit";
    /// A frame breaks the rules in another way.
    BadFrame = 8, "a malformed frame came";
    /// A message's content could not be read.
    BadMessage = 9, "a message could not be read";
    /// The handshake was not completed in time.
    HelloTimeout = 10, "no handshake came in time";
    /// A frame was begun and not completed in time.
    FrameTimeout = 11, "a frame was begun and not completed in time";
    /// Nothing was heard for too long.
    Idle = 12, "nothing was heard for too long";
    /// A reservation was held for too long, and everything behind it waited.
    ReservationHeld = 13, "a reservation was neither committed nor dropped in time";
    /// There is no room for another session.
    TooManySessions = 14, "there are too many sessions: close some, or try again later";
    /// The handler panicked.
    HandlerPanicked = 15, "the handler panicked";
    /// What was to be sent did not fit: the peer reads too slowly.
    Full = 16, "the peer reads too slowly";
    /// The process is stopping.
    Shutdown = 17, "this end is stopping";
    /// A frame is not as it was sent. What it said is not known, nor what came behind it.
    Damaged = 18, "a frame was damaged on its way";
    /// There is no memory for a large message.
    OutOfMemory = 19, "there is no memory for a large message: send it later";
    /// More came than the session's rates allow.
    RateLimited = 24, "this end sends faster than the other one allows: send less in a second";
}

impl From<&io::Error> for CloseReason {
    fn from(error: &io::Error) -> Self {
        match error.kind() {
            // No socket says so, but a TLS session that ends without its last record.
            io::ErrorKind::UnexpectedEof => Self::TlsTruncated,
            kind => Self::Io(kind),
        }
    }
}

/// Who ended a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// This end.
    Local,
    /// The other end, which said so.
    Peer,
    /// Neither end said so: the connection is gone.
    Network,
}

/// How a session ended. The last event of a core, which returns it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Who ended it.
    pub by: Side,
    /// Why.
    pub reason: CloseReason,
    /// The protocol's own number, with [`CloseReason::Refused`]; else 0.
    pub code: u32,
    /// More about it, for people; may be empty. From the peer it is at most
    /// [`MAX_REASON_BYTES`](crate::MAX_REASON_BYTES) long.
    pub text: String,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            Side::Local => "closed here",
            Side::Peer => "closed by the peer",
            Side::Network => "lost",
        };
        write!(f, "{by}: {}", self.reason)?;
        if !self.text.is_empty() {
            write!(f, " ({})", self.text)?;
        }
        Ok(())
    }
}

impl std::error::Error for Closed {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto;
    use buffa::Enumeration;

    #[test]
    fn reasons_are_those_of_the_schema() {
        let ours: Vec<i32> = CloseReason::ALL_ON_WIRE
            .iter()
            .map(|r| r.number())
            .collect();
        let theirs = proto::Reason::values().iter().map(Enumeration::to_i32);
        let theirs: Vec<i32> = theirs.filter(|&number| number != 0).collect();
        assert_eq!(ours, theirs);
        for &reason in CloseReason::ALL_ON_WIRE {
            assert_eq!(CloseReason::from_number(reason.number()), reason);
        }
    }

    #[test]
    fn a_reason_of_a_newer_version_is_understood_as_a_refusal() {
        assert_eq!(CloseReason::from_number(9999), CloseReason::Refused);
        assert_eq!(CloseReason::from_number(0), CloseReason::Refused);
    }
}
