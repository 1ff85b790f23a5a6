//! Mutable rows: records of 56 bytes that change, with one writer each. A store writes a row's two slots, one after the
//! other. So readers never see half of a version, and can read the row if the writer died half-way or one slot is lost.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use embar_memory::Memory;

use crate::records::{Record, SequencerRow};
use crate::slot::{self, Seen};
use crate::sync::fence;

/// Writes one row; its owner has the only one.
#[derive(Debug)]
pub struct RowWriter<M, T> {
    memory: Arc<M>,
    at: u64,
    nonce: u32,
    version: u32,
    record: PhantomData<T>,
}

impl<M: Memory, T: Record> RowWriter<M, T> {
    /// Continues after the version that is there.
    pub(crate) fn attach(memory: Arc<M>, at: u64, nonce: u32) -> Self {
        let found = slot::read_row(&*memory, at, nonce).found();
        let version = found.map_or(0, |(version, _)| version);
        Self {
            memory,
            at,
            nonce,
            version,
            record: PhantomData,
        }
    }

    /// Stores the row; on return every later reader sees it, in whichever of its slots.
    #[inline]
    pub fn store(&mut self, record: &T) {
        self.version = slot::rewrite_both(
            &*self.memory,
            self.at,
            self.nonce,
            self.version,
            &record.to_body(),
        );
    }

    /// Stores the row again if memory has lost one of its slots, or both. `record` is what was stored last. True if
    /// something was lost: a row that seldom changes would lose the second slot some day, too.
    pub fn restore(&mut self, record: &T) -> bool {
        let body = record.to_body();
        let is_lost = slot::is_row_lost(&*self.memory, self.at, self.nonce, &body);
        if is_lost {
            self.store(record);
        }
        is_lost
    }

    /// What the row holds; nothing before it is first stored.
    pub(crate) fn read(&self) -> Seen<T> {
        read(&*self.memory, self.at, self.nonce)
    }

    /// What was stored is there before anything that the caller loads from now on. Of two who each
    /// store a row, settle and then load the other's, at least one sees what the other stored.
    pub fn settle(&self) {
        // Partner: the same fence of the other.
        fence(Ordering::SeqCst);
    }
}

impl<M: Memory> RowWriter<M, SequencerRow> {
    /// Stores a row with an epoch above all others. What a process read before
    /// it looked at the row and did not find this epoch, the caller reads afterwards, too.
    pub fn raise(&mut self, row: &SequencerRow) {
        self.store(row);
        // Partner: the fence in `Region::sequencer_row`.
        self.settle();
    }
}

/// Reads a row.
pub(crate) fn read<M: Memory, T: Record>(memory: &M, at: u64, nonce: u32) -> Seen<T> {
    slot::read_row(memory, at, nonce).map(|(_version, body)| T::from_body(&body))
}
