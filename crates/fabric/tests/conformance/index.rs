use embar_fabric::index::PAGE_RECORDS;
use embar_fabric::{IndexFull, IndexRecord, IndexWriter};
use embar_memory::Memory;

use crate::common::small;
use crate::setup::Setup;

const PER_PAGE: u64 = PAGE_RECORDS as u64;

fn record(base: u64, count: u32) -> IndexRecord {
    IndexRecord {
        base,
        count,
        payload_at: base * 64,
        len: 128,
        ..Default::default()
    }
}

/// Appends batches of one message at offsets `from..to`.
fn append<M: Memory>(writer: &mut IndexWriter<M>, chain: u32, from: u64, to: u64) {
    for base in from..to {
        writer.append(chain, &record(base, 1)).expect("room");
    }
}

fn bases(scanned: &[(u32, Vec<IndexRecord>)], chain: u32) -> Vec<u64> {
    let found = scanned.iter().find(|(id, _)| *id == chain);
    found.map_or(Vec::new(), |(_, records)| {
        records.iter().map(|record| record.base).collect()
    })
}

pub fn records_come_back_in_order<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let mut writer = here.index_writer(&here.claim_unlocked(1));
    assert_eq!(there.index_reader(1).scan(), [], "garbage is not an index");
    assert_eq!(writer.next(7), None);
    for i in 0..70 {
        writer.append(7, &record(i * 3, 3)).expect("room");
        writer.append(8, &record(1000 + i, 1)).expect("room");
    }
    let scanned = there.index_reader(1).scan();
    assert_eq!(
        bases(&scanned, 7),
        (0..70).map(|i| i * 3).collect::<Vec<_>>()
    );
    assert_eq!(bases(&scanned, 8), (1000..1070).collect::<Vec<_>>());
    assert_eq!(scanned.len(), 2);
    assert_eq!(scanned[0].1[5], record(15, 3));
    assert_eq!((writer.next(7), writer.next(8)), (Some(210), Some(1070)));
    assert_eq!(there.index_reader(2).scan(), [], "an index of its own");
    assert_eq!(there.index_reader(0).scan(), [], "the head takes no data");
    let mut head = here.index_writer(&here.claim_unlocked(0));
    assert_eq!(head.append(7, &record(0, 1)), Err(IndexFull));
}

pub fn pages_are_used_again<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let mut writer = here.index_writer(&here.claim_unlocked(1));
    let mut first = 0;
    for round in 0..20 {
        let next = (round + 1) * 40;
        append(&mut writer, 7, round * 40, next);
        if round >= 2 {
            first = next - 60;
            writer.release_before(7, first);
        }
        let found = bases(&there.index_reader(1).scan(), 7);
        assert_eq!(found, (found[0]..next).collect::<Vec<_>>());
        assert!(
            found[0] <= first && first - found[0] < PER_PAGE,
            "whole pages below {first} are gone"
        );
    }
    writer.release_before(7, 800);
    assert_eq!(
        there.index_reader(1).scan(),
        [],
        "the last page goes too, full or not"
    );
    assert_eq!(writer.next(7), Some(800));
    append(&mut writer, 7, 800, 801);
    assert_eq!(bases(&there.index_reader(1).scan(), 7), [800]);
}

pub fn a_full_index_says_so<S: Setup>() {
    let setup = S::new(&small());
    let here = setup.host();
    let mut writer = here.index_writer(&here.claim_unlocked(1));
    append(&mut writer, 1, 0, 3 * PER_PAGE);
    append(&mut writer, 2, 0, 1);
    assert_eq!(writer.free_pages(), 0);
    assert_eq!(writer.append(1, &record(3 * PER_PAGE, 1)), Err(IndexFull));
    assert_eq!(writer.append(3, &record(0, 1)), Err(IndexFull));
    append(&mut writer, 2, 1, PER_PAGE);
    writer.release_before(1, PER_PAGE - 1);
    assert_eq!(
        writer.append(1, &record(3 * PER_PAGE, 1)),
        Err(IndexFull),
        "one batch holds the page"
    );
    writer.release_before(1, PER_PAGE);
    append(&mut writer, 1, 3 * PER_PAGE, 4 * PER_PAGE);
    assert_eq!(
        bases(&here.index_reader(1).scan(), 1),
        (PER_PAGE..4 * PER_PAGE).collect::<Vec<_>>()
    );
    assert_eq!(
        here.index_reader(1).scan().len(),
        2,
        "a refused chain leaves nothing"
    );
}

pub fn a_restart_continues<S: Setup>() {
    let setup = S::new(&small());
    let there = setup.host();
    let mut next: u64 = 0;
    for _ in 0..20 {
        let here = setup.host();
        let mut writer = here.index_writer(&here.claim_unlocked(1));
        assert_eq!(writer.next(5), (next > 0).then_some(next));
        let kept = next.saturating_sub(10);
        writer.release_before(5, kept);
        append(&mut writer, 5, next, next + 10);
        next += 10;
        let found = bases(&there.index_reader(1).scan(), 5);
        let first = found[0];
        assert_eq!(found, (first..next).collect::<Vec<_>>());
        assert!(
            first <= kept && kept - first < PER_PAGE,
            "{first} of {kept}"
        );
    }
}

pub fn a_dropped_chain_is_gone<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let mut writer = here.index_writer(&here.claim_unlocked(1));
    append(&mut writer, 1, 0, 2 * PER_PAGE);
    append(&mut writer, 2, 0, 5);
    writer.drop_chain(1);
    writer.drop_chain(99);
    assert_eq!(bases(&there.index_reader(1).scan(), 1), []);
    assert_eq!(bases(&there.index_reader(1).scan(), 2), [0, 1, 2, 3, 4]);
    assert_eq!(writer.free_pages(), 3);
    append(&mut writer, 1, 0, 3);
    assert_eq!(
        bases(&there.index_reader(1).scan(), 1),
        [0, 1, 2],
        "and may begin again"
    );
}

pub fn a_truncated_chain_ends_where_asked<S: Setup>() {
    for keep in [0, 1, PER_PAGE - 1, PER_PAGE, PER_PAGE + 1, 100, 150] {
        let setup = S::new(&small());
        let (first, second, there) = (setup.host(), setup.host(), setup.host());
        append(&mut first.index_writer(&first.claim_unlocked(1)), 1, 0, 150);
        let mut writer = second.index_writer(&second.claim_unlocked(1));
        writer.truncate(1, keep);
        assert_eq!(writer.next(1), Some(keep));
        assert_eq!(
            bases(&there.index_reader(1).scan(), 1),
            (0..keep).collect::<Vec<_>>()
        );
        append(&mut writer, 1, keep, keep + 5);
        assert_eq!(
            bases(&there.index_reader(1).scan(), 1),
            (0..keep + 5).collect::<Vec<_>>()
        );
    }
}
