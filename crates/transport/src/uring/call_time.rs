//! How long the kernel works on what it reports. Calls that may sleep are timed by the processor time of the thread,
//! which takes two system calls more. So most of them are not timed, but estimated by those that are.

use crate::work_timer::WorkTimer;

/// Of many waits one is timed. A prime, so that the rounds of a batch do not always meet the same wait.
const TIMED_EVERY: u32 = 17;

/// Until the timed calls moved so many bytes, all are timed.
const SAMPLED_BYTES_MIN: u64 = 1 << 20;

/// Older calls count less: beyond so many bytes, half.
const SAMPLED_BYTES_MAX: u64 = 64 << 20;

/// Of the calls of one ring.
#[derive(Default)]
pub(super) struct CallTime {
    waits: u32,
    /// Of the calls since completions were last taken.
    ticks: u64,
    /// One of them was not timed.
    is_estimated: bool,
    /// Of all timed calls.
    sampled_ticks: u64,
    sampled_bytes: u64,
}

impl CallTime {
    /// Begins a call that may sleep.
    pub fn begin_wait(&mut self) -> Option<WorkTimer> {
        self.waits = self.waits.wrapping_add(1);
        let is_timed =
            self.sampled_bytes < SAMPLED_BYTES_MIN || self.waits.is_multiple_of(TIMED_EVERY);
        is_timed.then(WorkTimer::start)
    }

    /// A call is over that may have slept.
    pub fn end_wait(&mut self, timer: Option<WorkTimer>) {
        match timer {
            Some(timer) => self.ticks += timer.stop(),
            None => self.is_estimated = true,
        }
    }

    /// A call is over that did not sleep.
    pub fn worked(&mut self, ticks: u64) {
        self.ticks += ticks;
    }

    /// How long the calls worked since this was last asked. They moved so many bytes.
    pub fn take(&mut self, bytes: u64) -> u64 {
        let ticks = std::mem::take(&mut self.ticks);
        if std::mem::take(&mut self.is_estimated) {
            let estimated = u128::from(bytes) * u128::from(self.sampled_ticks);
            return (estimated / u128::from(self.sampled_bytes.max(1))) as u64;
        }
        self.sampled_ticks += ticks;
        self.sampled_bytes += bytes;
        if self.sampled_bytes > SAMPLED_BYTES_MAX {
            self.sampled_ticks /= 2;
            self.sampled_bytes /= 2;
        }
        ticks
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_timed_is_taken_for_as_fast_as_what_is() {
        let mut time = CallTime::default();
        time.worked(1000);
        assert_eq!(time.take(2 << 20), 1000);
        time.end_wait(None);
        assert_eq!(time.take(1 << 20), 500);
        time.worked(3000);
        assert_eq!(time.take(2 << 20), 3000);
        time.end_wait(None);
        assert_eq!(time.take(1 << 20), 1000, "4000 for 4 MiB");
    }

    #[test]
    fn all_waits_are_timed_at_first_and_few_later() {
        let mut time = CallTime::default();
        let timed = |time: &mut CallTime| {
            let waits = (0..10 * TIMED_EVERY).filter_map(|_| time.begin_wait());
            waits.count() as u32
        };
        assert_eq!(timed(&mut time), 10 * TIMED_EVERY);
        time.take(SAMPLED_BYTES_MIN);
        assert_eq!(timed(&mut time), 10);
    }

    #[test]
    fn a_machine_that_becomes_slower_is_noticed() {
        let mut time = CallTime::default();
        time.worked(1 << 20);
        time.take(SAMPLED_BYTES_MAX);
        for _ in 0..200 {
            time.worked(10 << 20);
            time.take(1 << 20);
        }
        time.end_wait(None);
        let ticks = time.take(1 << 20);
        assert!(ticks > 9 << 20, "{ticks} instead of {}", 10 << 20);
    }
}
