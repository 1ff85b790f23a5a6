//! The ways in which a broker can receive payloads.

use std::fmt;
use std::str::FromStr;

/// How a payload gets from its socket into the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceivePath {
    /// The kernel copies what is there straight into the log, as often as something comes (`epoll`).
    #[default]
    Direct,
    /// The kernel copies into staging memory of the thread. A whole batch then goes to the log in pieces that fit
    /// the cache, each written back while it is there.
    Staging,
    /// A thread for each connection waits inside the kernel until a large part of a payload is there. For few
    /// publishers that are fast: beyond [`embar_transport::blocking::RECEIVERS_MAX`] connections, others are
    /// received from as with [`ReceivePath::Direct`].
    Blocking,
    /// As [`ReceivePath::Direct`], by `io_uring`: the kernel waits until a large part of a payload is there,
    /// and one call asks for several things.
    Uring,
}

impl ReceivePath {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Staging, Self::Blocking, Self::Uring];

    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Staging => "staging",
            Self::Blocking => "blocking",
            Self::Uring => "uring",
        }
    }
}

impl fmt::Display for ReceivePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no way to receive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no way to receive: it is direct, staging, blocking or uring")]
pub struct UnknownReceivePath(String);

impl FromStr for ReceivePath {
    type Err = UnknownReceivePath;

    fn from_str(text: &str) -> Result<Self, UnknownReceivePath> {
        let found = Self::ALL.into_iter().find(|path| path.name() == text);
        found.ok_or_else(|| UnknownReceivePath(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for path in ReceivePath::ALL {
            assert_eq!(path.to_string().parse(), Ok(path));
        }
        let error = "epoll".parse::<ReceivePath>().expect_err("unknown");
        assert!(error.to_string().contains("direct, staging"));
    }
}
