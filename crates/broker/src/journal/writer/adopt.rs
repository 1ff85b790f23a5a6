//! Takes the place of another disk for a topic: what memory has of it goes on this disk, with the sessions as they were before that.
//!
//! The other disk cannot be asked how far sessions were: it has failed. The sequencer's rows say how far they are now, or were a while
//! ago, and the order has all batches since. Taking back what the order has and a row counts gives the session as it was where the
//! order begins, and going forward from there gives it at any position.

use std::collections::{BTreeMap, BTreeSet};

use embar_disk::Chain as ChainName;
use embar_disk::format::Run;
use embar_fabric::geometry::topic_record_of;
use embar_fabric::{DiskState, GoiRecord, GoiRoot, Seen, SessionRow};
use embar_memory::Memory;
use embar_order::Follower;
use embar_order::follower::Found;
use embar_order::row_progress;

use super::Writer;
use super::due::Due;
use crate::journal::sessions::KnownSession;
use crate::log::{disk_row, frontier};

/// Records that are read at once.
const RECORDS: usize = 1024;

/// A batch in the order, as far as it says how far its session is.
struct Placed {
    base: u64,
    epoch: u32,
    number: u64,
}

/// By the place of a session, and its publisher.
type PlacedBySession = BTreeMap<(u32, u64), Vec<Placed>>;

impl<M: Memory> Writer<M> {
    /// Goes on with a chain where memory begins, if the journal does not have it. False if that cannot be known at the moment.
    pub(super) fn adopt(&mut self, name: ChainName) -> bool {
        let Some(first) = self.first_in_memory(name) else {
            return false;
        };
        let next = self.journal.next_of(name);
        let is_known = self.firsts.contains_key(&name);
        if next >= first || is_known && !self.others_have(name, first) {
            return true;
        }
        let first = match name.row {
            Run::ORDERED => self.adopt_sessions(name.topic, first),
            _ => Some(first),
        };
        let Some(first) = first else {
            return false;
        };
        self.journal.skip_to(name, first);
        self.firsts.insert(name, first);
        true
    }

    /// A chain cannot be read on. True if the reason is that memory has evicted what comes next: this disk was not asked before it
    /// took the place of another, which has it. Then the topic is taken once more, from where memory begins now.
    pub(super) fn begin_again(&mut self, name: ChainName) -> bool {
        let is_moved = { self.topics.by_id(name.topic) }.is_some_and(|topic| topic.moves > 0);
        let first = self.first_in_memory(name).filter(|_| is_moved);
        let is_evicted = first.is_some_and(|first| {
            self.journal.next_of(name) < first && self.others_have(name, first)
        });
        if is_evicted {
            for chain in self.chains_of(name.topic).collect::<Vec<_>>() {
                self.chains.remove(&chain);
            }
        }
        is_evicted
    }

    /// Whether another disk of the topic, or a former one, has a chain up to a position, as is known in this term. What none has was
    /// not evicted but lost, and is not passed over.
    fn others_have(&self, name: ChainName, end: u64) -> bool {
        let row = match name.row {
            Run::ORDERED => Some(0),
            row => self.region.geometry().frontier_of(row),
        };
        let Some((topic, row)) = self.topics.by_id(name.topic).zip(row) else {
            return false;
        };
        let others = (0..self.region.geometry().disks).filter(|disk| *disk != self.number);
        let mut others = others.filter(|disk| topic.all_disks() & 1 << disk != 0);
        others.any(|disk| {
            let said = frontier(&self.region, self.term, (name.topic, row), 1 << disk);
            match said {
                Some((_, next)) => next >= end,
                // One that could not be opened in this term may have had it when brokers evicted it.
                None => topic.former_disks & 1 << disk != 0 && self.says_failed(disk),
            }
        })
    }

    /// Whether the writer of another disk says in this term that it takes nothing.
    fn says_failed(&self, disk: u16) -> bool {
        let row = disk_row(&self.region, self.term, disk);
        row.is_some_and(|row| row.state == DiskState::Failed as u32)
    }

    /// Where memory begins of a chain.
    fn first_in_memory(&self, name: ChainName) -> Option<u64> {
        let record = topic_record_of(name.topic);
        let first_at = |row: u16| {
            let window = self.region.window(row, record).found();
            window
                .filter(|it| it.chain == name.topic)
                .map(|it| it.first)
        };
        if name.row != Run::ORDERED {
            return Some(first_at(name.row).unwrap_or(0));
        }
        let firsts = self.region.geometry().data_rows().filter_map(first_at);
        let first = firsts.max().unwrap_or(0);
        match self.region.goi_root(self.term.area, record) {
            Seen::Damaged => None,
            Seen::Found(root) if self.is_own(&root, name.topic) => Some(first.max(root.first)),
            // Nothing of it was ordered yet.
            Seen::Found(_) | Seen::Nothing => Some(first),
        }
    }

    fn is_own(&self, root: &GoiRoot, topic: u32) -> bool {
        (root.chain, root.epoch) == (topic, self.term.epoch)
    }

    /// Finds out how far the sessions of a chain were at a position of the order, or at the first one above it that the order has;
    /// returns which. All of them: also those that say nothing any more have to be known when memory is lost.
    fn adopt_sessions(&mut self, topic: u32, at: u64) -> Option<u64> {
        // The rows count all that the order does not have from here on, and nothing that is not visible there.
        let first = self.order_begins(topic)?;
        let places = 0..self.region.geometry().sessions;
        let now = places.filter_map(|place| Some((place, self.session(place)?)));
        let now = now.filter(|(_, known)| known.is_held() && known.row.chain == topic);
        let now: Vec<(u32, KnownSession)> = now.collect();
        let mut placed = self.placed_since(topic, first)?;
        let at = at.max(first);
        for (place, mut known) in now {
            let its = placed.remove(&(place, known.row.producer));
            let mut its = its.unwrap_or_default();
            // It may have had the place before.
            its.retain(|it| it.epoch >= known.row.first_epoch);
            known.row = row_at(known.row, &its, at);
            if let Some(other) = self.sessions.put(place, known) {
                self.due.push_back(Due::NoSession(other));
            }
            self.due.push_back(Due::Session(place));
        }
        Some(at)
    }

    /// The first position that the order has of a chain. Its root may not say yet what was given up.
    fn order_begins(&self, topic: u32) -> Option<u64> {
        let root = self.region.goi_root(self.term.area, topic_record_of(topic));
        let first = match root {
            Seen::Damaged => return None,
            Seen::Found(root) if self.is_own(&root, topic) => root.first,
            Seen::Found(_) | Seen::Nothing => return Some(0),
        };
        let mut follower = Follower::new(&self.region, topic, first);
        Some(match follower.read(self.term, 1, &mut Vec::new()) {
            Found::Gone { first } => first,
            Found::End | Found::More => first,
        })
    }

    /// By session, all batches that the order has from a position on. Nothing if some of them were given up meanwhile.
    fn placed_since(&self, topic: u32, first: u64) -> Option<PlacedBySession> {
        let mut follower = Follower::new(&self.region, topic, first);
        let mut placed = PlacedBySession::new();
        let mut records: Vec<GoiRecord> = Vec::new();
        loop {
            let found = follower.read(self.term, RECORDS, &mut records);
            for record in records.drain(..) {
                let its = placed.entry((record.session, record.producer));
                its.or_default().push(Placed {
                    base: record.base,
                    epoch: record.session_epoch,
                    number: record.sequence,
                });
            }
            match found {
                Found::More => {}
                Found::End => return Some(placed),
                Found::Gone { .. } => return None,
            }
        }
    }
}

/// A session's row as it was before the batch at a position, given a row that may count these batches, all that the order has of it.
fn row_at(mut row: SessionRow, placed: &[Placed], at: u64) -> SessionRow {
    row.fenced = 0;
    let Some(first) = placed.first() else {
        return row;
    };
    let counted = placed.iter().filter(|it| it.epoch == row.epoch);
    let counted: BTreeSet<u64> = counted.map(|it| it.number).collect();
    // As its epoch began, if an earlier one is in the order: then so is all of it.
    let mut begun = row;
    row_progress::unplace(&mut begun, &counted);
    if first.epoch < row.epoch {
        // A number that comes in any later epoch was perhaps not placed before.
        let lowest = placed.iter().map(|it| it.number).min();
        row_progress::back_to_epoch(&mut row, first.epoch, lowest.unwrap_or(first.number));
    } else {
        row = begun;
    }
    for batch in placed.iter().take_while(|it| it.base < at) {
        if batch.epoch > row.epoch && batch.epoch == begun.epoch {
            row = begun;
        } else if batch.epoch > row.epoch {
            row_progress::begin_epoch(&mut row, batch.epoch);
        }
        if batch.epoch == row.epoch {
            row_progress::place(&mut row, batch.number);
        }
    }
    row
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// What a row says is placed, of its epoch: all below the first number, and these.
    fn said(row: &SessionRow) -> (u64, u128) {
        let bits = match row.order {
            2 => u128::from_le_bytes(row.ordered),
            _ => 0,
        };
        (row.expected, bits)
    }

    /// The rows of a session before each of its batches and behind the last, and the batches.
    fn history(order: u16, random: &mut Rng) -> (Vec<SessionRow>, Vec<Placed>) {
        let mut row = SessionRow {
            order,
            in_use: 1,
            epoch: 3,
            first_epoch: 3,
            ..SessionRow::default()
        };
        let (mut rows, mut placed) = (Vec::new(), Vec::new());
        let mut base = 0;
        for _ in 0..random.usize(1..40) {
            if random.u8(..8) == 0 {
                let epoch = row.epoch + random.u32(1..3);
                row_progress::begin_epoch(&mut row, epoch);
            }
            let (mark, bits) = said(&row);
            let ahead = match order {
                2 => random.u64(..12),
                _ => 0,
            };
            if ahead > 0 && bits >> (ahead - 1) & 1 == 1 {
                continue;
            }
            base += random.u64(1..5);
            let batch = Placed {
                base,
                epoch: row.epoch,
                number: mark + ahead,
            };
            rows.push(row);
            row_progress::place(&mut row, batch.number);
            placed.push(batch);
        }
        rows.push(row);
        (rows, placed)
    }

    #[test]
    fn a_session_is_as_it_was_at_any_position_whichever_row_there_is() {
        let mut random = Rng::with_seed(7);
        let mut exact = 0;
        for round in 0..4000 {
            let (rows, placed) = history([2, 5][round % 2], &mut random);
            // The order begins somewhere, the disk somewhere in it, and a row counts all that is not in the order.
            let begins = random.usize(..=placed.len());
            let at = random.usize(begins..=placed.len());
            let counted = random.usize(begins..=placed.len());
            let position = placed.get(at).map_or(u64::MAX, |it| it.base);
            let mut found = row_at(rows[counted], &placed[begins..], position);
            let truth = rows[at];
            // So much of the epoch that the row tells of is copied.
            let is_in_epoch = found.epoch == rows[counted].epoch;
            if found.epoch < truth.epoch {
                // The next batch is the first of its epoch.
                row_progress::begin_epoch(&mut found, truth.epoch);
            }
            let ((mark, bits), (true_mark, true_bits)) = (said(&found), said(&truth));
            let has_more = mark > true_mark || mark == true_mark && bits & !true_bits != 0;
            assert!(!has_more, "{round}: {found:?} of {truth:?}");
            // Where a later epoch has begun since, what earlier ones had above their marks is not known any more.
            let first = placed.get(begins).map(|it| it.epoch);
            let is_only = first.is_none_or(|epoch| epoch >= rows[counted].epoch);
            if (is_only || is_in_epoch) && found.epoch == truth.epoch {
                assert_eq!(
                    (mark, bits),
                    (true_mark, true_bits),
                    "{round}: {found:?} of {truth:?}"
                );
                exact += 1;
            }
        }
        assert!(exact > 2000, "{exact}");
    }
}
