//! A log of sixteen units, each of which is an extent of a topic of its own, and a batch that needs four.

use std::sync::Arc;

use embar_fabric::Geometry;
use embar_memory::payload::UNIT_BYTES;
use embar_memory::{Coherence, LentOpening, PayloadFile, Simulated, Span};
use embar_meter::Profile;
use embar_wire::batch::{BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::time::WallNs;
use embar_wire::topic::Order;

use super::super::{AdmitError, BatchSpace, Log, Read, Wanted, Watermarks};
use crate::test_region;
use crate::topics::Topic;

const UNITS: u32 = 16;
/// The topic of the batch that needs a block.
const LARGE: u32 = UNITS;
const LARGE_BYTES: u32 = 4 * UNIT_BYTES as u32;
const SMALL_BYTES: u32 = 1024;

struct World {
    log: Log<Simulated>,
    /// By unit, the batch that is in flight there.
    in_flight: Vec<Option<BatchSpace<Simulated>>>,
}

impl World {
    /// A full log in which something is in flight in these units.
    fn new(busy: &[usize]) -> Self {
        let geometry = Geometry {
            topics: 32,
            index_pages: 64,
            payload_bytes: u64::from(UNITS) * UNIT_BYTES,
            ..test_region::geometry()
        };
        let region = test_region::region(&geometry);
        let marks = Watermarks {
            high_bytes: geometry.payload_bytes,
            low_bytes: geometry.payload_bytes,
        };
        let claim = Arc::new(region.claim_unlocked(1));
        let mut log = Log::open(&region, &claim, marks, &[]);
        (0..=LARGE).for_each(|id| log.open_topic(&topic(id)));
        let spaces = (0..UNITS).map(|id| log.reserve(id, SMALL_BYTES).ok());
        let in_flight = spaces.collect();
        let mut world = Self { log, in_flight };
        for unit in (0..UNITS as usize).filter(|unit| !busy.contains(unit)) {
            world.end(unit);
        }
        assert_eq!(world.log.space().free_bytes, 0, "each unit is an extent");
        world
    }

    fn begin(&mut self, unit: usize) {
        let space = self.log.reserve(unit as u32, SMALL_BYTES);
        self.in_flight[unit] = Some(space.expect("its extent has room"));
    }

    fn end(&mut self, unit: usize) {
        let space = self.in_flight[unit].take();
        self.log.abandon(space.expect("it is in flight"));
    }

    /// Stores a batch in this unit; the bytes of it that can be read.
    fn store(&mut self, unit: usize) -> Span<Simulated> {
        let mut builder = BatchBuilder::new(Vec::new(), SMALL_BYTES as usize);
        builder.try_push(None, &[], b"message").expect("fits");
        let frame = builder.seal(SealFields::default());
        let header = BatchHeader::parse(&frame, SMALL_BYTES).expect("sealed");
        let space = self.log.reserve(unit as u32, frame.len() as u32);
        let mut space = space.expect("its extent has room");
        space.reservation.write(0, &frame);
        let meter = Profile::new(&crate::profile::SCHEMA).recorder();
        let base = self.log.append(space, header, WallNs(0), &meter);
        let at = Wanted::latest(unit as u32, base.expect("the topic is there"));
        match self
            .log
            .read(&at, 1, &mut 0, || unreachable!("of one broker"))
        {
            Read::Batches { span, .. } => span,
            _ => panic!("it is stored"),
        }
    }

    /// Where the large batch lies, if there is a block for it.
    fn place_large(&mut self) -> Result<u64, AdmitError> {
        let placed = self.log.reserve(LARGE, LARGE_BYTES);
        placed.map(|space| space.reservation.at() / UNIT_BYTES)
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
        retention_ms: 0,
        max_message_bytes: 1 << 20,
        created: WallNs(0),
        disks: 0,
        former_disks: 0,
        moves: 0,
    }
}

#[test]
fn a_block_is_searched_for_again_when_there_may_be_one() {
    let mut world = World::new(&[1, 5, 6, 8, 14]);
    assert!(!world.knows());
    assert_eq!(world.place_large(), Err(AdmitError::Full));
    assert!(world.knows());
    // What comes and goes beside what keeps a block changes nothing.
    world.begin(4);
    world.end(4);
    world.end(6);
    assert!(world.knows());
    assert_eq!(world.place_large(), Err(AdmitError::Full));
    // Others are placed meanwhile, in what an eviction made room for.
    world.begin(3);
    assert!(world.knows());
    world.end(8);
    assert!(!world.knows());
    assert_eq!(world.place_large(), Ok(8));
}

#[test]
fn a_smaller_block_is_searched_for_where_no_larger_one_is() {
    let mut world = World::new(&[0, 4, 8, 12]);
    assert_eq!(world.place_large(), Err(AdmitError::Full));
    let half = world.log.reserve(LARGE, LARGE_BYTES / 2);
    assert!(half.is_ok_and(|space| space.reservation.at() == 2 * UNIT_BYTES));
    assert!(world.knows());
}

#[test]
fn memory_that_a_reader_gives_back_makes_a_block() {
    let mut world = World::new(&[2, 4, 8, 12]);
    // As an extent that was evicted and is still sent from: no topic has it, and it is not free.
    assert!(world.log.close_topic(2));
    assert_eq!(world.place_large(), Err(AdmitError::Full));
    assert!(world.knows());
    world.begin(5);
    world.end(5);
    assert!(world.knows());
    world.end(2);
    assert!(!world.knows());
    assert_eq!(world.place_large(), Ok(0));
}

/// A reader of this machine.
fn reader() -> Arc<LentOpening> {
    let lent = PayloadFile::anonymous_lent(u64::from(UNITS) * UNIT_BYTES, Coherence::Coherent);
    Arc::new(lent.expect("memory").1.open().expect("a descriptor"))
}

#[test]
fn a_block_of_which_something_is_lent_is_not_cleared_in_vain() {
    let mut world = World::new(&[4, 8, 12]);
    let span = world.store(2);
    let loan = span.lend(&reader()).expect("little is lent");
    drop(span);
    assert_eq!(world.place_large(), Err(AdmitError::Full));
    assert!(world.knows());
    assert_eq!(world.log.evictions(), 0, "nothing went for nothing");
    drop(loan);
    assert!(!world.knows());
    assert_eq!(world.place_large(), Ok(0));
}

#[test]
fn a_reader_that_stands_still_leaves_a_block_of_any_size_to_clear() {
    let mut world = World::new(&[]);
    let reader = reader();
    // All over the log, and of half of the log something stays alone.
    let spans = [2, 10, 3, 14].map(|unit| world.store(unit));
    let loans = spans.each_ref().map(|span| span.lend(&reader));
    let is_lent = loans.each_ref().map(Option::is_some);
    assert_eq!(is_lent, [true, false, true, false]);
    drop(spans);
    let half = u64::from(UNITS / 2) * UNIT_BYTES;
    let placed = world.log.reserve(LARGE, half as u32);
    assert_eq!(placed.map(|space| space.reservation.at()), Ok(half));
}

#[test]
fn what_is_lent_of_topics_that_stay_excuses_nothing_that_is_still_sent() {
    let mut world = World::new(&[]);
    let reader = reader();
    let lent = [1, 2].map(|unit| world.store(unit));
    let loans = lent.map(|span| span.lend(&reader).expect("an eighth"));
    let sent = [3, 4, 5].map(|unit| world.store(unit));
    assert!((3..5).all(|unit| world.log.close_topic(unit)));
    assert!(!world.log.lends_too_much(), "an eighth");
    assert!(world.log.close_topic(5));
    assert!(world.log.lends_too_much());
    drop(sent);
    assert!(!world.log.lends_too_much());
    // What is lent may stay for ever, and is bounded by itself.
    assert!([1, 2].into_iter().all(|unit| world.log.close_topic(unit)));
    assert!(!world.log.lends_too_much());
    drop(loans);
    assert_eq!(world.log.space().free_bytes, 5 * UNIT_BYTES);
}
