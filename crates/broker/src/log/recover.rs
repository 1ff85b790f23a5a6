//! How a broker takes over what a dead incarnation of its own left in the region.
//!
//! Its acknowledged batches are all there: an acknowledgement follows the
//! index record, and that follows the written-back bytes. Every record is
//! checked against its bytes all the same. Positions must never change, so
//! below a damaged batch nothing is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use embar_fabric::owner::Claim;
use embar_fabric::records::{IndexRecord, PbrRecord, Window};
use embar_fabric::region::Region;
use embar_memory::Memory;

use super::admission::Admission;
use super::batch_record::BatchRecord;
use super::durable::Frontiers;
use super::local_topic::{LocalTopic, StoredBatch};
use super::order::OrderState;
use super::ordered_topic::OrderedBatch;
use super::ranks::Ranks;
use super::remote_windows::RemoteWindows;
use super::sizes::Sizes;
use super::topic_recovery::{TopicRecovery, take_youngest_first};
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
        let index = region.index_reader(claim.row());
        let records: BTreeMap<u32, Vec<IndexRecord>> = index.scan().into_iter().collect();
        let window = |topic: &Topic| region.window(claim.row(), topic.record());
        let without_window = topics
            .iter()
            .filter(|topic| !topic.is_ordered() && window(topic).is_damaged());
        // Nothing says which offset is the next. The index is looked at before its writer gives pages back.
        let unknown = without_window
            .map(|topic| topic.id)
            .filter(|id| !records.contains_key(id) || index.may_go_on(*id))
            .collect();
        let mut log = Self::empty(region, claim, marks, unknown);
        log.recover_local(topics, records);
        for topic in topics.iter().filter(|topic| topic.is_ordered()) {
            log.open_ordered(topic);
        }
        log
    }

    /// A log in which no topic is open.
    fn empty(
        region: &Region<M>,
        claim: &Arc<Claim>,
        marks: Watermarks,
        unknown: BTreeSet<u32>,
    ) -> Self {
        let payload_file = region.payload_file(claim);
        let total_bytes = payload_file.total_bytes();
        let held = payload_file.held_bytes();
        if payload_file.is_locked_by_others() {
            tracing::error!(
                region = %region.dir().unwrap_or(Path::new("")).display(),
                bytes = held,
                "a program that reads no messages has a lock on the file payload-{} of this region: `lslocks` names it; end it, or make it \
                 lock nothing there. What is there can be read meanwhile, nothing of it is evicted, and publishers wait for room",
                claim.row()
            );
        } else if held > 0 {
            tracing::info!(
                bytes = held,
                "readers still have what this broker lent before it died: nothing new is put there until they are gone"
            );
        }
        let geometry = region.geometry();
        let places = geometry.index_pages.min(geometry.lane_slots);
        Self {
            region: region.clone(),
            claim: Arc::clone(claim),
            payload_file,
            index: region.index_writer(claim),
            local: BTreeMap::new(),
            ordered: BTreeMap::new(),
            order: OrderState::new(region, claim),
            remote_windows: RemoteWindows::new(region, claim),
            frontiers: Frontiers::new(),
            window_read_back: None,
            admission: Admission::new(marks, total_bytes, places),
            sizes: Sizes::default(),
            pages: Ranks::default(),
            in_flight: 0,
            evictions: 0,
            evicted: Vec::new(),
            recalls: 0,
            no_block: None,
            recovered: Recovered::default(),
            unknown,
            windowless: Vec::new(),
        }
    }

    /// Opens the topics of orders 0 and 1. `records` is what the index has.
    fn recover_local(&mut self, topics: &[Topic], mut records: BTreeMap<u32, Vec<IndexRecord>>) {
        for topic in topics.iter().filter(|topic| !topic.is_ordered()) {
            let records = records.remove(&topic.id).unwrap_or_default();
            let window = self.region.window(self.claim.row(), topic.record());
            match window.found().filter(|w| w.chain == topic.id) {
                Some(window) => self.restore(topic, window, &records),
                // Its window stays as it is: the next incarnation must not take it for an empty one.
                None if self.unknown.contains(&topic.id) => {
                    self.index.drop_chain(topic.id);
                    self.insert_local(self.local_topic(topic));
                }
                // A topic with records had a window.
                None if !records.is_empty() => self.windowless.push((topic.clone(), records)),
                None => self.open_topic(topic),
            }
        }
        for deleted in records.into_keys() {
            self.index.drop_chain(deleted);
        }
    }

    /// A topic of order 0 or 1 with nothing in it.
    pub(super) fn local_topic(&self, topic: &Topic) -> LocalTopic<M> {
        let window = self.region.window_writer(&self.claim, topic.record());
        LocalTopic::new(topic, window, self.frontiers.undurable_local())
    }

    /// Recovers a topic of order 0 or 1 whose window is there.
    fn restore(&mut self, topic: &Topic, window: Window, records: &[IndexRecord]) {
        let retained = records.iter().filter(|r| r.base >= window.first);
        let mut recovery = TopicRecovery::new(topic.id, retained.map(BatchRecord::from)).dense();
        recovery.take_newest(&self.payload_file);
        self.adopt_local(topic, Some(window), recovery);
    }

    /// Makes what was recovered of a topic of order 0 or 1 readable.
    fn adopt_local(&mut self, topic: &Topic, window: Option<Window>, recovery: TopicRecovery<M>) {
        let mut local = self.local_topic(topic);
        let (found, lost) = refill(&mut local, window, recovery);
        self.recovered.topics += found.topics;
        self.recovered.batches += found.batches;
        self.recovered.bytes += found.bytes;
        self.recovered.damaged += found.damaged;
        if local.batches() > 0 {
            self.index.release_before(topic.id, local.first);
        } else {
            // The topic may go on at an offset that the index does not have.
            self.index.drop_chain(topic.id);
        }
        local.publish_window(lost);
        self.insert_local(local);
        self.update_pages(topic.id);
        self.update_size(topic.id);
    }

    /// What was found; [`Log::rejoin`] counts that of ordered topics.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// Keeps the memory of the batches that lie here and were ordered, for this broker's older
    /// incarnations, and of the topics whose windows were lost. Nothing was allocated since
    /// [`Log::open`].
    pub(super) fn adopt_ordered(&mut self) {
        let ids = self.ordered.keys().copied();
        let (windowless, others): (Vec<u32>, Vec<u32>) =
            ids.partition(|id| self.ordered[id].window_lost);
        let damaged = self.ordered.keys().filter(|id| self.is_damaged(**id));
        // While no memory is taken: these batches lie in the same extents as those that can be read.
        let stale: BTreeMap<u32, Vec<PbrRecord>> = damaged
            .map(|id| (*id, self.stale_batches_of(*id)))
            .collect();
        let mut later: Vec<(u32, TopicRecovery<M>)> = Vec::new();
        for id in others {
            let mut recovery = self.recovery_of(id);
            recovery.take_all(&self.payload_file);
            match stale.contains_key(&id) {
                true => later.push((id, recovery)),
                false => self.adopt_topic(id, recovery),
            }
        }
        // After the others: some of their records may be of batches that were evicted, and must not take the
        // memory of another topic.
        later.append(&mut self.recover_windowless(&windowless));
        // Last, as what may be stale batches must not, either.
        for (id, mut recovery) in later {
            recovery.keep_stale(
                &self.payload_file,
                stale.get(&id).map_or(&[], Vec::as_slice),
            );
            self.adopt_topic(id, recovery);
        }
    }

    /// Finds what there is of all topics whose windows were lost. Those of orders 0 and 1 can be read
    /// then; what there is of these ordered ones is returned.
    fn recover_windowless(&mut self, ordered: &[u32]) -> Vec<(u32, TopicRecovery<M>)> {
        let local = std::mem::take(&mut self.windowless);
        let of_local = local.iter().map(|(topic, records)| {
            let records = records.iter().map(BatchRecord::from);
            TopicRecovery::new(topic.id, records).dense()
        });
        let of_ordered = ordered.iter().map(|id| self.recovery_of(*id));
        let mut recoveries: Vec<TopicRecovery<M>> = of_local.chain(of_ordered).collect();
        take_youngest_first(&self.payload_file, &mut recoveries);
        let of_ordered = recoveries.split_off(local.len());
        for ((topic, _), recovery) in local.iter().zip(recoveries) {
            self.adopt_local(topic, None, recovery);
        }
        ordered.iter().copied().zip(of_ordered).collect()
    }

    /// That of what the order says of one topic on this broker.
    fn recovery_of(&self, id: u32) -> TopicRecovery<M> {
        let own = self.ordered[&id].own(self.claim.row());
        TopicRecovery::new(id, own.map(OrderedBatch::record))
    }

    /// Keeps the memory of one ordered topic.
    fn adopt_topic(&mut self, id: u32, recovery: TopicRecovery<M>) {
        let row = self.claim.row();
        let Some(topic) = self.ordered.get_mut(&id) else {
            return;
        };
        let expected = topic.own(row).count() as u64;
        let spans = recovery.adopt(&mut topic.extents);
        topic.adopt_spans(row, spans.map(|(_, span)| span));
        topic.settle_first(row);
        self.recovered.topics += u64::from(topic.batches > 0);
        self.recovered.batches += topic.batches;
        self.recovered.bytes += topic.bytes;
        self.recovered.damaged += expected - topic.batches;
        self.update_size(id);
    }
}

/// Fills a topic that has nothing. Returns what was found, and the offset below which messages are lost, 0 if
/// none are.
fn refill<M: Memory>(
    topic: &mut LocalTopic<M>,
    window: Option<Window>,
    recovery: TopicRecovery<M>,
) -> (Recovered, u64) {
    let (mut damaged, mut end) = (0, 0);
    for (record, span) in recovery.adopt(&mut topic.extents) {
        end = record.end();
        match span {
            Some(span) => topic.adopt(StoredBatch {
                base: record.base,
                count: record.count,
                span,
            }),
            None => damaged += 1,
        }
    }
    let found = Recovered {
        topics: u64::from(topic.batches() > 0),
        batches: topic.batches(),
        bytes: topic.bytes,
        damaged,
    };
    // The window may have offsets whose batches were all evicted or damaged.
    let next = window.map_or(0, |w| w.next).max(end);
    if topic.batches() == 0 || topic.next < next {
        topic.restart_at(next);
    }
    // Without a window nothing says where the topic began.
    let began = window.map_or((0, next), |w| (w.first, w.next));
    let missing = began.0 < began.1 && began.0 < topic.first;
    let before = window.map_or(0, |w| w.lost);
    if missing || damaged > 0 {
        (found, before.max(topic.first))
    } else {
        (found, before)
    }
}
