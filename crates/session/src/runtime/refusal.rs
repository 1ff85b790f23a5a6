//! Why a server serves a connection no session, and how often it was so.

use std::fmt;

use super::stats::Counter;
use crate::CloseReason;

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// Why a connection did not become a session.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Refusal {
            $($(#[$doc])* $name,)*
        }

        impl Refusal {
            /// All of them, in their order.
            pub const ALL: &[Refusal] = &[$(Self::$name,)*];

            /// Its name, for tables and labels.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }

        impl fmt::Display for Refusal {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)*
                })
            }
        }
    };
}

refusals! {
    /// The accept filter said no. The connection is closed without a word.
    Filtered = "the accept filter said no";
    /// It came to a listener behind proxies, and not from one of them
    /// ([`ServerBuilder::listen_behind`](crate::ServerBuilder::listen_behind)). It is closed without a word.
    UntrustedProxy = "it is none of the trusted proxies";
    /// A proxy sent no PROXY header of version 2, or a longer one than 4 KiB. It is closed without a word.
    ProxyHeader = "its proxy did not say for whom it speaks";
    /// It had not greeted when a newer connection needed its place: see
    /// [`Admission::max_arrivals`](crate::Admission::max_arrivals). It is closed without a word.
    Crowded = "it had not greeted when a newer connection came";
    /// It did not greet in time.
    HelloTimeout = "it did not greet in time";
    /// Its first bytes are not those of a session.
    NotSession = "it does not speak sessions";
    /// It speaks another version of the session layer, or another protocol, or its greeting was
    /// damaged.
    Protocol = "it speaks another protocol or version";
    /// One end did not accept the other's certificate.
    Certificate = "a certificate was not accepted";
    /// The TLS handshake failed in another way.
    Tls = "the TLS handshake failed";
    /// There are as many sessions as there may be.
    TooManySessions = "there are too many sessions";
    /// What is left is kept for sessions of a higher priority
    /// ([`ServerBuilder::prioritize`](crate::ServerBuilder::prioritize)).
    LowPriority = "what is left is kept for higher priorities";
    /// Its address has as many sessions as one may have.
    AddressLimit = "its address has too many sessions";
    /// There is no memory for a session, or none left in the budget.
    OutOfMemory = "there is no memory for a session";
    /// The handler, or what makes handlers, panicked.
    HandlerPanicked = "its handler panicked";
    /// The handler did not want it.
    Handler = "its handler refused it";
    /// The server is stopping.
    Shutdown = "the server is stopping";
}

impl Refusal {
    /// What a connection was refused for that learned this reason before it had a session.
    pub(super) fn of(reason: CloseReason) -> Self {
        match reason {
            CloseReason::HelloTimeout => Self::HelloTimeout,
            CloseReason::SessionVersion
            | CloseReason::Protocol
            | CloseReason::BadFrame
            | CloseReason::Damaged => Self::Protocol,
            CloseReason::Certificate => Self::Certificate,
            CloseReason::Tls | CloseReason::TlsTruncated => Self::Tls,
            CloseReason::Shutdown => Self::Shutdown,
            _ => Self::NotSession,
        }
    }
}

/// Counts refusals, each reason by itself.
#[derive(Default)]
pub(super) struct RefusalCounters([Counter; Refusal::ALL.len()]);

impl RefusalCounters {
    pub(super) fn count(&self, refusal: Refusal) {
        self.0[refusal as usize].add(1);
    }

    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }

    /// How often it was each; reasons that never were are left out.
    pub(super) fn by_reason(&self) -> Vec<(Refusal, u64)> {
        let counts = Refusal::ALL.iter().zip(&self.0);
        counts
            .map(|(refusal, count)| (*refusal, count.get()))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_counter_of_its_own() {
        let counters = RefusalCounters::default();
        for (index, &refusal) in Refusal::ALL.iter().enumerate() {
            for _ in 0..=index {
                counters.count(refusal);
            }
        }
        for (index, (refusal, count)) in counters.by_reason().into_iter().enumerate() {
            assert_eq!((refusal, count), (Refusal::ALL[index], index as u64 + 1));
        }
    }
}
