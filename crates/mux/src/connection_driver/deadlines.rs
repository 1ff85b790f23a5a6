//! Gives up what takes too long: commands, attempts to connect, and silent connections.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use embar_transport::Epoll;

use super::{ConnectionDriver, State, nanos};
use crate::error::{CallError, CloseReason};
use crate::protocol::Protocol;
use crate::silence::{self, Oldest, Silence};

impl<P: Protocol> ConnectionDriver<P> {
    /// Gives up what takes too long. True when something is in flight or connecting, so that the
    /// driver must look again.
    pub fn tick(&mut self, reactor: &mut Epoll, now: u64, wakers: &mut Vec<Waker>) -> bool {
        self.count_callers();
        match &self.state {
            State::Connecting | State::Greeting { .. } => {
                if now >= self.connect_deadline {
                    self.too_late(reactor);
                }
            }
            State::Open => {}
            State::Ending(_) => return true,
        }
        let shared = Arc::clone(&self.shared);
        if shared.in_flight.count() == 0 {
            self.not_silent();
            return !matches!(self.state, State::Open);
        }
        let own_timeouts = shared.own_timeouts.load(Ordering::Relaxed) > 0;
        let mut ticket = self.next_reply;
        while let Some(oldest) = shared.slots.in_flight(ticket) {
            if oldest.deadline <= now {
                if oldest.wanted {
                    shared.meters.timeouts.add(1);
                    wakers.extend(shared.slots.fail(ticket, CallError::TimedOut, false));
                }
            } else if !own_timeouts {
                break;
            }
            ticket = ticket.wrapping_add(1);
        }
        if matches!(self.state, State::Open) {
            self.judge_silence(reactor, now);
        }
        true
    }

    fn judge_silence(&mut self, reactor: &mut Epoll, now: u64) {
        let Some(oldest) = self.shared.slots.in_flight(self.next_reply) else {
            return;
        };
        let dead_after = nanos(self.shared.limits.dead_after);
        let oldest = Oldest {
            since: oldest.since,
            deadline: oldest.deadline,
        };
        match silence::judge(now, oldest, self.last_received, dead_after) {
            Silence::Usual => self.not_silent(),
            Silence::Suspicious => {
                let pause = silence::sign_interval(dead_after);
                let is_due = |told: u64| now.saturating_sub(told) >= pause;
                if self.silence_told.is_none_or(is_due) {
                    self.silence_told = Some(now);
                    self.shared.is_silent.store(true, Ordering::Relaxed);
                    self.protocol.silent();
                }
            }
            Silence::Dead => self.end(reactor, CloseReason::Silent),
        }
    }

    #[inline]
    pub(super) fn not_silent(&mut self) {
        if self.silence_told.take().is_some() {
            self.shared.is_silent.store(false, Ordering::Relaxed);
        }
    }
}
