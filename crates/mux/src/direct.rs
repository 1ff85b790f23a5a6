//! Writing by callers.
//!
//! Who submits a command on a connection on which little is going on writes it at once: that takes
//! less time than having the driver do it. Where much is going on, what callers submit gathers, and
//! the driver writes it together.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use embar_transport::ring::SendSpan;

use crate::conn::Shared;
use crate::profile::{Stage, Timing};

/// With so many commands in flight, or more, they gather.
const FEW: usize = 4;

/// What callers wrote, for the driver to count. Changed only with the right to send.
#[derive(Default)]
pub(crate) struct Tally {
    bytes: AtomicU64,
    writes: AtomicU64,
    /// The ticket after the last one that was written.
    until: AtomicU32,
}

/// What a [`Tally`] held when it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tallied {
    pub bytes: u64,
    pub writes: u64,
    pub until: u32,
}

impl Tally {
    fn wrote(&self, count: usize, until: u32) {
        let add = |to: &AtomicU64, count| {
            to.store(to.load(Ordering::Relaxed) + count, Ordering::Relaxed);
        };
        add(&self.bytes, count as u64);
        self.until.store(until, Ordering::Relaxed);
        add(&self.writes, 1);
    }

    /// By a holder of the right to send, or soon up to date.
    pub fn read(&self) -> Tallied {
        Tallied {
            bytes: self.bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            until: self.until.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    /// A command was committed that nobody sees to yet, while `others` were in flight.
    pub fn see_to_it(&self, others: usize) {
        let direct = self.direct.get();
        let alone = others < FEW && !self.alarm.gather.is_on();
        let Some(direct) = direct.filter(|_| alone) else {
            return self.mark();
        };
        // None: somebody else has the right by now, and sees to all there is.
        let Some(mut span) = self.ring.span() else {
            return;
        };
        let wanted = span.bytes().len();
        let until = span.end_ticket();
        let timing = Timing::start();
        let count = direct.try_send(&mut span).unwrap_or(0);
        timing.stop(Stage::Send, 1);
        if count > 0 {
            self.by_callers.wrote(count, until);
        }
        let more = self.over(span);
        // A socket that is full, or broken, is the driver's business: it waits, or finds out. So is
        // the time that the command takes.
        if more || count < wanted || !self.alarm.is_watched() {
            self.mark();
        }
    }

    /// Gives the right to send up. True: there is more to send, and nobody is on it.
    fn over(&self, span: SendSpan) -> bool {
        let more = span.finish();
        // The driver that looked for a large command while this held the right left it alone. Either
        // it sees that the right is free, or this sees that there is one.
        fence(Ordering::SeqCst);
        more || self.larges_queued.load(Ordering::Relaxed) > 0
    }
}
