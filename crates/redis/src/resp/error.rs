//! The errors that servers answer with: the text, and what its first word means for the client.

use std::{borrow::Cow, fmt};

use thiserror::Error;

/// A server's answer that it did not execute a command, or not all of it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the server answered: {text}")]
pub struct ServerError {
    /// What the error means for the client.
    pub kind: ErrorKind,
    /// The server's whole text, including the word that gives the kind, with replacement characters for
    /// bytes that are not UTF-8.
    pub text: String,
    pub(crate) may_have_executed: bool,
}

impl ServerError {
    /// The error with this text. It counts as the answer to a command that may fail midway.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        let kind = ErrorView(text.as_bytes()).kind();
        let may_have_executed = !is_before_execution(&kind, &text);
        Self {
            kind,
            text,
            may_have_executed,
        }
    }

    /// Whether the server may have executed a part of the command before it failed, as scripts may. False:
    /// it certainly changed nothing. Where the command is not known, as in an error that is one of
    /// several results, this is true unless the kind says that nothing had begun.
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        self.may_have_executed
    }

    /// The answer to a command of which this is known: whether it may fail after it has changed something.
    pub(crate) fn answering(self, may_fail_midway: bool) -> Self {
        Self {
            may_have_executed: self.may_have_executed && may_fail_midway,
            ..self
        }
    }
}

/// What an error of a server means, by the first word of its text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// `MOVED`: another node serves this slot from now on.
    Moved {
        /// The slot of the command's keys.
        slot: u16,
        /// The node that serves it.
        address: Address,
    },
    /// `ASK`: the slot is moving to another node, which has this key already. The client sends this
    /// command, and no other, there behind an `ASKING`.
    Ask {
        /// The slot of the command's keys.
        slot: u16,
        /// The node to which it goes.
        address: Address,
    },
    /// `TRYAGAIN`: the slot is moving, and both nodes have some of the command's keys.
    TryAgain,
    /// `CLUSTERDOWN`: slots have no node, or the node is cut off from the others.
    ClusterDown,
    /// `CROSSSLOT`: the command's keys have different slots.
    CrossSlot,
    /// `LOADING`: the server has started and is reading its data.
    Loading,
    /// `READONLY`: the node is a replica and takes no writes.
    ReadOnly,
    /// `MASTERDOWN`: the replica has lost its primary and may not answer with old data.
    MasterDown,
    /// `NOREPLICAS`: fewer replicas are in step than the server needs for a write.
    NoReplicas,
    /// `MISCONF`: the server cannot save its data, and so takes no writes.
    Misconfigured,
    /// `BUSYGROUP`: a consumer group of this name exists.
    BusyGroup,
    /// `NOGROUP`: there is no such stream, or it has no consumer group of this name.
    NoGroup,
    /// `BUSYKEY`: the key that a command would make exists.
    BusyKey,
    /// `IOERR`: the server lost another server to which it was moving keys, which may have them.
    InputOutput,
    /// `BUSY`: a script is running that does not end.
    Busy,
    /// `NOAUTH`: the connection has not authenticated.
    NoAuth,
    /// `WRONGPASS`: name or password are wrong, or the user is disabled.
    WrongPass,
    /// `NOPERM`: the user may not do this.
    NoPerm,
    /// `NOPROTO`: the server does not speak this version of the protocol.
    NoProto,
    /// `NOSCRIPT`: the server does not have the script of this digest.
    NoScript,
    /// `WRONGTYPE`: the key holds another type of value.
    WrongType,
    /// `EXECABORT`: the server refused a command of the transaction, and executed none.
    ExecAbort,
    /// `ERR unknown command`: the server is older than the command, or it was renamed.
    UnknownCommand,
    /// `OOM`: the server has reached its limit of memory.
    OutOfMemory,
    /// `UNBLOCKED`: the server stopped waiting, for example because it became a replica.
    Unblocked,
    /// Everything else.
    Other,
}

impl ErrorKind {
    /// Whether the server certainly did not execute the command, and another node or a later attempt
    /// may: a client sends the command again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Moved { .. }
                | Self::Ask { .. }
                | Self::TryAgain
                | Self::ClusterDown
                | Self::Loading
                | Self::MasterDown
                | Self::ReadOnly
        )
    }
}

/// Where a redirect leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an IP address without brackets. Empty: the host that gave the answer.
    pub host: String,
    /// The port there.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// A server's error, borrowed from the bytes that were received.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ErrorView<'a>(pub(super) &'a [u8]);

impl<'a> ErrorView<'a> {
    /// What it means. Allocates only for a redirect's host.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        let (word, rest) = split_word(self.0);
        match word {
            b"MOVED" => redirect(rest).map_or(ErrorKind::Other, |(slot, address)| {
                ErrorKind::Moved { slot, address }
            }),
            b"ASK" => redirect(rest).map_or(ErrorKind::Other, |(slot, address)| ErrorKind::Ask {
                slot,
                address,
            }),
            b"TRYAGAIN" => ErrorKind::TryAgain,
            b"CLUSTERDOWN" => ErrorKind::ClusterDown,
            b"CROSSSLOT" => ErrorKind::CrossSlot,
            b"LOADING" => ErrorKind::Loading,
            b"READONLY" => ErrorKind::ReadOnly,
            b"MASTERDOWN" => ErrorKind::MasterDown,
            b"NOREPLICAS" => ErrorKind::NoReplicas,
            b"MISCONF" => ErrorKind::Misconfigured,
            b"BUSYGROUP" => ErrorKind::BusyGroup,
            b"NOGROUP" => ErrorKind::NoGroup,
            b"BUSYKEY" => ErrorKind::BusyKey,
            b"IOERR" => ErrorKind::InputOutput,
            b"BUSY" => ErrorKind::Busy,
            b"NOAUTH" => ErrorKind::NoAuth,
            b"WRONGPASS" => ErrorKind::WrongPass,
            b"NOPERM" => ErrorKind::NoPerm,
            b"NOPROTO" => ErrorKind::NoProto,
            b"NOSCRIPT" => ErrorKind::NoScript,
            b"WRONGTYPE" => ErrorKind::WrongType,
            b"EXECABORT" => ErrorKind::ExecAbort,
            b"OOM" => ErrorKind::OutOfMemory,
            b"UNBLOCKED" => ErrorKind::Unblocked,
            b"ERR" if rest.starts_with(b"unknown command") => ErrorKind::UnknownCommand,
            _ => ErrorKind::Other,
        }
    }

    /// The server's whole text, with replacement characters for bytes that are not UTF-8.
    #[must_use]
    pub fn text(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }

    /// The server's whole text, as it sent it.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for ErrorView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ErrorView").field(&self.text()).finish()
    }
}

impl From<ErrorView<'_>> for ServerError {
    fn from(view: ErrorView<'_>) -> Self {
        Self::new(view.text())
    }
}

/// Whether a server that refuses a greeting with these words would do so again, however soon it is asked:
/// until somebody changes the server's configuration or the client's.
pub(crate) fn is_lasting_refusal(words: &str) -> bool {
    match ServerError::new(words).kind {
        ErrorKind::NoAuth | ErrorKind::WrongPass | ErrorKind::NoPerm | ErrorKind::NoProto => true,
        // Servers before 6.0, AUTH without need, and SELECT.
        ErrorKind::Other => [
            "ERR invalid password",
            "ERR Client sent AUTH, but no password is set",
            "ERR AUTH <password> called without any password",
            "ERR DB index is out of range",
            "ERR invalid DB index",
        ]
        .iter()
        .any(|known| words.starts_with(known)),
        _ => false,
    }
}

/// Whether a server that answers so to a greeting or to `AUTH` wants other credentials.
pub(crate) fn is_refusal_of_credentials(words: &str) -> bool {
    let kind = ServerError::new(words).kind;
    matches!(kind, ErrorKind::NoAuth | ErrorKind::WrongPass)
        || words.starts_with("ERR invalid password")
}

/// Whether a server answers so only before it has changed anything, whatever the command is.
///
/// Each command inside of a script is checked as if it had come alone, so a script may fail with most of
/// these, too. But a server checks its own state (`READONLY`, `MISCONF`, `NOREPLICAS`, `OOM`) only before
/// a script's first write: see `scriptVerifyWriteCommandAllow` and `scriptVerifyOOM` in `script.c` of Redis
/// 7.0. It refuses `EXEC` as a whole, or makes the error of a command that command's result.
fn is_before_execution(kind: &ErrorKind, text: &str) -> bool {
    match kind {
        ErrorKind::Moved { .. }
        | ErrorKind::Ask { .. }
        | ErrorKind::TryAgain
        | ErrorKind::ClusterDown
        | ErrorKind::CrossSlot
        | ErrorKind::Loading
        | ErrorKind::ReadOnly
        | ErrorKind::MasterDown
        | ErrorKind::NoReplicas
        | ErrorKind::Misconfigured
        | ErrorKind::OutOfMemory
        | ErrorKind::Busy
        | ErrorKind::NoAuth
        | ErrorKind::WrongPass
        | ErrorKind::NoProto
        | ErrorKind::NoScript
        | ErrorKind::ExecAbort
        | ErrorKind::UnknownCommand
        | ErrorKind::Unblocked => true,
        // A server before 7.0 says so about a command inside of a script as well.
        ErrorKind::NoPerm => !text.contains(" script"),
        ErrorKind::Other => text.starts_with("ERR Error compiling script"),
        ErrorKind::WrongType
        | ErrorKind::BusyGroup
        | ErrorKind::NoGroup
        | ErrorKind::BusyKey
        | ErrorKind::InputOutput => false,
    }
}

fn split_word(text: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b' ', text) {
        Some(space) => (&text[..space], &text[space + 1..]),
        None => (text, &[]),
    }
}

/// `3999 127.0.0.1:6381`: an IPv6 address has no brackets, so the last colon is the port's.
fn redirect(text: &[u8]) -> Option<(u16, Address)> {
    let (slot, address) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    let slot = slot
        .parse()
        .ok()
        .filter(|slot| *slot < crate::slot::SLOTS)?;
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let host = host.to_owned();
    Some((slot, Address { host, port }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> ErrorKind {
        ErrorView(text.as_bytes()).kind()
    }

    fn moved(slot: u16, host: &str, port: u16) -> ErrorKind {
        let host = host.to_owned();
        ErrorKind::Moved {
            slot,
            address: Address { host, port },
        }
    }

    #[test]
    fn redirects_lead_to_addresses_names_and_the_same_host() {
        assert_eq!(
            kind("MOVED 3999 127.0.0.1:6381"),
            moved(3999, "127.0.0.1", 6381)
        );
        assert_eq!(kind("MOVED 1 :6380"), moved(1, "", 6380));
        assert_eq!(kind("MOVED 16383 ::1:6380"), moved(16383, "::1", 6380));
        assert_eq!(
            kind("MOVED 0 node-3.example.com:7000"),
            moved(0, "node-3.example.com", 7000)
        );
        let address = Address {
            host: "10.0.0.7".to_owned(),
            port: 1,
        };
        let ask = ErrorKind::Ask { slot: 7, address };
        assert_eq!(kind("ASK 7 10.0.0.7:1"), ask);
    }

    #[test]
    fn a_redirect_that_leads_nowhere_is_none() {
        for text in [
            "MOVED",
            "MOVED 1",
            "MOVED 16384 a:1",
            "MOVED -1 a:1",
            "MOVED 1 a",
            "MOVED 1 a:",
            "MOVED 1 a:0",
            "MOVED 1 a:65536",
            "ASK x a:1",
            "MOVED1 a:1",
        ] {
            assert_eq!(kind(text), ErrorKind::Other, "{text}");
        }
        assert_eq!(ErrorView(b"MOVED 1 \xFF:1").kind(), ErrorKind::Other);
    }

    #[test]
    fn the_first_word_tells_the_kind() {
        let unknown = "ERR unknown command 'FOO', with args beginning with: ";
        assert_eq!(kind(unknown), ErrorKind::UnknownCommand);
        assert_eq!(kind("ERR syntax error"), ErrorKind::Other);
        assert_eq!(kind("BUSYGROUP Consumer Group name"), ErrorKind::BusyGroup);
        assert_eq!(kind("BUSY Redis is busy"), ErrorKind::Busy);
        assert_eq!(kind("BUSYKEY Target key name"), ErrorKind::BusyKey);
        assert_eq!(kind("BUSYBODY"), ErrorKind::Other);
        assert_eq!(kind("MISCONF Redis is"), ErrorKind::Misconfigured);
        assert_eq!(kind("NOGROUP No such key"), ErrorKind::NoGroup);
        assert_eq!(kind("IOERR error or timeout"), ErrorKind::InputOutput);
        assert_eq!(kind("OOM command not allowed"), ErrorKind::OutOfMemory);
        assert_eq!(kind("LOADING"), ErrorKind::Loading);
        assert_eq!(kind(""), ErrorKind::Other);
    }

    #[test]
    fn only_a_command_that_may_fail_midway_may_have_executed_and_not_if_the_error_comes_before() {
        for (text, midway) in [
            ("MOVED 1 a:1", false),
            ("ASK 1 a:1", false),
            ("TRYAGAIN Multiple keys request", false),
            ("CLUSTERDOWN Hash slot not served", false),
            ("CROSSSLOT Keys in request", false),
            ("LOADING Redis is loading", false),
            (
                "READONLY You can't write script: 1, on @user_script:1.",
                false,
            ),
            ("MASTERDOWN Link with MASTER is down", false),
            ("NOREPLICAS Not enough good replicas", false),
            ("MISCONF Redis is configured", false),
            (
                "OOM command not allowed script: 1, on @user_script:1.",
                false,
            ),
            ("BUSY Redis is busy", false),
            ("NOAUTH Authentication required", false),
            ("WRONGPASS invalid", false),
            ("NOPROTO unsupported", false),
            ("NOSCRIPT No matching script", false),
            ("EXECABORT Transaction discarded", false),
            ("UNBLOCKED force unblock", false),
            ("ERR unknown command 'X'", false),
            ("ERR Error compiling script (new function)", false),
            (
                "NOPERM User x has no permissions to run the 'eval' command",
                false,
            ),
            ("NOPERM The user executing the script can't run this", true),
            ("WRONGTYPE Operation against", true),
            ("BUSYGROUP Consumer Group name", true),
            ("NOGROUP No such key", true),
            ("BUSYKEY Target key name", true),
            ("IOERR error or timeout reading", true),
            ("ERR Unknown Redis command called from script", true),
            ("MYOWN word", true),
            ("", true),
        ] {
            let error = ServerError::new(text);
            assert_eq!(error.may_have_executed(), midway, "{text}");
            let script = error.clone().answering(true);
            assert_eq!(script.may_have_executed(), midway, "{text}");
            assert!(!error.answering(false).may_have_executed(), "{text}");
        }
    }

    #[test]
    fn a_refusal_lasts_if_only_people_can_end_it() {
        for (words, lasting) in [
            (
                "WRONGPASS invalid username-password pair or user is disabled.",
                true,
            ),
            (
                "NOAUTH HELLO must be called with the client already authenticated",
                true,
            ),
            (
                "NOPERM User x has no permissions to run the 'hello' command",
                true,
            ),
            ("NOPROTO unsupported protocol version", true),
            ("ERR DB index is out of range", true),
            (
                "ERR AUTH <password> called without any password configured",
                true,
            ),
            ("LOADING Redis is loading the dataset in memory", false),
            ("MASTERDOWN Link with MASTER is down", false),
            ("ERR max number of clients reached", false),
            ("", false),
        ] {
            assert_eq!(is_lasting_refusal(words), lasting, "{words}");
        }
    }

    #[test]
    fn the_text_survives_and_is_readable() {
        let error = ServerError::from(ErrorView(b"WRONGTYPE not \xFF this"));
        assert_eq!(error.kind, ErrorKind::WrongType);
        let shown = error.to_string();
        assert_eq!(shown, "the server answered: WRONGTYPE not \u{FFFD} this");
    }
}
