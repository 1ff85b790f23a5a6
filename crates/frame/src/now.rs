//! Monotonic time as a plain number. Nothing here reads a clock. The code that does I/O reads it,
//! and passes the time on.

use std::time::Duration;

/// Monotonic time in nanoseconds since a start of the caller's choice. Never leaves the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Now(pub u64);

impl Now {
    /// This time plus `wait`; a wait beyond the end of time is the end of time.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(nanoseconds(wait)))
    }

    /// How long ago `earlier` was; zero if it lies ahead.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Now(5).after(Duration::from_nanos(7)), Now(12));
        assert_eq!(Now(5).after(Duration::MAX), Now(u64::MAX));
        assert_eq!(Now(5).since(Now(9)), Duration::ZERO);
        assert_eq!(Now(9).since(Now(5)), Duration::from_nanos(4));
    }
}
