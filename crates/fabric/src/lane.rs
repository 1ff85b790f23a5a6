//! Lanes: rings of batch records, one writer thread and one consumer each.
//!
//! Record number `s`, counted from 0 over the life of the region, lies in slot `s % slots` with
//! lap `s / slots + 1`. Laps have 32 bits, so a lane of 1024 slots is good for 4·10^12 records over
//! the life of its region. Neither end keeps a shared tail: the reader looks whether the slot of the
//! next number holds its lap.
//!
//! *All free*: the writer takes a slot only when fewer than `slots` numbers lie between what was
//! consumed and what it writes next. Numbers only grow, so a full ring and an empty one differ.
//!
//! *A new writer* (the next incarnation) starts above every number that any record in the ring
//! carries, so no stale record is ever taken for one of its own, and says where in the lane's
//! `start` word. What its predecessor published and nobody consumed is skipped by whoever attaches
//! later; a reader that was there before takes it as long as the slots still hold it (records name
//! their incarnation), and goes to `start` when it finds the next one missing.

use std::sync::Arc;

use crate::memory::{LINE_BYTES, Memory};
use crate::records::{PbrRecord, Record};
use crate::slot::{self, SLOT_BYTES, commit_word};

/// Offset of `completed` in the progress line; `consumed` is at 0.
const COMPLETED_AT: u64 = 8;

/// Where one lane lies.
#[derive(Debug)]
pub(crate) struct Lane<M> {
    pub memory: Arc<M>,
    pub start_at: u64,
    pub progress_at: u64,
    pub slots_at: u64,
    pub slots: u32,
    pub nonce: u32,
}

impl<M: Memory> Lane<M> {
    fn place(&self, sequence: u64) -> (u64, u64) {
        let slots = u64::from(self.slots);
        let at = self.slots_at + sequence % slots * SLOT_BYTES;
        (at, commit_word(self.nonce, (sequence / slots + 1) as u32))
    }

    fn start(&self) -> u64 {
        self.memory.invalidate(self.start_at, LINE_BYTES);
        // Acquire. Partner: the store in `LaneWriter::attach`.
        self.memory.load(self.start_at)
    }

    pub(crate) fn progress(&self) -> LaneProgress {
        self.memory.invalidate(self.progress_at, LINE_BYTES);
        // Acquire. Partners: the stores in `ProgressWriter::advance`. `completed` first: it is
        // stored last, so it is never seen ahead of the `consumed` it goes with.
        let completed = self.memory.load(self.progress_at + COMPLETED_AT);
        let consumed = self.memory.load(self.progress_at);
        LaneProgress {
            consumed,
            completed,
        }
    }

    /// One above the highest number that any record in the ring carries; 0 when there is none.
    fn above_all_records(&self) -> u64 {
        let slots = u64::from(self.slots);
        (0..slots)
            .filter_map(|i| {
                let (lap, _) =
                    slot::peek(&*self.memory, self.slots_at + i * SLOT_BYTES, self.nonce)?;
                Some(u64::from(lap.checked_sub(1)?) * slots + i + 1)
            })
            .max()
            .unwrap_or(0)
    }
}

/// What the consumer of a lane says: two numbers, never one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneProgress {
    /// Records below this number were taken: their slots may be used again.
    pub consumed: u64,
    /// Records below this number are done with: they may be acknowledged.
    pub completed: u64,
}

/// A free slot, good for the next publish.
#[derive(Debug)]
#[must_use = "a slot that is not published stays free"]
pub struct LaneSlot {
    sequence: u64,
}

impl LaneSlot {
    /// The number the record will have.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}

/// The writing end of a lane, for one thread.
#[derive(Debug)]
pub struct LaneWriter<M> {
    lane: Lane<M>,
    start: u64,
    next: u64,
    /// As last read; the true number may be higher.
    consumed: u64,
}

impl<M: Memory> LaneWriter<M> {
    pub(crate) fn attach(lane: Lane<M>) -> Self {
        let start = lane
            .above_all_records()
            .max(lane.start())
            .max(lane.progress().consumed);
        // Partner: the load in `Lane::start`.
        lane.memory.store(lane.start_at, start);
        lane.memory.write_back(lane.start_at, LINE_BYTES);
        lane.memory.fence();
        Self {
            lane,
            start,
            next: start,
            consumed: start,
        }
    }

    /// A slot for the next record, or `None` while the ring is full.
    #[inline]
    pub fn reserve(&mut self) -> Option<LaneSlot> {
        let slots = u64::from(self.lane.slots);
        if self.next - self.consumed >= slots {
            self.consumed = self.progress().consumed;
            if self.next - self.consumed >= slots {
                return None;
            }
        }
        Some(LaneSlot {
            sequence: self.next,
        })
    }

    /// Publishes a record; on return every reader sees it. Its payload was committed before.
    ///
    /// # Panics
    ///
    /// When the slot is not the one reserved last, or was reserved before another publish.
    #[inline]
    pub fn publish(&mut self, slot: LaneSlot, record: &PbrRecord) -> u64 {
        assert_eq!(
            slot.sequence, self.next,
            "slots are published in the order of their numbers"
        );
        let (at, commit) = self.lane.place(slot.sequence);
        slot::publish(&*self.lane.memory, at, &record.to_body(), commit);
        self.next += 1;
        slot.sequence
    }

    /// What the consumer has said last, within what this writer has published: its first number
    /// before the consumer has come that far, and never more than [`LaneWriter::next`].
    #[inline]
    pub fn progress(&self) -> LaneProgress {
        let said = self.lane.progress();
        // A consumer gone wrong must not make us overwrite what nobody has read.
        LaneProgress {
            consumed: said.consumed.clamp(self.start, self.next),
            completed: said.completed.clamp(self.start, self.next),
        }
    }

    /// The number of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }
}

/// The reading end of a lane.
#[derive(Debug)]
pub struct LaneReader<M> {
    lane: Lane<M>,
    next: u64,
}

impl<M: Memory> LaneReader<M> {
    pub(crate) fn attach(lane: Lane<M>) -> Self {
        let next = lane.start().max(lane.progress().consumed);
        Self { lane, next }
    }

    /// The next record and its number, if it is there. Never waits.
    ///
    /// Numbers have a gap where a writer of another incarnation took over.
    #[expect(
        clippy::should_implement_trait,
        reason = "`None` means not yet, not the end"
    )]
    #[inline]
    pub fn next(&mut self) -> Option<(u64, PbrRecord)> {
        let record = self.observe().or_else(|| {
            let start = self.lane.start();
            if start <= self.next {
                return None;
            }
            self.next = start;
            self.observe()
        })?;
        let sequence = self.next;
        self.next += 1;
        Some((sequence, record))
    }

    fn observe(&self) -> Option<PbrRecord> {
        let (at, commit) = self.lane.place(self.next);
        let body = slot::observe(&*self.lane.memory, at, commit)?;
        Some(PbrRecord::from_body(&body))
    }

    /// The number of the record that [`LaneReader::next`] looks for.
    pub fn position(&self) -> u64 {
        self.next
    }
}

/// The consumer's row of a lane.
#[derive(Debug)]
pub struct ProgressWriter<M> {
    lane: Lane<M>,
    said: LaneProgress,
}

impl<M: Memory> ProgressWriter<M> {
    pub(crate) fn attach(lane: Lane<M>) -> Self {
        let said = lane.progress();
        Self { lane, said }
    }

    /// Says how far the consumer is. Numbers never fall: lower ones change nothing.
    #[inline]
    pub fn advance(&mut self, to: LaneProgress) {
        self.said.consumed = self.said.consumed.max(to.consumed);
        self.said.completed = self.said.completed.max(to.completed);
        let (memory, at) = (&*self.lane.memory, self.lane.progress_at);
        // Partners: the loads in `Lane::progress`. One line, so they reach memory together.
        memory.store(at, self.said.consumed);
        memory.store(at + COMPLETED_AT, self.said.completed);
        memory.write_back(at, LINE_BYTES);
        memory.fence();
    }

    /// What was said last.
    pub fn progress(&self) -> LaneProgress {
        self.said
    }
}
