//! Decides when messages leave that are sent at a given rate: each when it is due, whether or not earlier ones came
//! back.
//!
//! Latency counts from the time when a message was due. So it includes the time that the message waited because the
//! sender fell behind, or because the session took no more.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use embar_console::interrupt::Interrupt;
use rustix::thread::set_current_timer_slack;

use super::plan::SessionPlan;
use super::record::{Clock, Record};

/// The time from the start until the first message is due.
const LEAD_NS: u64 = 10_000_000;

/// When each message is due: one after the other at even distances, sessions in turn.
pub struct Pace {
    /// On the clock of records; 0 before it is known.
    start: AtomicU64,
    sessions: u64,
    per_s: f64,
}

impl Pace {
    /// `rate` messages per second, of all sessions together.
    pub fn new(sessions: u32, rate: u64) -> Self {
        Self {
            start: AtomicU64::new(0),
            sessions: sessions.into(),
            per_s: rate as f64,
        }
    }

    /// Time between two messages of one session.
    pub fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.sessions as f64 / self.per_s)
    }

    /// When the message `sequence` of a session is due.
    #[inline]
    pub fn due(&self, session: u32, sequence: u64) -> u64 {
        let place = (sequence - 1) * self.sessions + u64::from(session);
        // Partner: the store in `send_all`. What is read here belongs to a message that was sent after it.
        self.start.load(Ordering::Relaxed) + (place as f64 * 1e9 / self.per_s) as u64
    }

    /// Notes the messages of a session that were due and did not come back, for its record.
    pub fn add_due(&self, session: u32, record: &mut Record, now: u64) {
        if self.start.load(Ordering::Relaxed) == 0 {
            return;
        }
        while let Some(sequence) = record.next_to_send() {
            let due = self.due(session, sequence);
            if due > now {
                return;
            }
            record.sent(due);
        }
    }

    /// Calls `send` for all messages of all sessions, with the session's number and the message's. Those of a session for
    /// which it returns false are left out from then on, and so are found missing.
    ///
    /// # Errors
    /// On an interrupt.
    pub fn send_all(
        &self,
        plan: &SessionPlan,
        interrupt: &Interrupt,
        mut send: impl FnMut(u32, u64) -> bool,
    ) -> Result<()> {
        let clock = Clock::calibrated();
        // Sleeps end when they should, and not up to 50 us later, which is what the kernel otherwise grants itself. The
        // thread is the bench's own and ends with the run. A kernel that refuses only makes latencies worse.
        let _granted = set_current_timer_slack(NonZeroU64::new(1));
        self.start.store(clock.now() + LEAD_NS, Ordering::Relaxed);
        let spin = plan.spin_us * 1_000;
        let mut living: Vec<u32> = (0..plan.sessions).collect();
        for sequence in 1..=plan.iterations {
            interrupt.check()?;
            living.retain(|session| {
                wait_until(self.due(*session, sequence), spin, clock);
                send(*session, sequence)
            });
        }
        Ok(())
    }
}

fn wait_until(due: u64, spin: u64, clock: Clock) {
    loop {
        let left = due.saturating_sub(clock.now());
        match left {
            0 => return,
            left if left <= spin => std::hint::spin_loop(),
            left => thread::sleep(Duration::from_nanos(left - spin)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::super::record::EchoLimits;
    use super::*;

    #[test]
    fn messages_are_due_at_even_distances_sessions_in_turn() {
        let pace = Pace::new(4, 1_000);
        let due: Vec<u64> = (1..=2)
            .flat_map(|sequence| (0..4).map(move |session| (session, sequence)))
            .map(|(session, sequence)| pace.due(session, sequence))
            .collect();
        let even: Vec<u64> = (0..8).map(|place| place * 1_000_000).collect();
        assert_eq!(due, even);
        assert_eq!(pace.interval(), Duration::from_millis(4));
    }

    #[test]
    fn what_was_due_and_did_not_come_back_is_on_the_record() {
        let pace = Pace::new(1, 1_000);
        pace.start.store(10_000_000, Ordering::Relaxed);
        let mut record = Record::new(0, 10, 1, EchoLimits::of(&plan()));
        record.sent(pace.due(0, 1));
        record.arrived(10_000_500, true);
        pace.add_due(0, &mut record, 13_500_000);
        record.close(13_500_000);
        // Due at 11, 12 and 13 ms.
        assert_eq!(record.latencies(), [500, 2_500_000, 1_500_000, 500_000]);
        assert_eq!(record.lost(), 9);
    }

    #[test]
    fn waiting_ends_when_it_is_due() {
        let clock = Clock::calibrated();
        for spin in [0, 1_000_000_000] {
            let due = clock.now() + 2_000_000;
            wait_until(due, spin, clock);
            assert!(clock.now() >= due);
        }
    }
}
