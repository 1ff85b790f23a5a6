//! When a session that resumes is over, and why.

use std::time::Instant;

use embar_session::Side;

use crate::state::End;

/// How a session is to go on that may have no connection.
pub(crate) struct Outlook {
    pub(crate) kill: Option<End>,
    pub(crate) close_by: Option<Instant>,
    pub(crate) is_closing: bool,
    pub(crate) is_connected: bool,
    /// The peer has said that it leaves.
    pub(crate) is_left: bool,
    pub(crate) unacknowledged: u64,
}

impl Outlook {
    /// The time for a polite end is over.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.close_by.is_some_and(|by| by <= now)
    }

    /// It is being closed, and the peer has all of its messages.
    pub(crate) fn is_done(&self) -> bool {
        self.is_closing && self.unacknowledged == 0
    }

    /// Why a session ends now that has no connection, if it does.
    pub(crate) fn end(&self, now: Instant) -> Option<End> {
        let is_over = self.is_done() || (self.is_closing && self.is_late(now));
        let finished = is_over.then_some(End::Finished { by: Side::Local });
        self.kill.clone().or(finished)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn outlook() -> Outlook {
        Outlook {
            kill: None,
            close_by: None,
            is_closing: false,
            is_connected: false,
            is_left: false,
            unacknowledged: 0,
        }
    }

    #[test]
    fn a_session_that_nobody_closes_is_never_done_and_never_late() {
        let now = Instant::now();
        let outlook = outlook();
        assert!(!outlook.is_done() && !outlook.is_late(now));
        assert_eq!(outlook.end(now), None);
    }

    #[test]
    fn a_polite_end_waits_for_acknowledgements_until_its_time() {
        let now = Instant::now();
        let by = now + Duration::from_secs(1);
        let waits = Outlook {
            close_by: Some(by),
            is_closing: true,
            unacknowledged: 1,
            ..outlook()
        };
        let finished = Some(End::Finished { by: Side::Local });
        assert!(!waits.is_done() && !waits.is_late(now) && waits.is_late(by));
        assert_eq!((waits.end(now), waits.end(by)), (None, finished.clone()));
        let done = Outlook {
            unacknowledged: 0,
            ..waits
        };
        assert!(done.is_done());
        assert_eq!(done.end(now), finished);
    }

    #[test]
    fn a_reason_of_its_own_goes_before_a_polite_end() {
        let now = Instant::now();
        let killed = Outlook {
            kill: Some(End::Full),
            close_by: Some(now),
            is_closing: true,
            ..outlook()
        };
        assert_eq!(killed.end(now), Some(End::Full));
    }
}
