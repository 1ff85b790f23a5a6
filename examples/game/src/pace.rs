//! When ticks are: at absolute times, so that a late one does not make all later ones late.

use std::time::{Duration, Instant};

/// The times of ticks.
#[derive(Debug)]
pub struct Pace {
    every: Duration,
    next: Instant,
}

impl Pace {
    /// The first tick is one `every` after `now`.
    pub fn new(every: Duration, now: Instant) -> Self {
        let next = now + every;
        Self { every, next }
    }

    /// How long until the next tick.
    pub fn wait(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// The tick of which the time was there is over. Returns how many more would have been due meanwhile: they are
    /// skipped, for a server that hurries after them falls behind further.
    pub fn ticked(&mut self, now: Instant) -> u32 {
        self.next += self.every;
        let late = now.saturating_duration_since(self.next);
        let skipped = late.as_nanos() / self.every.as_nanos();
        let skipped = u32::try_from(skipped).unwrap_or(u32::MAX);
        self.next += self.every * skipped;
        skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(50);

    #[test]
    fn ticks_that_are_late_do_not_shift_those_after_them() {
        let start = Instant::now();
        let mut pace = Pace::new(EVERY, start);
        for number in 1..1000 {
            let due = start + EVERY * number;
            assert_eq!(pace.wait(due - EVERY), EVERY);
            // Woken late, and the tick takes a while.
            let done = due + Duration::from_millis(30);
            assert_eq!(pace.wait(done), Duration::ZERO);
            assert_eq!(pace.ticked(done), 0);
        }
    }

    #[test]
    fn who_falls_behind_skips_whole_ticks() {
        let start = Instant::now();
        let mut pace = Pace::new(EVERY, start);
        let late = start + EVERY * 4 + EVERY / 2;
        assert_eq!(pace.ticked(late), 2, "those at 2 and 3");
        assert_eq!(pace.wait(late), Duration::ZERO, "that at 4 is due");
        assert_eq!(pace.ticked(late), 0);
        assert_eq!(pace.wait(late), EVERY / 2);
    }
}
