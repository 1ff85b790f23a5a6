//! Which records this side is through with, although somebody may still read what some of them name.
//!
//! The peer may use again what was consumed. So a record that is read where its bytes lie counts as consumed only once nobody reads
//! them any more: its *leases* have ended. They end in any order, and on any thread.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use embar_memory::{Memory, Sealed, SealedView};

use super::doorbell::Doorbell;
use super::layout::{CONSUMED_AT, LINE_BYTES};
use super::nap::{Bell, ROOM};
use super::sync::{Mutex, MutexGuard, PoisonError};
use crate::buffer::Lessor;

/// Writes to the outbox `own` what the peer may use again.
pub(super) struct Leases<O: Memory, I: Memory> {
    own: Arc<O>,
    peer: Arc<I>,
    /// Records that were taken, from the first on.
    taken: u64,
    /// As far as the peer knows.
    told: u64,
    /// The records on lease, in their order, and whether the lease has ended. The first one has not.
    leased: VecDeque<(u64, bool)>,
    bell: Bell,
}

impl<O: Memory, I: Memory> Leases<O, I> {
    /// Of fresh outboxes.
    pub fn new(own: Arc<O>, peer: Arc<I>) -> Self {
        Self {
            own,
            peer,
            taken: 0,
            told: 0,
            leased: VecDeque::new(),
            bell: Bell::default(),
        }
    }

    /// Something of this record is read where it lies, until [`Leases::end`]. Leases begin in the order of their records.
    pub fn begin(&mut self, record: u64) {
        self.leased.push_back((record, false));
    }

    /// One lease on this record has ended. True: the peer sleeps, and is to be woken for that.
    pub fn end(&mut self, record: u64) -> bool {
        let mut leased = self.leased.iter_mut();
        if let Some((_, ended)) = leased.find(|it| **it == (record, false)) {
            *ended = true;
        }
        while let Some((_, true)) = self.leased.front() {
            self.leased.pop_front();
        }
        self.tell()
    }

    /// The records before this one were taken. True: the peer sleeps, and is to be woken for that.
    pub fn take_to(&mut self, next: u64) -> bool {
        self.taken = next;
        self.tell()
    }

    fn tell(&mut self) -> bool {
        let first = self.leased.front();
        let consumed = first.map_or(self.taken, |(record, _)| self.taken.min(*record));
        if consumed == self.told {
            return false;
        }
        self.told = consumed;
        // Partner: the sender's look. Every copy, and every look at what was on lease, comes before.
        self.own.store(CONSUMED_AT, consumed);
        self.own.write_back(CONSUMED_AT, LINE_BYTES);
        self.own.fence();
        self.bell.must_ring(&*self.peer, ROOM, consumed)
    }
}

/// No step leaves what it guards half-done when it panics.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The leases of one connection, with what wakes its peer. Who reads does not keep a connection from being closed.
pub(super) struct ConnectionLeases {
    pub leases: Arc<Mutex<Leases<Sealed, SealedView>>>,
    pub doorbell: Weak<Doorbell>,
}

impl Lessor for ConnectionLeases {
    fn end_lease(&self, record: u64) {
        if locked(&self.leases).end(record)
            && let Some(doorbell) = self.doorbell.upgrade()
        {
            doorbell.ring();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shm::layout::Sizes;

    #[test]
    fn a_record_is_consumed_when_all_leases_up_to_it_have_ended() {
        let bytes = Sizes::at_least(4, 4096).outbox_bytes();
        let outbox = || Sealed::new(bytes).expect("memory");
        let own = Arc::new(outbox());
        let mut leases = Leases::new(Arc::clone(&own), Arc::new(outbox()));
        let consumed = || own.load(CONSUMED_AT);
        leases.take_to(2);
        assert_eq!(consumed(), 2);
        // Two parts of one record, and another record.
        for record in [3, 3, 5] {
            leases.begin(record);
        }
        leases.take_to(6);
        assert_eq!(consumed(), 3);
        leases.end(5);
        leases.end(3);
        assert_eq!(consumed(), 3);
        leases.end(3);
        assert_eq!(consumed(), 6);
        // A record of which something is left to be taken.
        leases.begin(6);
        leases.end(6);
        assert_eq!(consumed(), 6);
        leases.take_to(7);
        assert_eq!(consumed(), 7);
    }
}
