//! What a client waits for: whom, why, and for how long.
//!
//! Nothing is recorded for it: a client is asked, by a [`WaitProbe`], and looks at its state then. So it costs nothing while
//! nobody asks.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use embar_transport::Address;
use embar_wire::control::ErrorCode;

/// What a client waits for at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Whom; at least one.
    pub parties: Vec<Party>,
    /// For how long nothing has come of it. A client that makes progress waits, too, but never long.
    pub elapsed: Duration,
    /// After how much longer the client gives up; `None`: it goes on for as long as it is let.
    pub remaining: Option<Duration>,
}

/// One of those who are waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    /// The broker's number, if it is a certain one.
    pub broker: Option<u32>,
    /// Where it is, if that is known.
    pub address: Option<Address>,
    /// What for.
    pub reason: WaitReason,
}

/// Why somebody is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// It is being connected to, for the first time.
    Connecting,
    /// It did not answer, in these words, or its connection broke. It is tried again.
    NoAnswer(String),
    /// The cluster says that it does not serve: it starts, or ends, or nobody takes its place.
    NotReady,
    /// It was asked something.
    Answer,
    /// It has batches, and has not acknowledged them.
    Acknowledgement,
    /// It does not take the bytes that are sent to it.
    NotReading,
    /// It has no room for batches.
    LogFull,
    /// A disk of the topic has failed, or is full.
    DiskUnavailable,
    /// Nobody gives batches their place in the order.
    NoSequencer,
    /// It refuses for another reason, and may do it later.
    Refused(ErrorCode),
    /// It has sent all that there is.
    Messages,
    /// It is to leave the cluster.
    Departure,
}

impl WaitReason {
    /// What a broker said by a refusal after which it is tried again.
    pub(crate) fn of(code: ErrorCode) -> Self {
        match code {
            ErrorCode::Backpressure | ErrorCode::HeldFull => Self::LogFull,
            ErrorCode::DiskUnavailable => Self::DiskUnavailable,
            ErrorCode::NoSequencer => Self::NoSequencer,
            ErrorCode::Draining => Self::NotReady,
            other => Self::Refused(other),
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connecting => f.write_str("it is being connected to"),
            Self::NoAnswer(cause) => write!(f, "{cause}; it is tried again"),
            Self::NotReady => f.write_str("it does not serve"),
            Self::Answer => f.write_str("it has not answered"),
            Self::Acknowledgement => f.write_str("it has not acknowledged"),
            Self::NotReading => f.write_str("it does not take what is sent"),
            Self::LogFull => f.write_str("its log is full"),
            Self::DiskUnavailable => f.write_str(
                "a disk of the topic has failed or is full (`embar status` says which, and what to do)",
            ),
            Self::NoSequencer => f.write_str("nobody sequences"),
            Self::Refused(code) => write!(f, "it refuses, {code:?}"),
            Self::Messages => f.write_str("it has no more messages"),
            Self::Departure => f.write_str("it has not left"),
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.broker, &self.address, &self.reason) {
            (Some(broker), Some(address), _) => write!(f, "broker {broker} at {address}")?,
            (Some(broker), None, _) => write!(f, "broker {broker}")?,
            (None, Some(address), _) => write!(f, "a broker at {address}")?,
            (None, None, WaitReason::NoSequencer) => f.write_str("a sequencer")?,
            (None, None, _) => f.write_str("a broker that takes data")?,
        }
        write!(f, " ({})", self.reason)
    }
}

impl fmt::Display for Wait {
    /// Whom and why, with commas between.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, party) in self.parties.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            party.fmt(f)?;
        }
        Ok(())
    }
}

type Source = Box<dyn Fn() -> Option<Wait> + Send>;

/// Asks a client what it waits for, from any thread, also while it is being opened. Give it to the client's builder, or get
/// it from [`Admin::wait_probe`](crate::Admin::wait_probe). Clones ask the same client: the last one that it was given to.
#[derive(Clone, Default)]
pub struct WaitProbe(Arc<Mutex<Option<Source>>>);

impl WaitProbe {
    /// Of no client yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the client waits for; `None` if for nothing, or if it is not there yet, or not any more.
    ///
    /// An answer of a subscriber comes from its thread, so this waits for it: some microseconds, at most a second.
    pub fn waiting_for(&self) -> Option<Wait> {
        let source = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        source.as_ref().and_then(|ask| ask())
    }

    pub(crate) fn ask_by(&self, source: impl Fn() -> Option<Wait> + Send + 'static) {
        let mut ask = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *ask = Some(Box::new(source));
    }
}

impl fmt::Debug for WaitProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitProbe").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_says_whom_and_why() {
        let address = Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 9401)));
        let party = |broker, address, reason| Party {
            broker,
            address,
            reason,
        };
        let waits = Wait {
            parties: vec![
                party(
                    Some(1),
                    Some(address),
                    WaitReason::NoAnswer("refused".into()),
                ),
                party(None, None, WaitReason::NoSequencer),
            ],
            elapsed: Duration::ZERO,
            remaining: None,
        };
        assert_eq!(
            waits.to_string(),
            "broker 1 at 127.0.0.1:9401 (refused; it is tried again), a sequencer (nobody sequences)"
        );
    }

    #[test]
    fn nobody_is_asked_before_there_is_somebody() {
        let probe = WaitProbe::new();
        assert_eq!(probe.waiting_for(), None);
        let waits = Wait {
            parties: Vec::new(),
            elapsed: Duration::ZERO,
            remaining: None,
        };
        let answer = waits.clone();
        probe.clone().ask_by(move || Some(answer.clone()));
        assert_eq!(probe.waiting_for(), Some(waits));
    }
}
