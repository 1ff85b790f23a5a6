//! What was sent, and what anybody has seen of the order: what was seen once stays so.

use std::collections::{BTreeMap, BTreeSet};

use embar_fabric::GoiRecord;

/// Names a batch as its publisher counts it, whatever its number is in which epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Logical {
    pub publisher: usize,
    pub index: u64,
}

/// A number of a session's epoch: chain, place, epoch, number.
pub type Number = (u32, u32, u32, u64);

#[derive(Debug, Default)]
pub struct Books {
    pub chains: BTreeMap<u32, Order>,
    /// Where each epoch went on with the chains that it knew.
    pub starts: BTreeMap<u32, BTreeMap<u32, u64>>,
    /// Which batch each number was given to.
    sent: BTreeMap<Number, Logical>,
    /// Where epochs began: by chain, place and producer, the epoch and its mark.
    marks: BTreeMap<(u32, u32, u64), BTreeMap<u32, u64>>,
}

/// The order of one chain, as it was seen.
#[derive(Debug, Default)]
pub struct Order {
    pub level: u8,
    /// By position.
    pub records: BTreeMap<u64, GoiRecord>,
    /// One above the last position that was seen.
    pub end: u64,
    placed: BTreeMap<Logical, u64>,
    /// Batches that somebody was told are in the order.
    pub acknowledged: BTreeSet<Logical>,
}

impl Books {
    /// A number is given to a batch.
    pub fn number(&mut self, number: Number, logical: Logical) {
        let before = self.sent.insert(number, logical);
        assert!(
            before.is_none_or(|before| before == logical),
            "harness: number {number:?} is given to {before:?} and {logical:?}"
        );
    }

    /// Somebody saw this record in the order of a chain.
    pub fn see(&mut self, who: &str, chain: u32, record: &GoiRecord) {
        let key = (chain, record.session, record.session_epoch, record.sequence);
        let Some(logical) = self.sent.get(&key).copied() else {
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
        let twice = order.placed.insert(logical, record.base);
        assert_eq!(
            twice, None,
            "{who} saw {logical:?} twice, now as {record:?}"
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

    /// Whoever opened the epoch was told where it begins.
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

    /// Somebody was told that this batch is in the order, at a position or somewhere.
    pub fn acknowledge(&mut self, chain: u32, logical: Logical, base: Option<u64>) {
        let order = self.chains.get_mut(&chain).expect("a chain that was made");
        if let Some(base) = base {
            let at = order.placed.get(&logical);
            assert_eq!(at, Some(&base), "{logical:?} was acknowledged at {base}");
        }
        order.acknowledged.insert(logical);
    }

    /// All that was acknowledged is in the order, and every publisher's batches follow each other in
    /// it where they are to; of chains all of whose positions somebody saw.
    pub fn are_in_order(&self) {
        for (chain, order) in self.chains.iter().filter(|(_, order)| order.is_whole()) {
            for logical in &order.acknowledged {
                assert!(
                    order.placed.contains_key(logical),
                    "chain {chain}: {logical:?} was acknowledged and is not in the order"
                );
            }
            let mut before: Option<(Logical, u64)> = None;
            for (logical, base) in order.placed.iter().filter(|_| order.level == 5) {
                let (index, above) = match before {
                    Some((last, base)) if last.publisher == logical.publisher => {
                        (last.index + 1, base)
                    }
                    _ => (0, 0),
                };
                assert!(
                    logical.index == index && *base >= above,
                    "chain {chain}: {logical:?} is at {base}, behind {before:?}"
                );
                before = Some((*logical, *base));
            }
        }
    }

    /// Whether a batch was seen in the order, or may be without having been seen.
    pub fn may_be_placed(&self, chain: u32, logical: Logical) -> bool {
        let order = self.chains.get(&chain);
        order.is_some_and(|order| order.placed.contains_key(&logical) || !order.is_whole())
    }
}

impl Order {
    pub fn new(level: u8) -> Self {
        Self {
            level,
            ..Self::default()
        }
    }

    /// Whether somebody saw every position below the end.
    fn is_whole(&self) -> bool {
        let seen: u64 = self.records.values().map(|it| u64::from(it.count)).sum();
        seen == self.end
    }
}
