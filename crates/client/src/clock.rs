//! The only clocks of this crate; drivers read them, cores are told.

use std::time::{Duration, Instant, SystemTime};

use embar_frame::Now;
use embar_meter::Scale;
use embar_wire::time::WallNs;

/// Monotonic time since the client was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Now {
        Now(0).after(self.0.elapsed())
    }

    /// Time until `at`, for a wait; none if it is past.
    pub(crate) fn until(self, at: Now) -> Duration {
        at.since(self.now())
    }
}

pub(crate) fn wall() -> WallNs {
    WallNs::from(SystemTime::now())
}

/// Seeds and identities that differ between processes and instances.
pub(crate) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The standard library seeds every RandomState from the system's random source.
    RandomState::new().hash_one(wall().0)
}

/// What nobody guesses, and is not zero.
pub(crate) fn random_secret() -> [u8; 16] {
    let (low, high) = (random_seed(), random_seed());
    (u128::from(high) << 64 | u128::from(low) | 1).to_le_bytes()
}

/// Turns nanoseconds into the ticks that stage timers count in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticks {
    ns_per_chunk: u64,
}

const CHUNK_TICKS: u64 = 1 << 30;

impl Ticks {
    pub(crate) fn of_this_machine() -> Self {
        Self {
            ns_per_chunk: Scale::of_this_machine().to_ns(CHUNK_TICKS).max(1),
        }
    }

    pub(crate) fn of_ns(self, ns: u64) -> u64 {
        let ticks = u128::from(ns) * u128::from(CHUNK_TICKS) / u128::from(self.ns_per_chunk);
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_survive_the_way_through_ticks() {
        let ticks = Ticks::of_this_machine();
        let scale = Scale::of_this_machine();
        for ns in [0, 1_000, 2_000_000_000] {
            let back = scale.to_ns(ticks.of_ns(ns));
            assert!(back.abs_diff(ns) <= 2 + ns / 100_000, "{ns} became {back}");
        }
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(random_seed(), random_seed());
    }
}
