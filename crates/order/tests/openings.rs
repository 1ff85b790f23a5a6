//! Sessions that are opened while one sequencer follows another.

mod support;

use std::sync::Arc;

use embar_fabric::geometry::TOPICS_MAX;
use embar_fabric::{Claim, Geometry, NoticeKind, PbrKind, PbrRecord, Region, Simulated};
use embar_order::{Event, Limits, Participant, Sequencer};

const CHAIN: u32 = 0;
/// The sequence number of whoever resumes its own session.
const RESUMES: u64 = u64::MAX;

fn sequencer(region: &Region<Simulated>, claim: &Arc<Claim>) -> Sequencer<Simulated> {
    let limits = Limits {
        sessions: 2,
        ..Limits::default()
    };
    let intact = Box::new(|_: u16, _: &PbrRecord| false);
    Sequencer::take_over(region, claim, &limits, &|_| true, intact).expect("takes over")
}

fn opening(instance: u64, sequence: u64) -> PbrRecord {
    PbrRecord {
        producer: 7,
        blog_at: instance,
        sequence,
        chain: CHAIN,
        incarnation: 1,
        kind: PbrKind::Open as u8,
        orders: PbrRecord::pack_orders(0, 5),
        ..PbrRecord::default()
    }
}

type Broker = Participant<Simulated, u64>;

fn admitted(region: &Region<Simulated>, row: u16, sequencer: &mut Sequencer<Simulated>) -> Broker {
    let mut broker = Broker::new(region, &region.claim_unlocked(row));
    broker.open_chain(CHAIN, 0);
    while !broker.enter() {
        sequencer.step(1, &|_| true);
        broker.poll(&mut Vec::new());
    }
    broker
}

/// All that comes of it when the sequencer takes what there is.
fn events(broker: &mut Broker, sequencer: &mut Sequencer<Simulated>) -> Vec<Event<u64>> {
    let mut events = Vec::new();
    for _ in 0..8 {
        broker.poll(&mut events);
        assert!(sequencer.beat(&|_| true));
        sequencer.step(2, &|_| true);
    }
    events
}

/// The epoch that one request was answered with.
fn epoch(events: &[Event<u64>], request: u64) -> u32 {
    match events {
        [Event::Told { tag, notice, .. }] if *tag == request => {
            assert_eq!(notice.kind, NoticeKind::Opened);
            notice.session_epoch
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_that_its_sequencer_did_not_answer_takes_nothing_from_whoever_came_since() {
    let region = support::region(&Geometry {
        brokers: 3,
        sessions: 2,
        ..support::small()
    });
    let claim = Arc::new(region.claim_unlocked(0));
    let mut first = sequencer(&region, &claim);
    let mut slow = admitted(&region, 1, &mut first);
    let mut other = admitted(&region, 2, &mut first);
    // It opens at both brokers, and only one has time to hear of the answer.
    for broker in [&mut slow, &mut other] {
        broker.submit(0, opening(100, 0), 1).expect("room");
    }
    slow.submit(0, opening(100, RESUMES), 2).expect("room");
    assert_eq!(epoch(&events(&mut other, &mut first), 1), 1);
    // Another instance takes its place.
    other.submit(0, opening(200, 0), 3).expect("room");
    assert_eq!(epoch(&events(&mut other, &mut first), 3), 2);
    drop(first);

    let mut second = sequencer(&region, &claim);
    let late = events(&mut slow, &mut second);
    let [
        Event::Withdrawn { tag: 1 },
        Event::Told { tag: 2, notice, .. },
    ] = &late[..]
    else {
        panic!("{late:?}");
    };
    assert_eq!(notice.kind, NoticeKind::TakenOver);
    other.submit(0, opening(200, RESUMES), 4).expect("room");
    let still = events(&mut other, &mut second);
    assert_eq!(epoch(&still, 4), 2, "it has the session as before");
}

#[test]
fn what_is_under_way_to_a_deleted_chain_does_not_bring_it_back() {
    const NEWER: u32 = CHAIN + TOPICS_MAX as u32;
    // Lanes take turns: in one of both cases the older chain's comes first.
    for turn in 0..2 {
        let region = support::region(&Geometry {
            brokers: 3,
            sessions: 2,
            ..support::small()
        });
        let claim = Arc::new(region.claim_unlocked(0));
        let mut sequencer = sequencer(&region, &claim);
        let mut old = admitted(&region, 1, &mut sequencer);
        let mut new = admitted(&region, 2, &mut sequencer);
        old.submit(0, opening(100, 0), 1).expect("room");
        assert_eq!(epoch(&events(&mut old, &mut sequencer), 1), 1);
        (0..turn).for_each(|_| {
            sequencer.step(2, &|_| true);
        });
        // Both are taken in one step.
        old.submit(0, opening(100, 0), 2).expect("room");
        let newer = PbrRecord {
            chain: NEWER,
            ..opening(100, 0)
        };
        new.submit(0, newer, 3).expect("room");
        sequencer.step(2, &|_| true);
        let chains = sequencer.core().chains().map(|(chain, ..)| chain);
        assert_eq!(chains.collect::<Vec<_>>(), [NEWER], "turn {turn}");
        let told = events(&mut old, &mut sequencer);
        let [Event::Told { tag: 2, notice, .. }] = &told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(notice.kind, NoticeKind::UnknownSession);
        epoch(&events(&mut new, &mut sequencer), 3);
    }
}

#[test]
fn what_is_under_way_to_a_chain_that_was_found_deleted_does_not_bring_it_back() {
    let region = support::region(&support::small());
    let claim = Arc::new(region.claim_unlocked(0));
    let mut sequencer = sequencer(&region, &claim);
    let mut broker = admitted(&region, 1, &mut sequencer);
    broker.submit(0, opening(100, 0), 1).expect("room");
    assert_eq!(epoch(&events(&mut broker, &mut sequencer), 1), 1);
    sequencer.retain_chains(&|_| false);
    broker.submit(0, opening(100, 0), 2).expect("room");
    sequencer.step(2, &|_| false);
    assert_eq!(sequencer.core().chains().count(), 0);
    let told = events(&mut broker, &mut sequencer);
    let [Event::Told { tag: 2, notice, .. }] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(notice.kind, NoticeKind::UnknownSession);
}
