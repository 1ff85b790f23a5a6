//! Detects a reader that gets nothing for too long while there is something to read.

use std::time::{Duration, Instant};

/// A publisher without an acknowledgement, or a reader without a message, hangs after this time.
pub const STALL_MAX: Duration = Duration::from_secs(30);

/// The waiting of one reader. Times in which there was nothing to read do not count, and do not end it either.
#[derive(Debug)]
pub struct StallDetector {
    limit: Duration,
    waited: Duration,
    looked: Instant,
}

impl StallDetector {
    /// Detects waits of more than `limit`, from `now` on.
    pub fn new(limit: Duration, now: Instant) -> Self {
        Self {
            limit,
            waited: Duration::ZERO,
            looked: now,
        }
    }

    /// The reader got something.
    pub fn fed(&mut self, now: Instant) {
        (self.waited, self.looked) = (Duration::ZERO, now);
    }

    /// The time since the last look, or since the reader got something.
    pub fn since_look(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.looked)
    }

    /// Notes whether there is something to read. Returns the wait once it is too long; then counting begins anew.
    pub fn look(&mut self, now: Instant, is_behind: bool) -> Option<Duration> {
        let passed = self.since_look(now);
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
        let mut detector = StallDetector::new(LIMIT, zero);
        // Of every three seconds one is a new start behind which there is nothing yet.
        for turn in 0..15 {
            assert_eq!(detector.look(at(3 * turn + 1), false), None);
            assert_eq!(detector.look(at(3 * turn + 3), true), None);
        }
        assert_eq!(detector.since_look(at(46)), Duration::from_secs(1));
        let waited = detector.look(at(46), true);
        assert_eq!(waited, Some(Duration::from_secs(31)));
        assert_eq!(detector.look(at(47), true), None, "it is reported once");
    }

    #[test]
    fn a_message_ends_the_waiting() {
        let zero = Instant::now();
        let at = |s| zero + Duration::from_secs(s);
        let mut detector = StallDetector::new(LIMIT, zero);
        assert_eq!(detector.look(at(29), true), None);
        detector.fed(at(100));
        assert_eq!(detector.look(at(129), true), None);
        assert!(detector.look(at(131), true).is_some());
    }
}
