//! The lanes as the sequencer sees them: which incarnation writes each, and how far it was taken.

use embar_memory::canary::{Canary, injected};
use std::fmt;

use embar_fabric::{
    Claim, LaneGrant, LaneReader, LaneStart, Notice, NoticeWriter, PbrKind, PbrRecord, Region,
    RowWriter, Seen,
};
use embar_memory::Memory;

use super::RECORDS_PER_LANE;
use crate::action::{Arrival, Source};
use crate::core::Core;

/// All lanes of all data brokers, by row and number.
pub(super) struct Lanes<M> {
    epoch: u32,
    first_row: u16,
    per_row: u16,
    lanes: Vec<Lane<M>>,
    /// The lane that the next step looks at first, so that no lane is always the last one.
    turn: usize,
    intact: Intact,
    /// Records that were taken and cannot be read.
    unreadable: Vec<Source>,
}

/// Bytes of dead brokers that one step checks: a few hundredths of a second, which no lease notices.
const CHECKED_PER_STEP: u64 = 64 << 20;

/// What one step may take.
struct Taking<'a> {
    core: &'a Core,
    intact: &'a Intact,
    /// Checked so far.
    bytes: u64,
    most: usize,
    taken: usize,
    arrivals: &'a mut Vec<Arrival>,
    unreadable: &'a mut Vec<Source>,
}

/// Whether a record's bytes, in the payload file of this row, are still those that the record describes.
pub type Intact = Box<dyn Fn(u16, &PbrRecord) -> bool + Send>;

#[derive(Debug)]
struct Lane<M> {
    row: u16,
    lane: u16,
    reader: LaneReader<M>,
    grants: RowWriter<M, LaneGrant>,
    notices: NoticeWriter<M>,
    granted: LaneGrant,
    stage: Stage,
    /// Where its writer began it for this epoch.
    start: LaneStart,
    /// Arrivals of that incarnation that are not answered.
    held: u64,
    /// Records below were published before this epoch. A predecessor may have answered them.
    left_below: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its broker has not begun it for this epoch.
    Waiting,
    /// Its broker will never begin it: what it left is taken.
    Dead,
    /// Its broker has begun it for this epoch. What dead incarnations left below is taken, too.
    Begun,
}

impl<M> fmt::Debug for Lanes<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes")
            .field("epoch", &self.epoch)
            .field("lanes", &self.lanes.len())
            .finish_non_exhaustive()
    }
}

impl<M: Memory> Lanes<M> {
    /// All lanes, none of them begun: the grants say so to their brokers.
    pub fn new(region: &Region<M>, claim: &Claim, epoch: u32, intact: Intact) -> Self {
        let geometry = region.geometry();
        let rows = geometry.data_rows();
        let all = rows.flat_map(|row| (0..geometry.lanes).map(move |lane| (row, lane)));
        Self {
            epoch,
            first_row: geometry.data_rows().next().unwrap_or(0),
            per_row: geometry.lanes,
            lanes: all
                .map(|(row, lane)| Lane::new(region, claim, epoch, row, lane))
                .collect(),
            turn: 0,
            intact,
            unreadable: Vec::new(),
        }
    }

    /// Takes up to `most` records, no more than a share of any lane. Returns how many; records of before this epoch
    /// that are not to be ordered are no arrivals.
    pub fn take(
        &mut self,
        region: &Region<M>,
        core: &Core,
        most: usize,
        arrivals: &mut Vec<Arrival>,
    ) -> usize {
        let count = self.lanes.len();
        self.turn = (self.turn + 1) % count.max(1);
        let mut taking = Taking {
            core,
            intact: &self.intact,
            bytes: 0,
            most,
            taken: 0,
            arrivals,
            unreadable: &mut self.unreadable,
        };
        // Brokers begin lanes seldom: each step checks one of them, and all when there is nothing else to do.
        for i in 0..count {
            let lane = &mut self.lanes[(self.turn + i) % count];
            let drained = lane.take(&mut taking);
            if i == 0 && drained && lane.look(region, self.epoch) {
                lane.take(&mut taking);
            }
        }
        for i in 1..count {
            if taking.taken > 0 {
                break;
            }
            let lane = &mut self.lanes[(self.turn + i) % count];
            if lane.look(region, self.epoch) {
                lane.take(&mut taking);
            }
        }
        taking.taken
    }

    /// The records that were taken and cannot be read: their brokers get a notice.
    pub fn take_unreadable(&mut self) -> Vec<Source> {
        std::mem::take(&mut self.unreadable)
    }

    /// Grants the writers of the lanes what was taken, publishes how many notices they have and how many answers
    /// are still to come, and admits new incarnations once all that older ones left was taken.
    pub fn grant(&mut self, core: &mut Core) {
        for lane in &mut self.lanes {
            let taken = lane.reader.position();
            let mut granted = lane.granted;
            granted.notices_end = lane.notices.next();
            granted.held = lane.held;
            if lane.stage != Stage::Waiting {
                granted.consumed = taken;
            }
            if lane.stage == Stage::Begun
                && taken >= lane.start.start
                && granted.incarnation != lane.start.incarnation
            {
                if !injected(Canary::DropIncarnation) {
                    core.drop_incarnation(lane.row, lane.start.incarnation);
                }
                granted.incarnation = lane.start.incarnation;
            }
            if granted != lane.granted {
                lane.granted = granted;
                lane.grants.store(&granted);
            }
        }
    }

    /// Publishes a notice, if the incarnation that it is for still reads it.
    pub fn notify(&mut self, source: &Source, notice: &Notice) -> bool {
        let lane = self.lane_of(source);
        let reads = lane.answer(source.incarnation);
        if reads {
            lane.notices.publish(notice);
        }
        reads
    }

    /// A batch has its place.
    pub fn placed(&mut self, source: &Source) {
        self.lane_of(source).answer(source.incarnation);
    }

    fn lane_of(&mut self, source: &Source) -> &mut Lane<M> {
        let row = usize::from(source.row - self.first_row);
        &mut self.lanes[row * usize::from(self.per_row) + usize::from(source.lane)]
    }

    /// Finds brokers that died before they began their lanes.
    pub fn look_after(&mut self, region: &Region<M>, alive: &dyn Fn(u16) -> bool) {
        let waiting = |lane: &&mut Lane<M>| lane.stage == Stage::Waiting;
        let mut known: Option<(u16, bool)> = None;
        for lane in self.lanes.iter_mut().filter(waiting) {
            let lives = match known {
                Some((row, lives)) if row == lane.row => lives,
                _ => alive(lane.row),
            };
            known = Some((lane.row, lives));
            // It may have begun the lane before it died.
            if !lives && !lane.look(region, self.epoch) {
                lane.stage = Stage::Dead;
                lane.left_below = u64::MAX;
                lane.reader.seek_oldest();
            }
        }
    }
}

impl<M: Memory> Lane<M> {
    fn new(region: &Region<M>, claim: &Claim, epoch: u32, row: u16, lane: u16) -> Self {
        let notices = region.notice_writer(claim, row, lane);
        let granted = LaneGrant {
            notices: notices.next(),
            notices_end: notices.next(),
            epoch,
            ..LaneGrant::default()
        };
        let mut grants = region.lane_grant_writer(claim, row, lane);
        grants.store(&granted);
        Self {
            row,
            lane,
            reader: region.lane_reader(row, lane),
            grants,
            notices,
            granted,
            stage: Stage::Waiting,
            start: LaneStart::default(),
            held: 0,
            left_below: 0,
        }
    }

    /// Whether an incarnation of the broker has begun the lane, and none after it.
    fn is_read_by(&self, incarnation: u32) -> bool {
        self.stage == Stage::Begun && incarnation == self.start.incarnation
    }

    /// The sequencer answers a record that an incarnation wrote. Returns whether that incarnation still reads.
    fn answer(&mut self, incarnation: u32) -> bool {
        let reads = self.is_read_by(incarnation);
        // The incarnation comes from shared memory.
        self.held = self.held.saturating_sub(reads.into());
        reads
    }

    /// Takes the lane's share; true when nothing is left. The sequencer takes what a broker left before it checks
    /// whether the broker has begun the lane.
    fn take(&mut self, taking: &mut Taking<'_>) -> bool {
        if self.stage == Stage::Waiting {
            return true;
        }
        for _ in 0..RECORDS_PER_LANE {
            let left = self.reader.position() < self.left_below;
            if taking.taken >= taking.most || left && taking.bytes >= CHECKED_PER_STEP {
                return false;
            }
            let position = self.reader.position();
            let (number, record) = match self.reader.take() {
                Seen::Found(found) => found,
                Seen::Nothing => return true,
                Seen::Damaged => {
                    taking.taken += 1;
                    // The broker submits again what was left before this epoch, or its publisher sends it again.
                    if position >= self.left_below && !injected(Canary::UnreadableTold) {
                        self.held += 1;
                        taking.unreadable.push(Source {
                            row: self.row,
                            lane: self.lane,
                            incarnation: self.start.incarnation,
                            number: position,
                        });
                    }
                    continue;
                }
            };
            taking.taken += 1;
            if number >= self.left_below || self.is_left(&record, taking) {
                self.held += u64::from(self.is_read_by(record.incarnation));
                taking.arrivals.push(Arrival {
                    source: Source {
                        row: self.row,
                        lane: self.lane,
                        incarnation: record.incarnation,
                        number,
                    },
                    record,
                });
            }
        }
        false
    }

    /// Whether to order a record of before this epoch. A living broker submits its records again itself. A dead
    /// broker's record may have been refused, and its memory used again; and a client that asked to open or close a
    /// session asks again.
    fn is_left(&self, record: &PbrRecord, taking: &mut Taking<'_>) -> bool {
        let again = self.stage == Stage::Begun && record.incarnation == self.start.incarnation;
        if again
            || PbrKind::from_number(record.kind) != Some(PbrKind::Batch)
            || !taking.core.may_place(record)
        {
            return false;
        }
        taking.bytes += u64::from(record.len);
        (taking.intact)(self.row, record) || injected(Canary::LeftIntact)
    }

    /// Checks whether the broker, or another incarnation of it, has begun the lane for this epoch. To be called
    /// when nothing is left to take; true when there may be something again, also a record that only a close look
    /// shows.
    fn look(&mut self, region: &Region<M>, epoch: u32) -> bool {
        if self.stage != Stage::Waiting && self.reader.look_closely() {
            return true;
        }
        let Some(start) = region.lane_start(self.row, self.lane).found() else {
            return false;
        };
        if start.epoch != epoch {
            return false;
        }
        if start == self.start {
            // Numbers have no gaps. Where memory is damaged all the same, a record is missing.
            let is_missing = self.reader.position() < start.start;
            if is_missing {
                self.reader.seek(start.start);
            }
            return is_missing;
        }
        if self.stage == Stage::Waiting {
            self.reader.seek_oldest();
            let oldest = self.reader.position().min(start.start);
            // An admitted incarnation has nothing left but what it submits again.
            let first = if start.admitted == 1 {
                start.start
            } else {
                oldest
            };
            self.reader.seek(first);
        }
        if start.incarnation != self.granted.incarnation {
            // Notices until now were for other incarnations, and may be overwritten.
            self.granted.notices = self.notices.next();
        }
        if start.incarnation != self.start.incarnation {
            self.held = 0;
        }
        self.stage = Stage::Begun;
        self.start = start;
        self.left_below = start.start;
        true
    }
}

#[cfg(test)]
mod tests;
