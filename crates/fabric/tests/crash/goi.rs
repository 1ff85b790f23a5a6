//! A sequencer dies while it writes its order index.

use embar_fabric::geometry::INDEX_PAGE_BYTES;
use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::layout::TableId;
use embar_fabric::slot::SLOT_BYTES;
use embar_fabric::{ChainStart, Claim, GoiRecord, GoiWriter, Layout, PageRef, Region};
use embar_memory::Simulated;

use crate::anywhere::{die_anywhere, geometry};
use crate::follow::Follower;

const PER_PAGE: u64 = PAGE_RECORDS as u64;
const PAGES: u32 = 8;

fn record(base: u64) -> GoiRecord {
    GoiRecord {
        base,
        payload_at: base * 64,
        sequence: base,
        count: 1,
        session: base as u32,
        ..Default::default()
    }
}

fn begin(
    goi: &mut GoiWriter<Simulated>,
    (region, claim): (&Region<Simulated>, &Claim),
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

fn append(goi: &mut GoiWriter<Simulated>, chain: u32, positions: std::ops::Range<u64>) {
    for base in positions {
        goi.append(chain, &record(base)).expect("room");
    }
    goi.fence();
}

/// Follows all that can be seen of a chain; every record is the one of its position.
fn follow(region: &Region<Simulated>, chain: u16) -> (Follower<Simulated>, Option<u64>) {
    let mut follower = Follower::new(region, 0, chain);
    let mut first = None;
    while let Some(found) = follower.next() {
        first = first.or(Some(found.base));
        assert_eq!(found, record(found.base));
    }
    (follower, first)
}

/// The same candidate's next epoch goes on behind what can be seen, keeps what came before until
/// it is released, and then has all pages again.
fn succeed(another_host: &dyn Fn() -> Region<Simulated>, start: u64, before: Option<PageRef>) {
    let (here, there) = (another_host(), another_host());
    let head = here.claim_unlocked(0);
    let mut goi = here.goi_writer(&head, 2);
    begin(&mut goi, (&here, &head), 0, start, before);
    let end = start + PER_PAGE + 3;
    // A page that was used before shows nothing of that, neither partly used nor full.
    for positions in [start..start + 3, start + 3..end] {
        let end = positions.end;
        append(&mut goi, 0, positions);
        let (follower, first) = follow(&there, 0);
        assert_eq!((first, follower.position()), (Some(start), end));
    }
    if let Some(before) = before {
        let found = there.goi_reader(0).page(before.page).found();
        let (generation, header) = found.expect("kept");
        assert_eq!((generation, header.in_use), (before.generation, 1));
    }
    goi.release_before(0, u64::MAX, |_| {});
    let left: Vec<u32> = goi.chains().collect();
    left.into_iter().for_each(|chain| goi.drop_chain(chain));
    assert_eq!(goi.space(), (PAGES, PAGES), "no page is lost");
}

fn named((page, generation): (u32, u32)) -> PageRef {
    PageRef {
        area: 0,
        page,
        generation,
    }
}

#[test]
fn what_is_seen_is_a_run_that_holds_all_that_was_promised() {
    assert_eq!(geometry().goi_pages, PAGES);
    die_anywhere(
        |region, life| {
            let head = region.claim_unlocked(0);
            let mut goi = region.goi_writer(&head, 1);
            begin(&mut goi, (region, &head), 0, 0, None);
            append(&mut goi, 0, 0..PER_PAGE - 1);
            life.begin_to_end();
            let mut promised = PER_PAGE - 1;
            // The page's last record, the next page, and records that share a fence.
            for end in [PER_PAGE, PER_PAGE + 1, PER_PAGE + 4] {
                append(&mut goi, 0, promised..end);
                if !life.lasts() {
                    break;
                }
                promised = end;
            }
            promised
        },
        |another_host, promised| {
            let (follower, first) = follow(&another_host(), 0);
            let end = follower.position();
            assert_eq!(first, Some(0));
            assert!((promised..=PER_PAGE + 4).contains(&end), "{end}");
            succeed(another_host, end, follower.at.map(named));
        },
    );
}

#[test]
fn a_chain_begins_or_not() {
    die_anywhere(
        |region, life| {
            let head = region.claim_unlocked(0);
            let mut goi = region.goi_writer(&head, 1);
            life.begin_to_end();
            begin(&mut goi, (region, &head), 0, 70, None);
            let begun = life.lasts();
            append(&mut goi, 0, 70..71);
            (begun, life.lasts())
        },
        |another_host, (begun, appended)| {
            let there = another_host();
            let root = there.goi_root(0, 0).found();
            assert!(root.is_none_or(|root| (root.start, root.epoch, root.order) == (70, 1, 5)));
            assert!(root.is_some() || !begun);
            let (follower, first) = follow(&there, 0);
            assert!(first.is_none_or(|first| first == 70));
            assert!(first.is_some() || !appended);
            let end = follower.position().max(70);
            succeed(another_host, end, follower.at.map(named));
        },
    );
}

#[test]
fn the_oldest_page_goes_and_nothing_else() {
    die_anywhere(
        |region, life| {
            let head = region.claim_unlocked(0);
            let mut goi = region.goi_writer(&head, 1);
            for chain in [0, 1] {
                begin(&mut goi, (region, &head), chain, 0, None);
            }
            append(&mut goi, 0, 0..2 * PER_PAGE + 5);
            life.begin_to_end();
            let first = PER_PAGE + 1;
            goi.raise_first(0, first);
            let mut left = 0;
            goi.release_before(0, first, |_| left += 1);
            assert_eq!(left, PER_PAGE);
            // The page is used again, by another chain.
            append(&mut goi, 1, 0..2);
            life.lasts()
        },
        |another_host, lasted| {
            let there = another_host();
            let raised = there.goi_root(0, 0).found().expect("begun").first;
            let (follower, first) = follow(&there, 0);
            assert_eq!(follower.position(), 2 * PER_PAGE + 5, "the rest is there");
            let first = first.expect("the rest is there");
            assert!([0, PER_PAGE].contains(&first));
            assert!(first <= raised, "what is gone was given up before");
            let (other, _) = follow(&there, 1);
            assert!(!lasted || (first, other.position()) == (PER_PAGE, 2));
            succeed(another_host, 2 * PER_PAGE + 5, follower.at.map(named));
        },
    );
}

#[test]
fn a_chain_that_is_gone_leaves_no_page() {
    die_anywhere(
        |region, life| {
            let head = region.claim_unlocked(0);
            let mut goi = region.goi_writer(&head, 1);
            for chain in [0, 1] {
                begin(&mut goi, (region, &head), chain, 0, None);
                append(&mut goi, chain, 0..PER_PAGE + 1);
            }
            life.begin_to_end();
            goi.drop_chain(1);
            life.lasts()
        },
        |another_host, gone| {
            let there = another_host();
            let root = there.goi_root(0, 1).found().expect("begun");
            assert!(root.head == 0 || !gone);
            let (other, _) = follow(&there, 1);
            assert_eq!(
                other.position() == 0,
                root.head == 0,
                "all of it or nothing"
            );
            let (follower, _) = follow(&there, 0);
            assert_eq!(follower.position(), PER_PAGE + 1);
            succeed(another_host, PER_PAGE + 1, follower.at.map(named));
        },
    );
}

#[test]
fn a_newest_record_that_is_lost_is_stored_again() {
    let at = |page: u64, slot: u64| {
        let pages = Layout::new(&geometry()).tables()[TableId::GoiPages as usize];
        pages.offset + page * INDEX_PAGE_BYTES + (1 + slot) * SLOT_BYTES
    };
    die_anywhere(
        |region, life| {
            let head = region.claim_unlocked(0);
            let mut goi = region.goi_writer(&head, 1);
            for (chain, end) in [(0, PER_PAGE), (1, 3)] {
                begin(&mut goi, (region, &head), chain, 0, None);
                append(&mut goi, chain, 0..end);
            }
            life.lose(at(0, PER_PAGE - 1));
            life.lose(at(1, 2));
            life.begin_to_end();
            let restored = [(); 3].map(|()| goi.restore_newest(1));
            if life.lasts() {
                assert_eq!(
                    restored,
                    [vec![1], vec![0], vec![]],
                    "one at a time, and once"
                );
            }
            life.lasts()
        },
        |another_host, restored| {
            for (chain, end) in [(0, PER_PAGE), (1, 3)] {
                let (follower, _) = follow(&another_host(), chain);
                let ends = if restored { end..=end } else { end - 1..=end };
                assert!(ends.contains(&follower.position()), "of chain {chain}");
            }
        },
    );
}
