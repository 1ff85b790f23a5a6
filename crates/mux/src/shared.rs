//! What callers and the driver share of one connection: its state and limits, its send ring, its
//! reply slots, and the commands that are too large for the ring.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use embar_transport::DirectSend;
use embar_transport::ring::{Reservation, SendRing};

use crate::error::{CloseReason, SubmitError};
use crate::notifier::DriverNotifier;
use crate::reply_slots::ReplySlots;
use crate::stats::Meters;

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ConnectionState {
    /// The driver connects, or greets the peer. The connection takes commands, and sends them later.
    Connecting = 0,
    /// Commands go out.
    Open = 1,
    /// The connection is over.
    Closed = 2,
}

/// Limits of one connection. [`Default`] gives the values below.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// Most commands that wait for a reply or to be sent; rounded up to a power of two. 4096.
    pub in_flight: usize,
    /// How long a command may take that has no limit of its own. 5 s.
    pub timeout: Duration,
    /// How long the peer may send nothing while it owes a reply. 5 s.
    pub dead_after: Duration,
    /// How long connecting and greeting may take. 2 s.
    pub connect_timeout: Duration,
    /// Bytes of the longest reply that a caller gets. 512 MiB.
    pub max_reply_bytes: usize,
    /// Most bytes of commands that are too large for the send ring and wait to be sent; one such
    /// command may always wait. 1 GiB.
    pub max_large_bytes: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            in_flight: 4096,
            timeout: Duration::from_secs(5),
            dead_after: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            max_reply_bytes: 512 << 20,
            max_large_bytes: 1 << 30,
        }
    }
}

/// A command that does not fit into the ring. Its reservation is empty and holds its place among the
/// others.
pub(crate) struct LargeCommand {
    pub place: Reservation<'static>,
    pub bytes: Vec<u8>,
}

/// Counts what callers send by themselves, for the driver to add to the meters. Only the holder of
/// the right to send changes it.
#[derive(Default)]
pub(crate) struct CallerWrites {
    bytes: AtomicU64,
    writes: AtomicU64,
    /// The ticket behind the last command that a caller sent.
    end_ticket: AtomicU32,
}

/// What [`CallerWrites`] held when the driver read it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CallerWriteCounts {
    pub bytes: u64,
    pub writes: u64,
    pub end_ticket: u32,
}

impl CallerWrites {
    pub fn add_write(&self, bytes: usize, end_ticket: u32) {
        let add = |to: &AtomicU64, count| {
            to.store(to.load(Ordering::Relaxed) + count, Ordering::Relaxed);
        };
        add(&self.bytes, bytes as u64);
        self.end_ticket.store(end_ticket, Ordering::Relaxed);
        add(&self.writes, 1);
    }

    /// Exact for the holder of the right to send; for others soon up to date.
    pub fn read(&self) -> CallerWriteCounts {
        CallerWriteCounts {
            bytes: self.bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            end_ticket: self.end_ticket.load(Ordering::Relaxed),
        }
    }
}

/// One connection: its send ring, its reply slots, and its flow control.
pub(crate) struct Shared {
    pub ring: SendRing,
    pub slots: ReplySlots,
    pub limits: ConnectionLimits,
    /// The connection's number at its driver.
    pub number: usize,
    pub notifier: Arc<DriverNotifier>,
    in_flight: AtomicUsize,
    /// Callers that wait until fewer commands are in flight.
    waiting: Mutex<Vec<Waker>>,
    has_waiting: AtomicBool,
    larges: Mutex<Vec<LargeCommand>>,
    pub larges_queued: AtomicUsize,
    pub larges_bytes: AtomicUsize,
    /// How many calls have a timeout of their own, so that deadlines are not in the order of tickets.
    pub own_timeouts: AtomicU32,
    /// Lets callers send by themselves, once the connection is open, if it is not encrypted.
    pub direct: OnceLock<DirectSend>,
    pub caller_writes: CallerWrites,
    /// The ticket behind the last command that was written: what has gathered begins there. Only the
    /// holder of the right to send changes it.
    pub written_ticket: AtomicU32,
    state: AtomicU8,
    close_requested: AtomicBool,
    pub close_reason: OnceLock<CloseReason>,
    pub meters: Arc<Meters>,
}

impl Shared {
    pub fn new(
        ring: SendRing,
        limits: ConnectionLimits,
        number: usize,
        notifier: Arc<DriverNotifier>,
        meters: Arc<Meters>,
    ) -> Self {
        let in_flight = limits.in_flight.max(1).next_power_of_two();
        Self {
            ring,
            slots: ReplySlots::new(in_flight),
            limits: ConnectionLimits {
                in_flight,
                ..limits
            },
            number,
            notifier,
            in_flight: AtomicUsize::new(0),
            waiting: Mutex::default(),
            has_waiting: AtomicBool::new(false),
            larges: Mutex::default(),
            larges_queued: AtomicUsize::new(0),
            larges_bytes: AtomicUsize::new(0),
            own_timeouts: AtomicU32::new(0),
            direct: OnceLock::new(),
            caller_writes: CallerWrites::default(),
            written_ticket: AtomicU32::new(0),
            state: AtomicU8::new(ConnectionState::Connecting as u8),
            close_requested: AtomicBool::new(false),
            close_reason: OnceLock::new(),
            meters,
        }
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub fn state(&self) -> ConnectionState {
        match self.state.load(Ordering::Acquire) {
            0 => ConnectionState::Connecting,
            1 => ConnectionState::Open,
            _ => ConnectionState::Closed,
        }
    }

    pub fn set_state(&self, state: ConnectionState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Has the driver look at this connection.
    pub fn mark(&self) {
        self.notifier.mark(self.number);
    }

    /// Counts one more command in flight, and returns how many there were before. `None` when the
    /// limit is reached.
    pub fn enter(&self) -> Option<usize> {
        // Pairs with `leave`, so that a caller refused here hears of room.
        let others = self.in_flight.fetch_add(1, Ordering::SeqCst);
        if others < self.limits.in_flight {
            return Some(others);
        }
        self.undo_enter();
        None
    }

    /// Takes back what [`Shared::enter`] counted for a command that is not submitted after all.
    pub fn undo_enter(&self) {
        // It kept others out only if it was the one that reached the limit. Otherwise there is no need
        // to wake those who wait: they would wait for something else, and come back here.
        if self.in_flight.fetch_sub(1, Ordering::SeqCst) == self.limits.in_flight {
            self.wake_for_room();
        }
    }

    /// `count` commands are not in flight any more.
    pub fn leave(&self, count: usize) {
        // A read-modify-write on both sides: either this sees the callers that wait, or they see that
        // there is room.
        self.in_flight.fetch_sub(count, Ordering::SeqCst);
        self.wake_for_room();
    }

    fn wake_for_room(&self) {
        fence(Ordering::SeqCst);
        if self.has_waiting() {
            self.wake_waiting();
        }
    }

    pub fn has_waiting(&self) -> bool {
        self.has_waiting.load(Ordering::SeqCst)
    }

    /// As [`Shared::has_waiting`], without an order among other accesses: a hint.
    pub fn may_have_waiting(&self) -> bool {
        self.has_waiting.load(Ordering::Relaxed)
    }

    /// Wakes all callers that wait for room.
    #[cold]
    pub fn wake_waiting(&self) {
        self.has_waiting.store(false, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for waker in waiting {
            waker.wake();
        }
    }

    /// Registers a caller that waits for room.
    #[cold]
    pub fn wait(&self, waker: &Waker) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        self.has_waiting.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Why the connection takes no command any more.
    pub fn closed(&self) -> SubmitError {
        let reason = self.close_reason.get().cloned();
        SubmitError::Closed(reason.unwrap_or(CloseReason::Closed))
    }

    /// Queues a large command.
    pub fn push_large(&self, large: LargeCommand) {
        lock(&self.larges).push(large);
        self.larges_queued.fetch_add(1, Ordering::AcqRel);
    }

    /// The large command whose turn it is: the driver has sent everything before it.
    pub fn next_large(&self) -> Option<LargeCommand> {
        if self.larges_queued.load(Ordering::Acquire) == 0 {
            return None;
        }
        // Pairs with the fence at the end of a caller's own write.
        fence(Ordering::SeqCst);
        let oldest = self.ring.oldest_reservation()?;
        let mut larges = lock(&self.larges);
        let at = larges
            .iter()
            .position(|large| large.place.ticket() == oldest)?;
        // Only now: what lies before it can neither be committed nor dropped any more.
        if self.ring.has_committed() {
            return None;
        }
        let large = larges.swap_remove(at);
        self.larges_queued.fetch_sub(1, Ordering::AcqRel);
        Some(large)
    }

    /// Whether there is no room for a command of `len` bytes, whatever is in flight. Callers that wait
    /// check this before they count as in flight, so that they wake no others.
    #[cold]
    pub fn is_full_for(&self, len: usize) -> bool {
        if self.is_large(len) {
            return !self.has_room_for_large(len);
        }
        !self.ring.has_room(len)
    }

    /// Whether a command of `len` bytes is too large for the ring.
    pub fn is_large(&self, len: usize) -> bool {
        len > self.ring.capacity() / 2
    }

    /// Whether a large command of `len` bytes may wait beside `queued` bytes of others.
    pub fn large_fits(&self, queued: usize, len: usize) -> bool {
        queued == 0 || queued.saturating_add(len) <= self.limits.max_large_bytes
    }

    pub fn has_room_for_large(&self, len: usize) -> bool {
        self.large_fits(self.larges_bytes.load(Ordering::SeqCst), len)
    }

    /// A large command of so many bytes was sent, or never will be.
    pub fn large_over(&self, bytes: usize) {
        self.larges_bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.wake_waiting();
    }

    /// Drops the large commands that wait.
    pub fn drop_larges(&self) {
        for large in std::mem::take(&mut *lock(&self.larges)) {
            self.large_over(large.bytes.len());
        }
    }

    /// Asks the driver to close the connection.
    pub fn request_close(&self) {
        self.close_requested.store(true, Ordering::Release);
        self.mark();
    }

    pub fn is_close_requested(&self) -> bool {
        self.close_requested.load(Ordering::Acquire)
    }

    /// Ends the connection because the code that fills a reservation panicked: what it would send is
    /// unknown.
    #[cold]
    pub fn encoder_panicked(&self) {
        let _ = self.close_reason.set(CloseReason::EncoderPanicked);
        self.close_requested.store(true, Ordering::Release);
        self.ring.close();
        self.mark();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
