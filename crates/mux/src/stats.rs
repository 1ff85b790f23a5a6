//! Counters that any thread may read. Each is written by the driver alone.

use std::sync::atomic::{AtomicU64, Ordering};

/// What one connection did so far, and how it stands. Numbers read together may be a round apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Replies that were complete, those that nobody waited for included.
    pub replies: u64,
    /// Frames that nobody asked for.
    pub pushes: u64,
    /// Writes to the socket: what is sent by one of them is a batch.
    pub writes: u64,
    /// Reads from the socket that found something.
    pub reads: u64,
    /// Bytes handed to the socket.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Commands that were given up because no reply came in time.
    pub timeouts: u64,
    /// Commands without a reply yet.
    pub in_flight: u64,
}

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// By its only writer.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0
            .store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    pub replies: Counter,
    pub pushes: Counter,
    pub writes: Counter,
    pub reads: Counter,
    pub bytes_sent: Counter,
    pub bytes_received: Counter,
    pub timeouts: Counter,
}

impl Counters {
    pub fn read(&self, in_flight: u64) -> Stats {
        Stats {
            replies: self.replies.value(),
            pushes: self.pushes.value(),
            writes: self.writes.value(),
            reads: self.reads.value(),
            bytes_sent: self.bytes_sent.value(),
            bytes_received: self.bytes_received.value(),
            timeouts: self.timeouts.value(),
            in_flight,
        }
    }
}
