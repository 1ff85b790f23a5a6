//! The order index, and who may believe what when a sequencer takes over.

use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::layout::TableId;
use embar_fabric::{ChainStart, GoiReader, GoiRecord, GoiWriter, Region, SequencerRow};

use crate::follow::Follower;
use crate::memory::{
    Modelled, entry, explore_region, explore_region_within, record as record_at, row, spawn_roomy,
    words,
};

const CHAIN: u32 = 9;

/// A record that shows when it is torn.
fn record(base: u64) -> GoiRecord {
    GoiRecord {
        base,
        count: 1,
        session: base as u32,
        incarnation: base as u16,
        ..Default::default()
    }
}

/// The head's index in epoch 1, with the chain begun and some records in it.
fn written(region: &Region<Modelled>, records: u64) -> GoiWriter<Modelled> {
    let head = region.claim_unlocked(0);
    let mut goi = region.goi_writer(&head, 1);
    let at = ChainStart {
        chain: CHAIN,
        order: 5,
        ..ChainStart::default()
    };
    goi.begin(region.goi_root_writer(&head, 0), &at);
    for base in 0..records {
        goi.append(CHAIN, &record(base)).expect("room");
    }
    goi
}

fn page(layout: &embar_fabric::Layout, page: u64) -> u64 {
    entry(layout, TableId::GoiPages, page)
}

/// A page's header: chain, start, whether it is in use, commit word.
const HEADER: [u64; 4] = [0, 1, 3, 7];

#[test]
fn the_first_page_is_found_or_not_yet() {
    explore_region_within(
        1,
        |layout| {
            let root = row(entry(layout, TableId::GoiRoots, 0), &[0, 3]);
            let header = words(page(layout, 0), &HEADER);
            let first = record_at(page(layout, 0) + 64);
            root.chain(header).chain(first)
        },
        |region| {
            let mut goi = written(&region, 0);
            let mut follower = Follower::new(&region, 0, 0);
            let thread = spawn_roomy(move || {
                goi.append(CHAIN, &record(0)).expect("room");
                goi.fence();
            });
            for _ in 0..2 {
                assert_eq!(follower.next().unwrap_or(record(0)), record(0));
            }
            thread.join().unwrap();
            let end = follower.position();
            assert_eq!(follower.next().is_some(), end == 0);
            assert_eq!((follower.position(), follower.next()), (1, None));
        },
    );
}

#[test]
fn the_next_page_is_found_or_not_yet() {
    let full = u64::from(PAGE_RECORDS);
    explore_region(
        move |layout| {
            let link = words(page(layout, 0) + (full + 1) * 64, &[0, 1, 7]);
            let header = words(page(layout, 1), &HEADER);
            let first = record_at(page(layout, 1) + 64);
            link.chain(header).chain(first)
        },
        move |region| {
            let mut goi = written(&region, full);
            let mut follower = Follower::new(&region, 0, 0);
            while follower.next().is_some() {}
            assert_eq!(follower.position(), full);
            let thread = spawn_roomy(move || {
                goi.append(CHAIN, &record(full)).expect("room");
                goi.fence();
            });
            for _ in 0..2 {
                assert_eq!(follower.next().unwrap_or(record(full)), record(full));
            }
            thread.join().unwrap();
            let end = follower.position();
            assert_eq!(follower.next().is_some(), end == full);
            assert_eq!((follower.position(), follower.next()), (full + 1, None));
        },
    );
}

/// What a broker saw before it looked at the epoch, and found it unchanged, is there for a candidate that
/// raised the epoch before it read.
#[test]
fn what_counted_for_anybody_is_seen_by_the_successor() {
    explore_region(
        |layout| {
            // Commit words are enough: that nothing is torn is what other models are about.
            let second = words(page(layout, 0) + 2 * 64, &[7]);
            let successor = entry(layout, TableId::Sequencers, 1);
            second.chain(row(successor, &[0]))
        },
        |region| {
            let mut predecessor = written(&region, 1);
            let mut standby = region.sequencer_row_writer(&region.claim_unlocked(2));
            standby.store(&SequencerRow::default());
            let seen = |goi: &GoiReader<Modelled>| {
                let (generation, _) = goi.page(0).found().expect("opened");
                goi.record(0, generation, 1).found().is_some()
            };

            let append = spawn_roomy(move || {
                predecessor.append(CHAIN, &record(1)).expect("room");
                predecessor.fence();
            });
            let there = region.clone();
            let broker = spawn_roomy(move || {
                let found = seen(&there.goi_reader(0));
                found
                    && there
                        .sequencer_row(1)
                        .found()
                        .is_some_and(|row| row.epoch == 0)
            });
            standby.raise(&SequencerRow {
                epoch: 2,
                ..Default::default()
            });
            let found = seen(&region.goi_reader(0));
            append.join().unwrap();
            let counted = broker.join().unwrap();
            assert!(found || !counted, "acknowledged, and lost by the takeover");
        },
    );
}

/// Before it uses pages again a sequencer says what it gives up, and looks whether it is deposed:
/// either it finds that it is, or the successor finds what was given up.
#[test]
fn what_is_given_up_is_seen_by_the_successor() {
    explore_region(
        |layout| {
            let root = row(entry(layout, TableId::GoiRoots, 0), &[2]);
            let successor = entry(layout, TableId::Sequencers, 1);
            root.chain(row(successor, &[0]))
        },
        |region| {
            let mut predecessor = written(&region, 2);
            let mut standby = region.sequencer_row_writer(&region.claim_unlocked(2));
            standby.store(&SequencerRow::default());
            let there = region.clone();
            let give_up = spawn_roomy(move || {
                predecessor.raise_first(CHAIN, 1);
                there
                    .sequencer_row(1)
                    .found()
                    .is_some_and(|row| row.epoch == 2)
            });
            standby.raise(&SequencerRow {
                epoch: 2,
                ..Default::default()
            });
            let first = region.goi_root(0, 0).found().expect("begun").first;
            let deposed = give_up.join().unwrap();
            assert!(
                deposed || first == 1,
                "pages are gone, and no record says so"
            );
        },
    );
}
