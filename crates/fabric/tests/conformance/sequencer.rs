//! What the sequencer says of itself and of sessions, and who sleeps.

use std::panic::{AssertUnwindSafe, catch_unwind};

use embar_fabric::{Attached, Secret, SequencerRow, SequencerState, SessionOwner, SessionRow};

use crate::common::small;
use crate::setup::Setup;

fn session(n: u64) -> SessionRow {
    SessionRow {
        producer: n,
        expected: n * 2,
        ordered: [n as u8; 16],
        in_use: 1,
        ..Default::default()
    }
}

fn panics<T>(f: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(f)).is_err());
}

pub fn a_candidate_is_seen_by_all<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    assert_eq!(
        (
            there.sequencer_row(0).found(),
            there.sequencer_row(1).found()
        ),
        (None, None)
    );
    let standby = here.claim_unlocked(3);
    let mut writer = here.sequencer_row_writer(&standby);
    for epoch in 1..20 {
        let mut row = SequencerRow {
            epoch,
            state: SequencerState::Raised as u32,
            incarnation: standby.incarnation(),
            ..Default::default()
        };
        writer.raise(&row);
        assert_eq!(there.sequencer_row(1).found(), Some(row));
        row.state = SequencerState::Active as u32;
        row.beat += 1;
        writer.store(&row);
        assert_eq!(there.sequencer_row(1).found(), Some(row));
    }
    assert_eq!(there.sequencer_row(0).found(), None, "an area of its own");
    let mut successor = setup.host().sequencer_row_writer(&standby);
    successor.store(&SequencerRow::default());
    assert_eq!(
        there.sequencer_row(1).found(),
        Some(SequencerRow::default())
    );
}

pub fn sessions_continue_after_a_restart<S: Setup>() {
    let setup = S::new(&small());
    let there = setup.host();
    for life in 0..4 {
        let here = setup.host();
        let mut table = here.session_table(&here.claim_unlocked(0));
        for slot in 0..4 {
            let before = (life > 0).then(|| session(u64::from(life * 10 + slot - 9)));
            assert_eq!(there.session_row(0, slot).found(), before);
            for n in 0..=1 {
                let row = session(u64::from(life * 10 + slot + n));
                table.store(slot, &row);
                assert_eq!(there.session_row(0, slot).found(), Some(row));
            }
        }
    }
    assert_eq!(there.session_row(1, 0).found(), None, "an area of its own");
}

pub fn a_session_has_an_owner_beside_its_row<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let mut table = here.session_table(&here.claim_unlocked(0));
    for first_epoch in 1..4 {
        let owner = SessionOwner {
            secret: Secret([first_epoch as u8; 16]),
            first_epoch,
            ..SessionOwner::default()
        };
        table.store_owner(3, &owner);
        assert_eq!(there.session_owner(0, 3).found(), Some(owner));
        table.store(3, &session(first_epoch.into()));
        assert_eq!(there.session_owner(0, 3).found(), Some(owner));
    }
    assert_eq!(there.session_owner(0, 2).found(), None);
    assert_eq!(
        there.session_owner(1, 3).found(),
        None,
        "an area of its own"
    );
    let text = format!("{:?}", there.session_owner(0, 3));
    assert!(!text.contains("3, 3"), "nothing prints a secret: {text}");
}

pub fn brokers_say_which_sessions_they_hold<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let mut row = here.attached_writer(&here.claim_unlocked(1), 0);
    assert_eq!(there.attached(1, 0).found(), None);
    let attached = Attached {
        incarnation: 1,
        sessions: [5, 0, 0, 0, 0, 1 << 63],
        ..Attached::default()
    };
    row.store(&attached);
    assert_eq!(there.attached(1, 0).found(), Some(attached));
    assert_eq!(there.attached(2, 0).found(), None, "a row of its own");
}

pub fn only_candidates_have_an_area<S: Setup>() {
    let setup = S::new(&small());
    let here = setup.host();
    for data in [1, 2] {
        let claim = here.claim_unlocked(data);
        panics(|| here.sequencer_row_writer(&claim));
        panics(|| here.goi_writer(&claim, 1));
        panics(|| here.session_table(&claim));
        panics(|| here.notice_writer(&claim, 1, 0));
        panics(|| here.lane_grant_writer(&claim, 1, 0));
    }
}

pub fn wild_numbers_panic<S: Setup>() {
    let setup = S::new(&small());
    let here = setup.host();
    panics(|| here.session_row(0, 4).found());
    panics(|| here.session_row(2, 0).found());
    panics(|| here.sequencer_row(2).found());
    panics(|| here.goi_root(0, 4).found());
    panics(|| here.lane_grant(0, 1, 2).found());
    panics(|| here.sleep_flag(1, 3));
    panics(|| here.goi_reader(2));
    panics(|| here.goi_reader(0).record(16, 1, 0));
    panics(|| here.goi_reader(0).record(0, 1, u32::MAX));
    panics(|| here.goi_reader(0).link(16, 1));
}

pub fn a_sleeper_is_seen_by_all<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let all = || (0..4).flat_map(|row| (0..=here.sequencer_thread()).map(move |i| (row, i)));
    for (row, number) in all() {
        assert!(!there.sleep_flag(row, number).is_asleep(), "fresh memory");
    }
    for (row, number) in all() {
        here.sleep_flag(row, number).set(true);
        for (other, its) in all() {
            let asleep = there.sleep_flag(other, its).is_asleep();
            assert_eq!(asleep, (other, its) == (row, number));
        }
        here.sleep_flag(row, number).set(false);
        assert!(!there.sleep_flag(row, number).is_asleep());
    }
}
