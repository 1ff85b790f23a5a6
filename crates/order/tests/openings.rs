//! Sessions that are opened while one sequencer follows another.

mod support;

use std::sync::Arc;

use embar_fabric::geometry::TOPICS_MAX;
use embar_fabric::{Claim, Geometry, NoticeKind, PbrRecord, Region, Secret};
use embar_memory::Simulated;
use embar_order::{Event, Limits, Operation, Participant, Request, Sequencer};

const CHAIN: u32 = 0;
const OPEN: Operation = Operation::Open { takes_over: 0 };

fn sequencer(region: &Region<Simulated>, claim: &Arc<Claim>) -> Sequencer<Simulated> {
    let limits = Limits {
        sessions: 2,
        ..Limits::default()
    };
    let intact = Box::new(|_: u16, _: &PbrRecord| false);
    Sequencer::take_over(region, claim, &limits, &|_| true, intact).expect("takes over")
}

fn asking(instance: u64, operation: Operation) -> PbrRecord {
    let request = Request {
        producer: 7,
        instance,
        secret: Secret([5; 16]),
        peer: 0,
        operation,
    };
    PbrRecord {
        chain: CHAIN,
        incarnation: 1,
        orders: PbrRecord::pack_orders(0, 5),
        ..request.record()
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
        [Event::Answered { tag, outcome, .. }] if *tag == request => {
            assert_eq!(outcome.kind, NoticeKind::Opened);
            outcome.session_epoch
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unanswered_opening_takes_nothing_from_a_later_instance() {
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
        broker.submit(0, asking(100, OPEN), 1).expect("room");
    }
    slow.submit(0, asking(100, Operation::Resume), 2)
        .expect("room");
    assert_eq!(epoch(&events(&mut other, &mut first), 1), 1);
    // Another instance takes its place.
    let takes_over = Operation::Open { takes_over: 1 };
    other.submit(0, asking(200, takes_over), 3).expect("room");
    assert_eq!(epoch(&events(&mut other, &mut first), 3), 2);
    drop(first);

    let mut second = sequencer(&region, &claim);
    let late = events(&mut slow, &mut second);
    let [
        Event::Answered {
            tag: 1, outcome, ..
        },
        Event::Answered {
            tag: 2,
            outcome: resumed,
            ..
        },
    ] = &late[..]
    else {
        panic!("{late:?}");
    };
    assert_eq!(
        (outcome.kind, outcome.session_epoch),
        (NoticeKind::InUse, 2)
    );
    assert_eq!(resumed.kind, NoticeKind::TakenOver);
    other
        .submit(0, asking(200, Operation::Resume), 4)
        .expect("room");
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
        old.submit(0, asking(100, OPEN), 1).expect("room");
        assert_eq!(epoch(&events(&mut old, &mut sequencer), 1), 1);
        (0..turn).for_each(|_| {
            sequencer.step(2, &|_| true);
        });
        // Both are taken in one step.
        old.submit(0, asking(100, OPEN), 2).expect("room");
        let newer = PbrRecord {
            chain: NEWER,
            ..asking(100, OPEN)
        };
        new.submit(0, newer, 3).expect("room");
        sequencer.step(2, &|_| true);
        let chains = sequencer.core().chains().map(|(chain, ..)| chain);
        assert_eq!(chains.collect::<Vec<_>>(), [NEWER], "turn {turn}");
        let told = events(&mut old, &mut sequencer);
        let [
            Event::Answered {
                tag: 2, outcome, ..
            },
        ] = &told[..]
        else {
            panic!("{told:?}");
        };
        assert_eq!(outcome.kind, NoticeKind::UnknownSession);
        epoch(&events(&mut new, &mut sequencer), 3);
    }
}

#[test]
fn what_comes_late_does_not_bring_a_deleted_chain_back() {
    let region = support::region(&support::small());
    let claim = Arc::new(region.claim_unlocked(0));
    let mut sequencer = sequencer(&region, &claim);
    let mut broker = admitted(&region, 1, &mut sequencer);
    broker.submit(0, asking(100, OPEN), 1).expect("room");
    assert_eq!(epoch(&events(&mut broker, &mut sequencer), 1), 1);
    sequencer.retain_chains(&|_| false);
    broker.submit(0, asking(100, OPEN), 2).expect("room");
    sequencer.step(2, &|_| false);
    assert_eq!(sequencer.core().chains().count(), 0);
    let told = events(&mut broker, &mut sequencer);
    let [
        Event::Answered {
            tag: 2, outcome, ..
        },
    ] = &told[..]
    else {
        panic!("{told:?}");
    };
    assert_eq!(outcome.kind, NoticeKind::UnknownSession);
}

#[test]
fn what_a_broker_holds_keeps_its_place_as_long_as_the_broker_lives() {
    // Many rows: that of the holder is one of the last.
    const HOLDER: u16 = 40;
    let region = support::region(&Geometry {
        brokers: 42,
        sessions: 2,
        ..support::small()
    });
    let claim = Arc::new(region.claim_unlocked(0));
    let limits = Limits {
        session_idle_ns: 1_000_000,
        ..Limits::default()
    };
    let intact = Box::new(|_: u16, _: &PbrRecord| false);
    let mut sequencer =
        Sequencer::take_over(&region, &claim, &limits, &|_| true, intact).expect("takes over");
    let mut holder = admitted(&region, HOLDER, &mut sequencer);
    let mut asker = admitted(&region, 2, &mut sequencer);
    let (mut now, mut tag) = (0, 0);
    let mut ask = |holder: &mut Broker, sequencer: &mut Sequencer<_>, producer, alive: bool| {
        let record = PbrRecord {
            producer,
            ..asking(1, OPEN)
        };
        tag += 1;
        let mut told = Vec::new();
        // It is found out who holds nothing any more, and once more that it is so.
        for turn in 0..140 {
            if turn == 100 {
                asker.submit(0, record, tag).expect("room");
            }
            now += 5_000_000;
            assert!(sequencer.beat(&|row| row != HOLDER || alive));
            sequencer.step(now, &|_| true);
            holder.poll(&mut Vec::new());
            asker.poll(&mut told);
        }
        match &told[..] {
            [Event::Answered { outcome, .. }] => (outcome.kind, outcome.session),
            other => panic!("{other:?}"),
        }
    };
    let opened = |place| (NoticeKind::Opened, place);
    assert_eq!(ask(&mut holder, &mut sequencer, 1, true), opened(0));
    assert_eq!(ask(&mut holder, &mut sequencer, 2, true), opened(1));
    holder.hold(0);
    holder.hold(1);
    let full = (NoticeKind::SessionsFull, 0);
    assert_eq!(ask(&mut holder, &mut sequencer, 3, true), full);
    // A batch that is not settled keeps the place, too: this one waits for its predecessor.
    let waits = PbrRecord {
        producer: 2,
        session: 1,
        session_epoch: 1,
        sequence: 1,
        count: 1,
        len: 64,
        chain: CHAIN,
        incarnation: 1,
        orders: PbrRecord::pack_orders(0, 5),
        ..PbrRecord::default()
    };
    holder.submit(0, waits, 1).expect("room");
    holder.release(1);
    assert_eq!(ask(&mut holder, &mut sequencer, 3, true), full);
    holder.release(0);
    assert_eq!(ask(&mut holder, &mut sequencer, 3, true), opened(0));
    holder.hold(0);
    holder.hold(1);
    assert_eq!(ask(&mut holder, &mut sequencer, 4, true), full);
    assert_eq!(ask(&mut holder, &mut sequencer, 4, false), opened(0));
}

#[test]
fn a_broker_that_is_not_up_yet_may_hold_any_session() {
    let region = support::region(&Geometry {
        brokers: 3,
        sessions: 2,
        ..support::small()
    });
    let claim = Arc::new(region.claim_unlocked(0));
    let mut first = sequencer(&region, &claim);
    let mut asker = admitted(&region, 2, &mut first);
    for producer in [1, 2] {
        let record = PbrRecord {
            producer,
            ..asking(1, OPEN)
        };
        asker.submit(0, record, producer).expect("room");
        assert_eq!(epoch(&events(&mut asker, &mut first), producer), 1);
    }
    drop(first);
    // All are started again, and one of them takes its time.
    let limits = Limits {
        sessions: 2,
        session_idle_ns: 100_000_000,
        ..Limits::default()
    };
    let intact = Box::new(|_: u16, _: &PbrRecord| false);
    let taken = Sequencer::take_over(&region, &claim, &limits, &|_| true, intact);
    let mut second = taken.expect("takes over");
    let mut holder = Broker::new(&region, &region.claim_unlocked(1));
    let (mut now, mut tag) = (0, 10);
    let mut ask = |second: &mut Sequencer<_>, holder: Option<&mut Broker>| {
        let mut told = Vec::new();
        let mut holder = holder;
        for turn in 0..80 {
            if turn == 40 {
                tag += 1;
                let record = PbrRecord {
                    producer: tag,
                    ..asking(1, OPEN)
                };
                asker.submit(0, record, tag).expect("room");
            }
            now += 10_000_000;
            assert!(second.beat(&|_| true));
            second.step(now, &|_| true);
            asker.poll(&mut told);
            if let Some(holder) = &mut holder {
                holder.poll(&mut Vec::new());
                holder.enter();
            }
        }
        match &told[..] {
            [Event::Answered { outcome, .. }] => (outcome.kind, outcome.session),
            other => panic!("{other:?}"),
        }
    };
    let full = (NoticeKind::SessionsFull, 0);
    assert_eq!(ask(&mut second, None), full, "it may hold them");
    holder.hold(0);
    let opened = (NoticeKind::Opened, 1);
    assert_eq!(ask(&mut second, Some(&mut holder)), opened);
}

#[test]
fn what_a_broker_holds_counts_also_if_it_was_dead_before() {
    let region = support::region(&Geometry {
        brokers: 4,
        sessions: 2,
        ..support::small()
    });
    let claim = Arc::new(region.claim_unlocked(0));
    let limits = Limits {
        sessions: 2,
        session_idle_ns: 1,
        ..Limits::default()
    };
    let intact = Box::new(|_: u16, _: &PbrRecord| false);
    let taken = Sequencer::take_over(&region, &claim, &limits, &|_| true, intact);
    let mut sequencer = taken.expect("takes over");
    let mut holder = admitted(&region, 1, &mut sequencer);
    let mut asker = admitted(&region, 2, &mut sequencer);
    let mut now = 0;
    let mut ask = |sequencer: &mut Sequencer<_>, producer, operation| {
        let record = PbrRecord {
            producer,
            session: 1,
            session_epoch: 1,
            ..asking(1, operation)
        };
        asker.submit(0, record, producer).expect("room");
        let mut told = Vec::new();
        while told.is_empty() {
            now += 1_000_000_000;
            sequencer.step(now, &|_| true);
            asker.poll(&mut told);
        }
        match &told[..] {
            [Event::Answered { outcome, .. }] => (outcome.kind, outcome.session),
            other => panic!("{other:?}"),
        }
    };
    let beat = |sequencer: &mut Sequencer<_>, alive: bool| {
        for _ in 0..3 {
            assert!(sequencer.beat(&|row| row != 1 || alive));
        }
    };
    assert_eq!(ask(&mut sequencer, 1, OPEN), (NoticeKind::Opened, 0));
    assert_eq!(ask(&mut sequencer, 2, OPEN), (NoticeKind::Opened, 1));
    beat(&mut sequencer, false);
    let close = Operation::Close {
        session: 1,
        epoch: 1,
    };
    assert_eq!(ask(&mut sequencer, 2, close).0, NoticeKind::Closed);
    // It is back, and holds what is left, when the places are needed again.
    beat(&mut sequencer, true);
    holder.hold(0);
    assert_eq!(ask(&mut sequencer, 3, OPEN), (NoticeKind::Opened, 1));
    assert_eq!(ask(&mut sequencer, 4, OPEN), (NoticeKind::Opened, 1));
}

#[test]
fn a_successor_knows_all_of_many_sessions_and_their_epochs() {
    const SESSIONS: u64 = 300;
    let region = support::region(&Geometry {
        brokers: 3,
        sessions: 2048,
        ..support::small()
    });
    let claim = Arc::new(region.claim_unlocked(0));
    let mut first = sequencer(&region, &claim);
    let mut broker = admitted(&region, 1, &mut first);
    let ask = |broker: &mut Broker, sequencer: &mut Sequencer<_>, producer, operation| {
        let record = PbrRecord {
            producer,
            ..asking(1, operation)
        };
        broker.submit(0, record, producer).expect("room");
        sequencer.step(2, &|_| true);
        let mut events = Vec::new();
        while events.is_empty() {
            broker.poll(&mut events);
        }
        epoch(&events, producer)
    };
    for producer in 0..SESSIONS {
        assert_eq!(ask(&mut broker, &mut first, producer, OPEN), 1);
    }
    drop(first);
    let mut second = sequencer(&region, &claim);
    assert_eq!(u64::from(second.core().figures().sessions), SESSIONS);
    while broker.poll(&mut Vec::new()) {
        second.step(2, &|_| true);
    }
    for producer in 0..SESSIONS {
        assert_eq!(
            ask(&mut broker, &mut second, producer, Operation::Resume),
            1
        );
    }
    assert_eq!(ask(&mut broker, &mut second, SESSIONS, OPEN), 1);
}
