//! What callers and the driver share of one connection: its state and limits, its send ring, its
//! reply slots, the commands in flight, and those that are too large for the ring.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use embar_transport::DirectSend;
use embar_transport::ring::SendRing;

use crate::error::{CloseReason, SubmitError};
use crate::in_flight::InFlight;
use crate::larges::Larges;
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
    /// How long the peer may send nothing while it owes a reply whose command has no time left: a
    /// command that may take longer may also be silent for longer. 5 s.
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

/// One connection: its send ring, its reply slots, and its limits.
pub(crate) struct Shared {
    pub ring: SendRing,
    pub slots: ReplySlots,
    pub limits: ConnectionLimits,
    /// The connection's number at its driver.
    pub number: usize,
    pub notifier: Arc<DriverNotifier>,
    pub in_flight: InFlight,
    pub larges: Larges,
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
    /// The peer owes replies, and its silence is suspicious.
    pub is_silent: AtomicBool,
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
            in_flight: InFlight::new(in_flight),
            larges: Larges::new(limits.max_large_bytes),
            limits: ConnectionLimits {
                in_flight,
                ..limits
            },
            number,
            notifier,
            own_timeouts: AtomicU32::new(0),
            direct: OnceLock::new(),
            caller_writes: CallerWrites::default(),
            written_ticket: AtomicU32::new(0),
            state: AtomicU8::new(ConnectionState::Connecting as u8),
            close_requested: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            close_reason: OnceLock::new(),
            meters,
        }
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

    /// Why the connection takes no command any more.
    pub fn closed(&self) -> SubmitError {
        let reason = self.close_reason.get().cloned();
        SubmitError::Closed(reason.unwrap_or(CloseReason::Closed))
    }

    /// Whether a command of `len` bytes is too large for the ring.
    pub fn is_large(&self, len: usize) -> bool {
        len > self.ring.capacity() / 2
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
