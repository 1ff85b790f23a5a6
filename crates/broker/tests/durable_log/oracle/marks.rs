//! How far each session has to be after memory was lost: exactly as far as its batches that are left say.

use std::collections::{BTreeMap, BTreeSet};

use embar_broker::topics::Topic;
use embar_fabric::{Region, SessionRow};
use embar_memory::Simulated;

use super::Entry;

/// Sessions as they are, and what is known of them.
pub struct Marks<'a> {
    rows: BTreeMap<(u32, u64), SessionRow>,
    closed: &'a BTreeSet<usize>,
    /// Of each session its topic, its producer, and its first epoch.
    sessions: &'a [(u32, u64, u32)],
}

/// How far one session is.
#[derive(Default)]
struct Progress {
    session: usize,
    epoch: u32,
    mark: u64,
    /// Order 2: numbers above it that are placed in its epoch.
    above: BTreeSet<u64>,
}

impl Progress {
    fn take(&mut self, entry: &Entry) {
        if entry.epoch != self.epoch {
            self.above.clear();
            self.epoch = entry.epoch;
        }
        self.above.insert(entry.number);
        while self.above.remove(&self.mark) {
            self.mark += 1;
        }
    }
}

impl<'a> Marks<'a> {
    /// As they are in a region that was restored.
    pub fn of(
        region: &Region<Simulated>,
        closed: &'a BTreeSet<usize>,
        sessions: &'a [(u32, u64, u32)],
    ) -> Self {
        let mut rows = BTreeMap::new();
        for place in 0..region.geometry().sessions {
            let row = region.session_row(0, place).found();
            let owner = region.session_owner(0, place).found();
            if let Some(row) = row.filter(|row| row.in_use == 1) {
                let name = (row.chain, row.producer);
                assert_eq!(owner.map(|it| it.first_epoch), Some(row.first_epoch));
                assert!(
                    rows.insert(name, row).is_none(),
                    "{name:?} has two sessions"
                );
            }
        }
        Self {
            rows,
            closed,
            sessions,
        }
    }

    /// Compares the sessions of a topic with its batches.
    pub fn check(&self, topic: &Topic, entries: &[Entry]) {
        let mut all: BTreeMap<u64, Progress> = BTreeMap::new();
        for entry in entries {
            let progress = all.entry(entry.producer).or_default();
            if progress.epoch == 0 || progress.session != entry.session {
                *progress = Progress {
                    session: entry.session,
                    epoch: entry.epoch,
                    ..Progress::default()
                };
            }
            progress.take(entry);
        }
        let rows = self
            .rows
            .iter()
            .filter(|((chain, _), _)| *chain == topic.id);
        for ((_, producer), row) in rows {
            let known = all.get(producer);
            let known = known.filter(|it| self.sessions[it.session].2 == row.first_epoch);
            let nothing = Progress::default();
            let known = known.unwrap_or(&nothing);
            let said = said(row, topic.order.level());
            assert!(row.epoch >= known.epoch, "an epoch goes back");
            let above = if row.epoch > known.epoch {
                BTreeSet::new()
            } else {
                known.above.clone()
            };
            assert_eq!(
                said,
                (known.mark, above),
                "producer {producer} of topic {}: {row:?}",
                topic.id
            );
        }
        for (producer, progress) in all {
            let is_there = self.rows.contains_key(&(topic.id, producer));
            assert!(
                is_there || self.closed.contains(&progress.session),
                "producer {producer} of topic {} has no session",
                topic.id
            );
        }
    }
}

fn said(row: &SessionRow, order: u8) -> (u64, BTreeSet<u64>) {
    let bits = u128::from_le_bytes(row.ordered);
    let above = (0..128).filter(|bit| order == 2 && bits >> bit & 1 == 1);
    let above = above.map(|bit| row.expected + 1 + bit);
    (row.expected, above.collect())
}
