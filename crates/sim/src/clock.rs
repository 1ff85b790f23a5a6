//! The clocks of one host, which no other host reads.
//!
//! Bounds: a clock runs at 4/5 to 5/4 of the true rate. The monotonic clock never goes back; it may jump ahead, by
//! up to 10 s at a time, as it does on a host that was suspended. The wall clock jumps anywhere, by up to a day.

use embar_broker::clock::Timestamp;
use embar_frame::Now;
use embar_wire::time::WallNs;

use crate::random::Random;

/// Wall time when a run begins, in nanoseconds since the epoch.
const WALL_START_NS: u64 = 1_700_000_000_000_000_000;
const MILLION: u64 = 1_000_000;
/// Parts of a million of the true rate.
const RATE: (u64, u64) = (800_000, 1_250_000);
/// How far ahead a host's time jumps at once, in nanoseconds, at most.
const AHEAD_NS: u64 = 10_000_000_000;
/// How far its date jumps, in nanoseconds, at most.
const DAY_NS: u64 = 86_400_000_000_000;

/// A host's monotonic clock and wall clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    rate: u64,
    ahead_ns: u64,
    wall_start_ns: u64,
}

impl Clock {
    /// A clock that shows the true time.
    pub fn exact() -> Self {
        Self {
            rate: MILLION,
            ahead_ns: 0,
            wall_start_ns: WALL_START_NS,
        }
    }

    /// One with a rate of its own, that began at some time.
    pub fn drifting(random: &mut Random) -> Self {
        Self {
            rate: random.between(RATE.0, RATE.1),
            ahead_ns: random.below(AHEAD_NS),
            ..Self::exact()
        }
    }

    /// What it shows at the true time `now`.
    pub fn at(&self, now: u64) -> Timestamp {
        let counted = scale(now, self.rate, MILLION) + self.ahead_ns;
        Timestamp {
            now: Now(counted),
            wall: WallNs(self.wall_start_ns + counted),
        }
    }

    /// The true time at which it shows `time`, or a moment later; at once if that has passed at `now`.
    pub fn when(&self, time: u64, now: u64) -> u64 {
        let left = time.saturating_sub(self.at(now).now.0);
        now.saturating_add(scale(left, MILLION, self.rate))
            .saturating_add(u64::from(left > 0))
    }

    /// It jumps.
    pub fn jump(&mut self, random: &mut Random) {
        if random.one_in(2) {
            self.ahead_ns += random.size(AHEAD_NS);
        }
        let by = random.below(2 * DAY_NS);
        self.wall_start_ns = WALL_START_NS - DAY_NS + by;
    }
}

/// `time * to / from`, rounded down.
fn scale(time: u64, to: u64, from: u64) -> u64 {
    let scaled = u128::from(time) * u128::from(to) / u128::from(from);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back_and_is_told_within_bounds() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let mut clock = Clock::drifting(&mut random);
            let (mut now, mut told) = (0, clock.at(0).now.0);
            for _ in 0..100 {
                let passed = random.size(5_000_000_000);
                now += passed;
                let next = clock.at(now).now.0;
                assert!((told + passed * 4 / 5..=told + passed * 5 / 4 + 1).contains(&next));
                let ahead = random.size(5_000_000_000);
                let due = clock.when(next + ahead, now);
                assert!(clock.at(due).now.0 >= next + ahead && due <= now + ahead * 5 / 4 + 2);
                clock.jump(&mut random);
                let jumped = clock.at(now).now.0;
                assert!((next..=next + AHEAD_NS).contains(&jumped));
                told = jumped;
            }
        }
        let exact = Clock::exact();
        assert_eq!((exact.at(7).now.0, exact.when(9, 7)), (7, 10));
        assert_eq!(exact.when(5, 7), 7, "it has passed");
    }
}
