//! What became of each message of a session.
//!
//! Every message that a run is to send is accounted for: echoed in time, or lost. One that was echoed too late, or
//! never, is lost; it counts in the latencies with the time that was waited for it, and the silence around it is a
//! stall. Nothing is skipped.

use std::collections::VecDeque;
use std::time::Duration;

use embar_meter::clock::{Scale, ticks};
use serde::Serialize;

use super::plan::SessionPlan;

/// Latencies that a record has memory for from the start.
const READY_MAX: usize = 1 << 20;

/// The clock of all records, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Scale);

impl Clock {
    /// Calibrated against the system's clock.
    pub fn calibrated() -> Self {
        Self(Scale::of_this_machine())
    }

    /// Now; only differences mean anything.
    #[inline]
    pub fn now(self) -> u64 {
        self.0.to_ns(ticks())
    }
}

/// A silence with messages under way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Stall {
    /// The session, from 0.
    pub session: u32,
    /// The message that was waited for, from 1.
    pub sequence: u64,
    /// How long it lasted.
    pub ms: f64,
    /// Whether the message came after all.
    pub ended: bool,
}

/// When a message counts as lost, and a silence as a stall; nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct EchoLimits {
    timeout: u64,
    stall: u64,
}

impl EchoLimits {
    /// The limits of a plan.
    pub fn of(plan: &SessionPlan) -> Self {
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self {
            timeout: ns(plan.timeout),
            stall: ns(plan.stall),
        }
    }
}

/// What became of the messages of one session in one run.
#[derive(Clone, Debug)]
pub struct Record {
    session: u32,
    limits: EchoLimits,
    expected: u64,
    sent: u64,
    under_way: VecDeque<u64>,
    latencies: Vec<u64>,
    arrived: u64,
    in_time: u64,
    wrong: u64,
    stalls: Vec<Stall>,
    first_sent: Option<u64>,
    last_arrival: u64,
}

impl Record {
    /// The record of a session that is to send `expected` messages, at most about `in_flight` at a time.
    pub fn new(session: u32, expected: u64, in_flight: u32, limits: EchoLimits) -> Self {
        // Written once, so that no page of it is touched for the first time while the clock runs.
        let ready = usize::try_from(expected).map_or(READY_MAX, |n| n.min(READY_MAX));
        let mut latencies = vec![u64::MAX; ready];
        latencies.clear();
        Self {
            session,
            limits,
            expected,
            sent: 0,
            under_way: VecDeque::with_capacity(in_flight as usize),
            latencies,
            arrived: 0,
            in_time: 0,
            wrong: 0,
            stalls: Vec::new(),
            first_sent: None,
            last_arrival: 0,
        }
    }

    /// Which session this is.
    pub fn session(&self) -> u32 {
        self.session
    }

    /// The next message to send; `None` when all were sent.
    #[inline]
    pub fn next_to_send(&self) -> Option<u64> {
        (self.sent < self.expected).then_some(self.sent + 1)
    }

    /// Messages that are sent and not back.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// The next message to arrive.
    #[inline]
    pub fn next_to_arrive(&self) -> u64 {
        self.arrived + 1
    }

    /// A message was sent, or was due, at `at`.
    #[inline]
    pub fn sent(&mut self, at: u64) {
        if self.sent == 0 {
            self.first_sent = Some(at);
            self.last_arrival = at;
        }
        self.sent += 1;
        self.under_way.push_back(at);
    }

    /// The next echo arrived at `at`; `right` if it is the one that is due, and unchanged.
    #[inline]
    pub fn arrived(&mut self, at: u64, right: bool) {
        let Some(sent) = self.under_way.pop_front() else {
            self.wrong += 1;
            return;
        };
        let latency = at.saturating_sub(sent);
        let silence = at.saturating_sub(self.last_arrival.max(sent));
        self.last_arrival = at;
        self.arrived += 1;
        self.latencies.push(latency);
        if silence >= self.limits.stall {
            self.stall(self.arrived, silence, true);
        }
        match right {
            false => self.wrong += 1,
            true if latency <= self.limits.timeout => self.in_time += 1,
            true => {}
        }
    }

    /// Whether every echo arrived, in time or not.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.arrived == self.expected
    }

    /// Nothing more will arrive; what is under way is lost.
    pub fn close(&mut self, at: u64) {
        let Some(&oldest) = self.under_way.front() else {
            return;
        };
        let silence = at.saturating_sub(self.last_arrival.max(oldest));
        self.stall(self.arrived + 1, silence, false);
        let waited = self.under_way.drain(..);
        self.latencies
            .extend(waited.map(|sent| at.saturating_sub(sent)));
    }

    fn stall(&mut self, sequence: u64, silence: u64, ended: bool) {
        self.stalls.push(Stall {
            session: self.session,
            sequence,
            ms: silence as f64 / 1e6,
            ended,
        });
    }

    /// Messages that were not echoed in time, or never sent because others were not.
    pub fn lost(&self) -> u64 {
        self.expected - self.in_time
    }

    /// Echoes that were not the one expected, or not as it was sent.
    pub fn wrong(&self) -> u64 {
        self.wrong
    }

    /// Echoes that arrived.
    pub fn echoes(&self) -> u64 {
        self.arrived
    }

    /// The latencies of all messages sent, nanoseconds.
    pub fn latencies(&self) -> &[u64] {
        &self.latencies
    }

    /// Its stalls, in the order they ended.
    pub fn stalls(&self) -> &[Stall] {
        &self.stalls
    }

    /// When its first message was sent and the last echo arrived.
    pub fn span(&self) -> Option<(u64, u64)> {
        Some((self.first_sent?, self.last_arrival))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn record(expected: u64) -> Record {
        let limits = EchoLimits {
            timeout: 500 * MS,
            stall: 100 * MS,
        };
        Record::new(3, expected, 1, limits)
    }

    #[test]
    fn a_run_without_trouble_loses_nothing() {
        let mut record = record(3);
        for at in [0, 10, 20] {
            assert!(!record.is_complete());
            assert_eq!(record.next_to_send(), Some(record.next_to_arrive()));
            record.sent(at * MS);
            record.arrived((at + 7) * MS, true);
        }
        assert!(record.is_complete() && record.next_to_send().is_none());
        record.close(900 * MS);
        assert_eq!((record.lost(), record.wrong()), (0, 0));
        assert_eq!(record.latencies(), [7 * MS; 3]);
        assert_eq!(record.span(), Some((0, 27 * MS)));
        assert!(record.stalls().is_empty());
    }

    #[test]
    fn a_late_echo_is_lost_and_a_stall_and_stays_in_the_latencies() {
        let mut record = record(2);
        record.sent(0);
        record.arrived(6_000 * MS, true);
        record.sent(6_000 * MS);
        record.arrived(6_001 * MS, true);
        assert_eq!((record.lost(), record.is_complete()), (1, true));
        assert_eq!(record.latencies(), [6_000 * MS, MS]);
        let stall = Stall {
            session: 3,
            sequence: 1,
            ms: 6_000.0,
            ended: true,
        };
        assert_eq!(record.stalls(), [stall]);
    }

    #[test]
    fn what_never_comes_is_lost_with_all_that_could_not_be_sent() {
        let mut record = record(10);
        record.sent(0);
        record.arrived(MS, true);
        record.sent(MS);
        record.sent(2 * MS);
        record.close(801 * MS);
        assert_eq!(record.lost(), 9);
        assert_eq!(record.latencies(), [MS, 800 * MS, 799 * MS]);
        let stall = record.stalls()[0];
        assert_eq!(
            (stall.sequence, stall.ms, stall.ended),
            (2, 800.0, false),
            "counted from the last sign of life"
        );
    }

    #[test]
    fn one_silence_is_one_stall_however_many_wait() {
        let mut record = record(4);
        for _ in 0..4 {
            record.sent(0);
        }
        for _ in 0..4 {
            record.arrived(200 * MS, true);
        }
        assert_eq!((record.stalls().len(), record.lost()), (1, 0));
    }

    #[test]
    fn a_wrong_echo_is_no_echo() {
        let mut record = record(2);
        record.sent(0);
        record.arrived(MS, false);
        record.sent(MS);
        record.arrived(2 * MS, true);
        record.arrived(3 * MS, true);
        assert_eq!((record.lost(), record.wrong()), (1, 2));
    }
}
