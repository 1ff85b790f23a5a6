//! A candidate dies while it stores a row: the old one is there, or the new one.

use embar_fabric::{GoiRoot, LaneGrant, Region, SequencerRow, SessionRow, Simulated};

use crate::anywhere::die_anywhere;

/// Stores version 1, dies while it stores 2 and 3; its successor stores 4.
fn old_or_new<T: PartialEq + std::fmt::Debug>(
    store: impl Fn(&Region<Simulated>, std::ops::Range<u32>, &mut dyn FnMut(u32)),
    read: impl Fn(&Region<Simulated>) -> Option<T>,
    row: impl Fn(u32) -> T,
) {
    die_anywhere(
        |region, life| {
            let mut stored = 1;
            store(region, 1..4, &mut |version| {
                if version == 1 {
                    life.begin_to_end();
                } else if life.lasts() {
                    stored = version;
                }
            });
            stored
        },
        |another_host, stored| {
            let there = another_host();
            let found = read(&there).expect("old or new");
            let may_be = stored..=(stored + 1).min(3);
            assert!(
                may_be.clone().any(|version| row(version) == found),
                "{found:?}"
            );
            store(&another_host(), 4..5, &mut |_| {});
            assert_eq!(read(&there), Some(row(4)));
        },
    );
}

#[test]
fn a_session() {
    let session = |version: u32| SessionRow {
        producer: version.into(),
        expected: version.into(),
        ordered: [version as u8; 16],
        epoch: version,
        ..Default::default()
    };
    old_or_new(
        |region, versions, stored| {
            let mut table = region.session_table(&region.claim_unlocked(0));
            for version in versions {
                table.store(3, &session(version));
                stored(version);
            }
        },
        |region| region.session_row(0, 3).found(),
        session,
    );
}

#[test]
fn a_candidate() {
    let candidate = |version: u32| SequencerRow {
        epoch: version,
        beat: version.into(),
        reserved: [version as u8; 26],
        ..Default::default()
    };
    old_or_new(
        |region, versions, stored| {
            let mut row = region.sequencer_row_writer(&region.claim_unlocked(2));
            for version in versions {
                row.raise(&candidate(version));
                stored(version);
            }
        },
        |region| region.sequencer_row(1).found(),
        candidate,
    );
}

#[test]
fn a_grant() {
    let grant = |version: u32| LaneGrant {
        consumed: version.into(),
        epoch: version,
        incarnation: version,
        told: version.into(),
        ..Default::default()
    };
    old_or_new(
        |region, versions, stored| {
            let mut row = region.lane_grant_writer(&region.claim_unlocked(0), 1, 0);
            for version in versions {
                row.store(&grant(version));
                stored(version);
            }
        },
        |region| region.lane_grant(0, 1, 0).found(),
        grant,
    );
}

#[test]
fn a_root() {
    let root = |version: u32| GoiRoot {
        chain: version,
        first: version.into(),
        reserved: [version as u8; 14],
        ..Default::default()
    };
    old_or_new(
        |region, versions, stored| {
            let mut row = region.goi_root_writer(&region.claim_unlocked(0), 1);
            for version in versions {
                row.store(&root(version));
                stored(version);
            }
        },
        |region| region.goi_root(0, 1).found(),
        root,
    );
}
