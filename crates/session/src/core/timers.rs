//! Deadlines and heartbeats.
//!
//! Every deadline is worked out from when something happened, so none is ever set or cancelled. A
//! deadline that has passed is acted upon by the next tick, and is then either over or later.

use std::time::Duration;

use embar_frame::{Now, Protocol};
use embar_transport::Memory;

use super::checks::Fault;
use super::ending::LOOKS_PER_LINGER;
use super::frames::{OwnId, put};
use super::{SessionCore, State};
use crate::config::{MIN_IDLE_TIMEOUT, SessionConfig};
use crate::proto::PingView;
use crate::reason::CloseReason;

/// PINGs come this many times within the peer's idle timeout.
const PINGS_PER_IDLE_TIMEOUT: u32 = 3;

/// Least rate at which a peer has to take what is sent, in bytes per second. Of a body, a connection
/// reports only when all of it is over, so a long one gets time in proportion to its length.
const LEAST_SEND_RATE: u64 = 64 << 10;

/// Most PINGs and PONGs of a peer in a second. One that pings whenever it has nothing else to say stays far below.
const PINGS_PER_SECOND_MAX: u32 = 2000;

/// What the PONG carries that is put behind an open reservation; no PING has it.
const PIN_TOKEN: u64 = u64::MAX;

/// Round trips as seen from this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rtt {
    /// The latest.
    pub last: Duration,
    /// Of all, each weighing seven eighths of the one after it (RFC 6298).
    pub smoothed: Duration,
}

/// How much was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// Bytes of sends that are over, by whomever.
    bytes: u64,
    /// How far the connection is in the ring, also with a send that is out.
    position: u32,
}

#[derive(Debug)]
pub(super) struct Timers {
    began: Now,
    /// When something was sent last. What others than the core sent counts as of the tick that
    /// notices it.
    sent_at: Now,
    /// Bytes sent by then.
    sent_bytes: u64,
    /// A PING goes after this long without sending.
    ping_after: Option<Duration>,
    /// The PING that was not answered yet: its time is its token.
    token: Option<u64>,
    pub rtt: Option<Rtt>,
    /// PINGs and PONGs that came in this second, and when it began.
    pings: (Now, u32),
    /// The oldest open reservation, and since when it has been that.
    open: Option<(u32, Now)>,
    look_at_reservations: Now,
    /// Since when the peer has not read, and what was sent by then.
    stalled: (Now, Sent),
    /// There was something for it to take when that was looked at last.
    has_to_take: bool,
    /// Length of the send that is out.
    in_flight: usize,
    /// The owner ends the session as soon as what it still has is sent, for this reason.
    leaving: Option<CloseReason>,
    left_at: Now,
    write_failed: Option<(Now, CloseReason)>,
}

impl Timers {
    pub fn new(config: &SessionConfig, now: Now) -> Self {
        Self {
            began: now,
            sent_at: now,
            sent_bytes: 0,
            ping_after: some(config.keep_alive),
            token: None,
            rtt: None,
            pings: (now, 0),
            open: None,
            look_at_reservations: now,
            stalled: (now, Sent::default()),
            has_to_take: false,
            in_flight: 0,
            leaving: None,
            left_at: now,
            write_failed: None,
        }
    }

    pub fn peer_is_patient_for(&mut self, idle: Duration) {
        if let Some(ping_after) = &mut self.ping_after
            && !idle.is_zero()
        {
            let idle = idle.max(MIN_IDLE_TIMEOUT);
            *ping_after = (*ping_after).min(idle / PINGS_PER_IDLE_TIMEOUT);
        }
    }

    /// What the next PING carries.
    pub fn token(&mut self, now: Now) -> u64 {
        *self.token.get_or_insert(now.0)
    }

    /// A PING or PONG came. They are read all at once, and nobody else of the worker has a turn meanwhile, so a peer
    /// that floods ends its session.
    pub fn count_ping(&mut self, now: Now) -> Result<(), Fault> {
        let (began, count) = &mut self.pings;
        if now.since(*began) >= Duration::from_secs(1) {
            (*began, *count) = (now, 0);
        }
        *count += 1;
        if *count > PINGS_PER_SECOND_MAX {
            let text = format!("more than {PINGS_PER_SECOND_MAX} pings in a second");
            return Err((CloseReason::BadFrame, text));
        }
        Ok(())
    }

    pub fn pong(&mut self, token: u64, now: Now) {
        // An answer to no question of ours says nothing.
        if self.token != Some(token) {
            return;
        }
        self.token = None;
        let last = now.since(Now(token));
        let smoothed = match self.rtt {
            Some(rtt) => (rtt.smoothed * 7 + last) / 8,
            None => last,
        };
        self.rtt = Some(Rtt { last, smoothed });
    }

    pub fn stalled(&mut self, now: Now, sent: Sent, has_to_take: bool) {
        self.stalled = (now, sent);
        self.has_to_take = has_to_take;
    }

    pub fn send_began(&mut self, bytes: usize) {
        self.in_flight = bytes;
    }

    pub fn send_ended(&mut self, now: Now, sent: Sent, has_to_take: bool) {
        self.in_flight = 0;
        self.have_sent(now, sent, has_to_take);
    }

    /// So much was sent by now, and whether there is more for the peer to take. One that had nothing to take is not late, and
    /// what there is since then has the whole time.
    fn have_sent(&mut self, now: Now, sent: Sent, has_to_take: bool) {
        if self.sent_bytes != sent.bytes {
            (self.sent_at, self.sent_bytes) = (now, sent.bytes);
        }
        if self.stalled.1 != sent || !self.has_to_take {
            self.stalled = (now, sent);
        }
        self.has_to_take = has_to_take;
    }

    /// When a peer has had its time of which nothing is known but that it must take something
    /// within `patience`.
    fn stalled_until(&self, patience: Duration) -> Now {
        let nanos = (self.in_flight as u64).saturating_mul(1_000_000_000) / LEAST_SEND_RATE;
        self.stalled
            .0
            .after(patience.max(Duration::from_nanos(nanos)))
    }

    pub fn write_failed(&mut self, now: Now, reason: CloseReason) {
        self.write_failed = Some((now, reason));
    }
}

fn some(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

impl<P: Protocol, M: Memory> SessionCore<P, M> {
    /// Acts on what is due. To be called at [`SessionCore::next_tick`], with [`SessionCore::next`]
    /// and [`SessionCore::poll`] after it; calling it more often is harmless.
    pub fn tick(&mut self, now: Now) {
        self.at(now);
        let now = self.clock;
        self.timers
            .have_sent(now, self.has_sent(), self.has_to_take());
        if let State::Ending(ending) = &mut self.state {
            ending.look = now.after(self.config.linger / LOOKS_PER_LINGER);
            if ending.deadline <= now {
                self.cut();
            }
            return;
        }
        if let Some((at, reason)) = self.timers.write_failed
            && at.after(self.config.linger) <= now
        {
            self.input.end.get_or_insert(reason);
        }
        let due = |deadline: Option<Now>| deadline.is_some_and(|deadline| deadline <= now);
        if let Some(reason) = self.timers.leaving
            && due(self.leave_deadline())
        {
            self.close(reason, "");
            return;
        }
        if due(self.hello_deadline()) {
            self.end_with(CloseReason::HelloTimeout, 0, "");
        } else if due(self.frame_deadline()) || due(self.lanes_deadline()) {
            self.end_with(CloseReason::FrameTimeout, 0, "");
        } else if due(self.idle_deadline()) {
            self.end_with(CloseReason::Idle, 0, "");
        } else if due(self.stall_deadline()) {
            let text = "nothing could be sent for as long as the idle timeout";
            self.end_with(CloseReason::Full, 0, text);
        } else {
            self.watch_reservations();
        }
        if due(self.ping_deadline()) {
            // What is on its way already is a sign of life itself.
            self.output.owed.ping |= !self.output.sending;
            self.timers.sent_at = now;
        }
    }

    /// When [`SessionCore::tick`] wants to be called; ask again after every other call.
    #[must_use]
    pub fn next_tick(&self) -> Option<Now> {
        match &self.state {
            State::Ending(ending) => {
                let waits = !self.output.sending && self.ring().queued() > 0;
                let look = ending.look.min(ending.deadline);
                return Some(if waits { look } else { ending.deadline });
            }
            State::Over => return None,
            State::Greeting { .. } | State::Deciding | State::Open => {}
        }
        let failed = self.timers.write_failed;
        let failed = failed.filter(|_| self.input.end.is_none());
        let watch = some(self.config.reservation_timeout).filter(|_| self.is_open());
        [
            self.hello_deadline(),
            self.frame_deadline(),
            self.lanes_deadline(),
            self.idle_deadline(),
            self.stall_deadline(),
            self.leave_deadline(),
            self.ping_deadline(),
            watch.map(|timeout| self.timers.look_at_reservations.after(timeout / 2)),
            failed.map(|(at, _)| at.after(self.config.linger)),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(super) fn has_sent(&self) -> Sent {
        Sent {
            bytes: self.sender.bytes(),
            position: self.ring().sent_position(),
        }
    }

    /// Whether something waits for the peer to take it, or is on its way to it.
    pub(super) fn has_to_take(&self) -> bool {
        let output = &self.output;
        output.sending || self.is_sending_body() || self.ring().queued() > 0
    }

    fn hello_deadline(&self) -> Option<Now> {
        let greeting = matches!(self.state, State::Greeting { .. });
        let timeout = some(self.config.hello_timeout).filter(|_| greeting)?;
        Some(self.timers.began.after(timeout))
    }

    /// Whether bytes of the peer are asked for, by the core or for a body.
    fn is_reading(&self) -> bool {
        let input = &self.input;
        let reads = input.receiving || input.body_due > 0;
        reads && !input.held && !input.lacks_room && input.end.is_none()
    }

    fn frame_deadline(&self) -> Option<Now> {
        let open = self.is_open() && self.is_reading();
        let timeout = some(self.config.frame_timeout).filter(|_| open)?;
        let input = &self.input;
        let whole = input.frame_began?.after(timeout);
        let in_body = input.body_due > 0 || input.skip > 0;
        let rate = u64::from(self.config.min_body_rate);
        if !in_body || rate == 0 {
            return Some(whole);
        }
        // What has come has earned its time at the least rate; but it is no credit to be silent on.
        let earned = (input.body_got as u64).saturating_mul(1_000_000_000) / rate;
        let at_least_rate = whole.after(Duration::from_nanos(earned));
        Some(at_least_rate.min(input.heard_at.after(timeout)))
    }

    /// When bytes of a body in a lane must have come.
    fn lanes_deadline(&self) -> Option<Now> {
        let lanes = self.lanes.as_ref()?;
        let open = self.is_open() && self.is_reading();
        some(self.config.frame_timeout).filter(|_| open)?;
        lanes.deadline(&self.config)
    }

    fn idle_deadline(&self) -> Option<Now> {
        let open = self.is_open() && self.is_reading();
        let timeout = some(self.config.idle_timeout).filter(|_| open)?;
        Some(self.input.heard_at.after(timeout))
    }

    /// When a peer that does not read has had its time.
    fn stall_deadline(&self) -> Option<Now> {
        let stalled = self.is_open() && self.input.lacks_room && !self.input.held;
        let timeout = some(self.config.idle_timeout).filter(|_| stalled)?;
        Some(self.timers.stalled_until(timeout))
    }

    /// When an owner that is leaving has waited long enough for its peer to take something.
    fn leave_deadline(&self) -> Option<Now> {
        self.timers.leaving.filter(|_| self.is_open())?;
        let stalled = self.timers.stalled_until(self.config.linger);
        // What answers heartbeats is no sign that a body gets its answer.
        let unanswered = self
            .waits_for_answers()
            .map(|at| at.max(self.timers.left_at));
        let unanswered = unanswered.map(|at| at.after(self.config.linger));
        Some(unanswered.map_or(stalled, |until| until.min(stalled)))
    }

    /// The owner is going to [finish](SessionCore::finish), or [fail](SessionCore::fail), as soon
    /// as what it still has was handed over. Whenever there is something for the peer to take, and it takes nothing for
    /// [`SessionConfig::linger`](crate::SessionConfig::linger) (longer for a long send,
    /// see [`SessionConfig::idle_timeout`](crate::SessionConfig::idle_timeout)), the session is
    /// cut, with `reason` as its end.
    pub fn leave(&mut self, reason: CloseReason, now: Now) {
        self.at(now);
        if self.timers.leaving.is_none() {
            self.timers.leaving = Some(reason);
            self.timers.left_at = self.clock;
            self.timers
                .stalled(self.clock, self.has_sent(), self.has_to_take());
        }
    }

    fn ping_deadline(&self) -> Option<Now> {
        let after = self.timers.ping_after.filter(|_| self.is_open())?;
        Some(self.timers.sent_at.after(after))
    }

    /// A reservation is held too long if it is the oldest at each look, and nothing else keeps
    /// what is behind it from being sent.
    fn watch_reservations(&mut self) {
        let timeout = self.config.reservation_timeout;
        if timeout.is_zero() || !self.is_open() {
            return;
        }
        let now = self.clock;
        self.timers.look_at_reservations = now;
        let busy = self.output.sending || self.ring().has_committed();
        let oldest = self.ring().oldest_reservation().filter(|_| !busy);
        self.timers.open = match (oldest, self.timers.open) {
            (Some(ticket), Some((seen, since))) if ticket == seen => Some((seen, since)),
            (Some(ticket), _) => {
                self.pin();
                Some((ticket, now))
            }
            (None, _) => None,
        };
        if let Some((_, since)) = self.timers.open
            && since.after(timeout) <= now
        {
            let text = "what was sent behind it is lost: commit or drop reservations soon";
            self.end_with(CloseReason::ReservationHeld, 0, text);
        }
    }

    /// The newest reservation's ticket is used again when it is dropped. With something behind it
    /// it is not the newest, and its ticket is its own until it is over.
    fn pin(&self) {
        let frame = PingView {
            token: PIN_TOKEN,
            ..Default::default()
        };
        // Without room, there is something behind it already, or it fills the ring itself.
        let _ = put(&self.sender, OwnId::Pong, &frame);
    }
}
