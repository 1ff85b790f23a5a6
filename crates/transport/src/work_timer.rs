//! How long a system call worked that also waits.

use std::time::Duration;

use embar_meter::clock::{Scale, ticks};
use rustix::time::{ClockId, clock_gettime};

/// Times one call. Time in which the thread slept does not count.
pub(crate) struct WorkTimer {
    ran: Duration,
    began: u64,
}

impl WorkTimer {
    pub fn start() -> Self {
        Self {
            ran: thread_time(),
            began: ticks(),
        }
    }

    /// Ticks of work since the start.
    pub fn stop(self) -> u64 {
        let took = ticks().saturating_sub(self.began);
        let took_ns = u128::from(Scale::of_this_machine().to_ns(took).max(1));
        let ran = thread_time().saturating_sub(self.ran);
        let worked_ns = ran.as_nanos().min(took_ns);
        (u128::from(took) * worked_ns / took_ns) as u64
    }
}

/// How long this thread has been running, on some processor.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn sleeping_is_no_work() {
        let (timer, began) = (WorkTimer::start(), Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        let slept = Scale::of_this_machine().to_ns(timer.stop());
        assert!(u128::from(slept) < began.elapsed().as_nanos() / 2);

        let (timer, began) = (WorkTimer::start(), thread_time());
        while thread_time() - began < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let worked = Scale::of_this_machine().to_ns(timer.stop());
        assert!(worked >= 19_000_000, "{worked} ns");
    }
}
