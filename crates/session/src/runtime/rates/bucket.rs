//! A bucket of tokens, without a clock: time goes in, and what may be done comes out.
//!
//! It may be overdrawn, as bytes are counted when they are there. What is owed is kept in tokens
//! times 10⁹, so that nothing is rounded however often it is looked at.

use embar_frame::Now;

use super::Rate;

/// Parts of a token.
const PARTS: u128 = 1_000_000_000;

#[derive(Debug, Clone)]
pub(super) struct TokenBucket {
    rate: Rate,
    /// Parts that are missing of a full bucket, when it was looked at last.
    owed: u128,
    at: Now,
}

impl TokenBucket {
    /// A full one.
    pub(super) fn new(rate: Rate) -> Self {
        Self {
            rate,
            owed: 0,
            at: Now(0),
        }
    }

    /// Lets time pass; time that goes back does not count.
    fn refill(&mut self, now: Now) {
        let elapsed = now.0.saturating_sub(self.at.0);
        let back = u128::from(elapsed) * u128::from(self.rate.per_second);
        self.owed = self.owed.saturating_sub(back);
        self.at = self.at.max(now);
    }

    /// Takes `count` tokens, whether they are there or not. False: they were not.
    pub(super) fn take(&mut self, count: u64, now: Now) -> bool {
        self.refill(now);
        self.owed = self.owed.saturating_add(u128::from(count) * PARTS);
        self.owed <= u128::from(self.rate.burst) * PARTS
    }

    /// Whole tokens that are there.
    pub(super) fn left(&mut self, now: Now) -> u64 {
        self.refill(now);
        let owed = u64::try_from(self.owed.div_ceil(PARTS)).unwrap_or(u64::MAX);
        self.rate.burst.saturating_sub(owed)
    }

    /// When `count` tokens are there, or as many as it holds if these are fewer.
    pub(super) fn when(&self, count: u64) -> Now {
        let spare = self.rate.burst.saturating_sub(count);
        let missing = self.owed.saturating_sub(u128::from(spare) * PARTS);
        let wait = missing.div_ceil(u128::from(self.rate.per_second.max(1)));
        Now(self
            .at
            .0
            .saturating_add(u64::try_from(wait).unwrap_or(u64::MAX)))
    }

    /// So many that waiting for them is worth a timer: what comes back in a few milliseconds; or `least`, where these come back
    /// within a sixteenth of a second, or else what does.
    pub(super) fn worth_a_wait(&self, least: u64) -> u64 {
        let Rate { per_second, burst } = self.rate;
        let worth = (per_second / 16).min(least).max(per_second / 256);
        worth.clamp(1, burst.max(1))
    }

    pub(super) fn is_full(&mut self, now: Now) -> bool {
        self.refill(now);
        self.owed == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn bucket(per_second: u64, burst: u64) -> TokenBucket {
        TokenBucket::new(Rate { per_second, burst })
    }

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let mut bucket = bucket(10, 5);
        assert!(bucket.take(5, Now(SECOND)));
        assert_eq!(bucket.left(Now(SECOND)), 0);
        assert_eq!(bucket.when(1), Now(SECOND + SECOND / 10));
        assert_eq!(bucket.left(Now(SECOND + SECOND / 10 - 1)), 0);
        assert_eq!(bucket.left(Now(SECOND + SECOND / 10)), 1);
        assert_eq!(bucket.left(Now(100 * SECOND)), 5, "no more than the burst");
    }

    #[test]
    fn what_was_overdrawn_is_paid_back() {
        let mut bucket = bucket(10, 5);
        assert!(!bucket.take(25, Now(0)));
        assert_eq!(bucket.when(1), Now(2 * SECOND + SECOND / 10));
        assert_eq!(bucket.left(Now(2 * SECOND)), 0);
        assert!(!bucket.take(1, Now(2 * SECOND)));
        assert!(bucket.is_full(Now(10 * SECOND)));
    }

    #[test]
    fn a_wait_is_worth_its_timer_and_no_longer_than_a_sixteenth_of_a_second() {
        let worth = |per_second, burst| bucket(per_second, burst).worth_a_wait(4096);
        assert_eq!(worth(1600, 10_000), 100);
        assert_eq!(worth(1600, 30), 30, "no more than there ever is");
        assert_eq!(worth(1 << 18, 1 << 20), 4096);
        assert_eq!(worth(1 << 24, 1 << 20), 1 << 16);
        assert_eq!(worth(1, 1), 1);
    }

    #[test]
    fn extremes_do_not_wrap() {
        let mut bucket = bucket(u64::MAX, u64::MAX);
        assert!(bucket.take(u64::MAX, Now(u64::MAX)));
        assert!(!bucket.take(u64::MAX, Now(u64::MAX)));
        assert!(!bucket.take(1, Now(0)), "time that goes back");
        let mut slow = super::tests::bucket(1, 1);
        slow.take(u64::MAX, Now(u64::MAX - 1));
        assert_eq!(slow.when(u64::MAX), Now(u64::MAX));
    }

    proptest! {
        /// In no span of time more goes through than the burst and what the rate gives in it.
        #[test]
        fn never_more_than_the_burst_and_the_rate(
            per_second in 1..10_000u64,
            burst in 1..1000u64,
            steps in prop::collection::vec((0..SECOND / 4, 1..300u64), 1..200),
        ) {
            let mut bucket = bucket(per_second, burst);
            let (mut now, mut taken) = (0, Vec::new());
            for (wait, wanted) in steps {
                now += wait;
                let count = wanted.min(bucket.left(Now(now)));
                prop_assert!(bucket.take(count, Now(now)));
                taken.push((now, count));
                let next = bucket.when(1);
                prop_assert!(bucket.clone().left(next) >= 1, "there when it says so");
            }
            for from in 0..taken.len() {
                let mut sum = 0;
                for &(at, count) in &taken[from..] {
                    sum += count;
                    let span = u128::from(at - taken[from].0) * u128::from(per_second);
                    prop_assert!(u128::from(sum) * PARTS <= u128::from(burst) * PARTS + span);
                }
            }
        }
    }
}
