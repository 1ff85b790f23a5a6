//! How long to wait before the next attempt.
//!
//! The wait doubles from attempt to attempt up to a bound, and is drawn at random from the upper half of its range, so
//! that clients which lost the same broker do not come back in step.

use embar_meter::random::SplitMix64;

/// Bounds of the waits between attempts, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffLimits {
    /// Longest wait after the first failure.
    pub first_ns: u64,
    /// Longest wait ever.
    pub max_ns: u64,
}

impl Default for BackoffLimits {
    /// 20 ms, doubling up to 2 s.
    fn default() -> Self {
        Self {
            first_ns: 20_000_000,
            max_ns: 2_000_000_000,
        }
    }
}

/// Counts the failures in a row of one peer.
#[derive(Debug, Clone)]
pub struct Backoff {
    limits: BackoffLimits,
    failures: u32,
}

impl Backoff {
    /// No failure yet.
    pub fn new(limits: BackoffLimits) -> Self {
        Self {
            limits,
            failures: 0,
        }
    }

    /// Counts a failure; returns how long to wait, in nanoseconds.
    pub fn failed(&mut self, random: &mut SplitMix64) -> u64 {
        let doubled = self
            .limits
            .first_ns
            .saturating_mul(1 << self.failures.min(30));
        self.failures = self.failures.saturating_add(1);
        let longest = doubled.min(self.limits.max_ns).max(2);
        longest / 2 + random.next_u64() % (longest / 2)
    }

    /// The peer answered: the next failure is a first one again.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_bound_and_start_over_after_a_success() {
        let limits = BackoffLimits {
            first_ns: 100,
            max_ns: 1_000,
        };
        let mut random = SplitMix64::new(7);
        let mut backoff = Backoff::new(limits);
        for longest in [100, 200, 400, 800, 1_000, 1_000] {
            let wait = backoff.failed(&mut random);
            assert!(
                (longest / 2..longest).contains(&wait),
                "{wait} of at most {longest}"
            );
        }
        for _ in 0..100 {
            assert!(backoff.failed(&mut random) < 1_000);
        }
        backoff.succeeded();
        assert!(backoff.failed(&mut random) < 100);
    }

    #[test]
    fn two_clients_do_not_wait_in_step() {
        let waits = |seed| {
            let mut random = SplitMix64::new(seed);
            let mut backoff = Backoff::new(BackoffLimits::default());
            (0..4)
                .map(|_| backoff.failed(&mut random))
                .collect::<Vec<_>>()
        };
        assert_ne!(waits(1), waits(2));
        assert_eq!(waits(1), waits(1), "a seed repeats its run");
    }
}
