//! A log of sixteen units, each of which is an extent of a topic of its own, and a batch that needs four.

use std::sync::Arc;

use embar_fabric::Geometry;
use embar_memory::Simulated;
use embar_memory::payload::UNIT_BYTES;
use embar_wire::time::WallNs;
use embar_wire::topic::Order;

use super::super::{Claimed, Log, NoRoom, Watermarks};
use crate::test_region;
use crate::topics::Topic;

const UNITS: u32 = 16;
/// The topic of the batch that needs a block.
const LARGE: u32 = UNITS;
const LARGE_BYTES: u32 = 4 * UNIT_BYTES as u32;
const SMALL_BYTES: u32 = 1024;

struct World {
    log: Log<Simulated>,
    /// A batch on its way in each unit.
    claims: Vec<Option<Claimed<Simulated>>>,
}

impl World {
    /// A full log in which something is on its way in the units that are named.
    fn new(on_their_way: &[usize]) -> Self {
        let geometry = Geometry {
            topics: 32,
            index_pages: 64,
            blog_bytes: u64::from(UNITS) * UNIT_BYTES,
            ..test_region::geometry()
        };
        let region = test_region::region(&geometry);
        let marks = Watermarks {
            high_bytes: geometry.blog_bytes,
            low_bytes: geometry.blog_bytes,
        };
        let claim = Arc::new(region.claim_unlocked(1));
        let mut log = Log::open(&region, &claim, marks, &[]);
        (0..=LARGE).for_each(|id| log.open_topic(&topic(id)));
        let claims = (0..UNITS).map(|id| log.place(id, SMALL_BYTES).ok());
        let claims = claims.collect();
        let mut world = Self { log, claims };
        for unit in (0..UNITS as usize).filter(|unit| !on_their_way.contains(unit)) {
            world.end(unit);
        }
        assert_eq!(world.log.space().0, 0, "each unit is an extent");
        world
    }

    fn begin(&mut self, unit: usize) {
        let claimed = self.log.place(unit as u32, SMALL_BYTES);
        self.claims[unit] = Some(claimed.expect("its extent has room"));
    }

    fn end(&mut self, unit: usize) {
        let claimed = self.claims[unit].take();
        self.log.abandon(claimed.expect("it is on its way"));
    }

    /// Where the large batch lies, if there is a block for it.
    fn place_large(&mut self) -> Result<u64, NoRoom> {
        let placed = self.log.place(LARGE, LARGE_BYTES);
        placed.map(|claimed| claimed.reservation.at() / UNIT_BYTES)
    }

    /// Whether another try would not look at all extents.
    fn knows(&mut self) -> bool {
        self.log.has_no_block(LARGE_BYTES)
    }
}

fn topic(id: u32) -> Topic {
    Topic {
        id,
        name: format!("t{id}"),
        order: Order::None,
        retention_bytes: 0,
        max_message_bytes: 1 << 20,
        created: WallNs(0),
    }
}

#[test]
fn who_waits_for_a_block_has_it_looked_for_when_there_may_be_one() {
    let mut world = World::new(&[1, 5, 6, 8, 14]);
    assert!(!world.knows());
    assert_eq!(world.place_large(), Err(NoRoom::Full));
    assert!(world.knows());
    // What comes and goes beside what keeps a block changes nothing.
    world.begin(4);
    world.end(4);
    world.end(6);
    assert!(world.knows());
    assert_eq!(world.place_large(), Err(NoRoom::Full));
    // Others are placed meanwhile, in what an eviction made room for.
    world.begin(3);
    assert!(world.knows());
    world.end(8);
    assert!(!world.knows());
    assert_eq!(world.place_large(), Ok(8));
}

#[test]
fn a_smaller_block_is_looked_for_where_a_larger_one_was_not_found() {
    let mut world = World::new(&[0, 4, 8, 12]);
    assert_eq!(world.place_large(), Err(NoRoom::Full));
    let half = world.log.place(LARGE, LARGE_BYTES / 2);
    assert!(half.is_ok_and(|claimed| claimed.reservation.at() == 2 * UNIT_BYTES));
    assert!(world.knows());
}

#[test]
fn memory_that_comes_back_from_who_still_used_it_makes_a_block() {
    let mut world = World::new(&[2, 4, 8, 12]);
    // As one that was evicted and is still sent from: nobody has it, and it is not free.
    assert!(world.log.close_topic(2));
    assert_eq!(world.place_large(), Err(NoRoom::Full));
    assert!(world.knows());
    world.begin(5);
    world.end(5);
    assert!(world.knows());
    world.end(2);
    assert!(!world.knows());
    assert_eq!(world.place_large(), Ok(0));
}
