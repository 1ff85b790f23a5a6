//! What those who follow an index find where memory has lost some of it.
#![cfg(not(loom))]

mod common;

use common::{Cluster, NONCE, small};
use embar_fabric::{Geometry, IndexCursor, IndexRecord, Layout, RecordLost};
use embar_memory::Memory;

const GARBAGE: u64 = 0xC3C3_C3C3_C3C3_C3C3;
/// Records of one message each: they fill the first page, and some of the second.
const RECORDS: u64 = 100;

fn record(base: u64) -> IndexRecord {
    IndexRecord {
        base,
        count: 1,
        len: 128,
        ..IndexRecord::default()
    }
}

/// How many records are read, and what comes then, when these lines of the first page are lost: before those who read know
/// of it, or after.
fn read_without(lines: &[u64], is_known: bool) -> (u64, Result<(), RecordLost>) {
    assert_ne!(NONCE as u64, GARBAGE);
    let geometry = Geometry {
        disks: 1,
        ..small()
    };
    let cluster = Cluster::seeded(&geometry, 3);
    let here = cluster.host(2);
    let mut writer = here.index_writer(&here.claim_unlocked(1));
    for base in 0..RECORDS {
        writer.append(7, &record(base)).expect("room");
        writer.announce(&[7]);
    }
    let mut follower = cluster.host(3).index_follower(1);
    let lose = || {
        let layout = Layout::new(&geometry);
        let table = layout
            .tables()
            .iter()
            .find(|it| it.id.name() == "index pages");
        let vandal = cluster.control.host(4);
        for line in lines {
            let at = table.expect("there is one").offset + line * 64;
            (0..8).for_each(|word| vandal.store(at + word * 8, GARBAGE));
            vandal.write_back(at, 64);
        }
        vandal.fence();
    };
    if !is_known {
        lose();
    }
    assert!(!follower.take_grown(&mut Vec::new()), "it is new here");
    if is_known {
        lose();
    }
    let (mut cursor, mut records) = (IndexCursor::new(7, 0), Vec::new());
    let read = follower.read(&mut cursor, RECORDS, 1000, &mut records);
    let bases: Vec<u64> = records.iter().map(|record| record.base).collect();
    assert_eq!(bases, (0..cursor.next()).collect::<Vec<_>>(), "dense");
    (cursor.next(), read)
}

#[test]
fn what_is_lost_is_passed_over_by_nobody() {
    for is_known in [false, true] {
        assert_eq!(read_without(&[], is_known), (RECORDS, Ok(())));
        assert_eq!(read_without(&[4], is_known), (3, Err(RecordLost)));
        assert_eq!(read_without(&[63], is_known), (62, Err(RecordLost)));
        assert_eq!(read_without(&[1], is_known), (0, Err(RecordLost)));
    }
    // Where the page was known, its header is not needed any more.
    assert_eq!(read_without(&[0], false), (0, Err(RecordLost)));
    assert_eq!(read_without(&[0], true), (RECORDS, Ok(())));
}
