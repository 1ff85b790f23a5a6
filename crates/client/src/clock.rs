//! The only clocks of this crate, and random numbers for seeds, identities and secrets. Drivers, which do the I/O, read
//! the clocks and pass the time on to the cores, which do none.

use std::time::{Duration, Instant, SystemTime};

use embar_frame::Now;
use embar_meter::Scale;
use embar_wire::time::WallNs;
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

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
    u64::from_le_bytes(random_bytes())
}

/// What nobody guesses, and is not zero.
pub(crate) fn random_secret() -> [u8; 16] {
    let mut secret = random_bytes();
    secret[0] |= 1;
    secret
}

/// Bytes of the kernel's generator, fit for secrets.
fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let filled = retry_on_intr(|| getrandom(&mut bytes[..], GetRandomFlags::empty()));
    assert_eq!(filled, Ok(N), "every Linux has random numbers");
    bytes
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
        assert_ne!(random_secret(), random_secret());
    }
}
