//! The figures of a session, and of a server or client: what they count, and counters that any
//! thread may read.
//!
//! Each counter is written by one thread, or with a relaxed addition, and read without a lock: a
//! reading is exact for each number, but numbers read together may be a round apart.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What one session did so far, and how it stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionStats {
    /// Messages handed to the handler, bodies included.
    pub messages_received: u64,
    /// Messages committed, bodies included.
    pub messages_sent: u64,
    /// Bytes received from the socket.
    pub bytes_received: u64,
    /// Bytes handed to the socket.
    pub bytes_sent: u64,
    /// How often bytes were received from the socket, by a system call each unless the session is encrypted.
    pub reads: u64,
    /// How often bytes were handed to the socket, likewise.
    pub writes: u64,
    /// How often a message found the send ring full.
    pub times_full: u64,
    /// Messages of [broadcasts](crate::Broadcast) that the peer did not get: they were skipped, replaced
    /// by newer ones, or too long.
    pub missed_broadcasts: u64,
    /// How long threads waited for room in the send ring, all together. A wait counts when it is over.
    pub waited_for_room: Duration,
    /// Bytes committed and not yet handed to the socket.
    pub queued_bytes: usize,
    /// Bytes that kept messages hold in the receive ring.
    pub kept_bytes: usize,
    /// The latest round trip measured by a ping; `None` before the first.
    pub round_trip: Option<Duration>,
    /// Time since the session was made.
    pub age: Duration,
}

/// What became of the datagrams of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramStats {
    /// Handed to who carries the session. The network may have lost them since.
    pub sent: u64,
    /// Taken to be sent, and thrown away: the path had no room for them in time, or takes shorter ones only by now.
    pub unsent: u64,
    /// Handed to the handler.
    pub received: u64,
    /// Came, and were thrown away: the handler was behind, or they were older than what it has, or were no datagrams of a
    /// session.
    pub dropped: u64,
}

/// What a server or client did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Sessions there are now, those that just open or close included.
    pub sessions: u64,
    /// Connections there are now that have not become sessions: they have not greeted yet, or learn
    /// why they are refused.
    pub arrivals: u64,
    /// Sessions that opened.
    pub opened: u64,
    /// Sessions that are over, also those that never opened. A server has none with a peer that did
    /// not greet.
    pub closed: u64,
    /// Connections refused, for whatever [`Refusal`](crate::Refusal);
    /// [`Monitor::refused_by_reason`](crate::Monitor::refused_by_reason) tells them apart.
    pub refused: u64,
    /// Peers that closed their connection before they had greeted.
    pub left_early: u64,
    /// Listeners that are accepted from now: none once the server [stopped](crate::Server::stop_accepting).
    pub listening: u64,
    /// Connections that the server [adopted](crate::Server::adopt).
    pub adopted: u64,
    /// Sessions that were asked to connect elsewhere ([`Session::goodbye_to`](crate::Session::goodbye_to)).
    pub redirected: u64,
    /// Sessions closed because their peer said nothing for too long.
    pub idle_kicks: u64,
    /// Sessions closed because the peer broke the rules of the frames.
    pub malformed: u64,
    /// Sessions closed because their handler panicked.
    pub panics: u64,
    /// Bytes of the [budget](crate::Settings::budget) in use.
    pub budget_used_bytes: u64,
    /// The whole budget.
    pub budget_limit_bytes: u64,
    /// Messages handed to handlers.
    pub messages_received: u64,
    /// Messages committed. Of sessions that are over, and of those that are open.
    pub messages_sent: u64,
    /// Bytes received from sockets.
    pub bytes_received: u64,
    /// Bytes handed to sockets.
    pub bytes_sent: u64,
}

/// A number that grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// For the only writer.
    pub(super) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
