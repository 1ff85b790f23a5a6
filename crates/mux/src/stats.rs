//! What happened on connections, in counters that the driver writes and any thread reads.

use crate::counter::Counter;
use crate::histogram::{Distribution, Histogram};

/// How many classes of commands have a latency histogram each. The crate's user decides what a class
/// stands for.
pub const CLASSES: usize = 2;

/// What one connection, or all connections that share [`Meters`], did so far. The driver updates the
/// numbers one after the other, so numbers read together may differ by one of its rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Complete replies, those of dropped calls included.
    pub replies: u64,
    /// Frames that answer no command.
    pub pushes: u64,
    /// Writes to the socket that sent something.
    pub writes: u64,
    /// Reads from the socket that received something.
    pub reads: u64,
    /// Bytes handed to the socket.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Commands whose reply did not come in time.
    pub timeouts: u64,
    /// Commands that wait for a reply, or to be sent.
    pub in_flight: u64,
}

/// Counters of what happens on connections. Connections of one driver may share them, at the same
/// time or one after the other (see [`Protocol::meters`](crate::Protocol::meters)): that driver is
/// their only writer.
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
    /// What was counted so far, together with the given number of commands in flight.
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

    /// Nanoseconds from a command's submission to the reading of its reply, of the answered commands
    /// of a class.
    ///
    /// # Panics
    /// If `class` is not below [`CLASSES`].
    #[must_use]
    pub fn latency(&self, class: u8) -> Distribution {
        self.latency[usize::from(class)].read()
    }

    /// How many commands left with each write.
    #[must_use]
    pub fn commands_per_write(&self) -> Distribution {
        self.commands_per_write.read()
    }

    /// How many replies came with each read that brought any.
    #[must_use]
    pub fn replies_per_read(&self) -> Distribution {
        self.replies_per_read.read()
    }

    /// Counts a command whose reply is complete.
    #[inline]
    pub(crate) fn answered(&self, class: u8, since: u64, now: u64) {
        // The submitting processor's clock may be a little ahead of this one's.
        self.latency[usize::from(class) % CLASSES].add(now.saturating_sub(since), 1);
    }

    /// Counts the commands from `written` to the one before `ticket`, which left with so many
    /// writes, and sets `written` to `ticket`. Which command left with which write is not known, so
    /// they are shared out evenly.
    #[inline]
    pub(crate) fn sent_until(&self, ticket: u32, written: &mut u32, writes: u64) {
        if writes == 0 {
            // A caller is just counting its own write.
            return;
        }
        // The driver's later write may have counted the callers' writes already.
        let Ok(count) = u64::try_from(ticket.wrapping_sub(*written).cast_signed()) else {
            return;
        };
        *written = ticket;
        let (each, rest) = (count / writes, count % writes);
        // A write without a new command sent the rest of an earlier one.
        let others = if each > 0 { writes - rest } else { 0 };
        self.commands_per_write.add(each, others);
        self.commands_per_write.add(each + 1, rest);
    }

    /// Counts the replies that came with one read.
    #[inline]
    pub(crate) fn replies_read(&self, replies: u64) {
        self.replies.add(replies);
        self.replies_per_read.add(replies, 1);
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meters")
    }
}
