//! A topic of order 0 or 1 on this broker: its extents and, in offset order, where each batch lies
//! in them.
//!
//! Invariant: offsets `[first, next)` are readable, dense, and each belongs to exactly one entry;
//! `first` only grows.

use embar_memory::canary::{Canary, injected};
use std::collections::VecDeque;

use embar_fabric::window::WindowWriter;
use embar_memory::{Extent, Memory, Span};

use super::Place;
use super::extents::{Extents, Oldest};

/// One batch that can be read.
pub(super) struct Entry<M: Memory> {
    /// Offset of its first message.
    pub base: u64,
    /// Messages in it.
    pub count: u32,
    /// Its bytes, header included. The log's only lasting pin on them.
    pub span: Span<M>,
}

impl<M: Memory> Entry<M> {
    /// Offset after its last message.
    pub fn end(&self) -> u64 {
        self.base + u64::from(self.count)
    }

    fn bytes(&self) -> u64 {
        self.span.len() as u64
    }
}

/// What one step of eviction gave back.
pub(super) struct Evicted<M: Memory> {
    /// The new first offset.
    pub first: u64,
    /// The memory; it is free once this and every reader's span are dropped.
    pub extents: Vec<Extent<M>>,
}

/// See the module.
pub(super) struct Chain<M: Memory> {
    pub id: u32,
    pub first: u64,
    pub next: u64,
    /// Bytes of readable batches.
    pub bytes: u64,
    /// What other processes know of `first` and `next`.
    pub(super) window: WindowWriter<M>,
    pub(super) extents: Extents<M>,
    entries: VecDeque<Entry<M>>,
}

impl<M: Memory> Chain<M> {
    pub fn new(id: u32, retention_bytes: u64, window: WindowWriter<M>) -> Self {
        Self {
            id,
            first: 0,
            next: 0,
            bytes: 0,
            window,
            extents: Extents::new(id, false, retention_bytes),
            entries: VecDeque::new(),
        }
    }

    /// Tells other processes where this chain begins and ends, and below which offset messages are lost:
    /// a row of this cell may still speak of a deleted topic.
    pub fn publish_window(&mut self, lost: u64) {
        let lost = if injected(Canary::LossTold) { 0 } else { lost };
        self.window.recover(self.id, self.first, self.next, lost);
    }

    /// Messages below this offset are gone because they were damaged, and would not have been evicted by
    /// now; 0 when none are.
    pub fn lost(&self) -> u64 {
        let lost = self.window.window().lost;
        if self.first > lost { 0 } else { lost }
    }

    pub fn batches(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Makes a batch readable under the next offsets.
    pub fn append(&mut self, place: &Place, entry: Entry<M>) {
        assert_eq!(entry.base, self.next, "offsets are dense");
        let end = entry.end();
        self.next = end;
        let bytes = entry.bytes();
        self.bytes += bytes;
        self.entries.push_back(entry);
        self.window.raise_next(end);
        self.extents.complete(place, end);
    }

    /// Tells readers in other processes that nothing below `first` is to be read any more.
    fn tell_first(&mut self) {
        if !injected(Canary::WindowRaise) {
            self.window.raise_first(self.first);
        }
    }

    /// Takes an extent that nobody is filling, and what is older.
    pub fn evict(&mut self, oldest: &Oldest) -> Evicted<M> {
        self.first = self.first.max(oldest.end);
        self.tell_first();
        while let Some(entry) = self.entries.pop_front_if(|e| e.base < self.first) {
            self.bytes -= entry.bytes();
            self.extents.bury(entry.span.at(), entry.bytes());
        }
        Evicted {
            first: self.first,
            extents: self.extents.take_with(oldest, self.first),
        }
    }

    /// Whether the oldest extent can go and still leave what is to be retained.
    pub fn exceeds_retention(&self) -> bool {
        let leaving = |end| self.entries.iter().take_while(move |e| e.base < end);
        self.extents
            .exceed(self.bytes, |end| leaving(end).map(Entry::bytes).sum())
    }

    /// The batches from the one that contains `from`, as long as they follow
    /// each other in memory and fit `max_bytes` (the first one always does).
    /// `from` lies in `[first, next)`.
    pub fn run(&self, from: u64, max_bytes: usize) -> (Span<M>, u64) {
        let start = self.entries.partition_point(|e| e.end() <= from);
        let head = &self.entries[start];
        let (mut span, mut next) = (head.span.clone(), head.end());
        for entry in self.entries.range(start + 1..) {
            if span.len() + entry.span.len() > max_bytes {
                break;
            }
            let Some(longer) = span.join(&entry.span) else {
                break;
            };
            (span, next) = (longer, entry.end());
        }
        (span, next)
    }

    /// Recovery: nothing below `next` can be read any more.
    pub fn restart_at(&mut self, next: u64) {
        self.entries.clear();
        self.extents.clear();
        self.bytes = 0;
        (self.first, self.next) = (next, next);
    }

    /// Recovery: adopts an entry whose bytes were checked.
    pub fn adopt_entry(&mut self, entry: Entry<M>) {
        if self.entries.is_empty() {
            self.first = entry.base;
        }
        self.next = entry.end();
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
    }
}
