//! A candidate's watch over the active one: when to take over.
//!
//! Two things show that the active candidate is gone: its process has ended, which the membership knows at once, or
//! its beat stands still for the length of a lease. The second is only a guess. A wrong guess costs a takeover and
//! never the order, so the lease may be short. Time in which the watcher itself did not run does not count, so that
//! a watcher on a busy machine does not take a sequencer for dead.

use embar_fabric::Region;
use embar_memory::Memory;
use embar_memory::canary::{Canary, injected};

use crate::leadership;

/// Measures how long the beat of the candidate with the highest epoch has stood still.
#[derive(Debug)]
pub struct LeaderWatch {
    lease_ns: u64,
    /// Epoch and beat as last seen.
    seen: (u32, u64),
    /// Time since the beat last changed, as far as it was watched.
    silent_ns: u64,
    looked_at: u64,
}

/// Looks in one lease: time between two looks counts up to such a part of it.
const LOOKS_PER_LEASE: u64 = 8;

impl LeaderWatch {
    /// A watch that begins now.
    pub fn new(lease_ns: u64, now: u64) -> Self {
        Self {
            lease_ns,
            seen: (0, 0),
            silent_ns: 0,
            looked_at: now,
        }
    }

    /// How often to call [`LeaderWatch::should_take_over`], in nanoseconds, for its time to count.
    pub fn look_every_ns(&self) -> u64 {
        self.lease_ns / LOOKS_PER_LEASE
    }

    /// Looks at the candidate with the highest epoch. `alive` says of a row whether its process lives.
    pub fn should_take_over<M: Memory>(
        &mut self,
        region: &Region<M>,
        now: u64,
        alive: &dyn Fn(u16) -> bool,
    ) -> bool {
        let passed = now.saturating_sub(self.looked_at);
        self.looked_at = now;
        let Some((area, row)) = leadership::rows(region).max_by_key(|(_, row)| row.epoch) else {
            return true;
        };
        if (row.epoch, row.beat) != self.seen {
            self.seen = (row.epoch, row.beat);
            self.silent_ns = 0;
        } else {
            let most = if injected(Canary::WatchedSilence) {
                u64::MAX
            } else {
                self.look_every_ns()
            };
            self.silent_ns = self.silent_ns.saturating_add(passed.min(most));
        }
        let candidate = region.geometry().candidates().nth(area.into());
        self.silent_ns >= self.lease_ns || !candidate.is_some_and(alive)
    }
}
