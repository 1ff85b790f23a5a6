//! Keeps a thread of a load to a rate, by sleeping.

use std::thread;
use std::time::{Duration, Instant};

/// Whoever is later than this begins anew.
const LATE_MAX: Duration = Duration::from_millis(50);
/// The kernel's timers are no finer than this.
const SLEEP_MIN: Duration = Duration::from_micros(200);

/// A rate, and how much of it was used.
pub struct Pace {
    bytes_per_s: Option<u64>,
    started: Instant,
    bytes: u64,
}

impl Pace {
    /// The share of one of so many threads in a rate of all; none holds nobody back.
    pub fn new(bytes_per_s: Option<u64>, threads: u32) -> Self {
        Self {
            bytes_per_s: bytes_per_s.map(|rate| (rate / u64::from(threads.max(1))).max(1)),
            started: Instant::now(),
            bytes: 0,
        }
    }

    /// Sleeps if more moved than may.
    pub fn keep(&mut self, bytes: u64) {
        let Some(rate) = self.bytes_per_s else {
            return;
        };
        self.bytes += bytes;
        let due = Duration::from_secs_f64(self.bytes as f64 / rate as f64);
        let passed = self.started.elapsed();
        if passed > due + LATE_MAX {
            // What was held up does not come all at once afterwards.
            (self.started, self.bytes) = (Instant::now(), 0);
        }
        let early = due.saturating_sub(passed);
        if early >= SLEEP_MIN {
            thread::sleep(early);
        }
    }
}
