//! Memory that was damaged while it was not in use.
#![cfg(not(loom))]

mod common;

use common::{Cluster, small};
use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::layout::TableId;
use embar_fabric::{ChainStart, GoiRecord, Layout, Seen};

const LINE: u64 = 64;

/// A successor takes what cannot be read in a page for a record that is lost, and ends the order there.
#[test]
fn a_page_of_the_order_misses_nothing_that_was_never_in_it() {
    let cluster = Cluster::seeded(&small(), 1);
    let layout = Layout::new(&small());
    let pages = layout.tables()[TableId::GoiPages as usize];
    for page in 0..pages.entries {
        let third = pages.offset + page * pages.entry_bytes + LINE * 3;
        cluster.control.damage(third, |line| line.fill(0xC3));
    }
    let region = cluster.host(2);
    let claim = region.claim_unlocked(0);
    let mut goi = region.goi_writer(&claim, 1);
    let start = ChainStart {
        chain: 0,
        order: 5,
        ..ChainStart::default()
    };
    goi.begin(region.goi_root_writer(&claim, 0), &start);
    let record = GoiRecord {
        count: 1,
        ..GoiRecord::default()
    };
    goi.append(0, &record).expect("there are pages enough");
    goi.fence();
    let root = region.goi_root(0, 0).found().expect("it was begun");
    let (page, reader) = (root.head - 1, region.goi_reader(0));
    let (generation, _) = reader.page(page).found().expect("it was opened");
    assert_eq!(reader.record_left(page, generation, 0), Seen::Found(record));
    for slot in 1..PAGE_RECORDS {
        assert_eq!(reader.record_left(page, generation, slot), Seen::Nothing);
    }
}
