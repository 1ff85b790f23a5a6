//! Many topics that are deleted at the same time.

mod support;

use std::sync::Arc;

use embar_fabric::geometry::TOPICS_MAX;
use embar_fabric::{Geometry, GoiRoot, NoticeKind, PbrRecord, Region, Secret};
use embar_memory::Simulated;
use embar_order::{Event, Limits, Operation, Participant, Request, Sequencer};

const CHAINS: u16 = 300;
/// Sessions of the first chain, which has most.
const SESSIONS: u32 = 400;
/// More sessions and chains do not go between two looks at what else there is to do.
const GO_AT_ONCE: u32 = 256;

fn opening(chain: u32, producer: u64) -> PbrRecord {
    let request = Request {
        producer,
        instance: 1,
        secret: Secret([5; 16]),
        peer: 0,
        operation: Operation::Open { takes_over: 0 },
    };
    PbrRecord {
        chain,
        incarnation: 1,
        orders: PbrRecord::pack_orders(0, 5),
        ..request.record()
    }
}

fn known(sequencer: &Sequencer<Simulated>) -> u32 {
    let figures = sequencer.core().figures();
    figures.chains + figures.sessions
}

fn root(region: &Region<Simulated>, topic_record: u16) -> GoiRoot {
    region
        .goi_root(0, topic_record)
        .found()
        .expect("it was begun")
}

#[test]
fn the_sequencer_goes_on_while_many_topics_are_deleted() {
    let sessions = SESSIONS + u32::from(CHAINS) + 1;
    let region = support::region(&Geometry {
        topics: CHAINS,
        lane_slots: 1024,
        sessions,
        goi_pages: 8,
        index_pages: 1,
        ..support::small()
    });
    let claim = Arc::new(region.claim_unlocked(0));
    let limits = Limits {
        sessions,
        ..Limits::default()
    };
    let intact = Box::new(|_: u16, _: &PbrRecord| false);
    let taken = Sequencer::take_over(&region, &claim, &limits, &|_| true, intact);
    let mut sequencer = taken.expect("takes over");
    let mut broker = Participant::<_, u64>::new(&region, &region.claim_unlocked(1));
    while !broker.enter() {
        sequencer.step(1, &|_| true);
        broker.poll(&mut Vec::new());
    }
    let of_first = (1..SESSIONS).map(|producer| (0, producer.into()));
    for (chain, producer) in (0..CHAINS.into()).map(|chain| (chain, 0)).chain(of_first) {
        let opened = broker.submit(0, opening(chain, producer), producer);
        opened.expect("there is room");
    }
    let mut told = Vec::new();
    while sequencer.step(2, &|_| true).taken > 0 {
        broker.poll(&mut told);
    }
    while broker.poll(&mut told) {}
    assert_eq!(known(&sequencer), 2 * u32::from(CHAINS) + SESSIONS - 1);

    let mut before = known(&sequencer);
    (0..CHAINS.into()).for_each(|chain| sequencer.close_chain(chain));
    // A topic that is created meanwhile in a topic record that is not empty yet.
    let newer = u32::from(CHAINS) - 1 + TOPICS_MAX as u32;
    broker
        .submit(0, opening(newer, 1), 1)
        .expect("there is room");
    loop {
        sequencer.step(3, &|_| true);
        assert!(sequencer.beat(&|_| true));
        let now = known(&sequencer);
        assert!(before - now <= GO_AT_ONCE, "{before}, then {now}");
        before = now;
        if !sequencer.is_closing() {
            break;
        }
    }
    assert_eq!(before, 2, "the newer chain and its session");
    for topic_record in 0..CHAINS - 1 {
        assert_eq!(root(&region, topic_record), GoiRoot::default());
    }
    assert_eq!(root(&region, CHAINS - 1).chain, newer);
    told.clear();
    while broker.poll(&mut told) {}
    let opened = |event: &Event<u64>| matches!(event, Event::Answered { outcome, .. } if outcome.kind == NoticeKind::Opened);
    assert!(told.iter().any(opened), "{told:?}");
}
