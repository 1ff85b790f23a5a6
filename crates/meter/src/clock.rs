//! Raw ticks of the processor's time stamp counter and their scale.
//!
//! Where the machine has no counter that is the same on all cores and independent of the clock frequency, ticks are
//! nanoseconds of the monotonic clock: slower to read, otherwise the same.

use std::sync::LazyLock;

use quanta::Clock;

static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::new);

static READ_COST: LazyLock<u64> = LazyLock::new(|| {
    // The median: an interrupt or a cold cache makes some larger, and two readings that the processor executed side by
    // side make some smaller than what a timer really adds.
    let mut costs: [u64; 255] = std::array::from_fn(|_| {
        let before = ticks();
        ticks().saturating_sub(before)
    });
    costs.sort_unstable();
    costs[costs.len() / 2]
});

/// Reads the counter: a few nanoseconds, no system call, not ordered against neighbouring instructions.
///
/// Only differences of two readings mean anything, and only through [`Scale`]. The difference of two readings taken on
/// different cores may be a little negative; subtract with `saturating_sub`.
#[inline]
pub fn ticks() -> u64 {
    CLOCK.raw()
}

/// Ticks that pass between two [`ticks`] calls with nothing between them: what a timer adds to what it times.
pub fn read_cost() -> u64 {
    *READ_COST
}

/// Calibrates the clock now, which takes up to 200 ms once per process.
///
/// Call it at start, so that the first recorder of a running pipeline does not pay for it.
pub fn warm_up() {
    let _ = read_cost();
}

/// Ticks to nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Scale(());

impl Scale {
    /// The scale of this machine's counter (calibrates on first use, see [`warm_up`]).
    pub fn of_this_machine() -> Self {
        warm_up();
        Self(())
    }

    /// Nanoseconds in `ticks` ticks, rounded down.
    pub fn to_ns(self, ticks: u64) -> u64 {
        CLOCK.delta_as_nanos(0, ticks)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn ticks_scale_to_the_time_that_passed() {
        let scale = Scale::of_this_machine();
        let (outer, first) = (Instant::now(), ticks());
        let inner = Instant::now();
        while inner.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let at_least = inner.elapsed();
        let measured = scale.to_ns(ticks() - first);
        let at_most = outer.elapsed();
        // Two clocks, each calibrated on its own: allow them to differ by one percent.
        assert!(measured as f64 >= at_least.as_nanos() as f64 * 0.99);
        assert!(measured as f64 <= at_most.as_nanos() as f64 * 1.01);
    }

    #[test]
    fn zero_ticks_are_zero_nanoseconds() {
        assert_eq!(Scale::of_this_machine().to_ns(0), 0);
    }

    #[test]
    fn reading_the_clock_costs_less_than_ten_microseconds() {
        assert!(Scale::of_this_machine().to_ns(read_cost()) < 10_000);
    }
}
