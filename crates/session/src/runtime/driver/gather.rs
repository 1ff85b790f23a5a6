//! The worker waits a little before it writes, so that messages of other threads gather.
//!
//! A thread that sends one message after the other has the worker woken for the first. Writing each
//! few of them would cost more than the messages themselves, and on the same processor would take
//! the time of the very thread that sends. So the worker takes the right to send, and writes a
//! little later; meanwhile commits need not mark the session either. Where waiting gained nothing,
//! as with a thread that waits for an answer, the worker does not try it again for a while.

use std::mem;
use std::sync::atomic::Ordering;

use embar_frame::{Now, Protocol};

use super::SessionDriver;
use crate::runtime::shared::HANDOVER_NS;

/// How long messages gather.
const GATHER_NS: u64 = 30_000;

/// As many bytes are worth a write; in a small ring, a quarter of it.
const PLENTY_BYTES: usize = 32 << 10;

/// Fewer bytes than this were not worth the wait.
const FEW_BYTES: usize = 2 << 10;

/// So many marks are served at once after a wait that was not worth it.
const REST: u8 = 64;

/// Whether it pays to wait, by what waiting brought before.
#[derive(Debug, Default)]
pub(super) struct Gather {
    goes_on: bool,
    /// Marks left to serve at once.
    rest: u8,
}

impl Gather {
    /// Whether to let messages gather, when `queued` bytes of a ring of `capacity` wait and the
    /// last write was `quiet_ns` ago.
    fn pays(&mut self, quiet_ns: u64, queued: usize, capacity: usize) -> bool {
        if self.rest > 0 {
            self.rest -= 1;
            return false;
        }
        quiet_ns < HANDOVER_NS && queued < PLENTY_BYTES.min(capacity / 4)
    }

    /// What has gathered is about to be written.
    fn end(&mut self, queued: usize) {
        if mem::take(&mut self.goes_on) && queued < FEW_BYTES {
            self.rest = REST;
        }
    }
}

impl<P: Protocol> SessionDriver<P> {
    /// For a session that is marked: until when it is better left alone, if so.
    pub(in super::super) fn gather(&mut self, now: Now) -> Option<Now> {
        // While it gathers no thread marks it for messages, so something else is due.
        if self.gather.goes_on {
            return None;
        }
        let shared = &self.session.0;
        let alone = shared.direct.get().is_some()
            && self.core.is_open()
            && self.finish_due.is_none()
            && !self.share.is_over()
            && !shared.has_requests()
            && !self.has_bodies();
        let quiet = now
            .0
            .saturating_sub(shared.last_flush.load(Ordering::Relaxed));
        let ring = shared.sender.ring();
        let (queued, capacity) = (ring.queued(), ring.capacity());
        if !alone || !self.gather.pays(quiet, queued, capacity) || !self.core.cork() {
            return None;
        }
        // A handler of another session that finds the ring full must not wait for the end of this.
        self.note_mere_cork(self.core.is_merely_corked());
        self.gather.goes_on = true;
        Some(Now(now.0 + GATHER_NS))
    }

    pub(super) fn end_gathering(&mut self) {
        if self.gather.goes_on {
            self.gather.end(self.session.0.sender.ring().queued());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: usize = 256 << 10;

    #[test]
    fn messages_gather_only_when_others_were_written_just_before() {
        let mut gather = Gather::default();
        assert!(gather.pays(0, 100, RING));
        assert!(!gather.pays(HANDOVER_NS, 100, RING), "a message on its own");
        assert!(!gather.pays(0, PLENTY_BYTES, RING), "enough for a write");
        assert!(!gather.pays(0, 1024, 4096), "much of a small ring");
    }

    #[test]
    fn a_wait_for_little_is_not_repeated_at_once() {
        let mut gather = Gather {
            goes_on: true,
            rest: 0,
        };
        gather.end(FEW_BYTES);
        assert!(gather.pays(0, 0, RING), "it was worth it");
        gather.goes_on = true;
        gather.end(FEW_BYTES - 1);
        for _ in 0..REST {
            assert!(!gather.pays(0, 0, RING));
        }
        assert!(gather.pays(0, 0, RING));
        // Ended by itself, without a wait before.
        gather.end(0);
        assert!(gather.pays(0, 0, RING));
    }
}
