//! Checks of time. A sequencer may end the lease of a session, and a candidate may take a living sequencer for gone,
//! only after it looked several times: that its own clock jumped is no reason. Also, no session alone may take more
//! than half of the room for batches that wait.

use std::cell::Cell;

use embar_fabric::Region;
use embar_memory::Simulated;
use embar_memory::canary::without_canary;
use embar_order::Figures;

use crate::violation::{Check, Invariant, ensure};

/// Looks at what came before a lease ends, at least.
const LOOKS_PER_LEASE: u32 = 4;

/// What the devices show a watcher of the one that sequences.
pub struct WatchCheck {
    raw: Region<Simulated>,
    /// Row of the watcher.
    row: u16,
    seen: Option<Beat>,
    /// Looks since it last changed.
    looks: u32,
    /// At this look the watcher found that a candidate's process has ended.
    found_ended: Cell<bool>,
}

/// The epoch of the active candidate, and when it last showed that it lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Beat {
    epoch: u32,
    beat: u64,
    row: u16,
}

impl WatchCheck {
    /// That of a candidate's row. `raw` is the region on the devices.
    pub fn new(raw: Region<Simulated>, row: u16) -> Self {
        Self {
            raw,
            row,
            seen: None,
            looks: 0,
            found_ended: Cell::new(false),
        }
    }

    /// The watcher is about to look.
    pub fn look(&mut self) {
        let beat = without_canary(|| self.beat());
        self.looks = match beat == self.seen {
            true => self.looks + 1,
            false => 0,
        };
        self.seen = beat;
        self.found_ended.set(false);
    }

    /// The watcher asked whether the process of a row lives, and gets this answer.
    pub fn note_alive(&self, row: u16, lives: bool) -> bool {
        let is_candidate = self.raw.geometry().area_of(row).is_some();
        self.found_ended
            .set(self.found_ended.get() || is_candidate && !lives);
        lives
    }

    /// The watcher takes the active candidate for gone. If that one's process lives, its beat must have stood still
    /// at several looks: a clock that jumped says nothing of another host. The watcher's own row shows an older
    /// incarnation.
    pub fn judge(&self) -> Check {
        let others = self.seen.filter(|seen| seen.row != self.row);
        let may_be = others.is_none() || self.found_ended.get() || self.looks >= LOOKS_PER_LEASE;
        ensure(Invariant::Lease, may_be, || {
            let (seen, looks) = (self.seen, self.looks);
            format!("{seen:?} lives, and is taken for gone after {looks} looks")
        })
    }

    fn beat(&self) -> Option<Beat> {
        let candidates = self.raw.geometry().candidates();
        let beats = candidates.zip(0..).filter_map(|(row, area)| {
            let found = self.raw.sequencer_row(area).found()?;
            Some(Beat {
                epoch: found.epoch,
                beat: found.beat,
                row,
            })
        });
        beats.max()
    }
}

/// Watches one sequencer.
#[derive(Debug, Default)]
pub struct SequencerCheck {
    /// Steps in a row after which batches waited for others.
    looks: u32,
}

impl SequencerCheck {
    /// A lease ends only after batches were looked for again and again. And one session alone never
    /// takes more than half of the room, of `held_max` places, for those that wait.
    pub fn judge(&mut self, before: Figures, after: Figures, held_max: u32) -> Check {
        let looks = std::mem::take(&mut self.looks);
        ensure(
            Invariant::I5,
            after.gaps == before.gaps || looks >= LOOKS_PER_LEASE,
            || format!("a session was fenced after {looks} looks"),
        )?;
        if after.held > 0 {
            self.looks = looks + 1;
        }
        let alone = after.sessions == 1 && before.sessions == 1;
        let half = 2 * after.held <= held_max + 1;
        ensure(Invariant::I9, !alone || half, || {
            format!("one session holds {} batches of {held_max}", after.held)
        })
    }
}
