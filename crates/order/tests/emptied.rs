//! Chains of which nothing is left take no page, and go on where they were.

mod support;

use std::sync::Arc;

use embar_fabric::{Claim, Geometry, PbrKind, PbrRecord, Region};
use embar_memory::Simulated;
use embar_order::{Event, Limits, Participant, Sequencer};

const CHAIN: u32 = 0;
/// Messages of a batch.
const COUNT: u32 = 2;

type Broker = Participant<Simulated, u64>;

fn take_over(region: &Region<Simulated>, claim: &Arc<Claim>) -> Sequencer<Simulated> {
    let limits = Limits {
        sessions: 1,
        ..Limits::default()
    };
    let intact = Box::new(|_: u16, _: &PbrRecord| false);
    Sequencer::take_over(region, claim, &limits, &|_| true, intact).expect("takes over")
}

fn record(kind: PbrKind, sequence: u64, session_epoch: u32) -> PbrRecord {
    PbrRecord {
        producer: 7,
        payload_at: 100,
        sequence,
        chain: CHAIN,
        count: COUNT,
        incarnation: 1,
        session_epoch,
        kind: kind as u8,
        orders: PbrRecord::pack_orders(0, 5),
        ..PbrRecord::default()
    }
}

/// What a broker comes to know when the sequencer takes what there is.
fn events(broker: &mut Broker, sequencer: &mut Sequencer<Simulated>) -> Vec<Event<u64>> {
    let mut events = Vec::new();
    for _ in 0..8 {
        broker.poll(&mut events);
        assert!(sequencer.beat(&|_| true));
        sequencer.step(2, &|_| true);
    }
    events
}

/// Where the batches are that it got to know of.
fn ordered(events: &[Event<u64>]) -> Vec<u64> {
    let bases = events.iter().map(|event| match event {
        Event::Ordered { record, .. } => record.base,
        other => panic!("{other:?}"),
    });
    bases.collect()
}

fn join(region: &Region<Simulated>, claim: &Claim, sequencer: &mut Sequencer<Simulated>) -> Broker {
    let mut broker = Broker::new(region, claim);
    while !broker.enter() {
        sequencer.step(1, &|_| true);
        broker.poll(&mut Vec::new());
    }
    broker
}

#[test]
fn a_chain_of_which_nothing_is_left_goes_on() {
    let region = support::region(&Geometry {
        brokers: 3,
        ..support::small()
    });
    let (head, first) = (Arc::new(region.claim_unlocked(0)), region.claim_unlocked(1));
    let mut sequencer = take_over(&region, &head);
    let mut broker = join(&region, &first, &mut sequencer);
    broker.open_chain(CHAIN, 0);
    let open = record(PbrKind::Open, 0, 0);
    broker.submit(0, open, 0).expect("room");
    let opened = events(&mut broker, &mut sequencer);
    let [Event::Answered { outcome, .. }] = &opened[..] else {
        panic!("{opened:?}");
    };
    let epoch = outcome.session_epoch;
    let submit = |broker: &mut Broker, number| {
        let batch = record(PbrKind::Batch, number, epoch);
        broker.submit(0, batch, number).expect("room");
    };
    (0..5).for_each(|number| submit(&mut broker, number));
    assert_eq!(
        ordered(&events(&mut broker, &mut sequencer)),
        [0, 2, 4, 6, 8]
    );

    let news = region.window_news_writer(&first);
    let mut window = region.window_writer(&first, 0).announcing_to(&news);
    window.reset(CHAIN, 0, 10);
    let root = || region.goi_root(0, 0).found().expect("it was begun");
    let leads = |root: embar_fabric::GoiRoot| (root.start, root.first, root.head > 0);
    assert!(sequencer.beat(&|_| true));
    assert_eq!(leads(root()), (0, 0, true));
    window.raise_first(10);
    assert!(sequencer.beat(&|_| true));
    assert_eq!(leads(root()), (10, 10, false));
    submit(&mut broker, 5);
    assert_eq!(ordered(&events(&mut broker, &mut sequencer)), [10]);
    window.raise_next(12);
    window.raise_first(12);
    assert!(sequencer.beat(&|_| true));
    assert_eq!(leads(root()), (12, 12, false));

    // A successor finds no record, and knows where the chain and its session go on.
    drop(sequencer);
    let mut sequencer = take_over(&region, &head);
    assert_eq!(sequencer.core().chain_next(CHAIN), Some(12));
    submit(&mut broker, 6);
    assert_eq!(ordered(&events(&mut broker, &mut sequencer)), [12]);
    let mut late = join(&region, &region.claim_unlocked(2), &mut sequencer);
    late.open_chain(CHAIN, 0);
    let mut found = events(&mut late, &mut sequencer);
    assert_eq!(
        found.remove(0),
        Event::Skipped {
            chain: CHAIN,
            first: 12
        }
    );
    assert_eq!(ordered(&found), [12]);
}
