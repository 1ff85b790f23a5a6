//! How fast peers may send: limits for each session and each address, and their buckets.

use std::fmt;
use std::io;

use super::stats::Counter;
pub(super) use addresses::Addresses;
pub(super) use buckets::{Allowed, Buckets};

mod addresses;
mod bucket;
mod buckets;

/// A rate, as a bucket of tokens has it: up to `burst` at once, and `per_second` in the long run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// What comes back each second; at least 1.
    pub per_second: u64,
    /// What may come at once after a pause; at least 1.
    pub burst: u64,
}

/// How fast peers may send. All of it is off by default.
///
/// Counted is what is received: messages, also those with bodies, and all bytes of the connection, without
/// those of TLS; and datagrams, as messages, when the handler gets them. No more is read at once than
/// the rates allow, so a peer that keeps on sending sees its bytes taken at the rate. (At a few hundred bytes a second it sees
/// little of that, as TCP opens its window in larger steps, and may take this end for one that does not read.) Sessions of one address that read at the
/// same time may together go beyond its rate, which makes the pause after that longer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rates {
    /// Messages of one session.
    pub session_messages: Option<Rate>,
    /// Bytes of one session.
    pub session_bytes: Option<Rate>,
    /// Messages of all sessions of one address, as [`Admission`](crate::Admission) counts addresses: so peers
    /// on this machine are exempt unless told otherwise.
    pub address_messages: Option<Rate>,
    /// Bytes of all sessions of one address.
    pub address_bytes: Option<Rate>,
    /// What happens beyond a rate.
    pub beyond: Beyond,
}

/// What happens to a session that sends faster than its [`Rates`] allow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Beyond {
    /// It is not read until it may send again, so its peer's own sends have to wait. The default.
    #[default]
    Delay,
    /// It closes with [`CloseReason::RateLimited`](crate::CloseReason::RateLimited).
    Close,
}

/// One of the [`Rates`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RateLimit {
    /// [`Rates::session_messages`].
    SessionMessages,
    /// [`Rates::session_bytes`].
    SessionBytes,
    /// [`Rates::address_messages`].
    AddressMessages,
    /// [`Rates::address_bytes`].
    AddressBytes,
}

impl RateLimit {
    /// All of them, in their order.
    pub const ALL: &[RateLimit] = &[
        Self::SessionMessages,
        Self::SessionBytes,
        Self::AddressMessages,
        Self::AddressBytes,
    ];

    /// Its name, for tables and labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SessionMessages => "SessionMessages",
            Self::SessionBytes => "SessionBytes",
            Self::AddressMessages => "AddressMessages",
            Self::AddressBytes => "AddressBytes",
        }
    }
}

impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SessionMessages => "messages of one session",
            Self::SessionBytes => "bytes of one session",
            Self::AddressMessages => "messages of one address",
            Self::AddressBytes => "bytes of one address",
        })
    }
}

impl Rates {
    /// These rates with what `change` does to them.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn each(&self) -> [Option<Rate>; 4] {
        [
            self.session_messages,
            self.session_bytes,
            self.address_messages,
            self.address_bytes,
        ]
    }

    /// # Errors
    /// `InvalidInput` if a rate lets nothing through.
    pub(super) fn check(&self) -> io::Result<()> {
        let lets_nothing = |rate: &Rate| rate.per_second == 0 || rate.burst == 0;
        if self.each().iter().flatten().any(lets_nothing) {
            let text = "a rate of 0 lets nothing through: use at least 1, or None for no limit";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(())
    }

    pub(super) fn are_off(&self) -> bool {
        self.each().iter().all(Option::is_none)
    }

    /// Full buckets for one session.
    pub(super) fn of_session(&self) -> Buckets {
        let limits = [RateLimit::SessionMessages, RateLimit::SessionBytes];
        Buckets::new(limits, self.session_messages, self.session_bytes)
    }

    /// Full buckets for one address.
    fn of_address(&self) -> Buckets {
        let limits = [RateLimit::AddressMessages, RateLimit::AddressBytes];
        Buckets::new(limits, self.address_messages, self.address_bytes)
    }
}

/// Counts how often sessions went beyond each rate.
#[derive(Default)]
pub(super) struct RateCounters([Counter; RateLimit::ALL.len()]);

impl RateCounters {
    pub(super) fn count(&self, limit: RateLimit) {
        self.0[limit as usize].add(1);
    }

    /// Limits that nobody went beyond are left out.
    pub(super) fn by_limit(&self) -> Vec<(RateLimit, u64)> {
        let counts = RateLimit::ALL.iter().zip(&self.0);
        counts
            .map(|(limit, count)| (*limit, count.get()))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}
