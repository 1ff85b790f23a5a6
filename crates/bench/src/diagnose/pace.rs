//! Keeps a thread of a load to a rate, by sleeping.

use std::thread;
use std::time::{Duration, Instant};

use super::fault::Rate;

/// Whoever is later than this begins anew.
const LATE_MAX: Duration = Duration::from_millis(50);
/// The kernel's timers are no finer than this.
const SLEEP_MIN: Duration = Duration::from_micros(200);
/// A rate that a thread is kept to, and how much of it was used.
pub struct Pace {
    kept: Kept,
    started: Instant,
    bytes: u64,
}

enum Kept {
    /// To none.
    Free,
    /// Bytes a second.
    To(f64),
    /// To a part of what moves in the later half of the warm-up.
    Finding {
        part: f64,
        from: Instant,
        until: Instant,
        has_begun: bool,
    },
}

impl Pace {
    /// The share of one of so many threads in a rate of all; none holds nobody back. The warm-up begins now.
    pub fn new(rate: Option<Rate>, threads: u32, warm_up: Duration) -> Self {
        let started = Instant::now();
        let kept = match rate {
            None => Kept::Free,
            Some(Rate::Bytes(rate)) => Kept::To((rate.0 as f64 / f64::from(threads)).max(1.0)),
            Some(Rate::Percent(percent)) => Kept::Finding {
                part: f64::from(percent) / 100.0,
                // Connections and buffers grow at first. The longer this is, the less it is a rate that is seldom reached.
                from: started + warm_up.mul_f64(0.4),
                until: started + warm_up.mul_f64(0.95),
                has_begun: false,
            },
        };
        Self {
            kept,
            started,
            bytes: 0,
        }
    }

    /// Sleeps if more moved than may.
    pub fn keep(&mut self, bytes: u64) {
        if matches!(self.kept, Kept::Free) {
            return;
        }
        let early = self.early(bytes, Instant::now());
        if early >= SLEEP_MIN {
            thread::sleep(early);
        }
    }

    /// By how much these bytes, which have moved by now, were too early.
    fn early(&mut self, bytes: u64, now: Instant) -> Duration {
        self.bytes += bytes;
        let passed = now.saturating_duration_since(self.started);
        match &mut self.kept {
            Kept::Free => Duration::ZERO,
            Kept::To(rate) => {
                let due = Duration::from_secs_f64(self.bytes as f64 / *rate);
                if passed > due + LATE_MAX {
                    // What was held up does not come all at once afterwards.
                    self.begin(now);
                }
                due.saturating_sub(passed)
            }
            Kept::Finding {
                from,
                until,
                has_begun,
                part,
            } => {
                if !*has_begun && now >= *from {
                    *has_begun = true;
                    self.begin(now);
                } else if *has_begun && now >= *until {
                    let rate = self.bytes as f64 / passed.as_secs_f64() * *part;
                    self.kept = Kept::To(rate.max(1.0));
                    self.begin(now);
                }
                Duration::ZERO
            }
        }
    }

    fn begin(&mut self, now: Instant) {
        (self.started, self.bytes) = (now, 0);
    }
}

#[cfg(test)]
mod tests {
    use embar_console::size::Size;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Moves so many bytes in each millisecond of so many, and sleeps when it should: bytes of the last 200.
    fn moved(pace: &mut Pace, bytes_per_ms: u64, ms: u32) -> u64 {
        let mut now = pace.started;
        let end = now + ms * MS;
        let mut moved = 0;
        while now < end {
            now += MS;
            if now > end - 200 * MS {
                moved += bytes_per_ms;
            }
            now += pace.early(bytes_per_ms, now);
        }
        moved
    }

    #[test]
    fn a_rate_is_kept_by_all_threads_together() {
        let rate = Rate::Bytes(Size(400_000));
        let mut one_of_two = Pace::new(Some(rate), 2, Duration::ZERO);
        assert_eq!(moved(&mut one_of_two, 1000, 1000), 40_000);
        let mut free = Pace::new(None, 2, Duration::ZERO);
        assert_eq!(moved(&mut free, 1000, 1000), 200_000);
    }

    #[test]
    fn a_part_is_of_the_rate_in_the_warm_up() {
        for bytes_per_ms in [1_000, 50_000] {
            let of = |ms| {
                let mut pace = Pace::new(Some(Rate::Percent(80)), 3, 500 * MS);
                moved(&mut pace, bytes_per_ms, ms) as f64 / (200 * bytes_per_ms) as f64
            };
            assert!((of(400) - 1.0).abs() < 0.02, "{}", of(400));
            assert!((of(1400) - 0.8).abs() < 0.02, "{}", of(1400));
        }
    }
}
