//! Taking over what a dead incarnation of this broker left in the region.
//!
//! Its acknowledged batches are all there: an acknowledgement follows the
//! index record, and that follows the written-back bytes. Every record is
//! checked against its bytes all the same; positions must never change, so
//! after a damaged batch only what lies above it is kept.

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use embar_fabric::blog::{Blog, Extent};
use embar_fabric::memory::Memory;
use embar_fabric::owner::Claim;
use embar_fabric::records::{IndexRecord, PbrRecord, Window};
use embar_fabric::region::Region;
use embar_wire::batch::BatchHeader;
use embar_wire::limits::{BATCH_HEADER_BYTES, LINE_BYTES, MAX_BATCH_BYTES};

use super::chain::{Chain, Entry};
use super::elsewhere::Elsewhere;
use super::extents::Extents;
use super::intake::Intake;
use super::order::Ordering;
use super::ranks::Ranks;
use super::sizes::Sizes;
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
    /// Batches whose record and bytes did not match, and all before them in topics that are not
    /// ordered.
    pub damaged: u64,
}

impl<M: Memory> Log<M> {
    /// Opens the log of a claimed row over whatever the region holds for it. `topics` are those that
    /// exist. What lies in ordered ones, and in those whose window was lost, is there after
    /// [`Log::rejoin`].
    pub fn open(
        region: &Region<M>,
        claim: &Arc<Claim>,
        marks: Watermarks,
        topics: &[Topic],
    ) -> Self {
        let row = claim.row();
        let mut found: BTreeMap<u32, Vec<IndexRecord>> =
            region.index_reader(row).scan().into_iter().collect();
        let blog = region.blog(claim);
        let total_bytes = blog.total_bytes();
        let geometry = region.geometry();
        let places = geometry.index_pages.min(geometry.lane_slots);
        let mut log = Self {
            region: region.clone(),
            claim: Arc::clone(claim),
            blog,
            index: region.index_writer(claim),
            chains: BTreeMap::new(),
            ordered: BTreeMap::new(),
            ordering: Ordering::new(region, claim),
            elsewhere: Elsewhere::new(region, claim),
            intake: Intake::new(marks, total_bytes, places),
            sizes: Sizes::default(),
            pages: Ranks::default(),
            on_their_way: 0,
            evictions: 0,
            recalls: 0,
            no_block: None,
            recovered: Recovered::default(),
            unknown: BTreeSet::new(),
            unsure: Vec::new(),
        };
        for topic in topics.iter().filter(|topic| !topic.is_ordered()) {
            let records = found.remove(&topic.id).unwrap_or_default();
            let window = region.window(row, topic.cell());
            if !window.is_damaged() {
                let window = window.found().filter(|w| w.chain == topic.id);
                log.restore(topic, window, &records);
            } else if records.is_empty() {
                // Its window stays as it is: the next life must not take it for an empty one.
                log.chains.insert(topic.id, log.chain_of(topic));
                log.unknown.insert(topic.id);
            } else {
                log.unsure.push((topic.clone(), records));
            }
        }
        for deleted in found.into_keys() {
            log.index.drop_chain(deleted);
        }
        for topic in topics.iter().filter(|topic| topic.is_ordered()) {
            log.open_ordered(topic);
        }
        log
    }

    /// A topic of order 0 or 1 with nothing in it.
    pub(super) fn chain_of(&self, topic: &Topic) -> Chain<M> {
        let window = self.region.window_writer(&self.claim, topic.cell());
        Chain::new(topic.id, topic.retention_bytes, window)
    }

    /// Takes in what there is of a topic of order 0 or 1. Without its window, records may be among
    /// those in `records` whose memory others use: theirs is to be kept already.
    fn restore(&mut self, topic: &Topic, window: Option<Window>, records: &[IndexRecord]) {
        let mut chain = self.chain_of(topic);
        let recovered = &mut self.recovered;
        let lost = refill(&mut chain, &self.blog, window, records, recovered);
        if chain.batches() > 0 {
            self.index.release_before(topic.id, chain.first);
        } else {
            // It may go on at an offset that the index does not know.
            self.index.drop_chain(topic.id);
        }
        chain.publish_window(lost);
        self.chains.insert(topic.id, chain);
        self.paged(topic.id);
        self.resized(topic.id);
    }

    /// What was found; that of ordered topics is counted by [`Log::rejoin`].
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// Keeps the memory of the batches that lie here and were ordered, for this broker's older
    /// incarnations, and of the topics whose windows were lost. Nothing was allocated since
    /// [`Log::open`].
    pub(super) fn adopt_ordered(&mut self) {
        let ids: Vec<u32> = self.ordered.keys().copied().collect();
        let (damaged, whole): (Vec<u32>, _) = ids.into_iter().partition(|id| self.is_damaged(*id));
        let (unsure, sure): (Vec<u32>, _) =
            whole.into_iter().partition(|id| self.ordered[id].is_unsure);
        for id in sure {
            self.adopt_topic(id, &[]);
        }
        // Of these, batches may be told of that were evicted: they must not lie in anybody's way.
        for (topic, records) in std::mem::take(&mut self.unsure) {
            self.restore(&topic, None, &records);
        }
        for id in unsure {
            self.adopt_topic(id, &[]);
        }
        // Nor must what may be left of damaged ones.
        for id in damaged {
            let left = self.left_of(id);
            self.adopt_topic(id, &left);
        }
    }

    /// Keeps the memory of one topic: of its batches, and of what may be a batch beyond those that can
    /// be read.
    fn adopt_topic(&mut self, id: u32, left: &[PbrRecord]) {
        let row = self.claim.row();
        let Some(topic) = self.ordered.get_mut(&id) else {
            return;
        };
        let mut extents: BTreeMap<u64, Found<M>> = BTreeMap::new();
        // From the newest on: what was evicted, if the window does not tell, may have lain where they do.
        for entry in topic.own(row).rev() {
            let at = (entry.blog_at, entry.len, entry.extent_order);
            if let Some(found) = find(&self.blog, &mut extents, at) {
                found.hold(entry.base, entry.end());
            }
        }
        let told = topic.own(row).count() as u64;
        let is_unsure = topic.is_unsure;
        topic.adopt_spans(row, |entry| {
            let order = entry.extent_order;
            let (start, _) = Blog::<M>::locate(entry.blog_at, entry.len, order)?;
            let found = extents
                .get_mut(&start)
                .filter(|it| it.extent.order() == order)?;
            let span = found.extent.span(entry.blog_at, entry.len)?;
            let is_whole = |bytes: &[u8]| {
                let header = entry.header_in(bytes, id);
                let payload = &bytes[BATCH_HEADER_BYTES.min(bytes.len())..];
                header.is_some_and(|it| !is_unsure || it.check_payload(payload).is_ok())
            };
            let whole = span.with_bytes(is_whole);
            if whole {
                found.bytes += u64::from(entry.len);
            }
            whole.then_some(span)
        });
        for record in left {
            let at = (record.blog_at, record.len, record.extent_order());
            if let Some(found) = find(&self.blog, &mut extents, at) {
                found.unknown = true;
            }
        }
        adopt(&mut topic.extents, extents);
        topic.settle_first(row);
        self.recovered.topics += u64::from(topic.batches > 0);
        self.recovered.batches += topic.batches;
        self.recovered.bytes += topic.bytes;
        self.recovered.damaged += told - topic.batches;
        self.resized(id);
    }
}

/// Extents with batches, the one with the oldest first. In those without, others may have theirs.
fn adopt<M: Memory>(extents: &mut Extents<M>, found: BTreeMap<u64, Found<M>>) {
    let found = found.into_values();
    let mut found: Vec<Found<M>> = found.filter(|it| it.bytes > 0 || it.unknown).collect();
    found.sort_unstable_by_key(|found| found.oldest);
    for Found {
        extent,
        end,
        bytes,
        unknown,
        ..
    } in found
    {
        extents.adopt(extent, end, bytes, unknown);
    }
}

/// The extent of a batch, with room up to its end. `None` when it is not where an extent can be, or
/// others are.
fn find<'a, M: Memory>(
    blog: &Blog<M>,
    extents: &'a mut BTreeMap<u64, Found<M>>,
    (at, len, order): (u64, u32, u8),
) -> Option<&'a mut Found<M>> {
    let (start, used) = Blog::<M>::locate(at, len, order)?;
    let found = match extents.entry(start) {
        Slot::Occupied(found) => found.into_mut(),
        Slot::Vacant(vacant) => vacant.insert(Found {
            extent: blog.allocate_at(start, order)?,
            oldest: u64::MAX,
            end: 0,
            bytes: 0,
            used: 0,
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

/// Fills a chain that has nothing. Returns the offset below which messages are lost, 0 if none are.
fn refill<M: Memory>(
    chain: &mut Chain<M>,
    blog: &Blog<M>,
    window: Option<Window>,
    records: &[IndexRecord],
    recovered: &mut Recovered,
) -> u64 {
    let evicted_below = window.map_or(0, |w| w.first);
    let retained = records.iter().filter(|r| r.base >= evicted_below);
    let mut run = Run::default();
    // From the newest on: what was evicted, if the window does not tell, may have lain where they do.
    let newest = retained.clone().rev();
    let taken = newest.take_while(|record| run.take(blog, chain.id, record));
    let damaged = (retained.count() - taken.count()) as u64;
    recovered.damaged += damaged;
    for entry in run.entries.into_iter().rev() {
        recovered.batches += 1;
        recovered.bytes += entry.span.len() as u64;
        chain.adopt_entry(entry);
    }
    adopt(&mut chain.extents, run.extents);
    recovered.topics += u64::from(chain.batches() > 0);
    // The window may know of offsets whose batches were all evicted or damaged.
    let next = window
        .map_or(0, |w| w.next)
        .max(records.last().map_or(0, end));
    if chain.batches() == 0 || chain.next < next {
        chain.restart_at(next);
    }
    let missing = window.is_some_and(|w| w.first < w.next && w.first < chain.first);
    let before = window.map_or(0, |w| w.lost);
    if missing || damaged > 0 {
        before.max(chain.first)
    } else {
        before
    }
}

/// A dense run of checked batches, the newest first, and the extents that they lie in.
struct Run<M: Memory> {
    entries: Vec<Entry<M>>,
    extents: BTreeMap<u64, Found<M>>,
}

struct Found<M: Memory> {
    extent: Extent<M>,
    /// Offset of the first batch found in it: extents are chained in this order.
    oldest: u64,
    end: u64,
    /// Of the batches in it that can be read.
    bytes: u64,
    used: u32,
    /// Whether it holds what may be batches, nobody knows where in the order.
    unknown: bool,
}

impl<M: Memory> Found<M> {
    /// A batch lies in it.
    fn hold(&mut self, base: u64, end: u64) {
        self.oldest = self.oldest.min(base);
        self.end = self.end.max(end);
    }
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
    /// False when the run does not continue the record, or the record's bytes are not its own.
    fn take(&mut self, blog: &Blog<M>, topic: u32, record: &IndexRecord) -> bool {
        if self
            .entries
            .last()
            .is_some_and(|behind| end(record) != behind.base)
        {
            return false;
        }
        let whole_lines =
            (record.blog_at | u64::from(record.len)).is_multiple_of(LINE_BYTES as u64);
        if !whole_lines {
            return false;
        }
        let at = (record.blog_at, record.len, record.extent_order);
        let Some(found) = find(blog, &mut self.extents, at) else {
            return false;
        };
        let Some(span) = found.extent.span(record.blog_at, record.len) else {
            return false;
        };
        if !span.with_bytes(|bytes| is_the_batch(bytes, topic, record)) {
            return false;
        }
        found.hold(record.base, end(record));
        found.bytes += u64::from(record.len);
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
