//! The clock that measures leases. It counts the steps of another clock, but no step as more than a quarter of a lease:
//! no lease ends only because the sequencer did not run.

use embar_memory::canary::{Canary, injected};

/// The sum of the steps of another clock, none of them longer than a quarter of the lease.
///
/// A sequencer that sleeps, is paused or has its clock set cannot tell whether a publisher was silent meanwhile, or
/// whether nothing looked at its batches. Here that time counts for at most a quarter of the lease: a lease ends
/// only after its batches were looked at at least three times more.
#[derive(Debug)]
pub(crate) struct LeaseClock {
    last: Option<u64>,
    now: u64,
    step: u64,
}

impl LeaseClock {
    /// A clock at 0 for leases of `lease` nanoseconds.
    pub fn new(lease: u64) -> Self {
        Self {
            last: None,
            now: 0,
            step: lease / 4,
        }
    }

    /// The other clock shows `now`, which may be less than before.
    pub fn advance(&mut self, now: u64) {
        let step = now.saturating_sub(self.last.unwrap_or(now));
        self.last = Some(now);
        let most = if injected(Canary::LeaseClamp) {
            u64::MAX
        } else {
            self.step
        };
        self.now = self.now.saturating_add(step.min(most));
    }

    /// Nanoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The longest step.
    pub fn step(&self) -> u64 {
        self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_small_steps_forward_count_in_full() {
        let mut clock = LeaseClock::new(1000);
        for (now, sum) in [
            (5_000, 0),
            (5_100, 100),
            (u64::MAX, 350),
            (7, 350),
            (7, 350),
            (17, 360),
        ] {
            clock.advance(now);
            assert_eq!(clock.now(), sum, "at {now}");
        }
    }
}
