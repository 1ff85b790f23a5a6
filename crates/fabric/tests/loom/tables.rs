//! Topic records, windows and index pages.

use std::sync::Arc;

use embar_fabric::layout::TableId;
use embar_fabric::{IndexRecord, Region};
use embar_memory::Memory;

use crate::memory::{
    Modelled, entry, explore_region, explore_region_within, row, spawn_roomy, words,
};

#[test]
fn a_cell_is_whole() {
    explore_region_within(
        1,
        |layout| {
            let topic_record = entry(layout, TableId::TopicRecords, 0);
            // Of each copy: commit word, length and checksum, payload, commit word.
            words(topic_record, &[0, 1, 2, 63, 64, 65, 66, 127])
        },
        |region| stores(&region),
    );
}

fn stores(region: &Region<Modelled>) {
    let mut writer = region.topic_record_writer(&region.claim_unlocked(0));
    writer.store(0, &[1; 8]).expect("it fits");
    let records = region.topic_records();
    // Each store fills both copies, with two versions. The first store has 2 and 3, as it finds nothing in the
    // place of version 0.
    let thread = spawn_roomy(move || writer.store(0, &[2; 8]).expect("it fits"));
    if let Some((version, payload)) = records.load(0).found() {
        assert_eq!(payload, [(version / 2) as u8; 8], "torn");
    }
    thread.join().unwrap();
    assert_eq!(records.load(0).found(), Some((5, vec![2; 8])));
}

/// A process that copied bytes of another's memory and finds them in the window afterwards has what they
/// were before the window left them behind.
#[test]
fn reused_bytes_are_never_taken_for_retained_ones() {
    explore_region(
        // Row 1, topic 0: the first offset.
        |layout| row(entry(layout, TableId::Windows, 1), &[1]),
        |region| {
            let mut window = region.window_writer(&region.claim_unlocked(1), 0);
            window.reset(7, 0, 2);
            let payload_file = Modelled::slots(1);
            payload_file.write(0, &[1; 8]);
            let owned = Arc::clone(&payload_file);
            let thread = spawn_roomy(move || {
                window.raise_first(1);
                owned.write(0, &[2; 8]);
            });
            let mut copied = [0; 8];
            payload_file.read(0, &mut copied);
            if region
                .window(1, 0)
                .found()
                .is_some_and(|window| window.first == 0)
            {
                assert_eq!(copied, [1; 8], "overwritten");
            }
            thread.join().unwrap();
        },
    );
}

#[test]
fn an_index_shows_a_run_without_holes() {
    fn indexed(base: u64) -> IndexRecord {
        IndexRecord {
            base,
            count: 1,
            reserved: [base as u8; 5],
            ..Default::default()
        }
    }
    explore_region(
        |layout| {
            let page = entry(layout, TableId::IndexPages, 0);
            let header = words(page, &[0, 1, 7]);
            let records = words(page + 64, &[0, 6, 7, 8, 14, 15]);
            header.chain(records)
        },
        |region| {
            let mut index = region.index_writer(&region.claim_unlocked(1));
            let reader = region.index_reader(1);
            let thread = spawn_roomy(move || {
                for base in 0..2 {
                    index.append(7, &indexed(base)).expect("room");
                }
            });
            for (chain, records) in reader.scan() {
                let run: Vec<_> = (0..records.len() as u64).map(indexed).collect();
                assert_eq!((chain, records), (7, run));
            }
            thread.join().unwrap();
            assert_eq!(reader.scan(), [(7, vec![indexed(0), indexed(1)])]);
        },
    );
}
