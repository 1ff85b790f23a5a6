//! The oracle of the protocol: which batches were sent, and all that was ever seen of the order, which never
//! changes.

use std::collections::{BTreeMap, BTreeSet};

use embar_fabric::GoiRecord;

/// Names a batch as its publisher counts it, whatever its number is in which epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchId {
    pub publisher: usize,
    pub index: u64,
}

/// A number of a session's epoch: chain, place, epoch, number.
pub type Number = (u32, u32, u32, u64);

#[derive(Debug, Default)]
pub struct OrderOracle {
    pub chains: BTreeMap<u32, ChainOrder>,
    /// Where each epoch went on with the chains that it knew.
    pub starts: BTreeMap<u32, BTreeMap<u32, u64>>,
    /// Which batch each number was given to.
    sent: BTreeMap<Number, BatchId>,
    /// Where epochs began: by chain, place and producer, the epoch and its mark.
    marks: BTreeMap<(u32, u32, u64), BTreeMap<u32, u64>>,
}

/// The order of one chain, as it was seen.
#[derive(Debug, Default)]
pub struct ChainOrder {
    pub level: u8,
    /// By position.
    pub records: BTreeMap<u64, GoiRecord>,
    /// One above the last position that was seen.
    pub end: u64,
    placed: BTreeMap<BatchId, u64>,
    /// Batches that a publisher received as placed.
    pub acknowledged: BTreeSet<BatchId>,
}

impl OrderOracle {
    /// A number is given to a batch.
    pub fn number(&mut self, number: Number, batch_id: BatchId) {
        let before = self.sent.insert(number, batch_id);
        assert!(
            before.is_none_or(|before| before == batch_id),
            "harness: number {number:?} is given to {before:?} and {batch_id:?}"
        );
    }

    /// A process, or a checker, saw this record in the order of a chain.
    pub fn see(&mut self, who: &str, chain: u32, record: &GoiRecord) {
        let key = (chain, record.session, record.session_epoch, record.sequence);
        let Some(batch_id) = self.sent.get(&key).copied() else {
            panic!("{who} saw a batch that nobody sent: {record:?}");
        };
        self.keeps_to_epochs(who, chain, record);
        let order = self.chains.get_mut(&chain).expect("a chain that was made");
        if let Some(known) = order.records.get(&record.base) {
            assert_eq!(known, record, "{who} saw another batch at {}", record.base);
            return;
        }
        let before = order.records.range(..record.base).next_back();
        let after = order.records.range(record.base..).next();
        assert!(
            before.is_none_or(|(_, before)| before.end() <= record.base)
                && after.is_none_or(|(base, _)| record.end() <= *base),
            "{who} saw {record:?} where others saw {before:?} and {after:?}"
        );
        let twice = order.placed.insert(batch_id, record.base);
        assert_eq!(
            twice, None,
            "{who} saw {batch_id:?} twice, now as {record:?}"
        );
        order.records.insert(record.base, *record);
        order.end = order.end.max(record.end());
    }

    /// The order is known to go on to a position, whatever is before it.
    pub fn reaches(&mut self, chain: u32, position: u64) {
        if let Some(order) = self.chains.get_mut(&chain) {
            order.end = order.end.max(position);
        }
    }

    /// The publisher that opened the epoch learned where it begins.
    pub fn begins(&mut self, session: (u32, u32, u64), epoch: u32, mark: u64) {
        let of_place = self.marks.entry(session).or_default();
        of_place.entry(epoch).or_insert(mark);
    }

    fn keeps_to_epochs(&self, who: &str, chain: u32, record: &GoiRecord) {
        let level = self.chains.get(&chain).map_or(0, |order| order.level);
        let Some(marks) = self.marks.get(&(chain, record.session, record.producer)) else {
            return;
        };
        if let Some(mark) = marks.get(&record.session_epoch) {
            assert!(
                record.sequence >= *mark,
                "{who} saw a number below {mark}, where its epoch began: {record:?}"
            );
        }
        let mut later = marks.range(record.session_epoch + 1..);
        let beyond = later.find(|(_, mark)| **mark > 0 && record.sequence >= **mark);
        assert!(
            level != 5 || beyond.is_none(),
            "{who} saw a number of an epoch that was over at {beyond:?}: {record:?}"
        );
    }

    /// A publisher learned that this batch is in the order, at a position or somewhere.
    pub fn acknowledge(&mut self, chain: u32, batch_id: BatchId, base: Option<u64>) {
        let order = self.chains.get_mut(&chain).expect("a chain that was made");
        if let Some(base) = base {
            let at = order.placed.get(&batch_id);
            assert_eq!(at, Some(&base), "{batch_id:?} was acknowledged at {base}");
        }
        order.acknowledged.insert(batch_id);
    }

    /// All that was acknowledged is in the order, and every publisher's batches follow each other in it where they
    /// have to. Holds for chains all of whose positions were seen.
    pub fn are_in_order(&self) {
        for (chain, order) in self.chains.iter().filter(|(_, order)| order.is_whole()) {
            for batch_id in &order.acknowledged {
                assert!(
                    order.placed.contains_key(batch_id),
                    "chain {chain}: {batch_id:?} was acknowledged and is not in the order"
                );
            }
            let mut before: Option<(BatchId, u64)> = None;
            for (batch_id, base) in order.placed.iter().filter(|_| order.level == 5) {
                let (index, above) = match before {
                    Some((last, base)) if last.publisher == batch_id.publisher => {
                        (last.index + 1, base)
                    }
                    _ => (0, 0),
                };
                assert!(
                    batch_id.index == index && *base >= above,
                    "chain {chain}: {batch_id:?} is at {base}, behind {before:?}"
                );
                before = Some((*batch_id, *base));
            }
        }
    }

    /// Whether a batch was seen in the order, or may be without having been seen.
    pub fn may_be_placed(&self, chain: u32, batch_id: BatchId) -> bool {
        let order = self.chains.get(&chain);
        order.is_some_and(|order| order.placed.contains_key(&batch_id) || !order.is_whole())
    }
}

impl ChainOrder {
    pub fn new(level: u8) -> Self {
        Self {
            level,
            ..Self::default()
        }
    }

    /// Whether every position below the end was seen.
    fn is_whole(&self) -> bool {
        let seen: u64 = self.records.values().map(|it| u64::from(it.count)).sum();
        seen == self.end
    }
}
