//! A topic of order 2 or 5, as this broker has seen it ordered: where each batch lies, in whose broker's
//! memory, and the extents of those that lie here.
//!
//! Invariants
//! - Positions `[first, next)` are readable and dense; `first` only grows.
//! - This broker's window has `first` before memory of a batch below it is used again. So a reader that
//!   took bytes from here without a pin on them finds out.

use std::collections::VecDeque;
use std::sync::Arc;

use embar_fabric::GoiRecord;
use embar_fabric::window::WindowWriter;
use embar_memory::canary::{Canary, injected};
use embar_memory::{Extent, Memory, Span};
use embar_wire::batch::BatchHeader;
use embar_wire::isolation::Isolation;
use embar_wire::topic::Order;

use super::Location;
use super::batch_record::BatchRecord;
use super::extents::{Extents, Victim};
use super::on_disks::OnDisks;
use super::undurable::Totals;
use crate::topics::Topic;

/// One batch of the order.
pub(super) struct OrderedBatch<M: Memory> {
    pub base: u64,
    pub producer: u64,
    pub sequence: u64,
    pub payload_at: u64,
    pub count: u32,
    /// Bytes, header included.
    pub len: u32,
    /// The broker in whose payload file it lies.
    pub row: u16,
    /// Order of its extent: 64 KiB << order.
    pub extent_order: u8,
    /// Its bytes, if they are this broker's. The log's only lasting pin on them.
    pub span: Option<Span<M>>,
}

impl<M: Memory> OrderedBatch<M> {
    pub fn new(record: &GoiRecord, span: Option<Span<M>>) -> Self {
        Self {
            base: record.base,
            producer: record.producer,
            sequence: record.sequence,
            payload_at: record.payload_at,
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

    /// Its bytes in this broker's memory.
    fn own_bytes(&self) -> u64 {
        match self.span {
            Some(_) => self.len.into(),
            None => 0,
        }
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
            payload_at: self.payload_at,
            len: self.len,
            extent_order: self.extent_order,
            is_stamped: false,
        }
    }
}

/// A topic of order 2 or 5, as far as this broker has followed it.
pub(super) struct OrderedTopic<M: Memory> {
    pub id: u32,
    pub order: Order,
    pub first: u64,
    pub next: u64,
    /// Bytes of readable batches in this broker's memory.
    pub bytes: u64,
    /// Those batches.
    pub batches: u64,
    /// Its window was lost, and is not published before recovery has found out what this broker has: some of
    /// what the order describes may have been evicted.
    pub window_lost: bool,
    on_disks: OnDisks,
    /// As [`OrderedTopic::lost`], while it lies above `first`.
    lost: u64,
    window: WindowWriter<M>,
    pub extents: Extents<M>,
    entries: VecDeque<OrderedBatch<M>>,
}

impl<M: Memory> OrderedTopic<M> {
    /// A topic that is followed from position `first` on.
    pub fn new(
        topic: &Topic,
        first: u64,
        window: WindowWriter<M>,
        window_lost: bool,
        undurable: &Arc<Totals>,
    ) -> Self {
        let id = topic.id;
        let before = window.window();
        let disks = topic.disks;
        let mut topic = Self {
            id,
            order: topic.order,
            first,
            next: first,
            bytes: 0,
            batches: 0,
            window_lost,
            on_disks: OnDisks::new(topic, first, undurable),
            lost: if before.chain == id { before.lost } else { 0 },
            window,
            extents: Extents::new(id, true, topic.retention_bytes),
            entries: VecDeque::new(),
        };
        if disks != 0 {
            topic.extents.set_durable(first);
        }
        topic.publish_window();
        topic
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
        let held = self.entries.iter().map(|it| (it.end(), it.own_bytes()));
        self.on_disks.replace(topic, self.first, held);
        self.extents.set_durable(self.first);
    }

    /// Up to where all of its disks have it; the end of all positions if it is in memory alone.
    pub fn durable(&self) -> u64 {
        self.on_disks.durable(self.first)
    }

    /// The first position that its disks have; that in memory if it is on none.
    pub fn first_on_disks(&self) -> u64 {
        self.on_disks.first(self.first)
    }

    /// All of its disks have it up to `next`, and the first that any has is `first`. False if that is no further than before.
    pub fn set_frontier(&mut self, first: u64, next: u64) -> bool {
        self.on_disks.set_first(first);
        if next <= self.durable() {
            return false;
        }
        let from = { &self.entries }.partition_point(|it| !self.on_disks.lack(it.end()));
        let lacking = self.entries.range(from..);
        let lacking = lacking.map(|it| (it.end(), it.own_bytes()));
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

    fn publish_window(&mut self) {
        if !self.window_lost {
            self.window
                .recover(self.id, self.first, self.next, self.lost);
        }
    }

    /// Messages below this position are gone because they were damaged, or because it cannot be known whether
    /// they were, and would not have been evicted by now; 0 when none are.
    pub fn lost(&self) -> u64 {
        if self.first > self.lost { 0 } else { self.lost }
    }

    /// Whether a record is the next one. The first one may begin before `next`: then some broker's window
    /// begins inside of it.
    pub fn continues(&self, record: &GoiRecord) -> bool {
        let begins = self.entries.is_empty() && (record.base..record.end()).contains(&self.next);
        record.base == self.next || begins
    }

    /// Appends the next batch of the order; `location` is that of one of this broker's own.
    pub fn append(&mut self, batch: OrderedBatch<M>, location: Option<&Location>) {
        if self.entries.is_empty() && batch.base < self.next {
            (self.first, self.next) = (batch.base, batch.base);
            self.publish_window();
        }
        assert_eq!(batch.base, self.next, "positions are dense");
        self.next = batch.end();
        if let Some(location) = location {
            self.bytes += u64::from(batch.len);
            self.batches += 1;
            self.extents.complete(location, batch.end());
        }
        self.on_disks.add(batch.end(), 1, batch.own_bytes());
        self.entries.push_back(batch);
    }

    /// The topic is deleted. Its window says so before its memory goes.
    pub fn close(&mut self) {
        self.drop_below(self.next);
    }

    /// Positions below `first` were given up before this broker read them.
    pub fn skip_to(&mut self, first: u64) {
        self.next = self.next.max(first);
        self.raise_first(first);
    }

    /// Gives back what this broker kept below `first`: at other brokers that memory is used again.
    pub fn raise_first(&mut self, first: u64) {
        if first > self.first {
            self.drop_below(first);
            self.extents.take_below(first, drop);
        }
    }

    fn drop_below(&mut self, first: u64) {
        self.first = first;
        // Readers of our memory look at the window before they trust what they read below it.
        if !injected(Canary::OrderedWindowRaise) {
            self.publish_window();
        }
        while let Some(batch) = self.entries.pop_front_if(|it| it.base < first) {
            self.on_disks.remove(batch.end(), batch.own_bytes());
            if batch.span.is_some() {
                self.bytes -= u64::from(batch.len);
                self.batches -= 1;
                self.extents.mark_dead(batch.payload_at, batch.len.into());
            }
        }
    }

    /// Takes out the victim, into `taken`. What lies in it, and everything below, is gone for all brokers.
    pub fn evict(&mut self, victim: &Victim, taken: &mut Vec<Extent<M>>) {
        if victim.end > self.first {
            self.drop_below(victim.end);
        }
        self.extents.take_with(victim, self.first, taken);
    }

    /// Whether the oldest extent can go and still leave what is to be retained on this broker.
    pub fn exceeds_retention(&self) -> bool {
        let own = |it: &&OrderedBatch<M>| it.span.is_some();
        let leaving = |end| {
            self.entries
                .iter()
                .take_while(move |it| it.base < end)
                .filter(own)
        };
        self.extents.exceed(self.bytes, |end| {
            leaving(end).map(|it| u64::from(it.len)).sum()
        })
    }

    /// The batches from the one that contains `from` on; `from` lies in `[first, next)`.
    pub fn batches_from(&self, from: u64) -> impl Iterator<Item = &OrderedBatch<M>> {
        let start = self.entries.partition_point(|it| it.end() <= from);
        self.entries.range(start..)
    }

    /// The position of the batch with this producer and number, if a search of the newest finds it. The search
    /// takes from `lookups` one for each batch that it looks at, and ends when none is left.
    pub fn position_of(&self, wanted: (u64, u64), lookups: &mut usize) -> Option<u64> {
        let newest = self.entries.iter().rev().take(*lookups);
        for batch in newest {
            *lookups -= 1;
            if (batch.producer, batch.sequence) == wanted {
                return Some(batch.base);
            }
        }
        None
    }

    /// Recovery: gives the batches of this broker their bytes, each what is there of it.
    pub fn adopt_spans(&mut self, row: u16, spans: impl Iterator<Item = Option<Span<M>>>) {
        let own = self.entries.iter_mut().filter(|it| it.row == row);
        for (batch, span) in own.zip(spans) {
            batch.span = span;
            if batch.span.is_some() {
                self.bytes += u64::from(batch.len);
                self.batches += 1;
            }
            self.on_disks.add(batch.end(), 0, batch.own_bytes());
        }
    }

    /// Recovery: where a topic begins whose window was lost is known by the batches whose bytes are
    /// there.
    pub fn settle_first(&mut self, row: u16) {
        if !std::mem::take(&mut self.window_lost) {
            return;
        }
        let gone = self.own(row).rev().find(|it| it.span.is_none());
        match gone.map(OrderedBatch::end) {
            Some(end) if end > self.first => {
                self.lost = end;
                self.raise_first(end);
            }
            _ => self.publish_window(),
        }
    }

    /// Recovery: the batches of this broker, whose bytes are to be kept.
    pub fn own(&self, row: u16) -> impl DoubleEndedIterator<Item = &OrderedBatch<M>> {
        self.entries.iter().filter(move |it| it.row == row)
    }
}

#[cfg(test)]
mod tests {
    use embar_memory::Simulated;
    use embar_wire::time::WallNs;

    use super::*;
    use crate::test_region;

    fn followed_from(first: u64) -> OrderedTopic<Simulated> {
        let region = test_region::region(&test_region::geometry());
        let window = region.window_writer(&region.claim_unlocked(1), 0);
        let topic = Topic {
            id: 0,
            name: "t".into(),
            order: Order::TotalPerPublisher,
            retention_bytes: 0,
            retention_ms: 0,
            max_message_bytes: 1 << 20,
            created: WallNs(0),
            disks: 0,
            former_disks: 0,
            moves: 0,
        };
        OrderedTopic::new(&topic, first, window, false, &Arc::default())
    }

    fn record(base: u64, count: u32) -> GoiRecord {
        GoiRecord {
            base,
            count,
            ..GoiRecord::default()
        }
    }

    #[test]
    fn a_broker_that_begins_inside_a_batch_gets_all_of_it() {
        let mut topic = followed_from(5);
        assert!(!topic.continues(&record(2, 3)) && !topic.continues(&record(6, 1)));
        let whole = record(3, 4);
        assert!(topic.continues(&whole));
        topic.append(OrderedBatch::new(&whole, None), None);
        assert_eq!((topic.first, topic.next), (3, 7));
        assert!(!topic.continues(&whole), "only the first one");
        assert!(topic.continues(&record(7, 1)));
    }
}
