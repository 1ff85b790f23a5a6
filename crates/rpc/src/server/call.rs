//! What a method knows of its call.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use embar_session::{Peer, Session};

use super::calls::Calls;
use crate::protocol::CallNumber;
use crate::{Metadata, Method};

/// A call, as the server sees it. Clone it to have it for longer than its method runs.
#[derive(Clone)]
pub struct Call {
    pub(super) calls: Arc<Calls>,
    pub(super) number: CallNumber,
    pub(super) method: Method,
    pub(super) deadline: Option<Instant>,
    pub(super) metadata: Metadata,
}

impl Call {
    /// The method that is called.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// What the caller sent beside its request.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        self.calls.session.peer()
    }

    /// The session that carries the call.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.calls.session
    }

    /// How long the caller still waits; `None` if it has no limit. Zero: it waits no more.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let now = Instant::now();
        self.deadline
            .map(|deadline| deadline.saturating_duration_since(now))
    }

    /// Whether nobody waits for the reply: the caller gave the call up, its time is over, its session
    /// has ended, or the call was answered. What takes long asks from time to time.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        is_cancelled(&self.calls, self.number)
    }
}

pub(super) fn is_cancelled(calls: &Calls, number: CallNumber) -> bool {
    calls
        .with(number, |call| {
            let late = |deadline| deadline <= Instant::now();
            call.given_up.is_some() || call.deadline.is_some_and(late)
        })
        .unwrap_or(true)
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({} of {})", self.method.path(), self.peer())
    }
}
