//! Lanes: rings of batch records, one writer thread each, read by the sequencer.
//!
//! *All free*: the writer takes a slot only when fewer than `slots` numbers lie between what the
//! sequencer granted as consumed and what it writes next. Numbers only grow, so a full ring and an
//! empty one differ.
//!
//! *A new writer* (the next incarnation) goes on above every number that any record in the ring
//! carries, that a lane start names or that a sequencer has granted, so the numbers of a lane have no
//! gaps, and what its predecessor published is still there for the sequencer to take: it is overwritten
//! only when it was granted.
//!
//! *A record that memory loses*, body and commit word, leaves nothing by which a reader could know of
//! it until another one follows. Its writer knows: it stores what was not granted again, in the same
//! slot.
//!
//! *A new sequencer* (the next epoch) does not know how far its predecessor was believed. So the
//! writer begins the lane anew for it: its [`LaneStart`] says from which number on the lane is
//! meant for that epoch.

use embar_memory::Memory;

use crate::records::{LaneStart, PbrRecord, Record};
use crate::ring::Ring;
use crate::rows::RowWriter;
use crate::slot::Seen;

/// The writing end of a lane, for one thread.
#[derive(Debug)]
pub struct LaneWriter<M> {
    ring: Ring<M>,
    start: RowWriter<M, LaneStart>,
    said: LaneStart,
    next: u64,
}

impl<M: Memory> LaneWriter<M> {
    pub(crate) fn attach(
        ring: Ring<M>,
        start: RowWriter<M, LaneStart>,
        used_below: u64,
        incarnation: u32,
    ) -> Self {
        let next = ring.above_all_and(used_below);
        Self {
            ring,
            start,
            said: LaneStart {
                incarnation,
                ..LaneStart::default()
            },
            next,
        }
    }

    /// Begins the lane for an epoch, at the next number.
    pub fn begin(&mut self, epoch: u32) {
        self.said.start = self.next;
        self.said.epoch = epoch;
        self.start.store(&self.said);
    }

    /// Says whether this incarnation was admitted.
    pub fn set_admitted(&mut self, admitted: bool) {
        self.said.admitted = admitted.into();
        self.start.store(&self.said);
    }

    /// Whether a record can be published while `consumed` is granted.
    pub fn has_room(&self, consumed: u64) -> bool {
        self.next.saturating_sub(consumed) < u64::from(self.ring.slots)
    }

    /// Publishes a record; on return every reader sees it. Its payload was committed before.
    ///
    /// # Panics
    /// When there is no room.
    #[inline]
    pub fn publish(&mut self, consumed: u64, record: &PbrRecord) -> u64 {
        assert!(
            self.has_room(consumed),
            "record {} would overwrite one above {consumed} that was not taken",
            self.next
        );
        let number = self.next;
        self.ring.publish(number, &record.to_body());
        self.next += 1;
        number
    }

    /// Stores a record that was published under this number again if its slot does not show it. On return
    /// every reader sees it. Whether it was lost.
    ///
    /// # Panics
    /// When the slot was not written under this number last.
    pub fn restore(&mut self, number: u64, record: &PbrRecord) -> bool {
        let newest = self.next.saturating_sub(self.ring.slots.into())..self.next;
        assert!(
            newest.contains(&number),
            "record {number} is not in the ring, which holds {newest:?}"
        );
        let body = record.to_body();
        if self.ring.observe_closely(number) == Seen::Found(body) {
            return false;
        }
        self.ring.publish(number, &body);
        true
    }

    /// The number of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Records that may be published and not granted.
    pub fn slots(&self) -> u32 {
        self.ring.slots
    }
}

/// The reading end of a lane.
#[derive(Debug)]
pub struct LaneReader<M> {
    ring: Ring<M>,
    next: u64,
    /// Whether the next record is there and only a close look shows it.
    closely: bool,
}

impl<M: Memory> LaneReader<M> {
    pub(crate) fn attach(ring: Ring<M>) -> Self {
        Self {
            ring,
            next: 0,
            closely: false,
        }
    }

    /// Goes on at another number.
    pub fn seek(&mut self, number: u64) {
        self.next = number;
    }

    /// Goes on at the oldest record from which on the ring holds all: for the lane of a broker that
    /// is dead.
    pub fn seek_oldest(&mut self) {
        self.next = self.ring.oldest();
    }

    /// The next record and its number, if it is there. Never waits. One that is damaged is taken, too:
    /// its number is the [`LaneReader::position`] before.
    #[inline]
    pub fn take(&mut self) -> Seen<(u64, PbrRecord)> {
        let number = self.next;
        let seen = if std::mem::take(&mut self.closely) {
            self.ring.observe_closely(self.next)
        } else {
            self.ring.observe(self.next)
        };
        if seen != Seen::Nothing {
            self.next += 1;
        }
        seen.map(|body| (number, PbrRecord::from_body(&body)))
    }

    /// Looks whether a record is there that [`LaneReader::take`] takes for nothing, as a bit of its lap
    /// is wrong: to be asked every so often where nothing comes. It is taken next.
    pub fn look_closely(&mut self) -> bool {
        self.closely = self.ring.observe_closely(self.next) != Seen::Nothing
            && self.ring.observe(self.next) == Seen::Nothing;
        self.closely
    }

    /// The number of the record that [`LaneReader::take`] looks for.
    pub fn position(&self) -> u64 {
        self.next
    }
}
