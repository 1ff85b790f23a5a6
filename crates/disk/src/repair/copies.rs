//! What other disks of a log have of what one has lost.

use std::collections::BTreeMap;

use crate::format::{BatchRun, Before, Chain, Run, RunKind};
use crate::history::{History, Span};
use crate::positions::Positions;
use crate::storage::Storage;
use crate::verify::Verified;

/// Other copies of what a disk has. All disks of a topic have its batches with the same bytes.
pub trait Copies {
    /// The batch that begins at a position of a chain, if a copy has it whole.
    fn batch(&mut self, chain: Chain, first: u64) -> Option<Vec<u8>>;

    /// The first position from `from` on that a copy has, as far as this is known.
    fn first_from(&self, chain: Chain, from: u64) -> Option<u64>;

    /// What is said of a fact anywhere, the best first.
    fn facts(&self, about: u16, key: u64) -> Vec<&[u8]>;
}

/// A disk that may have a copy.
pub struct Copy<'a, S> {
    storage: &'a S,
    history: History,
    whole: Option<&'a BTreeMap<Chain, Positions>>,
    facts: Option<&'a BTreeMap<(u16, u64), Vec<u8>>>,
}

impl<'a, S: Storage> Copy<'a, S> {
    /// A disk of which so much counts.
    #[must_use]
    pub fn new(storage: &'a S, disk: [u8; 16], counts: &Before) -> Self {
        let mut history = History::new(disk);
        // Where it is damaged, too, it has what is behind that.
        drop(history.follow(storage, counts));
        Self {
            storage,
            history,
            whole: None,
            facts: None,
        }
    }

    /// A disk that was verified; `None` if nothing counts there.
    #[must_use]
    pub fn of(storage: &'a S, disk: [u8; 16], verified: &'a Verified) -> Option<Self> {
        let last = verified.segments.last()?;
        Some(Self {
            whole: Some(&verified.whole),
            facts: Some(&verified.facts),
            ..Self::new(storage, disk, &last.counted)
        })
    }
}

/// Some disks of a log.
pub struct OtherDisks<'a, S>(Vec<Copy<'a, S>>);

impl<'a, S> OtherDisks<'a, S> {
    /// These, of which the first that has something gives it.
    #[must_use]
    pub fn new(disks: Vec<Copy<'a, S>>) -> Self {
        Self(disks)
    }
}

impl<S: Storage> Copies for OtherDisks<'_, S> {
    fn batch(&mut self, chain: Chain, first: u64) -> Option<Vec<u8>> {
        let span = Span {
            chain,
            from: first,
            end: u64::MAX,
            bytes: 1,
        };
        self.0.iter_mut().find_map(|disk| {
            let read = disk.history.read(disk.storage, &span, &mut |_| true).ok()?;
            let run = Run {
                kind: RunKind::Batches,
                row: chain.row,
                chain: chain.topic,
                first,
                count: u32::try_from(read.next.checked_sub(first)?).ok()?,
                at: 0,
                bytes: u32::try_from(read.bytes.len()).ok()?,
                crc: 0,
            };
            // One that begins before would not fit there.
            let (_, batch) = BatchRun::new(&run, &read.bytes).next()?;
            Some(batch.to_vec())
        })
    }

    fn first_from(&self, chain: Chain, from: u64) -> Option<u64> {
        let disks = self.0.iter().filter_map(|disk| disk.whole?.get(&chain));
        let firsts = disks.filter_map(|whole| {
            let first = whole.within(&(from..u64::MAX)).ranges().next()?;
            Some(first.start)
        });
        firsts.min()
    }

    fn facts(&self, about: u16, key: u64) -> Vec<&[u8]> {
        let facts = self
            .0
            .iter()
            .filter_map(|disk| disk.facts?.get(&(about, key)));
        facts.map(Vec::as_slice).collect()
    }
}
