//! Which memory is whose after a restart: where records say that a topic's batches lie, and which of them do.
//!
//! A topic whose window was lost may have records of batches that were evicted: nothing says where it began.
//! Their bytes may be whole still, because another topic has their block since and has not filled it yet. So
//! the batches of all such topics are looked at together, the youngest first: whoever has a block stored in
//! it after all that lay there before was evicted. A batch whose block is taken is gone, and so is all of its
//! topic that is older.
//!
//! A batch is as old as the time says that this broker stamped into it. Where the clock was set back, a block
//! may go to the topic that had it before: then the other one reports what it lost, as after any damage.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use embar_fabric::records::PbrRecord;
use embar_memory::{Extent, Memory, PayloadFile, Span};
use embar_wire::limits::{BATCH_HEADER_BYTES, LINE_BYTES};
use embar_wire::time::WallNs;

use super::batch_record::BatchRecord;
use super::extents::Extents;

/// How closely a batch is looked at before it is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    Header,
    Payload,
}

/// The batches of one topic that records describe, and what of them is there.
pub(super) struct TopicRecovery<M: Memory> {
    topic: u32,
    /// The oldest first.
    records: Vec<BatchRecord>,
    /// Of each of them, what is there.
    spans: Vec<Option<Span<M>>>,
    /// Those before this one are gone, and so is their memory.
    from: usize,
    /// By where they begin.
    extents: BTreeMap<u64, FoundExtent<M>>,
}

/// An extent with something of the topic.
struct FoundExtent<M: Memory> {
    extent: Extent<M>,
    /// Bytes at its start that records describe.
    used: u32,
    /// Offset of the first batch that is there: a topic's extents follow each other in this order.
    oldest: u64,
    /// Offset after the last one.
    end: u64,
    /// Of all of them.
    bytes: u64,
    /// Whether it holds what may be batches whose positions cannot be known.
    unknown: bool,
}

impl<M: Memory> TopicRecovery<M> {
    /// Of a topic with these records, the oldest first.
    pub fn new(topic: u32, records: impl Iterator<Item = BatchRecord>) -> Self {
        let records: Vec<BatchRecord> = records.collect();
        Self {
            topic,
            spans: records.iter().map(|_| None).collect(),
            records,
            from: 0,
            extents: BTreeMap::new(),
        }
    }

    /// Of a topic with offsets of its own, which have no holes: what lies below a hole is gone.
    pub fn dense(mut self) -> Self {
        let mut pairs = self.records.windows(2);
        let hole = pairs.rposition(|pair| pair[0].end() != pair[1].base);
        self.from = hole.map_or(0, |below| below + 1);
        self
    }

    /// Takes all that records describe, of a topic whose window is there: no other topic can have its memory.
    pub fn take_all(&mut self, payload_file: &PayloadFile<M>) {
        // From the newest on: a damaged record may point to where other batches lie.
        for batch in (0..self.records.len()).rev() {
            self.spans[batch] = self.find_batch(payload_file, batch, Check::Header);
        }
        self.drop_empty_extents();
    }

    /// Takes what is there and whole, of a topic whose window is there, from the newest on: what lies below a
    /// batch that is not whole is gone.
    pub fn take_newest(&mut self, payload_file: &PayloadFile<M>) {
        for batch in (self.from..self.records.len()).rev() {
            self.take(payload_file, batch);
        }
    }

    /// Takes a batch, if it is there and whole; or it is gone, and so are all before it.
    fn take(&mut self, payload_file: &PayloadFile<M>, batch: usize) {
        if batch < self.from {
            return;
        }
        self.spans[batch] = self.find_batch(payload_file, batch, Check::Payload);
        if self.spans[batch].is_none() {
            self.drop_before(batch + 1);
        }
    }

    fn drop_before(&mut self, batch: usize) {
        self.from = batch;
        self.spans[..batch].iter_mut().for_each(|span| *span = None);
        self.drop_empty_extents();
    }

    /// In extents without a batch, other topics may have theirs.
    fn drop_empty_extents(&mut self) {
        self.extents.retain(|_, found| found.extent.pins() > 0);
    }

    fn find_batch(
        &mut self,
        payload_file: &PayloadFile<M>,
        batch: usize,
        check: Check,
    ) -> Option<Span<M>> {
        let (record, topic) = (self.records[batch], self.topic);
        let found = self.find_extent(
            payload_file,
            record.payload_at,
            record.len,
            record.extent_order,
        )?;
        let span = found.extent.span(record.payload_at, record.len)?;
        let is_its_own = span.with_bytes(|bytes| {
            let header = record.header_in(bytes, topic);
            let payload = &bytes[BATCH_HEADER_BYTES.min(bytes.len())..];
            header.is_some_and(|it| check == Check::Header || it.check_payload(payload).is_ok())
        });
        is_its_own.then_some(span)
    }

    /// The extent of a batch, with room up to its end. `None` when it is not where an extent can be, or
    /// another one is there.
    fn find_extent(
        &mut self,
        payload_file: &PayloadFile<M>,
        at: u64,
        len: u32,
        order: u8,
    ) -> Option<&mut FoundExtent<M>> {
        let (start, used) = locate::<M>(at, len, order)?;
        let found = match self.extents.entry(start) {
            Slot::Occupied(found) => found.into_mut(),
            Slot::Vacant(vacant) => vacant.insert(FoundExtent {
                extent: payload_file.allocate_at(start, order)?,
                used: 0,
                oldest: u64::MAX,
                end: 0,
                bytes: 0,
                unknown: false,
            }),
        };
        if found.extent.order() != order {
            return None;
        }
        found.used = found.used.max(used);
        found.extent.set_cursor(found.used);
        Some(found)
    }

    /// Keeps the memory of what may be batches beyond those that can be read, if no other topic has it.
    pub fn keep_stale(&mut self, payload_file: &PayloadFile<M>, stale: &[PbrRecord]) {
        for record in stale {
            let order = record.extent_order();
            if let Some(found) =
                self.find_extent(payload_file, record.payload_at, record.len, order)
            {
                found.unknown = true;
            }
        }
    }

    /// Gives a topic the extents that are its own, the one with its oldest batch first. Returns what is there
    /// of each batch, the oldest first.
    pub fn adopt(
        mut self,
        extents: &mut Extents<M>,
    ) -> impl Iterator<Item = (BatchRecord, Option<Span<M>>)> + use<M> {
        for (record, span) in self.records.iter().zip(&self.spans) {
            if let Some(span) = span {
                let before = self.extents.range_mut(..=span.at()).next_back();
                let (_, found) = before.expect("a span lies in an extent");
                found.oldest = found.oldest.min(record.base);
                found.end = found.end.max(record.end());
                found.bytes += u64::from(record.len);
            }
        }
        let mut found: Vec<FoundExtent<M>> = self.extents.into_values().collect();
        found.sort_unstable_by_key(|found| found.oldest);
        for found in found {
            extents.adopt(found.extent, found.end, found.bytes, found.unknown);
        }
        self.records.into_iter().zip(self.spans)
    }

    /// Each batch whose header is there, with its age; what lies below one whose header is not is gone.
    fn dated(&mut self, payload_file: &PayloadFile<M>) -> Vec<(WallNs, usize)> {
        let mut dated = Vec::new();
        for batch in (self.from..self.records.len()).rev() {
            let record = self.records[batch];
            let place = (record.payload_at, record.len, record.extent_order);
            let header = peek(payload_file, place, |bytes| {
                record.header_in(bytes, self.topic)
            });
            let Some(header) = header.flatten() else {
                self.drop_before(batch + 1);
                break;
            };
            dated.push((header.append_time(), batch));
        }
        dated
    }
}

/// Finds out what is there of topics whose records may be of batches that were evicted, as described at the
/// head of this file.
pub(super) fn take_youngest_first<M: Memory>(
    payload_file: &PayloadFile<M>,
    topics: &mut [TopicRecovery<M>],
) {
    let mut batches: Vec<(WallNs, usize, usize)> = Vec::new();
    for (topic, recovery) in topics.iter_mut().enumerate() {
        let dated = recovery.dated(payload_file).into_iter();
        batches.extend(dated.map(|(time, batch)| (time, topic, batch)));
    }
    batches.sort_unstable();
    for (_, topic, batch) in batches.into_iter().rev() {
        topics[topic].take(payload_file, batch);
    }
}

/// Shows the header of what may be a batch, in memory that belongs to no topic.
pub(super) fn peek<M: Memory, R>(
    payload_file: &PayloadFile<M>,
    (at, len, order): (u64, u32, u8),
    look: impl FnOnce(&[u8]) -> R,
) -> Option<R> {
    let (start, end) = locate::<M>(at, len, order)?;
    let mut extent = payload_file.allocate_at(start, order)?;
    extent.set_cursor(end);
    let header = extent.span(at, BATCH_HEADER_BYTES as u32)?;
    Some(header.with_bytes(look))
}

/// As [`PayloadFile::locate`]; batches are whole lines.
fn locate<M: Memory>(at: u64, len: u32, order: u8) -> Option<(u64, u32)> {
    let whole_lines = (at | u64::from(len)).is_multiple_of(LINE_BYTES as u64);
    whole_lines.then(|| PayloadFile::<M>::locate(at, len, order))?
}
