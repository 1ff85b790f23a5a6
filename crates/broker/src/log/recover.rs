//! Taking over what a dead incarnation of this broker left in the region.
//!
//! Its acknowledged batches are all there: an acknowledgement follows the
//! index record, and that follows the written-back bytes. Every record is
//! checked against its bytes all the same; positions must never change, so
//! after a damaged batch only what lies above it is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use embar_fabric::owner::Claim;
use embar_fabric::records::{IndexRecord, PbrRecord, Window};
use embar_fabric::region::Region;
use embar_memory::Memory;

use super::batch_record::BatchRecord;
use super::chain::{Chain, Entry};
use super::claims::{Claims, settle};
use super::elsewhere::Elsewhere;
use super::intake::Intake;
use super::order::Ordering;
use super::ordered;
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
        let index = region.index_reader(row);
        let mut found: BTreeMap<u32, Vec<IndexRecord>> = index.scan().into_iter().collect();
        let without_window = topics
            .iter()
            .filter(|topic| !topic.is_ordered() && region.window(row, topic.cell()).is_damaged());
        // Nobody knows which offset is the next. The index is looked at before its writer gives pages back.
        let unknown = without_window
            .map(|topic| topic.id)
            .filter(|id| !found.contains_key(id) || index.may_go_on(*id))
            .collect();
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
            unknown,
            unsure: Vec::new(),
        };
        for topic in topics.iter().filter(|topic| !topic.is_ordered()) {
            let records = found.remove(&topic.id).unwrap_or_default();
            let window = region.window(row, topic.cell());
            match window.found().filter(|w| w.chain == topic.id) {
                Some(window) => log.restore(topic, window, &records),
                // Its window stays as it is: the next life must not take it for an empty one.
                None if log.unknown.contains(&topic.id) => {
                    log.index.drop_chain(topic.id);
                    log.chains.insert(topic.id, log.chain_of(topic));
                }
                // Whoever has records had a window.
                None if !records.is_empty() => log.unsure.push((topic.clone(), records)),
                None => log.open_topic(topic),
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

    /// Takes in what there is of a topic of order 0 or 1 whose window is there.
    fn restore(&mut self, topic: &Topic, window: Window, records: &[IndexRecord]) {
        let retained = records.iter().filter(|r| r.base >= window.first);
        let mut claims = Claims::new(topic.id, retained.map(BatchRecord::from)).dense();
        claims.take_newest(&self.blog);
        self.take_in(topic, Some(window), claims);
    }

    /// Makes what there is of a topic of order 0 or 1 readable.
    fn take_in(&mut self, topic: &Topic, window: Option<Window>, claims: Claims<M>) {
        let mut chain = self.chain_of(topic);
        let (found, lost) = refill(&mut chain, window, claims);
        self.recovered.topics += found.topics;
        self.recovered.batches += found.batches;
        self.recovered.bytes += found.bytes;
        self.recovered.damaged += found.damaged;
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
        let ids = self.ordered.keys().copied();
        let (unsure, sure): (Vec<u32>, Vec<u32>) = ids.partition(|id| self.ordered[id].is_unsure);
        let damaged = self.ordered.keys().filter(|id| self.is_damaged(**id));
        // While nothing is taken: what lies beside their batches is among it.
        let left: BTreeMap<u32, Vec<PbrRecord>> =
            damaged.map(|id| (*id, self.left_of(*id))).collect();
        let mut in_part: Vec<(u32, Claims<M>)> = Vec::new();
        for id in sure {
            let mut claims = self.claims_in_order(id);
            claims.take_all(&self.blog);
            match left.contains_key(&id) {
                true => in_part.push((id, claims)),
                false => self.adopt_topic(id, claims),
            }
        }
        // Of these, batches may be told of that were evicted: they must not lie in anybody's way.
        in_part.append(&mut self.settle_unsure(&unsure));
        // Nor must what may be left of damaged ones.
        for (id, mut claims) in in_part {
            claims.leave(&self.blog, left.get(&id).map_or(&[], Vec::as_slice));
            self.adopt_topic(id, claims);
        }
    }

    /// Finds what there is of all topics whose windows were lost. Those of orders 0 and 1 can be read
    /// then; of these ordered ones it is returned.
    fn settle_unsure(&mut self, ordered: &[u32]) -> Vec<(u32, Claims<M>)> {
        let kept = std::mem::take(&mut self.unsure);
        let of_kept = kept.iter().map(|(topic, records)| {
            let told = records.iter().map(BatchRecord::from);
            Claims::new(topic.id, told).dense()
        });
        let of_ordered = ordered.iter().map(|id| self.claims_in_order(*id));
        let mut claims: Vec<Claims<M>> = of_kept.chain(of_ordered).collect();
        settle(&self.blog, &mut claims);
        let of_ordered = claims.split_off(kept.len());
        for ((topic, _), its) in kept.iter().zip(claims) {
            self.take_in(topic, None, its);
        }
        ordered.iter().copied().zip(of_ordered).collect()
    }

    /// What the order tells of one topic on this broker.
    fn claims_in_order(&self, id: u32) -> Claims<M> {
        let own = self.ordered[&id].own(self.claim.row());
        Claims::new(id, own.map(ordered::Entry::record))
    }

    /// Keeps the memory of one topic.
    fn adopt_topic(&mut self, id: u32, claims: Claims<M>) {
        let row = self.claim.row();
        let Some(topic) = self.ordered.get_mut(&id) else {
            return;
        };
        let told = topic.own(row).count() as u64;
        let spans = claims.adopt(&mut topic.extents);
        topic.adopt_spans(row, spans.map(|(_, span)| span));
        topic.settle_first(row);
        self.recovered.topics += u64::from(topic.batches > 0);
        self.recovered.batches += topic.batches;
        self.recovered.bytes += topic.bytes;
        self.recovered.damaged += told - topic.batches;
        self.resized(id);
    }
}

/// Fills a chain that has nothing. Returns what was found, and the offset below which messages are lost, 0 if
/// none are.
fn refill<M: Memory>(
    chain: &mut Chain<M>,
    window: Option<Window>,
    claims: Claims<M>,
) -> (Recovered, u64) {
    let (mut damaged, mut told_to) = (0, 0);
    for (told, span) in claims.adopt(&mut chain.extents) {
        told_to = told.end();
        match span {
            Some(span) => chain.adopt_entry(Entry {
                base: told.base,
                count: told.count,
                span,
            }),
            None => damaged += 1,
        }
    }
    let found = Recovered {
        topics: u64::from(chain.batches() > 0),
        batches: chain.batches(),
        bytes: chain.bytes,
        damaged,
    };
    // The window may know of offsets whose batches were all evicted or damaged.
    let next = window.map_or(0, |w| w.next).max(told_to);
    if chain.batches() == 0 || chain.next < next {
        chain.restart_at(next);
    }
    // Without a window nobody knows where it began.
    let began = window.map_or((0, next), |w| (w.first, w.next));
    let missing = began.0 < began.1 && began.0 < chain.first;
    let before = window.map_or(0, |w| w.lost);
    if missing || damaged > 0 {
        (found, before.max(chain.first))
    } else {
        (found, before)
    }
}
