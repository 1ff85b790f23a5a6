//! Records that are damaged beyond repair, of each kind that the order depends on.

#[path = "support/devices.rs"]
mod devices;

use std::sync::Arc;

use devices::{Devices, small};
use embar_fabric::layout::TableId;
use embar_fabric::{
    Claim, Geometry, Layout, NoticeKind, PbrKind, PbrRecord, SequencerRow, SequencerState,
    SessionRow,
};
use embar_memory::{LINE_BYTES, Simulated};
use embar_order::participant::LaneFull;
use embar_order::{Event, Limits, Participant, Sequencer};

const CHAIN: u32 = 0;

struct World {
    devices: Devices,
    layout: Layout,
}

impl World {
    fn new() -> Self {
        let geometry = Geometry {
            brokers: 3,
            topics: 2,
            standbys: 1,
            sessions: 2,
            ..small()
        };
        Self {
            devices: Devices::formatted(&geometry),
            layout: Layout::new(&geometry),
        }
    }

    /// Overwrites one of the two lines of an entry that is kept twice.
    fn destroy_copy(&self, table: TableId, entry: u64, copy: u64) {
        let table = self.layout.tables()[table as usize];
        let at = table.offset + entry * table.entry_bytes + copy * LINE_BYTES;
        self.lose(at);
    }

    /// Overwrites an entry of a table.
    fn destroy(&self, table: TableId, entry: u64) {
        self.fill(table, entry, 0xC3);
    }

    /// Overwrites an entry of a table with these bytes: zeros read as never written.
    fn fill(&self, table: TableId, entry: u64, byte: u8) {
        let table = self.layout.tables()[table as usize];
        let at = table.offset + entry * table.entry_bytes;
        let control = &self.devices.control;
        for line in (0..table.entry_bytes).step_by(LINE_BYTES as usize) {
            control.damage(at + line, |line| line.fill(byte));
        }
    }

    /// Overwrites a line of a table.
    fn lose_line(&self, table: TableId, line: u64) {
        let table = self.layout.tables()[table as usize];
        let at = table.offset + line * LINE_BYTES;
        self.lose(at);
    }

    fn lose(&self, at: u64) {
        self.devices.control.damage(at, |line| line.fill(0xC3));
    }

    fn take_over(&self, row: u16) -> Sequencer<Simulated> {
        let region = self.devices.host(u64::from(row) + 20);
        let claim = Arc::new(region.claim_unlocked(row));
        let intact = Box::new(|_, _: &PbrRecord| true);
        let taken = Sequencer::take_over(&region, &claim, &Limits::default(), &|_| true, intact);
        taken.expect("nothing stops a takeover")
    }

    /// The head sequences, and the broker of row 1 has heard of it.
    fn serve(&self) -> (Sequencer<Simulated>, Participant<Simulated, u32>) {
        let sequencer = self.take_over(0);
        let region = self.devices.host(3);
        let mut broker = Participant::new(&region, &region.claim_unlocked(1));
        broker.poll(&mut Vec::new());
        (sequencer, broker)
    }
}

fn open(producer: u64) -> PbrRecord {
    PbrRecord {
        kind: PbrKind::Open as u8,
        producer,
        chain: CHAIN,
        orders: PbrRecord::pack_orders(0, 5),
        incarnation: 1,
        ..PbrRecord::default()
    }
}

#[test]
fn a_lost_session_stops_no_takeover_and_no_other_session() {
    let world = World::new();
    let region = world.devices.host(2);
    let claim: Claim = region.claim_unlocked(0);
    let mut sessions = region.session_table(&claim);
    for slot in 0..2 {
        let row = SessionRow {
            producer: u64::from(slot) + 7,
            expected: 5,
            chain: CHAIN,
            epoch: 3,
            in_use: 1,
            order: 5,
            ..SessionRow::default()
        };
        sessions.store(slot, &row);
    }
    region.sequencer_row_writer(&claim).store(&SequencerRow {
        epoch: 2,
        state: SequencerState::Active as u32,
        ..SequencerRow::default()
    });
    world.destroy(TableId::Sessions, 0);
    let sequencer = world.take_over(2);
    assert_eq!(sequencer.lost_sessions(), 1);
    let other = sequencer.core().session_row(1);
    assert_eq!((other.producer, other.expected, other.epoch), (8, 5, 3));
    let lost = sequencer.core().session_row(0);
    assert_eq!((lost.in_use, lost.epoch), (0, u32::MAX), "not used again");
}

#[test]
fn an_epoch_that_was_seen_is_never_followed_by_a_lower_one() {
    let world = World::new();
    let first = world.take_over(0);
    let mut second = world.take_over(2);
    assert!(second.epoch() > first.epoch());
    let region = world.devices.host(3);
    let mut broker = Participant::new(&region, &region.claim_unlocked(1));
    let mut events: Vec<Event<u32>> = Vec::new();
    broker.poll(&mut events);
    let seen = broker.term().expect("it follows the second");
    assert_eq!(seen.epoch, second.epoch());
    second.step(0, &|_| true);

    // All that shows the second's epoch is gone, and what the first said shows again.
    world.destroy(TableId::Sequencers, 1);
    broker.poll(&mut events);
    assert_eq!(broker.term(), Some(seen));
    let other = world.devices.host(4);
    let mut fresh: Participant<_, u32> = Participant::new(&other, &other.claim_unlocked(1));
    fresh.poll(&mut Vec::new());
    assert_eq!(fresh.term(), None, "lanes were begun for a higher one");
    let third = world.take_over(0);
    assert!(third.epoch() > second.epoch());
    broker.poll(&mut events);
    assert_eq!(broker.term().map(|term| term.epoch), Some(third.epoch()));
}

#[test]
fn whoever_wrote_a_record_that_is_lost_is_told() {
    let world = World::new();
    let (mut sequencer, mut broker) = world.serve();
    let mut events = Vec::new();
    submit_openings(&mut broker, 3);
    // Number 1 of the lane of row 1.
    world.destroy(TableId::LaneSlots, 16 + 1);
    for _ in 0..3 {
        sequencer.step(0, &|_| true);
        sequencer.beat(&|_| true);
        broker.poll(&mut events);
    }
    let mut told = told(&events);
    told.sort_by_key(|(tag, _)| *tag);
    let opened = NoticeKind::Opened;
    assert_eq!(
        told,
        [(0, opened), (1, NoticeKind::Unreadable), (2, opened)]
    );
}

/// So many openings, each by a publisher of its own.
fn submit_openings(broker: &mut Participant<Simulated, u32>, count: u32) {
    for tag in 0..count {
        let submitted = broker.submit(0, open(tag.into()), tag);
        submitted.expect("there is room");
    }
}

/// The outcomes that came, each with its tag.
fn told(events: &[Event<u32>]) -> Vec<(u32, NoticeKind)> {
    let told = events.iter().filter_map(|event| match event {
        Event::Answered { tag, outcome, .. } => Some((*tag, outcome.kind)),
        _ => None,
    });
    told.collect()
}

#[test]
fn the_newest_record_of_a_lane_is_stored_again_if_it_is_lost() {
    let world = World::new();
    let (mut sequencer, mut broker) = world.serve();
    let mut events = Vec::new();
    submit_openings(&mut broker, 2);
    assert!(
        !broker.restore_lost(0) && !broker.restore_lost(0),
        "none is lost"
    );
    // All of the ring of row 1.
    (0..2).for_each(|number| world.destroy(TableId::LaneSlots, 16 + number));
    let step = sequencer.step(0, &|_| true);
    assert_eq!(step.taken, 0, "nothing shows that there is a record");
    let mut restored = 0;
    for _ in 0..8 {
        restored += u32::from(broker.restore_lost(0));
        sequencer.step(0, &|_| true);
        sequencer.beat(&|_| true);
        broker.poll(&mut events);
    }
    assert_eq!(restored, 2);
    let opened = NoticeKind::Opened;
    assert_eq!(told(&events), [(0, opened), (1, opened)]);
}

#[test]
fn a_lane_of_which_every_record_is_lost_goes_on_behind_them() {
    let world = World::new();
    let mut sequencer = world.take_over(0);
    let region = world.devices.host(3);
    let mut events = Vec::new();
    for incarnation in 1..3 {
        let claim = region.claim_unlocked(1);
        assert_eq!(claim.incarnation(), incarnation);
        let mut broker = Participant::new(&region, &claim);
        for tag in 0..20 {
            broker.poll(&mut events);
            let record = PbrRecord {
                incarnation,
                ..open(tag.into())
            };
            broker.submit(0, record, tag).expect("there is room");
            for _ in 0..3 {
                sequencer.step(0, &|_| true);
            }
        }
        broker.poll(&mut events);
        assert_eq!(told(&events).len(), 20, "of incarnation {incarnation}");
        events.clear();
        (0..16).for_each(|slot| world.destroy(TableId::LaneSlots, 16 + slot));
    }
}

#[test]
fn the_newest_notice_is_missed_if_nothing_shows_that_it_was_there() {
    let world = World::new();
    let (mut sequencer, mut broker) = world.serve();
    let mut events = Vec::new();
    // The ring of row 1 in the first area: what is in it before the first outcome says nothing.
    world.destroy(TableId::Notices, 16);
    broker.submit(0, open(0), 0).expect("there is room");
    broker.poll(&mut events);
    assert!(!broker.is_in_doubt(), "nothing was told yet");
    sequencer.step(0, &|_| true);
    broker.poll(&mut events);
    assert_eq!(told(&events), [(0, NoticeKind::Opened)]);

    for (copy, tag) in [(0, 1_u32), (1, 2)] {
        events.clear();
        broker
            .submit(0, open(tag.into()), tag)
            .expect("there is room");
        sequencer.step(0, &|_| true);
        world.destroy_copy(TableId::Notices, 16 + u64::from(tag), copy);
        broker.poll(&mut events);
        assert_eq!(told(&events).len(), 1, "copy {copy} is lost");
        assert!(!broker.is_in_doubt());
    }

    broker.submit(0, open(3), 3).expect("there is room");
    sequencer.step(0, &|_| true);
    world.destroy(TableId::Notices, 16 + 3);
    broker.poll(&mut events);
    assert!(broker.is_in_doubt());
}

#[test]
fn the_newest_record_of_the_order_is_stored_again_if_it_is_lost() {
    let world = World::new();
    let (mut sequencer, mut broker) = world.serve();
    let mut events = Vec::new();
    broker.open_chain(0, 0);
    broker.submit(0, open(0), 0).expect("there is room");
    sequencer.step(0, &|_| true);
    broker.poll(&mut events);
    assert_eq!(submit_batches(&mut broker, 0, 0..3), Ok(()));
    sequencer.step(0, &|_| true);
    // The third record of the first page, behind its header.
    world.lose_line(TableId::GoiPages, 3);
    events.clear();
    while broker.poll(&mut events) {}
    assert_eq!((events.len(), broker.damaged().count()), (2, 0));
    assert!(sequencer.beat(&|_| true));
    while broker.poll(&mut events) {}
    assert_eq!((events.len(), broker.in_use(0)), (3, 0));
    assert_ne!(
        sequencer.step(0, &|_| true).notified,
        0,
        "brokers are woken"
    );
}

#[test]
fn the_root_of_a_chain_is_stored_again() {
    for filling in [0, 0xC3] {
        let world = World::new();
        let (mut sequencer, mut broker) = world.serve();
        broker.open_chain(0, 0);
        broker.submit(0, open(0), 0).expect("there is room");
        sequencer.step(0, &|_| true);
        let region = world.devices.host(4);
        let root = region.goi_root(0, 0).found().expect("the chain was begun");
        world.fill(TableId::GoiRoots, 0, filling);
        assert_eq!(region.goi_root(0, 0).found(), None);
        assert!(sequencer.beat(&|_| true));
        assert_eq!(region.goi_root(0, 0).found(), Some(root));
    }
}

/// The batches with these numbers, of the publisher of a chain, whose session is at that chain's place.
fn submit_batches(
    broker: &mut Participant<Simulated, u32>,
    chain: u32,
    numbers: impl IntoIterator<Item = u64>,
) -> Result<(), LaneFull> {
    for sequence in numbers {
        let batch = PbrRecord {
            kind: PbrKind::Batch as u8,
            sequence,
            payload_at: (u64::from(chain) << 12) + (sequence << 6),
            len: 64,
            count: 1,
            session: chain,
            session_epoch: 1,
            chain,
            ..open(chain.into())
        };
        let submitted = broker.submit(0, batch, sequence as u32);
        submitted.map_err(|(full, _)| full)?;
    }
    Ok(())
}

#[test]
fn batches_of_a_damaged_chain_give_their_slots_back_once_answered() {
    let world = World::new();
    let (mut sequencer, mut broker) = world.serve();
    let mut events = Vec::new();
    for chain in 0..2 {
        broker.open_chain(chain, 0);
        let opening = PbrRecord {
            chain,
            ..open(chain.into())
        };
        broker.submit(0, opening, chain).expect("there is room");
    }
    sequencer.step(0, &|_| true);
    broker.poll(&mut events);
    assert_eq!(broker.in_use(0), 0, "both are open");

    // Batch 11 waits for batch 10.
    let numbers = (0..10).chain([11]);
    assert_eq!(submit_batches(&mut broker, 0, numbers), Ok(()));
    sequencer.step(0, &|_| true);
    // The first record of the first page, behind its header.
    world.lose_line(TableId::GoiPages, 1);
    broker.poll(&mut events);
    assert_eq!(broker.damaged().collect::<Vec<_>>(), [0]);
    assert_eq!(broker.disown(0).len(), 11);
    assert_eq!(broker.in_use(0), 1, "the one that waits will be answered");
    assert_eq!(submit_batches(&mut broker, 1, 0..15), Ok(()));
    let beyond = submit_batches(&mut broker, 1, [15]);
    assert_eq!(beyond, Err(LaneFull), "its answer keeps its slot");

    let lease = Limits::default().gap_lease_ns;
    for quarter in 1..9 {
        sequencer.step(quarter * lease / 4, &|_| true);
    }
    broker.poll(&mut events);
    assert_eq!(broker.in_use(0), 0, "all are answered");
    assert_eq!(submit_batches(&mut broker, 1, 15..31), Ok(()));
}
