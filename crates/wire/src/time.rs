//! Wall time as batches and control messages carry it: a plain number. Nothing here reads a clock. The code that does
//! I/O reads it, and passes the time on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Wall time in nanoseconds since the Unix epoch (good until the year 2554). A later reading of the clock
/// may be smaller, because people and NTP set clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallNs(pub u64);

impl From<SystemTime> for WallNs {
    /// Times before the epoch become 0.
    fn from(time: SystemTime) -> Self {
        Self(time.duration_since(UNIX_EPOCH).map_or(0, nanoseconds))
    }
}

impl From<WallNs> for SystemTime {
    fn from(wall: WallNs) -> Self {
        UNIX_EPOCH + Duration::from_nanos(wall.0)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_converts_both_ways() {
        let wall = WallNs(1_700_000_000_123_456_789);
        assert_eq!(WallNs::from(SystemTime::from(wall)), wall);
        assert_eq!(WallNs::from(UNIX_EPOCH - Duration::from_secs(1)), WallNs(0));
    }
}
