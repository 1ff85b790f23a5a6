//! How often a connection may be left because of what its server answers.
//!
//! The first answer counts at once: another server has taken over, and the name leads there already, or
//! will soon. A server that goes on answering so is dialled after growing pauses, however many callers
//! it answers.

use std::time::{Duration, Instant};

use crate::config::RetryPolicy;

/// So many of the longest pauses without such an answer, and the pauses begin with the shortest one again.
const CALM_PAUSES: u32 = 4;

/// Decides when the connection may be left.
#[derive(Debug, Default)]
pub(super) struct LeavePace {
    /// How often it was left without a long time in between.
    in_row: u32,
    /// The earliest time of the next one.
    not_before: Option<Instant>,
}

impl LeavePace {
    /// Whether it may be left now. If so, the next time is a pause away.
    pub fn may_leave(&mut self, now: Instant, retries: &RetryPolicy) -> bool {
        if let Some(not_before) = self.not_before {
            if now < not_before {
                return false;
            }
            let calm = retries.backoff_max.saturating_mul(CALM_PAUSES);
            if now.duration_since(not_before) > calm {
                self.in_row = 0;
            }
        }
        let pause = retries.backoff(self.in_row);
        self.in_row = self.in_row.saturating_add(1);
        self.not_before = now.checked_add(pause).or(Some(now + FAR));
        true
    }
}

/// A pause that no clock can add lasts so long.
const FAR: Duration = Duration::from_secs(1 << 30);

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of leaves within so long, if answers come every millisecond.
    fn leaves(pace: &mut LeavePace, from: Instant, millis: u64) -> Vec<Instant> {
        let retries = RetryPolicy::default();
        (0..millis)
            .map(|milli| from + Duration::from_millis(milli))
            .filter(|now| pace.may_leave(*now, &retries))
            .collect()
    }

    #[test]
    fn the_first_answer_counts_at_once_and_more_of_them_after_growing_pauses() {
        let mut pace = LeavePace::default();
        let start = Instant::now();
        let times = leaves(&mut pace, start, 60_000);
        assert_eq!(times[0], start);
        // From the eighth on each pause is 250 to 500 ms.
        assert!((120..=250).contains(&times.len()), "{}", times.len());
        for pair in times[8..].windows(2) {
            let pause = pair[1] - pair[0];
            let allowed = Duration::from_millis(250)..=Duration::from_millis(501);
            assert!(allowed.contains(&pause), "{pause:?}");
        }
    }

    #[test]
    fn after_a_calm_time_it_is_left_at_once_and_pauses_are_short_again() {
        let mut pace = LeavePace::default();
        let start = Instant::now();
        leaves(&mut pace, start, 60_000);
        let later = start + Duration::from_secs(63);
        let times = leaves(&mut pace, later, 100);
        assert_eq!(times[0], later);
        assert!(times.len() > 2, "{}", times.len());
    }

    #[test]
    fn the_longest_pauses_do_not_overflow() {
        let retries = RetryPolicy {
            backoff_min: Duration::MAX,
            backoff_max: Duration::MAX,
            ..RetryPolicy::default()
        };
        let mut pace = LeavePace::default();
        let now = Instant::now();
        assert!(pace.may_leave(now, &retries));
        assert!(!pace.may_leave(now + Duration::from_secs(3600), &retries));
    }
}
