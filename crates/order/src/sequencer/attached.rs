//! Looks, from time to time, which sessions each broker says that it holds. The sequencer never gives the places of
//! these to others.

use embar_fabric::{PbrKind, Region};
use embar_memory::Memory;

use super::Sequencer;

/// Between two looks at all brokers, in nanoseconds for each broker: a look reads a row for 384 sessions of each.
const LOOK_EVERY_NS: u64 = 4_000_000;
/// Between two looks while no session opens: they show how long the sessions were idle that go first.
const LOOK_ANYWAY_NS: u64 = 100_000_000;
/// Words in a row.
const WORDS: usize = 6;

/// What brokers held at the last look.
#[derive(Debug)]
pub(super) struct Attachments {
    /// Bit by bit, by place.
    held: Vec<u64>,
    looked_at: Option<u64>,
    /// Rows (bit by bit) whose processes are gone.
    gone: u128,
    /// By row, the newest incarnation that was seen up: it says what it holds.
    up: Vec<u32>,
}

impl Attachments {
    pub fn new<M: Memory>(region: &Region<M>) -> Self {
        Self {
            held: vec![0; region.geometry().attached_rows() as usize * WORDS],
            looked_at: None,
            gone: 0,
            up: vec![0; region.geometry().brokers.into()],
        }
    }

    /// Sessions that a dead broker held count as held no more. False while a living broker cannot say what it
    /// holds, as it takes up its predecessor's work, and once more when such a broker is found to be done.
    pub fn look_after<M: Memory>(
        &mut self,
        region: &Region<M>,
        alive: &dyn Fn(u16) -> bool,
    ) -> bool {
        let dead = region.geometry().data_rows().filter(|row| !alive(*row));
        self.gone = dead.fold(0, |gone, row| gone | 1 << row);
        let mut is_known = true;
        for row in region.geometry().data_rows() {
            let incarnation = region.incarnation(row);
            if incarnation == 0 || self.gone & 1 << row != 0 {
                continue;
            }
            let start = region.lane_start(row, 0).found();
            let is_up = start.is_some_and(|it| (it.incarnation, it.admitted) == (incarnation, 1));
            let up = &mut self.up[usize::from(row)];
            is_known &= is_up && *up == incarnation;
            if is_up {
                *up = incarnation;
            }
        }
        is_known
    }

    /// The words of a row, with the bits of all brokers.
    fn read<M: Memory>(&self, region: &Region<M>, number: u32) -> [u64; WORDS] {
        let mut together = [0; WORDS];
        for row in region.geometry().data_rows() {
            let found = region.attached(row, number).found();
            let Some(found) = found.filter(|_| self.gone & 1 << row == 0) else {
                continue;
            };
            // What an older incarnation held counts no more.
            if found.incarnation == region.incarnation(row) {
                let words = together.iter_mut().zip(found.sessions);
                words.for_each(|(sum, word)| *sum |= word);
            }
        }
        together
    }
}

impl<M: Memory> Sequencer<M> {
    /// Looks at all brokers, if sessions that open may need the places of others.
    pub(super) fn look_at_brokers(&mut self, now: u64) {
        if !self.core.is_crowded() {
            return;
        }
        let brokers = self.region.geometry().data_rows().count() as u64;
        let mut arrivals = self.arrivals.iter();
        let opens = arrivals.any(|it| it.record.kind == PbrKind::Open as u8);
        let every = LOOK_EVERY_NS * brokers;
        let every = if opens {
            every
        } else {
            every.max(LOOK_ANYWAY_NS)
        };
        let is_due = |at: u64| now.saturating_sub(at) >= every || now < at;
        if !self.attachments.looked_at.is_none_or(is_due) {
            return;
        }
        self.attachments.looked_at = Some(now);
        self.core.looked(now);
        for number in 0..self.region.geometry().attached_rows() {
            let words = self.attachments.read(&self.region, number);
            let first = number as usize * WORDS;
            for (at, word) in (first..).zip(words) {
                let before = std::mem::replace(&mut self.attachments.held[at], word);
                let mut changed = before ^ word;
                while changed != 0 {
                    let bit = changed.trailing_zeros();
                    changed &= changed - 1;
                    let place = at as u32 * u64::BITS + bit;
                    if place < self.region.geometry().sessions {
                        self.core.set_attached(place, word & 1 << bit != 0);
                    }
                }
            }
        }
    }
}
