//! The order index: what is appended is followed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::{ChainStart, Claim, GoiReader, GoiRecord, GoiWriter, PageRef, Region};
use embar_memory::Memory;

use crate::common::small;
use crate::follow::Follower;
use crate::setup::Setup;

pub const PER_PAGE: u64 = PAGE_RECORDS as u64;

/// Two messages at `base`.
pub fn record(base: u64) -> GoiRecord {
    GoiRecord {
        base,
        payload_at: base * 64,
        sequence: base / 2,
        len: 128,
        count: 2,
        session: base as u32,
        row: 1,
        ..Default::default()
    }
}

/// Begins a chain in the topic record of its number, at `start`.
pub fn begin<M: Memory>(
    goi: &mut GoiWriter<M>,
    (region, claim): (&Region<M>, &Claim),
    chain: u32,
    start: u64,
    before: Option<PageRef>,
) {
    let root = region.goi_root_writer(claim, chain as u16);
    let at = ChainStart {
        chain,
        order: 5,
        start,
        before,
        ..ChainStart::default()
    };
    goi.begin(root, &at);
}

/// Appends so many records from `base` on; returns where the next one starts.
pub fn append<M: Memory>(goi: &mut GoiWriter<M>, chain: u32, base: u64, records: u64) -> u64 {
    for n in 0..records {
        goi.append(chain, &record(base + 2 * n)).expect("room");
    }
    goi.fence();
    base + 2 * records
}

/// Follows all that is there.
pub fn follow<M: Memory>(follower: &mut Follower<M>) -> Vec<u64> {
    let records = std::iter::from_fn(|| follower.next());
    records
        .map(|found| {
            assert_eq!(found, record(found.base));
            found.base
        })
        .collect()
}

/// The bases of so many records.
pub fn bases(from: u64, records: u64) -> Vec<u64> {
    (0..records).map(|n| from + 2 * n).collect()
}

pub fn records_are_followed_over_pages<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let head = here.claim_unlocked(0);
    let mut goi = here.goi_writer(&head, 1);
    let mut followers = [1, 2].map(|topic| Follower::new(&there, 0, topic));
    begin(&mut goi, (&here, &head), 1, 0, None);
    begin(&mut goi, (&here, &head), 2, 1000, None);
    assert_eq!(follow(&mut followers[0]), [], "begun and empty");
    let mut ends = [0, 1000];
    for round in 1..40 {
        for (chain, end) in [1, 2].into_iter().zip(&mut ends) {
            let start = *end;
            *end = append(&mut goi, chain, start, round % 10);
            let follower = &mut followers[chain as usize - 1];
            assert_eq!(follow(follower), bases(start, round % 10), "round {round}");
        }
    }
    for (chain, start) in [(1, 0), (2, 1000)] {
        let mut late = Follower::new(&there, 0, chain);
        assert_eq!(follow(&mut late), bases(start, 180), "three pages each");
    }
    assert_eq!(goi.space(), (10, 16));
    assert!(
        there.goi_root(1, 1).found().is_none(),
        "each area has its own"
    );
    assert!(there.goi_root(0, 3).found().is_none(), "and each topic");
}

pub fn a_chain_begins_where_told<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let standby = here.claim_unlocked(3);
    let mut goi = here.goi_writer(&standby, 7);
    let before = PageRef {
        area: 0,
        page: 5,
        generation: 9,
    };
    assert!(!goi.has(3));
    let row = here.goi_root_writer(&standby, 3);
    let at = ChainStart {
        chain: 3,
        order: 2,
        start: 500,
        first: 400,
        before: Some(before),
        is_damaged: false,
    };
    goi.begin(row, &at);
    assert!(goi.has(3));
    let root = there.goi_root(1, 3).found().expect("begun");
    assert_eq!((root.chain, root.epoch, root.order), (3, 7, 2));
    assert_eq!((root.start, root.first, root.head), (500, 400, 0));
    append(&mut goi, 3, 500, 1);
    let root = there.goi_root(1, 3).found().expect("begun");
    let page = root.head.checked_sub(1).expect("one was opened");
    let (_, header) = there.goi_reader(1).page(page).found().expect("it is open");
    assert_eq!((header.chain, header.epoch, header.in_use), (3, 7, 1));
    assert_eq!(header.start, 500);
    let named = (before.page + 1, before.generation, before.area);
    for found in [
        (root.before, root.before_generation, root.before_area),
        (header.before, header.before_generation, header.before_area),
    ] {
        assert_eq!(found, named);
    }
    goi.raise_first(3, 450);
    goi.raise_first(3, 420);
    goi.raise_first(99, 1);
    let root = there.goi_root(1, 3).found().expect("begun");
    assert_eq!((root.first, root.start), (450, 500), "it only grows");
}

pub fn positions_have_no_gaps<S: Setup>() {
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let head = here.claim_unlocked(0);
    let mut goi = here.goi_writer(&head, 1);
    let refuses = |goi: &mut GoiWriter<S::M>, chain, base| {
        let appended = catch_unwind(AssertUnwindSafe(|| goi.append(chain, &record(base))));
        assert!(appended.is_err(), "chain {chain} took a record at {base}");
    };
    refuses(&mut goi, 1, 0);
    begin(&mut goi, (&here, &head), 1, 10, None);
    refuses(&mut goi, 1, 8);
    refuses(&mut goi, 1, 12);
    assert_eq!(append(&mut goi, 1, 10, 2), 14);
    refuses(&mut goi, 1, 12);
    assert_eq!(follow(&mut Follower::new(&there, 0, 1)), [10, 12]);
}

/// Three epochs in two areas, and back through all of them by the pages' own words.
pub fn what_came_before_an_epoch_is_found<S: Setup>() {
    let setup = S::new(&small());
    let there = setup.host();
    let mut end = 0;
    let mut before = None;
    for (epoch, row) in [(1, 0), (2, 3), (3, 0)] {
        let here = setup.host();
        let claim = here.claim_unlocked(row);
        let mut goi = here.goi_writer(&claim, epoch);
        begin(&mut goi, (&here, &claim), 1, end, before);
        let area = here.geometry().area_of(row).expect("a candidate");
        let mut follower = Follower::new(&there, area, 1);
        let start = end;
        end = append(&mut goi, 1, start, PER_PAGE + 10);
        assert_eq!(follow(&mut follower), bases(start, PER_PAGE + 10));
        let (page, generation) = follower.at.expect("it followed some");
        before = Some(PageRef {
            area,
            page,
            generation,
        });
    }
    let mut found = Vec::new();
    while let Some(at) = before {
        let goi = there.goi_reader(at.area);
        let (generation, header) = goi.page(at.page).found().expect("in use");
        assert_eq!((generation, header.in_use), (at.generation, 1));
        found.splice(0..0, page_of(&goi, at));
        before = header.before.checked_sub(1).map(|page| PageRef {
            area: header.before_area,
            page,
            generation: header.before_generation,
        });
    }
    assert_eq!(found, bases(0, 3 * (PER_PAGE + 10)));
}

fn page_of<M: Memory>(goi: &GoiReader<M>, at: PageRef) -> Vec<u64> {
    let records =
        (0..PAGE_RECORDS).map_while(|slot| goi.record(at.page, at.generation, slot).found());
    records.map(|record| record.base).collect()
}

pub fn a_reader_follows_live<S: Setup>() {
    const RECORDS: u64 = 1500;
    let setup = S::new(&small());
    let (here, there) = (setup.host(), setup.host());
    let deadline = Instant::now() + Duration::from_secs(60);
    let read = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let read = &read;
        scope.spawn(move || {
            let head = here.claim_unlocked(0);
            let mut goi = here.goi_writer(&head, 1);
            begin(&mut goi, (&here, &head), 1, 0, None);
            let mut end = 0;
            while end < 2 * RECORDS {
                if goi.append(1, &record(end)).is_ok() {
                    end += 2;
                } else {
                    // More than there is room for: pages that were read go.
                    let first = read.load(Ordering::Acquire);
                    goi.raise_first(1, first);
                    goi.release_before(1, first, |_| {});
                    std::thread::yield_now();
                }
                if end % 10 == 0 {
                    goi.fence();
                }
                assert!(Instant::now() < deadline, "stuck at {end}");
            }
            goi.fence();
        });
        let mut follower = Follower::new(&there, 0, 1);
        while follower.position() < 2 * RECORDS {
            match follower.next() {
                Some(found) => {
                    assert_eq!(found, record(found.base));
                    // It may go on reading this page, which stays.
                    read.store(found.base, Ordering::Release);
                }
                None => std::thread::yield_now(),
            }
            let at = follower.position();
            assert!(Instant::now() < deadline, "stuck at {at}");
        }
    });
}
