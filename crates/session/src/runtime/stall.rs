//! How long senders may wait for a peer that does not read: a budget for each stall, not for each send.
//!
//! A stall begins when a sender finds no room. It is over once the peer has taken half of what waited then. So a
//! peer that takes a byte now and then does not keep senders waiting again and again.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The stall of one session, if it has one.
#[derive(Debug, Default)]
pub(super) struct Stall(Mutex<Option<Stalled>>);

#[derive(Debug, Clone, Copy)]
struct Stalled {
    since: Instant,
    /// It is over when so many bytes of the session were taken in all.
    over_at: u64,
}

impl Stall {
    /// Until when a sender that finds no room `now` may wait, of a session of which `taken` bytes have left in all and
    /// `queued` wait.
    pub(super) fn deadline(
        &self,
        now: Instant,
        budget: Duration,
        taken: u64,
        queued: usize,
    ) -> Instant {
        let mut stall = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = stall.filter(|stall| taken < stall.over_at);
        let stalled = goes_on.unwrap_or(Stalled {
            since: now,
            over_at: taken + (queued as u64 / 2).max(1),
        });
        *stall = Some(stalled);
        stalled.since + budget.min(Duration::from_secs(1 << 32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_secs(10);

    #[test]
    fn a_stall_has_one_budget_until_half_of_what_waited_is_taken() {
        let (stall, begin) = (Stall::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(stall.deadline(at(0), BUDGET, 500, 1000), at(10));
        // A little was taken, and more was queued.
        assert_eq!(stall.deadline(at(4), BUDGET, 999, 1400), at(10));
        assert_eq!(stall.deadline(at(60), BUDGET, 999, 1400), at(10));
        assert_eq!(stall.deadline(at(61), BUDGET, 1000, 1400), at(71));
    }

    #[test]
    fn nothing_that_waits_is_no_stall_without_an_end() {
        let (stall, begin) = (Stall::default(), Instant::now());
        let later = begin + BUDGET;
        stall.deadline(begin, BUDGET, 7, 0);
        assert_eq!(stall.deadline(later, BUDGET, 7, 0), later);
        assert_eq!(stall.deadline(later, BUDGET, 8, 0), later + BUDGET);
    }
}
