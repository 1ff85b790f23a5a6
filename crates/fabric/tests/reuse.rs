//! Memory that was damaged while nobody used it.
#![cfg(not(loom))]

use std::sync::Arc;

use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::layout::TableId;
use embar_fabric::{ChainStart, Device, Geometry, GoiRecord, Layout, Region, Seen};

const LINE: u64 = 64;

/// A successor takes what cannot be read in a page for a record that is lost, and ends the order there.
#[test]
fn a_page_of_the_order_misses_nothing_that_was_never_in_it() {
    let geometry = Geometry {
        brokers: 2,
        topics: 1,
        lanes: 1,
        lane_slots: 16,
        index_pages: 16,
        blog_bytes: 64 << 10,
        goi_pages: 4,
        sessions: 1,
        ..Geometry::default()
    };
    let layout = Layout::new(&geometry);
    let device = Device::blank(layout.control_bytes());
    let control = Arc::new(device.host(1));
    let blogs = vec![Arc::new(Device::blank(geometry.blog_bytes).host(2))];
    let region = Region::format(control, blogs, &geometry, 9, 1).expect("a good geometry");
    let pages = layout.tables()[TableId::GoiPages as usize];
    for page in 0..pages.entries {
        let third = pages.offset + page * pages.entry_bytes + LINE * 3;
        device.damage(third, |line| line.fill(0xC3));
    }
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
