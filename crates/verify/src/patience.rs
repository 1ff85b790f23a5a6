//! How long a reader is given nothing while there is something to read.

use std::time::{Duration, Instant};

/// Of one reader. Times in which there was nothing to read do not count, and do not end its waiting either.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    waited: Duration,
    looked: Instant,
}

impl Patience {
    /// From now on.
    pub fn new(limit: Duration, now: Instant) -> Self {
        Self {
            limit,
            waited: Duration::ZERO,
            looked: now,
        }
    }

    /// It was given something.
    pub fn fed(&mut self, now: Instant) {
        (self.waited, self.looked) = (Duration::ZERO, now);
    }

    /// How long ago somebody looked, or it was given something.
    pub fn unwatched(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.looked)
    }

    /// Looks whether there is something to read. How long it waited, once that is too long; then it begins anew.
    pub fn look(&mut self, now: Instant, is_behind: bool) -> Option<Duration> {
        let passed = self.unwatched(now);
        self.looked = now;
        if is_behind {
            self.waited += passed;
        }
        if self.waited <= self.limit {
            return None;
        }
        Some(std::mem::take(&mut self.waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn only_time_with_something_to_read_counts_and_it_adds_up() {
        let zero = Instant::now();
        let at = |s| zero + Duration::from_secs(s);
        let mut patience = Patience::new(LIMIT, zero);
        // Of every three seconds one is a new start behind which there is nothing yet.
        for turn in 0..15 {
            assert_eq!(patience.look(at(3 * turn + 1), false), None);
            assert_eq!(patience.look(at(3 * turn + 3), true), None);
        }
        assert_eq!(patience.unwatched(at(46)), Duration::from_secs(1));
        let waited = patience.look(at(46), true);
        assert_eq!(waited, Some(Duration::from_secs(31)));
        assert_eq!(patience.look(at(47), true), None, "it is told once");
    }

    #[test]
    fn a_message_ends_the_waiting() {
        let zero = Instant::now();
        let at = |s| zero + Duration::from_secs(s);
        let mut patience = Patience::new(LIMIT, zero);
        assert_eq!(patience.look(at(29), true), None);
        patience.fed(at(100));
        assert_eq!(patience.look(at(129), true), None);
        assert!(patience.look(at(131), true).is_some());
    }
}
