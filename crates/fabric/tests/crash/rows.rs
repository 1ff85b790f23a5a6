//! A writer dies while it stores a row or a topic record, of which one copy may be lost before: the old one is
//! there, or the new one.

use embar_fabric::layout::TableId;
use embar_fabric::slot::SLOT_BYTES;
use embar_fabric::{GoiRoot, LaneGrant, Layout, Region, SequencerRow, SessionRow};
use embar_memory::Simulated;

use crate::anywhere::{die_anywhere, geometry};

/// As [`dies_storing`], with both copies whole, and without each of `copies`, by offset.
fn old_or_new<T: PartialEq + std::fmt::Debug>(
    copies: [u64; 2],
    store: impl Fn(&Region<Simulated>, std::ops::Range<u32>, &mut dyn FnMut(u32)),
    read: impl Fn(&Region<Simulated>) -> Option<T>,
    row: impl Fn(u32) -> T,
) {
    dies_storing(None, &store, &read, &row);
    for copy in copies {
        dies_storing(Some(copy), &store, &read, &row);
    }
}

/// Stores version 1, loses what is at `lost`, dies while it stores 2 and 3; its successor stores 4.
fn dies_storing<T: PartialEq + std::fmt::Debug>(
    lost: Option<u64>,
    store: impl Fn(&Region<Simulated>, std::ops::Range<u32>, &mut dyn FnMut(u32)),
    read: impl Fn(&Region<Simulated>) -> Option<T>,
    row: impl Fn(u32) -> T,
) {
    die_anywhere(
        |region, life| {
            let mut stored = 1;
            store(region, 1..4, &mut |version| {
                if version == 1 {
                    lost.iter().for_each(|at| life.lose(*at));
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

/// Where the copies lie of an entry of a table.
fn copies_of(table: TableId, entry: u64) -> [u64; 2] {
    let table = Layout::new(&geometry()).tables()[table as usize];
    let at = table.offset + entry * table.entry_bytes;
    let copy_bytes = match table.id {
        TableId::TopicRecords => table.entry_bytes / 2,
        _ => SLOT_BYTES,
    };
    [at, at + copy_bytes]
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
        copies_of(TableId::Sessions, 3),
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
        copies_of(TableId::Sequencers, 1),
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
        notices_end: version.into(),
        ..Default::default()
    };
    old_or_new(
        copies_of(TableId::LaneGrants, 1),
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
        copies_of(TableId::GoiRoots, 1),
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

#[test]
fn a_topic_record() {
    old_or_new(
        copies_of(TableId::TopicRecords, 1),
        |region, versions, stored| {
            let mut records = region.topic_record_writer(&region.claim_unlocked(0));
            for version in versions {
                records.store(1, &[version as u8; 300]).expect("it fits");
                stored(version);
            }
        },
        |region| {
            region
                .topic_records()
                .load(1)
                .found()
                .map(|(_, payload)| payload)
        },
        |version| vec![version as u8; 300],
    );
}
