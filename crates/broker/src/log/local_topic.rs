//! A topic of order 0 or 1 on this broker: its extents and, in offset order, where each batch lies
//! in them. Its offsets are this broker's own.
//!
//! Invariant: offsets `[first, next)` are readable, dense, and each belongs to exactly one batch;
//! `first` only grows.

use std::collections::VecDeque;
use std::sync::Arc;

use embar_fabric::window::WindowWriter;
use embar_memory::canary::{Canary, injected};
use embar_memory::{Extent, Memory, Span};
use embar_wire::isolation::Isolation;

use super::Location;
use super::extents::{Extents, Victim};
use super::on_disks::OnDisks;
use super::undurable::Totals;
use crate::topics::Topic;

/// One batch that can be read.
pub(super) struct StoredBatch<M: Memory> {
    /// Offset of its first message.
    pub base: u64,
    /// Messages in it.
    pub count: u32,
    /// Its bytes, header included. The log's only lasting pin on them.
    pub span: Span<M>,
}

impl<M: Memory> StoredBatch<M> {
    /// Offset after its last message.
    pub fn end(&self) -> u64 {
        self.base + u64::from(self.count)
    }

    fn bytes(&self) -> u64 {
        self.span.len() as u64
    }
}

/// A topic of order 0 or 1 on this broker.
pub(super) struct LocalTopic<M: Memory> {
    pub id: u32,
    pub first: u64,
    pub next: u64,
    /// Bytes of readable batches.
    pub bytes: u64,
    on_disks: OnDisks,
    /// What other processes know of `first` and `next`.
    window: WindowWriter<M>,
    pub(super) extents: Extents<M>,
    batches: VecDeque<StoredBatch<M>>,
}

impl<M: Memory> LocalTopic<M> {
    pub fn new(topic: &Topic, window: WindowWriter<M>, undurable: &Arc<Totals>) -> Self {
        let mut extents = Extents::new(topic.id, false, topic.retention_bytes);
        if topic.is_durable() {
            extents.set_durable(0);
        }
        Self {
            id: topic.id,
            first: 0,
            next: 0,
            bytes: 0,
            on_disks: OnDisks::new(topic, 0, undurable),
            window,
            extents,
            batches: VecDeque::new(),
        }
    }

    /// The disks that it is on, a bit for each.
    pub fn disks(&self) -> u8 {
        self.on_disks.disks
    }

    /// All disks that may have something of it, a bit for each.
    pub fn all_disks(&self) -> u8 {
        self.on_disks.all()
    }

    /// It has other disks from now on: see [`OnDisks::replace`].
    pub fn move_to_disks(&mut self, topic: &Topic) {
        let held = self.batches.iter().map(|it| (it.end(), it.bytes()));
        self.on_disks.replace(topic, self.first, held);
        self.extents.set_durable(self.first);
    }

    /// Up to where all of its disks have what this broker stored; the end of all offsets if it is in memory alone.
    pub fn durable(&self) -> u64 {
        self.on_disks.durable(self.first)
    }

    /// The first of this broker's offsets that its disks have; that in memory if it is on none.
    pub fn first_on_disks(&self) -> u64 {
        self.on_disks.first(self.first)
    }

    /// All of its disks have it up to `next`, and the first that any has is `first`. False if that is no further than before.
    pub fn set_frontier(&mut self, first: u64, next: u64) -> bool {
        self.on_disks.set_first(first);
        if next <= self.durable() {
            return false;
        }
        let from = { &self.batches }.partition_point(|it| !self.on_disks.lack(it.end()));
        let lacking = self.batches.range(from..);
        let lacking = lacking.map(|it| (it.end(), it.bytes()));
        self.on_disks.raise(next, lacking);
        self.extents.set_durable(next);
        true
    }

    /// Up to where a subscriber may read.
    pub fn readable(&self, isolation: Isolation) -> u64 {
        self.on_disks.readable(self.first..self.next, isolation)
    }

    /// See [`WindowWriter::restore`].
    pub fn restore_window(&mut self) -> bool {
        self.window.restore()
    }

    /// Publishes where this topic begins and ends, and below which offset messages are lost. Before, the row
    /// may still describe a deleted topic.
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
        self.batches.len() as u64
    }

    /// Makes a batch readable under the next offsets.
    pub fn append(&mut self, location: &Location, batch: StoredBatch<M>) {
        assert_eq!(batch.base, self.next, "offsets are dense");
        let end = batch.end();
        self.next = end;
        let bytes = batch.bytes();
        self.bytes += bytes;
        self.on_disks.add(end, 1, bytes);
        self.batches.push_back(batch);
        self.window.raise_next(end);
        self.extents.complete(location, end);
    }

    /// Takes out the victim and what is older, into `taken`: that memory is free once these extents and every
    /// reader's span are dropped.
    pub fn evict(&mut self, victim: &Victim, taken: &mut Vec<Extent<M>>) {
        self.first = self.first.max(victim.end);
        // Readers in other processes look at the window before they trust what they read below it.
        if !injected(Canary::WindowRaise) {
            self.window.raise_first(self.first);
        }
        while let Some(batch) = self.batches.pop_front_if(|it| it.base < self.first) {
            self.bytes -= batch.bytes();
            self.on_disks.remove(batch.end(), batch.bytes());
            self.extents.mark_dead(batch.span.at(), batch.bytes());
        }
        self.extents.take_with(victim, self.first, taken);
    }

    /// Whether the oldest extent can go and still leave what is to be retained.
    pub fn exceeds_retention(&self) -> bool {
        let leaving = |end| self.batches.iter().take_while(move |it| it.base < end);
        self.extents
            .exceed(self.bytes, |end| leaving(end).map(StoredBatch::bytes).sum())
    }

    /// The batches from the one that contains `from`, as long as they follow
    /// each other in memory, end at or before `end`, and fit `max_bytes` (the first one always does).
    /// `from` lies in `[first, next)`. `None` where not even that one ends there.
    pub fn run(&self, from: u64, end: u64, max_bytes: usize) -> Option<(Span<M>, u64)> {
        let start = self.batches.partition_point(|it| it.end() <= from);
        let mut batches = self.batches.range(start..).take_while(|it| it.end() <= end);
        let head = batches.next()?;
        let (mut span, mut next) = (head.span.clone(), head.end());
        for batch in batches {
            if span.len() + batch.span.len() > max_bytes {
                break;
            }
            let Some(longer) = span.join(&batch.span) else {
                break;
            };
            (span, next) = (longer, batch.end());
        }
        Some((span, next))
    }

    /// Recovery: nothing below `next` can be read any more.
    pub fn restart_at(&mut self, next: u64) {
        for batch in self.batches.drain(..) {
            self.on_disks.remove(batch.end(), batch.bytes());
        }
        self.extents.clear();
        self.bytes = 0;
        (self.first, self.next) = (next, next);
    }

    /// Recovery: adopts a batch whose bytes were checked.
    pub fn adopt(&mut self, batch: StoredBatch<M>) {
        if self.batches.is_empty() {
            self.first = batch.base;
        }
        self.next = batch.end();
        self.bytes += batch.bytes();
        self.on_disks.add(batch.end(), 1, batch.bytes());
        self.batches.push_back(batch);
    }
}
