//! A topic of order 2 or 5, as this broker has seen it ordered: where each batch lies, whose broker's
//! memory it is, and the extents of those that lie here.
//!
//! Invariants
//! - Positions `[first, next)` are readable and dense; `first` only grows.
//! - This broker's window says `first` before memory of a batch below it is used again, so whoever
//!   took bytes from here without holding them finds out.

use embar_memory::canary::{Canary, injected};
use std::collections::VecDeque;

use embar_fabric::GoiRecord;
use embar_fabric::window::WindowWriter;
use embar_memory::{Extent, Memory, Span};
use embar_wire::batch::BatchHeader;
use embar_wire::topic::Order;

use super::Place;
use super::batch_record::BatchRecord;
use super::chain::Evicted;
use super::extents::{Extents, Oldest};

/// One batch of the order.
pub(super) struct Entry<M: Memory> {
    pub base: u64,
    pub producer: u64,
    pub sequence: u64,
    pub blog_at: u64,
    pub count: u32,
    /// Bytes, header included.
    pub len: u32,
    /// Whose payload file it lies in.
    pub row: u16,
    /// Order of its extent: 64 KiB << order.
    pub extent_order: u8,
    /// Its bytes, if they are this broker's. The log's only lasting pin on them.
    pub span: Option<Span<M>>,
}

impl<M: Memory> Entry<M> {
    pub fn new(record: &GoiRecord, span: Option<Span<M>>) -> Self {
        Self {
            base: record.base,
            producer: record.producer,
            sequence: record.sequence,
            blog_at: record.blog_at,
            count: record.count,
            len: record.len,
            row: record.row.into(),
            extent_order: record.extent_order(),
            span,
        }
    }

    /// Position after its last message.
    pub fn end(&self) -> u64 {
        self.base + u64::from(self.count)
    }

    /// The header that `bytes` begin with, if it is that of this batch.
    pub fn header_in(&self, bytes: &[u8], topic: u32) -> Option<BatchHeader> {
        self.record().header_in(bytes, topic)
    }

    /// What the order says of it.
    pub fn record(&self) -> BatchRecord {
        BatchRecord {
            base: self.base,
            count: self.count,
            producer: self.producer,
            sequence: self.sequence,
            blog_at: self.blog_at,
            len: self.len,
            extent_order: self.extent_order,
            is_stamped: false,
        }
    }
}

/// See the module.
pub(super) struct Ordered<M: Memory> {
    pub id: u32,
    pub order: Order,
    pub first: u64,
    pub next: u64,
    /// Bytes of readable batches in this broker's memory.
    pub bytes: u64,
    /// Those batches.
    pub batches: u64,
    /// Its window was lost, and stays so until it is known what this broker has: what is told of may
    /// have been evicted.
    pub is_unsure: bool,
    /// As [`Ordered::lost`], while it lies above `first`.
    lost: u64,
    window: WindowWriter<M>,
    pub extents: Extents<M>,
    entries: VecDeque<Entry<M>>,
}

impl<M: Memory> Ordered<M> {
    /// A topic that is followed from position `first` on.
    pub fn new(
        (id, order): (u32, Order),
        retention_bytes: u64,
        first: u64,
        (window, is_unsure): (WindowWriter<M>, bool),
    ) -> Self {
        let before = window.window();
        let mut topic = Self {
            id,
            order,
            first,
            next: first,
            bytes: 0,
            batches: 0,
            is_unsure,
            lost: if before.chain == id { before.lost } else { 0 },
            window,
            extents: Extents::new(id, true, retention_bytes),
            entries: VecDeque::new(),
        };
        topic.publish_window();
        topic
    }

    fn publish_window(&mut self) {
        if !self.is_unsure {
            self.window
                .recover(self.id, self.first, self.next, self.lost);
        }
    }

    /// Messages below this position are gone because they were damaged, or nobody can tell whether they
    /// were, and would not have been evicted by now; 0 when none are.
    pub fn lost(&self) -> u64 {
        if self.first > self.lost { 0 } else { self.lost }
    }

    /// Whether a record is the next one. The first one may have begun before: then somebody's window
    /// begins inside of it.
    pub fn continues(&self, record: &GoiRecord) -> bool {
        let begins = self.entries.is_empty() && (record.base..record.end()).contains(&self.next);
        record.base == self.next || begins
    }

    /// The next batch of the order; `place` is that of one of this broker's own.
    pub fn append(&mut self, entry: Entry<M>, place: Option<&Place>) {
        if self.entries.is_empty() && entry.base < self.next {
            (self.first, self.next) = (entry.base, entry.base);
            self.publish_window();
        }
        assert_eq!(entry.base, self.next, "positions are dense");
        self.next = entry.end();
        if let Some(place) = place {
            self.bytes += u64::from(entry.len);
            self.batches += 1;
            self.extents.complete(place, entry.end());
        }
        self.entries.push_back(entry);
    }

    /// The topic is no more: nothing of it is to be read anywhere, before its memory goes.
    pub fn close(&mut self) {
        self.drop_below(self.next);
    }

    /// Positions below `first` were released before they were seen here.
    pub fn skip_to(&mut self, first: u64) -> Vec<Extent<M>> {
        self.next = self.next.max(first);
        self.raise_first(first)
    }

    /// Nothing below `first` is to be read any more: elsewhere its memory is used again. Gives back
    /// what this broker kept of it.
    pub fn raise_first(&mut self, first: u64) -> Vec<Extent<M>> {
        if first <= self.first {
            return Vec::new();
        }
        self.drop_below(first);
        self.extents.take_below(self.first)
    }

    fn drop_below(&mut self, first: u64) {
        self.first = first;
        // Whoever reads in our memory looks at this before the memory is used again.
        if !injected(Canary::OrderedWindowRaise) {
            self.publish_window();
        }
        while let Some(entry) = self.entries.pop_front_if(|e| e.base < first) {
            if entry.span.is_some() {
                self.bytes -= u64::from(entry.len);
                self.batches -= 1;
                self.extents.bury(entry.blog_at, entry.len.into());
            }
        }
    }

    /// Takes an extent that nobody is filling and no batch waits in; what lies in it, and everything below, is
    /// gone for all brokers.
    pub fn evict(&mut self, oldest: &Oldest) -> Evicted<M> {
        if oldest.end > self.first {
            self.drop_below(oldest.end);
        }
        Evicted {
            first: self.first,
            extents: self.extents.take_with(oldest, self.first),
        }
    }

    /// Whether the oldest extent can go and still leave what is to be retained on this broker.
    pub fn exceeds_retention(&self) -> bool {
        let own = |e: &&Entry<M>| e.span.is_some();
        let leaving = |end| {
            self.entries
                .iter()
                .take_while(move |e| e.base < end)
                .filter(own)
        };
        self.extents.exceed(self.bytes, |end| {
            leaving(end).map(|e| u64::from(e.len)).sum()
        })
    }

    /// The batches from the one that contains `from` on; `from` lies in `[first, next)`.
    pub fn batches_from(&self, from: u64) -> impl Iterator<Item = &Entry<M>> {
        let start = self.entries.partition_point(|e| e.end() <= from);
        self.entries.range(start..)
    }

    /// Where the batch of this producer and number was ordered, if so many looks find it; those that
    /// were taken are gone.
    pub fn position_of(&self, batch: (u64, u64), looks: &mut usize) -> Option<u64> {
        let newest = self.entries.iter().rev().take(*looks);
        for entry in newest {
            *looks -= 1;
            if (entry.producer, entry.sequence) == batch {
                return Some(entry.base);
            }
        }
        None
    }

    /// Recovery: gives the entries of this broker their bytes, each what is there of it.
    pub fn adopt_spans(&mut self, row: u16, spans: impl Iterator<Item = Option<Span<M>>>) {
        let own = self.entries.iter_mut().filter(|e| e.row == row);
        for (entry, span) in own.zip(spans) {
            entry.span = span;
            if entry.span.is_some() {
                self.bytes += u64::from(entry.len);
                self.batches += 1;
            }
        }
    }

    /// Recovery: where a topic begins whose window was lost is known by the batches whose bytes are
    /// there.
    pub fn settle_first(&mut self, row: u16) {
        if !std::mem::take(&mut self.is_unsure) {
            return;
        }
        let gone = self.own(row).rev().find(|e| e.span.is_none());
        match gone.map(Entry::end) {
            Some(end) if end > self.first => {
                self.lost = end;
                self.raise_first(end);
            }
            _ => self.publish_window(),
        }
    }

    /// Recovery: the entries of this broker, whose bytes are to be kept.
    pub fn own(&self, row: u16) -> impl DoubleEndedIterator<Item = &Entry<M>> {
        self.entries.iter().filter(move |e| e.row == row)
    }
}

#[cfg(test)]
mod tests {
    use embar_memory::Simulated;

    use super::*;
    use crate::test_region;

    fn followed_from(first: u64) -> Ordered<Simulated> {
        let region = test_region::region(&test_region::geometry());
        let window = region.window_writer(&region.claim_unlocked(1), 0);
        Ordered::new((0, Order::TotalPerPublisher), 0, first, (window, false))
    }

    fn record(base: u64, count: u32) -> GoiRecord {
        GoiRecord {
            base,
            count,
            ..GoiRecord::default()
        }
    }

    #[test]
    fn who_begins_inside_of_a_batch_gets_all_of_it() {
        let mut topic = followed_from(5);
        assert!(!topic.continues(&record(2, 3)) && !topic.continues(&record(6, 1)));
        let whole = record(3, 4);
        assert!(topic.continues(&whole));
        topic.append(Entry::new(&whole, None), None);
        assert_eq!((topic.first, topic.next), (3, 7));
        assert!(!topic.continues(&whole), "only the first one");
        assert!(topic.continues(&record(7, 1)));
    }
}
