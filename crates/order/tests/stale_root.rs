//! Pages are given back between two looks of a broker that is behind.

mod support;

use std::cell::RefCell;
use std::sync::Arc;

use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::{Claim, Geometry, PbrKind, PbrRecord, Region};
use embar_memory::{Simulated, interrupt_after};
use embar_order::{Event, Limits, Participant, Sequencer};

const CHAIN: u32 = 0;
/// A full page, and some more.
const BATCHES: u64 = PAGE_RECORDS as u64 + 3;

/// Accesses of a poll until it reads records.
const ACCESSES: u64 = 120;

type Broker = Participant<Simulated, u64>;

thread_local! {
    static SEQUENCER: RefCell<Option<Sequencer<Simulated>>> = const { RefCell::new(None) };
}

fn with_sequencer<R>(f: impl FnOnce(&mut Sequencer<Simulated>) -> R) -> R {
    SEQUENCER.with_borrow_mut(|it| f(it.as_mut().expect("there is one")))
}

fn record(kind: PbrKind, sequence: u64, session_epoch: u32) -> PbrRecord {
    PbrRecord {
        producer: 7,
        payload_at: 64 * sequence,
        len: 64,
        sequence,
        chain: CHAIN,
        count: 1,
        incarnation: 1,
        session_epoch,
        kind: kind as u8,
        orders: PbrRecord::pack_orders(0, 5),
        ..PbrRecord::default()
    }
}

fn join(region: &Region<Simulated>, claim: &Claim) -> Broker {
    let mut broker = Broker::new(region, claim);
    while !broker.enter() {
        with_sequencer(|it| it.step(1, &|_| true));
        broker.poll(&mut Vec::new());
    }
    broker.open_chain(CHAIN, 0);
    broker
}

/// A broker that has read nothing of what another one submitted and gives up a page of; true if that
/// was in the middle of a poll, after so many accesses.
fn reads_on(accesses: u64) -> bool {
    let region = support::region(&Geometry {
        brokers: 3,
        lane_slots: 128,
        index_pages: 1,
        goi_pages: 8,
        ..support::small()
    });
    let head = Arc::new(region.claim_unlocked(0));
    let (first, second) = (region.claim_unlocked(1), region.claim_unlocked(2));
    let limits = Limits {
        sessions: 1,
        ..Limits::default()
    };
    let intact = Box::new(|_: u16, _: &PbrRecord| false);
    let sequencer = Sequencer::take_over(&region, &head, &limits, &|_| true, intact);
    SEQUENCER.set(Some(sequencer.expect("takes over")));
    let mut ahead = join(&region, &first);
    let mut behind = join(&region, &second);
    let mut events = Vec::new();
    ahead
        .submit(0, record(PbrKind::Open, 0, 0), 0)
        .expect("there is room");
    while events.is_empty() {
        with_sequencer(|it| it.step(1, &|_| true));
        ahead.poll(&mut events);
    }
    let [Event::Answered { outcome, .. }] = &events[..] else {
        panic!("{events:?}");
    };
    let epoch = outcome.session_epoch;
    for number in 0..BATCHES {
        let batch = record(PbrKind::Batch, number, epoch);
        ahead.submit(0, batch, number).expect("there is room");
    }
    with_sequencer(|it| it.step(2, &|_| true));
    let news = region.window_news_writer(&first);
    let mut window = region.window_writer(&first, 0).announcing_to(&news);
    window.reset(CHAIN, PAGE_RECORDS.into(), BATCHES);

    let head_page = || region.goi_root(0, 0).found().expect("it was begun").head;
    let before = head_page();
    interrupt_after(accesses, 1, || {
        with_sequencer(|it| assert!(it.beat(&|_| true)));
    });
    behind.poll(&mut Vec::new());
    interrupt_after(0, 1, || {});
    let was_given_back = head_page() != before;
    // Nothing grows any more.
    while behind.poll(&mut Vec::new()) {}
    assert_eq!(behind.damaged().count(), 0);
    assert_eq!(behind.next(CHAIN), Some(BATCHES), "{accesses} accesses");
    was_given_back
}

#[test]
fn a_broker_that_is_behind_reads_on_where_pages_go_between_its_looks() {
    for accesses in 1..ACCESSES {
        assert!(reads_on(accesses), "it had read all before");
    }
}
