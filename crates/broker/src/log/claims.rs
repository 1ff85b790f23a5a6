//! Which memory is whose: where records say that a topic's batches lie, and they are.
//!
//! Without its window, nobody knows how far down a topic's records count: some may be of batches that were
//! evicted, and whose bytes are whole still, as another topic has their block since and has not filled it
//! yet. So what such records tell of is looked at for all these topics at once, the youngest batch first:
//! whoever has a block stored in it after all that lay there before was evicted. What another topic's records
//! tell of in a block that is taken is gone, and all that is older with it.
//!
//! A batch is as old as the time says that this broker stamped into it. Where the clock was set back, a block
//! may go to the topic that had it before: then the other one tells what it lost, as after any damage.

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
enum Look {
    Header,
    Payload,
}

/// What the records of one topic tell of, and what of it is there.
pub(super) struct Claims<M: Memory> {
    topic: u32,
    /// The oldest first.
    told: Vec<BatchRecord>,
    /// Of each of them, what is there.
    spans: Vec<Option<Span<M>>>,
    /// Those before this one are gone, and so is their memory.
    from: usize,
    /// By where they begin.
    extents: BTreeMap<u64, Found<M>>,
}

/// An extent with something of the topic.
struct Found<M: Memory> {
    extent: Extent<M>,
    /// Bytes at its start that records tell of.
    used: u32,
    /// Offset of the first batch that is there: extents are chained in this order.
    oldest: u64,
    /// Offset after the last one.
    end: u64,
    /// Of all of them.
    bytes: u64,
    /// Whether it holds what may be batches, nobody knows where in the order.
    unknown: bool,
}

impl<M: Memory> Claims<M> {
    /// What is told of a topic, the oldest first.
    pub fn new(topic: u32, told: impl Iterator<Item = BatchRecord>) -> Self {
        let told: Vec<BatchRecord> = told.collect();
        Self {
            topic,
            spans: told.iter().map(|_| None).collect(),
            told,
            from: 0,
            extents: BTreeMap::new(),
        }
    }

    /// Of a topic with offsets of its own, which have no holes: what lies below one is gone.
    pub fn dense(mut self) -> Self {
        let mut pairs = self.told.windows(2);
        let hole = pairs.rposition(|pair| pair[0].end() != pair[1].base);
        self.from = hole.map_or(0, |below| below + 1);
        self
    }

    /// Takes all that a window tells of: nobody else can have it.
    pub fn take_all(&mut self, blog: &PayloadFile<M>) {
        // From the newest on: what a damaged record tells of may lie where others do.
        for batch in (0..self.told.len()).rev() {
            self.spans[batch] = self.find_batch(blog, batch, Look::Header);
        }
        self.give_up_empty();
    }

    /// Takes what is there and whole, from the newest on: what lies below a batch that is not is gone. Nobody
    /// else can have what a window tells of.
    pub fn take_newest(&mut self, blog: &PayloadFile<M>) {
        for batch in (self.from..self.told.len()).rev() {
            self.take(blog, batch);
        }
    }

    /// Takes a batch, if it is there and whole; or it is gone, and so are all before it.
    fn take(&mut self, blog: &PayloadFile<M>, batch: usize) {
        if batch < self.from {
            return;
        }
        self.spans[batch] = self.find_batch(blog, batch, Look::Payload);
        if self.spans[batch].is_none() {
            self.give_up_before(batch + 1);
        }
    }

    fn give_up_before(&mut self, batch: usize) {
        self.from = batch;
        self.spans[..batch].iter_mut().for_each(|span| *span = None);
        self.give_up_empty();
    }

    /// In extents without batches others may have theirs.
    fn give_up_empty(&mut self) {
        self.extents.retain(|_, found| found.extent.pins() > 0);
    }

    fn find_batch(&mut self, blog: &PayloadFile<M>, batch: usize, look: Look) -> Option<Span<M>> {
        let (told, topic) = (self.told[batch], self.topic);
        let found = self.find(blog, told.blog_at, told.len, told.extent_order)?;
        let span = found.extent.span(told.blog_at, told.len)?;
        let is_its_own = span.with_bytes(|bytes| {
            let header = told.header_in(bytes, topic);
            let payload = &bytes[BATCH_HEADER_BYTES.min(bytes.len())..];
            header.is_some_and(|it| look == Look::Header || it.check_payload(payload).is_ok())
        });
        is_its_own.then_some(span)
    }

    /// The extent of a batch, with room up to its end. `None` when it is not where an extent can be, or
    /// others are.
    fn find(
        &mut self,
        blog: &PayloadFile<M>,
        at: u64,
        len: u32,
        order: u8,
    ) -> Option<&mut Found<M>> {
        let (start, used) = locate::<M>(at, len, order)?;
        let found = match self.extents.entry(start) {
            Slot::Occupied(found) => found.into_mut(),
            Slot::Vacant(vacant) => vacant.insert(Found {
                extent: blog.allocate_at(start, order)?,
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

    /// Keeps the memory of what may be batches beyond those that can be read, if nobody else has it.
    pub fn leave(&mut self, blog: &PayloadFile<M>, left: &[PbrRecord]) {
        for record in left {
            let order = record.extent_order();
            if let Some(found) = self.find(blog, record.blog_at, record.len, order) {
                found.unknown = true;
            }
        }
    }

    /// Gives a topic the extents that are its own, the one with its oldest batch first. Returns what is there
    /// of each batch that was told of, the oldest first.
    pub fn adopt(
        mut self,
        extents: &mut Extents<M>,
    ) -> impl Iterator<Item = (BatchRecord, Option<Span<M>>)> + use<M> {
        for (told, span) in self.told.iter().zip(&self.spans) {
            if let Some(span) = span {
                let before = self.extents.range_mut(..=span.at()).next_back();
                let (_, found) = before.expect("a span lies in an extent");
                found.oldest = found.oldest.min(told.base);
                found.end = found.end.max(told.end());
                found.bytes += u64::from(told.len);
            }
        }
        let mut found: Vec<Found<M>> = self.extents.into_values().collect();
        found.sort_unstable_by_key(|found| found.oldest);
        for found in found {
            extents.adopt(found.extent, found.end, found.bytes, found.unknown);
        }
        self.told.into_iter().zip(self.spans)
    }

    /// Each batch that may be there, as its header is, and how old it is; what lies below one that is not is
    /// gone.
    fn headed(&mut self, blog: &PayloadFile<M>) -> Vec<(WallNs, usize)> {
        let mut headed = Vec::new();
        for batch in (self.from..self.told.len()).rev() {
            let told = self.told[batch];
            let place = (told.blog_at, told.len, told.extent_order);
            let header = peek(blog, place, |bytes| told.header_in(bytes, self.topic));
            let Some(header) = header.flatten() else {
                self.give_up_before(batch + 1);
                break;
            };
            headed.push((header.append_time(), batch));
        }
        headed
    }
}

/// Finds out what is there of topics whose records may tell of what was evicted: see the module.
pub(super) fn settle<M: Memory>(blog: &PayloadFile<M>, topics: &mut [Claims<M>]) {
    let mut batches: Vec<(WallNs, usize, usize)> = Vec::new();
    for (topic, claims) in topics.iter_mut().enumerate() {
        let headed = claims.headed(blog).into_iter();
        batches.extend(headed.map(|(time, batch)| (time, topic, batch)));
    }
    batches.sort_unstable();
    for (_, topic, batch) in batches.into_iter().rev() {
        topics[topic].take(blog, batch);
    }
}

/// Shows the header of what may be a batch, in memory that nobody has.
pub(super) fn peek<M: Memory, R>(
    blog: &PayloadFile<M>,
    (at, len, order): (u64, u32, u8),
    look: impl FnOnce(&[u8]) -> R,
) -> Option<R> {
    let (start, end) = locate::<M>(at, len, order)?;
    let mut extent = blog.allocate_at(start, order)?;
    extent.set_cursor(end);
    let header = extent.span(at, BATCH_HEADER_BYTES as u32)?;
    Some(header.with_bytes(look))
}

/// As [`PayloadFile::locate`]; batches are whole lines.
fn locate<M: Memory>(at: u64, len: u32, order: u8) -> Option<(u64, u32)> {
    let whole_lines = (at | u64::from(len)).is_multiple_of(LINE_BYTES as u64);
    whole_lines.then(|| PayloadFile::<M>::locate(at, len, order))?
}
