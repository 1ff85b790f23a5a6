//! Taking over what a dead incarnation of this broker left in the region.
//!
//! Its acknowledged batches are all there: an acknowledgement follows the
//! index record, and that follows the written-back bytes. Every record is
//! checked against its bytes all the same; positions must never change, so
//! after a damaged batch only what lies above it is kept.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::sync::Arc;

use embar_fabric::blog::{Blog, Extent};
use embar_fabric::geometry::UNIT_BYTES;
use embar_fabric::memory::Memory;
use embar_fabric::owner::Claim;
use embar_fabric::records::{IndexRecord, Window};
use embar_fabric::region::Region;
use embar_wire::batch::BatchHeader;
use embar_wire::limits::{BATCH_HEADER_BYTES, LINE_BYTES, MAX_BATCH_BYTES};

use super::chain::{Chain, Entry};
use super::order::Ordering;
use super::{Log, Watermarks};
use crate::topics::Topic;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Topics with at least one batch.
    pub topics: u64,
    /// Batches that can be read again.
    pub batches: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Batches whose record and bytes did not match, and all before them.
    pub damaged: u64,
}

impl<M: Memory> Log<M> {
    /// Opens the log of a claimed row over whatever the region holds for it. `topics` are those that
    /// exist. Ordered topics are there after [`Log::rejoin`].
    pub fn open(
        region: &Region<M>,
        claim: &Arc<Claim>,
        marks: Watermarks,
        topics: &[Topic],
    ) -> (Self, Recovered) {
        let row = claim.row();
        let mut recovered = Recovered::default();
        let mut found: BTreeMap<u32, Vec<IndexRecord>> =
            region.index_reader(row).scan().into_iter().collect();
        let mut index = region.index_writer(claim);
        let blog = region.blog(claim);
        let mut chains = BTreeMap::new();
        for topic in topics.iter().filter(|topic| !topic.is_ordered()) {
            let window = region
                .window(row, topic.cell())
                .filter(|w| w.chain == topic.id);
            let writer = region.window_writer(claim, topic.cell());
            let mut chain = Chain::new(topic.id, topic.retention_bytes, writer);
            let records = found.remove(&topic.id).unwrap_or_default();
            restore(&mut chain, &blog, window, &records, &mut recovered);
            if chain.batches() > 0 {
                index.release_before(topic.id, chain.first);
            } else {
                // It may go on at an offset that the index does not know.
                index.drop_chain(topic.id);
            }
            chain.publish_window();
            chains.insert(topic.id, chain);
        }
        for deleted in found.into_keys() {
            index.drop_chain(deleted);
        }
        let mut log = Self {
            region: region.clone(),
            claim: Arc::clone(claim),
            blog,
            index,
            chains,
            ordered: BTreeMap::new(),
            ordering: Ordering::new(region, claim),
            marks,
            reserved_bytes: 0,
            on_their_way: 0,
            congested: false,
            evictions: 0,
        };
        for topic in topics.iter().filter(|topic| topic.is_ordered()) {
            log.open_ordered(topic);
        }
        (log, recovered)
    }

    /// Keeps the memory of the batches that lie here and were ordered, for this broker's older
    /// incarnations. Nothing was allocated since [`Log::open`].
    pub(super) fn adopt_ordered(&mut self) {
        let row = self.claim.row();
        for topic in self.ordered.values_mut() {
            let mut extents: BTreeMap<u64, Found<M>> = BTreeMap::new();
            for entry in topic.own(row) {
                let located = Blog::<M>::locate(entry.blog_at, entry.len, entry.extent_order);
                let Some((start, used)) = located else {
                    continue;
                };
                let found = match extents.entry(start) {
                    Slot::Occupied(found) => found.into_mut(),
                    Slot::Vacant(vacant) => {
                        let Some(extent) = self.blog.allocate_at(start, entry.extent_order) else {
                            continue;
                        };
                        vacant.insert(Found {
                            extent,
                            oldest: entry.base,
                            end: 0,
                            used: 0,
                        })
                    }
                };
                found.used = found.used.max(used);
                found.extent.set_cursor(found.used);
                found.end = entry.end();
            }
            topic.adopt_spans(row, |entry| {
                let (start, _) = Blog::<M>::locate(entry.blog_at, entry.len, entry.extent_order)?;
                extents.get(&start)?.extent.span(entry.blog_at, entry.len)
            });
            let mut extents: Vec<Found<M>> = extents.into_values().collect();
            extents.sort_unstable_by_key(|found| found.oldest);
            for found in extents {
                topic.extents.adopt(found.extent, found.end);
            }
        }
    }
}

fn restore<M: Memory>(
    chain: &mut Chain<M>,
    blog: &Blog<M>,
    window: Option<Window>,
    records: &[IndexRecord],
    recovered: &mut Recovered,
) {
    let evicted_below = window.map_or(0, |w| w.first);
    let retained = records.iter().filter(|r| r.base >= evicted_below);
    let mut run = Run::default();
    for record in retained {
        if run.take(blog, chain.id, record) {
            continue;
        }
        // The record may be sound and only not follow its predecessor.
        recovered.damaged += run.entries.len() as u64;
        run = Run::default();
        recovered.damaged += u64::from(!run.take(blog, chain.id, record));
    }
    for entry in run.entries {
        recovered.batches += 1;
        recovered.bytes += entry.span.len() as u64;
        chain.adopt_entry(entry);
    }
    let mut extents: Vec<Found<M>> = run.extents.into_values().collect();
    extents.sort_unstable_by_key(|found| found.oldest);
    for found in extents {
        chain.extents.adopt(found.extent, found.end);
    }
    recovered.topics += u64::from(chain.batches() > 0);
    // The window may know of offsets whose batches were all evicted or damaged.
    let next = window
        .map_or(0, |w| w.next)
        .max(records.last().map_or(0, end));
    if chain.batches() == 0 || chain.next < next {
        chain.restart_at(next);
    }
}

/// A dense run of checked batches, and the extents that they lie in.
struct Run<M: Memory> {
    entries: Vec<Entry<M>>,
    extents: BTreeMap<u64, Found<M>>,
}

struct Found<M: Memory> {
    extent: Extent<M>,
    /// Offset of the first batch found in it: extents are chained in this order.
    oldest: u64,
    end: u64,
    used: u32,
}

impl<M: Memory> Default for Run<M> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            extents: BTreeMap::new(),
        }
    }
}

impl<M: Memory> Run<M> {
    /// False when the record does not continue the run or its bytes are not its own.
    fn take(&mut self, blog: &Blog<M>, topic: u32, record: &IndexRecord) -> bool {
        if self
            .entries
            .last()
            .is_some_and(|last| last.end() != record.base)
        {
            return false;
        }
        let size = UNIT_BYTES << record.extent_order.min(8);
        let start = record.blog_at & !(size - 1);
        let used = (record.blog_at - start).saturating_add(record.len.into());
        let whole_lines =
            (record.blog_at | u64::from(record.len)).is_multiple_of(LINE_BYTES as u64);
        if used > size || record.extent_order > 8 || !whole_lines {
            return false;
        }
        let found = match self.extents.entry(start) {
            Slot::Occupied(found) => found.into_mut(),
            Slot::Vacant(vacant) => {
                let Some(extent) = blog.allocate_at(start, record.extent_order) else {
                    return false;
                };
                vacant.insert(Found {
                    extent,
                    oldest: record.base,
                    end: 0,
                    used: 0,
                })
            }
        };
        let used = (found.used).max(used as u32);
        found.extent.set_cursor(used);
        found.used = used;
        let Some(span) = found.extent.span(record.blog_at, record.len) else {
            return false;
        };
        if !span.with_bytes(|bytes| is_the_batch(bytes, topic, record)) {
            return false;
        }
        found.end = end(record);
        self.entries.push(Entry {
            base: record.base,
            count: record.count,
            span,
        });
        true
    }
}

fn end(record: &IndexRecord) -> u64 {
    record.base.saturating_add(u64::from(record.count))
}

fn is_the_batch(bytes: &[u8], topic: u32, record: &IndexRecord) -> bool {
    let Ok(header) = BatchHeader::parse(bytes, MAX_BATCH_BYTES) else {
        return false;
    };
    header.topic() == topic
        && header.base_offset() == record.base
        && header.message_count() == record.count
        && header.check_payload(&bytes[BATCH_HEADER_BYTES..]).is_ok()
}
