use std::sync::Arc;

use embar_fabric::{Geometry, LaneWriter, Layout, PbrKind, SessionOwner, SessionRow};
use embar_memory::{Device, Simulated};

use super::*;
use crate::limits::Limits;

const EPOCH: u32 = 2;
const CHAIN: u32 = 0;
const ORDER: u8 = 2;
const SLOTS: u32 = 16;

/// A lane, and a core that knows one session.
struct World {
    region: Region<Simulated>,
    core: Core,
    lane: Lane<Simulated>,
}

impl World {
    fn begin() -> Self {
        let geometry = Geometry {
            brokers: 2,
            topics: 1,
            lanes: 1,
            lane_slots: SLOTS,
            index_pages: 16,
            payload_bytes: 64 << 10,
            goi_pages: 64,
            sessions: 1,
            ..Geometry::default()
        };
        let file = |bytes, seed| Arc::new(Device::blank(bytes).host(seed));
        let control = file(Layout::new(&geometry).control_bytes(), 1);
        let payload_files = vec![file(geometry.payload_bytes, 2)];
        let region =
            Region::format(control, payload_files, &geometry, 9, 1).expect("a good geometry");
        let limits = Limits {
            sessions: 1,
            ..Limits::default()
        };
        let mut core = Core::new(limits).expect("good limits");
        core.restore_chain(CHAIN, ORDER, 0).expect("a new chain");
        let session = SessionRow {
            producer: 7,
            epoch: 1,
            in_use: 1,
            chain: CHAIN,
            order: ORDER.into(),
            ..SessionRow::default()
        };
        let owner = SessionOwner::default();
        core.restore_session(0, &session, &owner)
            .expect("a free place");
        let claim = region.claim_unlocked(0);
        let lane = Lane::new(&region, &claim, EPOCH, 1, 0);
        Self { region, core, lane }
    }

    /// The next incarnation of the lane's broker begins it.
    fn incarnation(&self) -> (Claim, LaneWriter<Simulated>) {
        let claim = self.region.claim_unlocked(1);
        let mut writer = self.region.lane_writer(&claim, 0);
        writer.begin(EPOCH);
        (claim, writer)
    }

    /// The numbers of what is taken to be ordered.
    fn take(&mut self) -> Vec<u64> {
        let intact: Intact = Box::new(|_, _| true);
        let mut arrivals = Vec::new();
        let drained = self.lane.take(&mut Taking {
            core: &self.core,
            intact: &intact,
            bytes: 0,
            most: 100,
            taken: 0,
            arrivals: &mut arrivals,
            unreadable: &mut Vec::new(),
        });
        assert!(drained);
        arrivals.iter().map(|it| it.source.number).collect()
    }

    fn look(&mut self) -> bool {
        self.lane.look(&self.region, EPOCH)
    }
}

fn batch(claim: &Claim, sequence: u64) -> PbrRecord {
    PbrRecord {
        producer: 7,
        session_epoch: 1,
        sequence,
        count: 1,
        len: 64,
        chain: CHAIN,
        incarnation: claim.incarnation(),
        kind: PbrKind::Batch as u8,
        orders: PbrRecord::pack_orders(0, ORDER),
        ..PbrRecord::default()
    }
}

#[test]
fn what_a_broker_left_while_the_sequencer_stood_still_is_taken() {
    let mut world = World::begin();
    let (first, mut writer) = world.incarnation();
    assert!(world.look());
    assert!(world.take().is_empty());
    // The sequencer stands still behind this. Meanwhile the broker submits, dies, and comes back.
    let left = writer.next();
    for sequence in 0..3 {
        writer.publish(left, &batch(&first, sequence));
    }
    let (_second, writer) = world.incarnation();
    assert!(world.look());
    assert_eq!(world.take(), [left, left + 1, left + 2]);
    assert_eq!(world.lane.reader.position(), writer.next());
    assert!(!world.look());
}

#[test]
fn a_record_that_is_missing_holds_up_nobody() {
    let mut world = World::begin();
    let (first, mut writer) = world.incarnation();
    assert!(world.look());
    // As if it had been granted: the broker overwrites the oldest ones.
    for sequence in 0..=u64::from(SLOTS) {
        writer.publish(writer.next(), &batch(&first, sequence));
    }
    let (_second, writer) = world.incarnation();
    assert!(world.look());
    assert!(world.take().is_empty());
    assert!(world.look(), "it goes on behind what is missing");
    assert_eq!(world.lane.reader.position(), writer.next());
    assert!(world.take().is_empty() && !world.look());
}

#[test]
fn who_begins_a_lane_is_owed_no_answers_of_the_one_before() {
    let mut world = World::begin();
    let (first, mut writer) = world.incarnation();
    assert!(world.look());
    let begun = writer.next();
    (0..3).for_each(|sequence| {
        writer.publish(begun, &batch(&first, sequence));
    });
    assert_eq!(world.take().len(), 3);
    assert!(world.lane.answer(first.incarnation()));
    assert_eq!(world.lane.held, 2);
    // The grant says that it was admitted.
    writer.set_admitted(true);
    assert!(world.look());
    assert_eq!(world.lane.held, 2);

    let (second, mut writer) = world.incarnation();
    assert!(world.look());
    assert_eq!(world.lane.held, 0);
    writer.publish(writer.next(), &batch(&second, 3));
    assert_eq!(world.take().len(), 1);
    assert!(!world.lane.answer(first.incarnation()), "nobody reads it");
    assert_eq!(world.lane.held, 1);
    assert!(world.lane.answer(second.incarnation()));
    assert_eq!(world.lane.held, 0);
}
