//! When a candidate takes over: whatever its clock does meanwhile.

mod support;

use embar_fabric::{Claim, Geometry, Region, SequencerRow, SequencerState};
use embar_memory::Simulated;
use embar_order::LeaderWatch;

const LEASE: u64 = 800;
/// The longest step that counts.
const LOOK: u64 = LEASE / 8;
const HOURS: u64 = 3_600_000_000_000 * 5;

/// A region with an active sequencer, and a watch on it that has seen it beat once, at time 0.
struct Watch {
    region: Region<Simulated>,
    claim: Claim,
    said: SequencerRow,
    leader_watch: LeaderWatch,
    now: u64,
}

impl Watch {
    fn begin() -> Self {
        let region = support::region(&Geometry {
            brokers: 3,
            standbys: 1,
            lane_slots: 2,
            ..support::small()
        });
        let claim = region.claim_unlocked(0);
        let said = SequencerRow {
            epoch: 1,
            state: SequencerState::Active as u32,
            ..SequencerRow::default()
        };
        let mut watch = Self {
            leader_watch: LeaderWatch::new(LEASE, 0),
            region,
            claim,
            said,
            now: 0,
        };
        watch.beat();
        assert!(!watch.looks_after(0));
        watch
    }

    fn beat(&mut self) {
        self.said.beat += 1;
        let mut row = self.region.sequencer_row_writer(&self.claim);
        row.store(&self.said);
    }

    fn looks_at(&mut self, now: u64) -> bool {
        self.now = now;
        self.leader_watch
            .should_take_over(&self.region, now, &|row| row == 0)
    }

    fn looks_after(&mut self, passed: u64) -> bool {
        self.looks_at(self.now + passed)
    }
}

#[test]
fn a_beat_that_stands_still_for_a_lease_is_over() {
    let mut watch = Watch::begin();
    assert!((0..7).all(|_| !watch.looks_after(LOOK)));
    assert!(watch.looks_after(LOOK));
    watch.beat();
    assert!(!watch.looks_after(LOOK), "it lives after all");
    assert!((0..7).all(|_| !watch.looks_after(LOOK)));
    assert!(watch.looks_after(LOOK));
}

#[test]
fn a_jump_forward_of_the_clock_or_a_pause_takes_nobody_for_dead() {
    let mut watch = Watch::begin();
    // As much as one look.
    assert!(!watch.looks_after(HOURS));
    assert!((0..6).all(|_| !watch.looks_after(LOOK)));
    assert!(watch.looks_after(HOURS));
}

#[test]
fn a_jump_back_of_the_clock_neither_ends_a_lease_nor_prolongs_it() {
    let mut watch = Watch::begin();
    assert!(!watch.looks_at(HOURS));
    assert!(!watch.looks_at(3), "time that went back is none");
    assert!((0..6).all(|_| !watch.looks_after(LOOK)));
    assert!(watch.looks_after(LOOK));
}

#[test]
fn a_dead_process_needs_no_lease() {
    let mut watch = Watch::begin();
    let dead = |_| false;
    assert!(watch.leader_watch.should_take_over(&watch.region, 0, &dead));
}
