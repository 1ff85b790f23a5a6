//! A session's sending side, which its handles, its handler and its connection share.
//!
//! One lock is held while a message is encoded into the outbox and copied into the send ring: so both have the same
//! order, and the n-th message has the number n. No code of the user's is called under it, but encoders.
//!
//! Whatever goes into the ring, acknowledgements too, leaves the room there without which the peer's messages are not
//! delivered. If both ends took that, neither would be given a message, and neither would read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use embar_session::{Address, OnFull, Peer, Session};

use crate::farewell;
use crate::outbox::Outbox;
use crate::schedule::{Schedule, after, must_not_block};
use crate::settings::Replay;
use crate::state::{End, Ended, State};
use crate::suspended_bytes::SuspendedBytes;
use crate::wire::Control;
use connection::Connection;
use outlook::Outlook;

mod connection;
mod outlook;
mod sending;

/// The sending side of a session.
pub(crate) struct Link {
    pub(crate) id: u64,
    pub(crate) replay: Replay,
    pub(crate) schedule: Arc<Schedule>,
    /// Messages handled, as acknowledgements tell it. Written by who has the session's seat.
    pub(crate) handled: AtomicU64,
    /// Bytes of it that count while it has no connection. Written with the lock, and read without: encoders run under that.
    suspended_bytes: AtomicUsize,
    inner: Mutex<Inner>,
    room: Condvar,
    changed: Condvar,
}

/// Which messages of the program are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// The program closes the session: what was sent is to be acknowledged.
    Closing,
    /// The peer leaves, or the session is over.
    Shut,
}

pub(crate) struct Inner {
    outbox: Outbox,
    connection: Option<Connection>,
    /// Of the connection at hand; what others do is of no concern any more.
    generation: u64,
    gate: Gate,
    /// Nothing more goes into this connection, because this end leaves it.
    held: bool,
    due: Due,
    close_by: Option<Instant>,
    kill: Option<End>,
    stall: Option<Stall>,
    /// Threads that wait for room.
    waiting: usize,
    /// Where bytes count while there is no connection.
    suspended: Option<Arc<SuspendedBytes>>,
    next_address: Option<Address>,
    /// When the program wants its handler woken.
    wake_at: Option<Instant>,
    state: State,
    /// How often it changed.
    changes: u64,
    /// Sizes of nested messages, kept from one to the next.
    pub(crate) spill: Vec<u32>,
}

/// The peer acknowledges too little: senders wait, all of them together for as long as the policy says.
struct Stall {
    since: Instant,
    /// It is over when so many messages more are acknowledged: half of those that waited when it began.
    left: u64,
}

/// What is to be said to the peer beside messages.
#[derive(Clone, Copy, Default)]
struct Due {
    ack: Option<Ack>,
    /// More was handled since, which is to be acknowledged after that.
    more: bool,
    /// After all messages: asks for an acknowledgement.
    answer: bool,
    leaving: bool,
    left: bool,
}

/// An acknowledgement. It goes behind what this end had sent when it fell due. So it tells a peer to send more only when
/// that has read the answers to what it sent before.
#[derive(Clone, Copy)]
struct Ack {
    received: u64,
    /// The number of the first message that may come after it.
    behind: u64,
}

/// What a message between the messages brought about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// The server let this client go: it has all that was sent.
    Left,
}

impl Link {
    pub(crate) fn new(id: u64, replay: Replay, schedule: Arc<Schedule>) -> Self {
        let budget = replay.budget.clone();
        let outbox = Outbox::new(0, replay.max_messages, replay.max_bytes, budget);
        Self {
            id,
            replay,
            schedule,
            handled: AtomicU64::new(0),
            suspended_bytes: AtomicUsize::new(0),
            inner: Mutex::new(Inner {
                outbox,
                connection: None,
                generation: 0,
                gate: Gate::Open,
                held: false,
                due: Due::default(),
                close_by: None,
                kill: None,
                stall: None,
                waiting: 0,
                suspended: None,
                next_address: None,
                wake_at: None,
                state: State::Connecting { attempt: 0 },
                changes: 0,
                spill: Vec::new(),
            }),
            room: Condvar::new(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection is open, and the peer hears at once what was handled. False: the session was refused before that, and
    /// the peer hears so.
    pub(crate) fn attach(&self, session: &Session, generation: u64, state: State) -> bool {
        let mut inner = self.lock();
        if let Some(end) = &inner.kill {
            farewell::part(session, end);
            return false;
        }
        debug_assert_eq!(inner.generation, generation, "who attaches has the seat");
        session.set_on_full(OnFull::Fail);
        inner.connection = Some(Connection::new(session));
        inner.held = false;
        inner.due = Due {
            // It waits for nothing: its number is that of the greeting.
            ack: Some(self.ack_behind(inner.outbox.first_unwritten())),
            ..Due::default()
        };
        if inner.wake_at.is_some() {
            session.wake_after(Duration::ZERO);
        }
        self.set_state(&mut inner, state);
        self.flush_or_end(&mut inner);
        true
    }

    /// From now on only the connection with this number counts. Returns the one before.
    pub(crate) fn begin(&self, generation: u64) -> Option<Session> {
        let mut inner = self.lock();
        inner.generation = generation;
        inner.connection.take().map(|before| before.session)
    }

    /// The connection is lost.
    pub(crate) fn lost(&self, generation: u64) {
        let mut inner = self.lock();
        if inner.generation == generation {
            inner.connection = None;
        }
    }

    /// Whether a peer can have handled so much.
    ///
    /// # Errors
    /// The text about it.
    pub(crate) fn check(&self, received: u64) -> Result<(), String> {
        let checked = self.lock().outbox.check(received);
        checked.map(drop).map_err(|error| error.to_string())
    }

    /// The session resumes with a peer that has handled so much, by the next connection.
    ///
    /// # Errors
    /// The text about it, if it cannot have.
    pub(crate) fn resume(&self, received: u64) -> Result<(), String> {
        let mut inner = self.lock();
        let acked = inner.outbox.ack(received);
        let acked = acked.map_err(|error| error.to_string())?;
        inner.outbox.rewind();
        if inner.gate == Gate::Shut {
            // The peer wanted to leave and never heard that it may.
            inner.gate = Gate::Open;
        }
        self.acknowledged(&mut inner, acked);
        Ok(())
    }

    /// The session begins anew. Returns how many messages are in doubt, and how many were never sent.
    pub(crate) fn restart(&self, send_again: bool) -> (u64, u64) {
        let mut inner = self.lock();
        let unsent = inner.outbox.unwritten();
        let in_doubt = inner.outbox.restart(send_again);
        self.acknowledged(&mut inner, in_doubt);
        (in_doubt, unsent)
    }

    fn ack_behind(&self, behind: u64) -> Ack {
        let received = self.handled.load(Ordering::Relaxed);
        Ack { received, behind }
    }

    /// What was handled is to be acknowledged.
    fn owe_ack(&self, inner: &mut Inner) {
        if inner.due.ack.is_some() {
            inner.due.more = true;
        } else {
            inner.due.ack = Some(self.ack_behind(inner.outbox.next_number()));
        }
    }

    /// Acknowledges what was handled, as soon as there is room for it and what was sent before.
    pub(crate) fn acknowledge(&self, generation: u64) {
        let mut inner = self.lock();
        if inner.generation == generation {
            self.owe_ack(&mut inner);
            self.flush_or_end(&mut inner);
        }
    }

    /// The connection's handler was woken: there may be room again.
    pub(crate) fn woken(&self, generation: u64) {
        let mut inner = self.lock();
        if inner.generation != generation {
            return;
        }
        if let Some(connection) = &mut inner.connection {
            connection.room = None;
        }
        self.flush_or_end(&mut inner);
    }

    /// What the peer said between its messages.
    ///
    /// # Errors
    /// How it broke the rules.
    pub(crate) fn control(&self, generation: u64, control: Control) -> Result<Effect, String> {
        let mut inner = self.lock();
        if inner.generation != generation {
            return Ok(Effect::None);
        }
        let acked = inner.outbox.ack(control.received);
        let acked = acked.map_err(|error| error.to_string())?;
        self.acknowledged(&mut inner, acked);
        if control.answer {
            self.owe_ack(&mut inner);
        }
        if control.leaving {
            self.owe_ack(&mut inner);
            // A session that is being closed ends here, and does not go elsewhere.
            if inner.gate != Gate::Closing {
                inner.gate = Gate::Shut;
                inner.due.left = true;
                self.wake_waiting(&inner);
            }
        }
        if control.left {
            if !inner.held || inner.outbox.in_doubt() > 0 {
                return Err("it let go of this end before all was acknowledged".to_owned());
            }
            self.owe_ack(&mut inner);
            self.flush_or_end(&mut inner);
            if let Some(connection) = &inner.connection {
                connection.session.close();
            }
            return Ok(Effect::Left);
        }
        self.flush_or_end(&mut inner);
        Ok(Effect::None)
    }

    /// The peer is about to end: what is sent from now on waits for another connection.
    pub(crate) fn leave(&self, generation: u64) {
        let mut inner = self.lock();
        if inner.generation == generation && !inner.held {
            inner.held = true;
            inner.due.leaving = true;
            self.flush_or_end(&mut inner);
        }
    }

    /// Tells the peer that this end is about to end, if it is there.
    pub(crate) fn say_goodbye(&self) {
        if let Some(connection) = &self.lock().connection {
            connection.session.goodbye();
        }
    }

    /// Begins a polite end.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        if inner.gate == Gate::Closing || inner.state.ended().is_some() {
            return;
        }
        inner.gate = Gate::Closing;
        // A client that leaves learns that the session ends here, and does not go elsewhere.
        inner.due.left = false;
        // The peer is to know what was handled.
        self.owe_ack(&mut inner);
        let now = Instant::now();
        let by = after(now, self.replay.close_within);
        inner.close_by = Some(by);
        let over = inner.connection.is_none() && inner.outbox.is_empty();
        self.flush_or_end(&mut inner);
        self.wake_waiting(&inner);
        drop(inner);
        self.schedule.by(self.id, if over { now } else { by });
    }

    /// Ends the session for this reason; a peer that is there learns it.
    pub(crate) fn kill(&self, end: End) {
        self.kill_in(&mut self.lock(), end);
    }

    fn kill_in(&self, inner: &mut Inner, end: End) {
        if inner.kill.is_some() || inner.state.ended().is_some() {
            return;
        }
        match &inner.connection {
            Some(connection) => farewell::part(&connection.session, &end),
            None => self.schedule.by(self.id, Instant::now()),
        }
        inner.kill = Some(end);
        self.wake_waiting(inner);
    }

    /// Ends a connection that is none of the session's any more: its peer hears why.
    pub(crate) fn turn_away(&self, session: &Session) {
        let ended = self.lock().state.ended().cloned();
        farewell::part(session, &ended.map_or(End::TakenOver, |ended| ended.why));
    }

    pub(crate) fn outlook(&self) -> Outlook {
        let inner = self.lock();
        Outlook {
            kill: inner.kill.clone(),
            close_by: inner.close_by,
            is_closing: inner.gate == Gate::Closing,
            is_connected: inner.connection.is_some(),
            is_left: inner.gate == Gate::Shut,
            unacknowledged: inner.outbox.len(),
        }
    }

    /// Cuts a connection whose polite end takes too long.
    pub(crate) fn cut(&self) {
        if let Some(connection) = &self.lock().connection {
            connection.session.close();
        }
    }

    pub(crate) fn end(&self, why: End) -> Ended {
        let mut inner = self.lock();
        let ended = Ended {
            why,
            unacknowledged: inner.outbox.len(),
        };
        self.leave_count(&mut inner);
        inner.gate = Gate::Shut;
        inner.connection = None;
        inner.outbox.clear();
        self.set_state(&mut inner, State::Closed(ended.clone()));
        self.wake_waiting(&inner);
        ended
    }

    fn set_state(&self, inner: &mut Inner, state: State) {
        inner.state = state;
        inner.changes += 1;
        self.changed.notify_all();
    }

    pub(crate) fn stands(&self, state: State) {
        self.set_state(&mut self.lock(), state);
    }

    pub(crate) fn state(&self) -> State {
        self.lock().state.clone()
    }

    pub(crate) fn wait_until(
        &self,
        timeout: Duration,
        mut done: impl FnMut(&State) -> bool,
    ) -> State {
        let began = Instant::now();
        let mut inner = self.lock();
        loop {
            let (state, changes) = (inner.state.clone(), inner.changes);
            drop(inner);
            // Without the lock: it may ask the session for other things.
            if must_not_block() || done(&state) || state.ended().is_some() {
                return state;
            }
            inner = self.lock();
            let left = timeout.saturating_sub(began.elapsed());
            if inner.changes == changes {
                if left.is_zero() {
                    return state;
                }
                let waited = self.changed.wait_timeout(inner, left);
                inner = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    pub(crate) fn unacknowledged(&self) -> u64 {
        self.lock().outbox.len()
    }

    pub(crate) fn peer(&self) -> Option<Peer> {
        let inner = self.lock();
        inner.connection.as_ref().map(|it| *it.session.peer())
    }

    /// Has a message that was left delivered again.
    pub(crate) fn go_on(&self) {
        if let Some(connection) = &self.lock().connection {
            connection.session.resume();
        }
    }

    pub(crate) fn set_next_address(&self, address: Address) {
        self.lock().next_address = Some(address);
    }

    pub(crate) fn take_next_address(&self) -> Option<Address> {
        self.lock().next_address.take()
    }

    /// Has the program's handler woken after this time, if it has a connection then.
    pub(crate) fn wake_after(&self, wait: Duration) {
        let mut inner = self.lock();
        let at = after(Instant::now(), wait);
        let at = inner.wake_at.map_or(at, |earlier| earlier.min(at));
        inner.wake_at = Some(at);
        if let Some(connection) = &inner.connection {
            connection.session.wake_after(wait);
        }
    }

    /// Whether the time is there for which the program's timer is set. If it is later, its connection's timer is set.
    pub(crate) fn is_wake_due(&self) -> bool {
        let mut inner = self.lock();
        let now = Instant::now();
        match (inner.wake_at, &inner.connection) {
            (Some(at), Some(_)) if at <= now => {
                inner.wake_at = None;
                true
            }
            (Some(at), Some(connection)) => {
                connection.session.wake_after(at - now);
                false
            }
            _ => false,
        }
    }

    /// Its bytes count in `suspended` from now on.
    pub(crate) fn count_in(&self, suspended: &Arc<SuspendedBytes>) {
        let mut inner = self.lock();
        self.leave_count(&mut inner);
        let bytes = inner.outbox.bytes();
        inner.suspended = Some(Arc::clone(suspended));
        self.count(&inner, bytes);
    }

    /// How many bytes of it count while it has no connection.
    pub(crate) fn suspended_bytes(&self) -> usize {
        self.suspended_bytes.load(Ordering::Relaxed)
    }

    /// So many bytes more count, if it has no connection.
    fn count(&self, inner: &Inner, bytes: usize) {
        if let Some(suspended) = &inner.suspended {
            suspended.add(bytes);
            self.suspended_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn leave_count(&self, inner: &mut Inner) {
        if let Some(suspended) = inner.suspended.take() {
            suspended.sub(self.suspended_bytes.swap(0, Ordering::Relaxed));
        }
    }

    /// Its bytes count nowhere any more.
    pub(crate) fn count_nowhere(&self) {
        let mut inner = self.lock();
        self.leave_count(&mut inner);
        self.wake_waiting(&inner);
    }
}
