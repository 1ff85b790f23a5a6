//! Following orders of older epochs: what it costs, and what damaged memory does to it.

#[path = "support/devices.rs"]
mod devices;

use std::sync::Arc;

use devices::{Devices, NONCE, small};
use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::layout::TableId;
use embar_fabric::slot;
use embar_fabric::{
    ChainStart, Claim, Geometry, GoiRecord, Layout, PageRef, Region, SequencerRow, SequencerState,
};
use embar_memory::{Faults, Memory, Outage, Power, Simulated};
use embar_order::follower::Found;
use embar_order::{Follower, Limits, Sequencer, Term};

const CHAIN: u32 = 0;
/// Pages of an epoch.
const PAGES: u32 = 12;
/// Where the bytes are said to lie.
const BYTES_AT: u64 = 1 << 40;
const SECOND: Term = Term { epoch: 2, area: 0 };

struct World {
    devices: Devices,
}

fn geometry(pages: u32) -> Geometry {
    Geometry {
        goi_pages: 2 * pages,
        ..small()
    }
}

impl World {
    /// Two epochs of one area, one after the other, each with so many pages.
    fn new(pages: u32) -> Self {
        let devices = Devices::formatted(&geometry(pages));
        let region = devices.host(1);
        let claim = region.claim_unlocked(0);
        let each = records(pages);
        append(&region, &claim, 1, 0..each, None);
        let page = pages - 1;
        let (generation, _) = region
            .goi_reader(0)
            .page(page)
            .found()
            .expect("it was written");
        let before = PageRef {
            area: 0,
            page,
            generation,
        };
        append(&region, &claim, 2, each..2 * each, Some(before));
        Self { devices }
    }

    /// One more host, which fails after so many accesses.
    fn follower(&self, accesses: u64) -> (Follower<Simulated>, Power) {
        let power = Power::default();
        power.fail_after(accesses, Outage::Host);
        let control = self.devices.control.host_on(2, Faults::default(), &power);
        let region = self.devices.with_control(Arc::new(control), 3);
        (Follower::new(&region, CHAIN, 0), power)
    }

    /// Where the record of a position lies, or the link to the page that begins there.
    fn find(&self, base: u64, leads_to: u64) -> u64 {
        let memory = self.devices.control.view();
        let is_it = |at: &u64| (memory.load(*at), memory.load(at + 8)) == (base, leads_to);
        let found = (0..memory.len()).step_by(64).find(is_it);
        found.expect("it was written")
    }

    /// Changes a record behind everybody's back, so that it looks like one.
    fn rewrite(&self, at: u64, change: fn(&mut [u8; 56])) {
        let elsewhere = self.devices.control.host(4);
        let (mut body, lap) = ([0; 56], elsewhere.load(at + 56) as u32);
        elsewhere.read(at, &mut body);
        change(&mut body);
        slot::publish(&elsewhere, at, &body, NONCE, lap);
    }

    /// Changes one word behind everybody's back.
    fn damage(&self, at: u64, change: fn(u64) -> u64) {
        let elsewhere = self.devices.control.host(4);
        elsewhere.store(at, change(elsewhere.load(at)));
        elsewhere.write_back(at, 8);
        elsewhere.fence();
    }
}

/// Records of an epoch: the last page has room for some more.
fn records(pages: u32) -> u64 {
    u64::from(pages * PAGE_RECORDS - 5)
}

fn append(
    region: &Region<Simulated>,
    claim: &Claim,
    epoch: u32,
    positions: std::ops::Range<u64>,
    before: Option<PageRef>,
) {
    let mut goi = region.goi_writer(claim, epoch);
    let root = region.goi_root_writer(claim, 0);
    let at = ChainStart {
        chain: CHAIN,
        order: 5,
        start: positions.start,
        before,
        ..ChainStart::default()
    };
    goi.begin(root, &at);
    for base in positions {
        let record = GoiRecord {
            base,
            count: 1,
            payload_at: BYTES_AT,
            ..GoiRecord::default()
        };
        goi.append(CHAIN, &record).expect("there are pages enough");
    }
    goi.fence();
}

/// Reads all there is, some at a time.
fn read_all(follower: &mut Follower<Simulated>) -> (Found, u64) {
    let (mut out, mut read) = (Vec::new(), 0);
    loop {
        out.clear();
        let found = follower.read(SECOND, 1000, &mut out);
        read += out.len() as u64;
        if found != Found::More {
            return (found, read);
        }
    }
}

#[test]
fn an_older_epoch_costs_no_more_than_it_has_records() {
    let world = World::new(200);
    let all = 2 * records(200);
    let (mut follower, power) = world.follower(all * 12);
    assert_eq!(read_all(&mut follower), (Found::End, all));
    assert_eq!(power.failed(), None, "it looked at too much");
    assert!(!follower.is_damaged());
}

#[test]
fn a_record_that_an_older_epoch_has_not_is_damage() {
    let (world, all) = (World::new(PAGES), 2 * records(PAGES));
    let page = 7 * u64::from(PAGE_RECORDS);
    // Its commit word.
    world.damage(world.find(page + 3, BYTES_AT) + 56, |_| 0);
    let (mut follower, _) = world.follower(u64::MAX);
    assert_eq!(read_all(&mut follower), (Found::End, page + 3));
    assert!(follower.is_damaged());
    // The next page is well.
    let page = page + u64::from(PAGE_RECORDS);
    follower.seek(page);
    assert_eq!(read_all(&mut follower), (Found::End, all - page));
    assert!(!follower.is_damaged());
}

fn take_over(world: &World) -> Sequencer<Simulated> {
    let region = world.devices.host(2);
    let claim = Arc::new(region.claim_unlocked(0));
    let active = SequencerRow {
        epoch: 2,
        state: SequencerState::Active as u32,
        ..SequencerRow::default()
    };
    region.sequencer_row_writer(&claim).store(&active);
    let limits = Limits {
        sessions: 1,
        ..Limits::default()
    };
    let sequencer =
        Sequencer::take_over(&region, &claim, &limits, &|_| true, Box::new(|_, _| true));
    sequencer.expect("takes over")
}

#[test]
fn a_takeover_tells_which_order_ends_where_memory_is_damaged() {
    let all = 2 * records(PAGES);
    let sequencer = take_over(&World::new(PAGES));
    assert_eq!(sequencer.core().chain_next(CHAIN), Some(all));
    assert!(sequencer.damaged().is_empty());
    let damaged = World::new(PAGES);
    damaged.damage(damaged.find(all - 3, BYTES_AT), |base| base ^ 3);
    let sequencer = take_over(&damaged);
    assert_eq!(sequencer.core().chain_next(CHAIN), None);
    assert_eq!(sequencer.damaged(), [CHAIN]);
}

/// What the loss of a line comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    None,
    /// The order ends for good.
    Reported,
    /// A crash may leave the same: the order goes on at this position.
    Cut(u64),
}

#[test]
fn a_line_of_zeros_is_missed_where_something_follows_it() {
    const PAGES: u32 = 2;
    let table = |id: TableId| Layout::new(&geometry(PAGES)).tables()[id as usize];
    let (roots, pages) = (table(TableId::GoiRoots), table(TableId::GoiPages));
    let (start, all) = (records(PAGES), 2 * records(PAGES));
    let page = |number: u64| pages.offset + number * pages.entry_bytes;
    let line = |number: u64, slot: u64| page(number) + 64 * (1 + slot);
    let per_page = u64::from(PAGE_RECORDS);
    let cases = [
        (roots.offset, Loss::None),
        (roots.offset + 64, Loss::None),
        (page(2), Loss::Reported),
        (page(3), Loss::Reported),
        // The link between the two, which is found again.
        (line(2, per_page), Loss::None),
        (line(2, 0), Loss::Reported),
        (line(2, 1), Loss::Reported),
        (line(2, per_page - 1), Loss::Reported),
        (line(3, 0), Loss::Cut(start + per_page)),
        (line(3, 7), Loss::Cut(start + per_page + 7)),
        (line(3, per_page - 6), Loss::Cut(all - 1)),
    ];
    for (at, loss) in cases {
        let world = World::new(PAGES);
        let elsewhere = world.devices.control.host(4);
        elsewhere.write(at, &[0; 64]);
        elsewhere.write_back(at, 64);
        elsewhere.fence();
        let end = match loss {
            Loss::Cut(end) => end,
            _ => all,
        };
        // The sequencer announces that there is more, and the follower looks again.
        let (mut follower, _) = world.follower(u64::MAX);
        follower.seek(start);
        let mut read: u64 = (0..2).map(|_| read_all(&mut follower).1).sum();
        read += start;
        assert_eq!(
            follower.is_damaged(),
            loss == Loss::Reported,
            "line at {at}"
        );
        assert!(read == end || follower.is_damaged() && read < end, "{read}");
        let sequencer = take_over(&world);
        let (damaged, next): (&[u32], _) = match loss {
            Loss::Reported => (&[CHAIN], None),
            _ => (&[], Some(end)),
        };
        assert_eq!(sequencer.damaged(), damaged, "line at {at}");
        assert_eq!(sequencer.core().chain_next(CHAIN), next, "line at {at}");
    }
}

#[test]
fn records_that_are_lost_side_by_side_do_not_hide_each_other() {
    const PAGES: u32 = 2;
    let world = World::new(PAGES);
    let pages = Layout::new(&geometry(PAGES)).tables()[TableId::GoiPages as usize];
    // Of the last page, which no link follows.
    for slot in 7..10 {
        let line = pages.offset + 3 * pages.entry_bytes + 64 * (1 + slot);
        world.devices.control.damage(line, |line| line.fill(0xC3));
    }
    let (mut follower, _) = world.follower(u64::MAX);
    let whole = u64::from(PAGE_RECORDS) + 7;
    follower.seek(records(PAGES));
    assert_eq!(read_all(&mut follower), (Found::End, whole));
    assert!(follower.is_damaged());
}

#[test]
fn a_link_that_is_lost_with_its_page_is_searched_for_once() {
    const PAGES: u32 = 50;
    let world = World::new(PAGES);
    let pages = Layout::new(&geometry(PAGES)).tables()[TableId::GoiPages as usize];
    let first = pages.offset + u64::from(PAGES) * pages.entry_bytes;
    let (link, behind) = (
        first + 64 * (1 + u64::from(PAGE_RECORDS)),
        first + pages.entry_bytes,
    );
    // What is left of the link still shows that it is one.
    let control = &world.devices.control;
    control.damage(link, |line| line[..48].fill(0xC3));
    control.damage(behind, |line| line.fill(0xC3));
    let (mut follower, power) = world.follower(u64::MAX);
    follower.seek(records(PAGES));
    assert_eq!(read_all(&mut follower).1, u64::from(PAGE_RECORDS));
    assert!(follower.is_damaged());
    // The follower looks again and again, as a successor may cut the order there.
    power.fail_after(u64::from(PAGES), Outage::Host);
    assert_eq!(read_all(&mut follower), (Found::End, 0));
    assert!(follower.is_damaged() && power.failed().is_none());
}

#[test]
fn whoever_comes_late_finds_what_a_lost_link_led_to() {
    const PAGES: u32 = 2;
    let all = records(PAGES);
    for lost in [0, 0xC3] {
        let world = World::new(PAGES);
        let link = world.find(all + u64::from(PAGE_RECORDS), u64::from(PAGES) + 1);
        world.devices.control.damage(link, |line| line.fill(lost));
        // No publisher goes on, so no sequencer announces that there is more.
        let (mut follower, _) = world.follower(u64::MAX);
        follower.seek(all);
        assert_eq!(read_all(&mut follower).1, all);
    }
}

#[test]
fn a_link_that_an_older_epoch_has_not_is_no_loss() {
    let (world, all) = (World::new(PAGES), 2 * records(PAGES));
    let link = world.find(7 * u64::from(PAGE_RECORDS), 7);
    world.damage(link + 56, |_| 0);
    let (mut follower, _) = world.follower(u64::MAX);
    assert_eq!(read_all(&mut follower), (Found::End, all));
    assert!(!follower.is_damaged());
}

#[test]
fn links_that_lead_around_end() {
    let (world, all) = (World::new(PAGES), 2 * records(PAGES));
    // The first page of the second epoch leads back to itself.
    let second_page = records(PAGES) + u64::from(PAGE_RECORDS);
    let link = world.find(second_page, u64::from(PAGES) + 1);
    world.rewrite(link, |body| body[8] -= 1);
    let (mut follower, _) = world.follower(u64::MAX);
    follower.seek(all - 1);
    assert_eq!(read_all(&mut follower).0, Found::End);
}
