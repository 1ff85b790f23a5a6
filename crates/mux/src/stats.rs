//! Counters that any thread may read. Each is written by the driver alone.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::histogram::{Distribution, Histogram};

/// Classes of commands whose time is measured apart; what they stand for is the caller's business.
pub const CLASSES: usize = 2;

/// What one connection did so far, and how it stands; or all connections that share [`Meters`].
/// Numbers read together may be a round apart.
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

    #[inline]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where what happens on connections is counted. Connections of one driver may share it, at the
/// same time or one after the other (see [`Protocol::meters`](crate::Protocol::meters)), as one
/// thread at a time counts for all of them.
#[derive(Default)]
pub struct Meters {
    pub(crate) replies: Counter,
    pub(crate) pushes: Counter,
    pub(crate) writes: Counter,
    pub(crate) reads: Counter,
    pub(crate) bytes_sent: Counter,
    pub(crate) bytes_received: Counter,
    pub(crate) timeouts: Counter,
    /// Nanoseconds.
    latency: [Histogram<8>; CLASSES],
    commands_per_write: Histogram<0>,
    replies_per_read: Histogram<0>,
}

impl Meters {
    /// What was counted, beside a number of commands in flight.
    #[must_use]
    pub fn stats(&self, in_flight: u64) -> Stats {
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

    /// From a command's submission to its reply being read, nanoseconds, of a class. Commands that
    /// never were answered are not in it.
    ///
    /// # Panics
    /// If there is no such class.
    #[must_use]
    pub fn latency(&self, class: u8) -> Distribution {
        self.latency[usize::from(class)].read()
    }

    /// How many commands were sent together.
    #[must_use]
    pub fn commands_per_write(&self) -> Distribution {
        self.commands_per_write.read()
    }

    /// How many replies came together, of reads with any.
    #[must_use]
    pub fn replies_per_read(&self) -> Distribution {
        self.replies_per_read.read()
    }

    /// All of a command's reply came.
    #[inline]
    pub(crate) fn answered(&self, class: u8, since: u64, now: u64) {
        // Another processor's clock may be a little ahead.
        self.latency[usize::from(class) % CLASSES].add(now.saturating_sub(since), 1);
    }

    /// All commands from `written` to the one before `ticket` went out, by so many writes; of
    /// several is not known which command went by which.
    #[inline]
    pub(crate) fn sent_until(&self, ticket: u32, written: &mut u32, writes: u64) {
        if writes == 0 {
            // A caller is just counting its own.
            return;
        }
        // What callers wrote may have been counted with what the driver wrote after it.
        let Ok(count) = u64::try_from(ticket.wrapping_sub(*written).cast_signed()) else {
            return;
        };
        *written = ticket;
        let (each, rest) = (count / writes, count % writes);
        // By none: more of a command that was begun before.
        let others = if each > 0 { writes - rest } else { 0 };
        self.commands_per_write.add(each, others);
        self.commands_per_write.add(each + 1, rest);
    }

    /// So many replies came by one read.
    #[inline]
    pub(crate) fn read_together(&self, replies: u64) {
        self.replies.add(replies);
        self.replies_per_read.add(replies, 1);
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meters")
    }
}
