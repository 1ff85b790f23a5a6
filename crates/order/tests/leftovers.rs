//! What a dead broker left in its lane: taken to the end, however little of it is to be ordered.

mod support;

use std::sync::Arc;

use embar_fabric::{Claim, Geometry, NoticeKind, PbrKind, PbrRecord, Region};
use embar_memory::Simulated;
use embar_order::{Event, Limits, Participant, Sequencer};

const CHAIN: u32 = 0;
/// More than are taken of one lane in one step.
const LEFT: u64 = 600;
/// Where the bytes lie that are whole.
const WHOLE: u64 = 64;

fn sequencer(region: &Region<Simulated>, claim: &Arc<Claim>) -> Sequencer<Simulated> {
    let limits = Limits {
        sessions: 1,
        ..Limits::default()
    };
    let intact = Box::new(|_: u16, record: &PbrRecord| record.payload_at == WHOLE);
    Sequencer::take_over(region, claim, &limits, &|_| true, intact).expect("takes over")
}

fn record(kind: PbrKind) -> PbrRecord {
    PbrRecord {
        producer: 7,
        session_epoch: 1,
        count: 1,
        len: 64,
        chain: CHAIN,
        incarnation: 1,
        kind: kind as u8,
        orders: PbrRecord::pack_orders(0, 5),
        ..PbrRecord::default()
    }
}

#[test]
fn many_that_are_not_whole_do_not_hide_the_one_that_is() {
    let region = support::region(&Geometry {
        lane_slots: 1024,
        ..support::small()
    });
    let claim = Arc::new(region.claim_unlocked(0));
    let mut first = sequencer(&region, &claim);
    let mut broker = Participant::<_, u64>::new(&region, &region.claim_unlocked(1));
    broker.open_chain(CHAIN, 0);
    let mut events = Vec::new();
    let mut step = |sequencer: &mut Sequencer<_>, broker: &mut Participant<_, u64>| {
        assert!(sequencer.beat(&|_| true));
        sequencer.step(1, &|_| true);
        broker.poll(&mut events);
        std::mem::take(&mut events)
    };
    while !broker.enter() {
        step(&mut first, &mut broker);
    }
    broker.submit(0, record(PbrKind::Open), 0).expect("room");
    let told = loop {
        if let Some(event) = step(&mut first, &mut broker).pop() {
            break event;
        }
    };
    assert!(matches!(told, Event::Answered { outcome, .. } if outcome.kind == NoticeKind::Opened));
    for number in 1..=LEFT {
        let batch = PbrRecord {
            payload_at: if number == LEFT { WHOLE } else { 0 },
            ..record(PbrKind::Batch)
        };
        broker.submit(0, batch, number).expect("room");
    }
    drop(broker);

    let mut second = sequencer(&region, &claim);
    assert!(second.beat(&|_| false));
    let (mut taken, mut ordered) = (0, 0);
    loop {
        let step = second.step(2, &|_| true);
        (taken, ordered) = (taken + step.taken as u64, ordered + step.ordered);
        if step.taken == 0 {
            break;
        }
    }
    assert!(taken >= LEFT, "{taken}");
    assert_eq!(ordered, 1);
}
