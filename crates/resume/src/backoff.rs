//! How long a client waits before it connects again.

use std::time::Duration;

/// The pause before attempt `attempt`, counted from 1. It doubles from `first` to at most `most`, and lies between half
/// of that and all of it, by `random`. The first is between nothing and `first`, so that those who lost the same server
/// do not come together.
#[must_use]
pub fn pause(attempt: u32, first: Duration, most: Duration, random: u32) -> Duration {
    let part = |of: Duration| {
        let nanos = of.as_nanos() / u128::from(u32::MAX) * u128::from(random)
            + of.as_nanos() % u128::from(u32::MAX) * u128::from(random) / u128::from(u32::MAX);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    };
    let doublings = attempt.saturating_sub(2).min(31);
    let full = first.saturating_mul(1 << doublings).min(most);
    match attempt {
        0 | 1 => part(first.min(most)),
        _ => full / 2 + part(full / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const MOST: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_double_within_their_bounds() {
        let longest = |attempt| pause(attempt, FIRST, MOST, u32::MAX);
        let shortest = |attempt| pause(attempt, FIRST, MOST, 0);
        assert_eq!(shortest(1), Duration::ZERO);
        assert_eq!(longest(1), FIRST);
        for (attempt, full) in [(2, 100), (3, 200), (4, 400), (5, 800), (6, 1000), (7, 1000)] {
            let full = Duration::from_millis(full);
            assert_eq!((shortest(attempt), longest(attempt)), (full / 2, full));
        }
        assert_eq!(longest(u32::MAX), MOST);
        for attempt in [1, 2, 99] {
            let _ = pause(attempt, Duration::MAX, Duration::MAX, u32::MAX);
        }
    }
}
