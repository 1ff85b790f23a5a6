//! Two brokers are asked to leave, one of them at each single access to memory of the other's answer:
//! one of them stays.

use std::cell::RefCell;
use std::sync::Arc;

use embar_broker::clock::Timestamp;
use embar_broker::node::LeaveRefused;
use embar_fabric::Geometry;
use embar_fabric::records::BrokerState;
use embar_frame::Now;
use embar_memory::{Power, interrupt_after};
use embar_sim::host::{Broker, Devices};
use embar_sim::plan::Plan;
use embar_sim::random::Random;
use embar_wire::time::WallNs;

type Answer = Result<(), LeaveRefused>;

thread_local! {
    static OTHER: RefCell<Option<Broker>> = const { RefCell::new(None) };
    static ANSWER: RefCell<Option<Answer>> = const { RefCell::new(None) };
}

fn two(random: &mut Random) -> (Broker, Broker) {
    let plan = Plan::new(random);
    let plan = Plan {
        geometry: Geometry {
            brokers: 3,
            standbys: 0,
            spares: 0,
            ..plan.geometry
        },
        ..plan
    };
    let devices = Devices::format(&plan, random);
    let at = Timestamp {
        now: Now(0),
        wall: WallNs(1),
    };
    let mut start = |row| {
        let region = devices.host(random.bits(), &Power::default()).region();
        let claim = Arc::new(region.claim_unlocked(row));
        let broker = Broker::start(region, &claim, &plan, |_| true, at);
        broker.node.set_state(BrokerState::Ready);
        broker
    };
    (start(1), start(2))
}

/// What both answer; the other is asked after so many accesses of the one, or not at all.
fn ask_both(accesses: u64) -> (Answer, Option<Answer>) {
    let (one, other) = two(&mut Random::new(accesses));
    OTHER.set(Some(other));
    ANSWER.set(None);
    interrupt_after(accesses, 1, || {
        let other = OTHER.take().expect("it is asked once");
        ANSWER.set(Some(other.node.leave(false)));
    });
    let answer = one.node.leave(false);
    interrupt_after(0, 0, || {});
    (answer, ANSWER.take())
}

#[test]
fn of_two_that_are_asked_at_once_one_stays() {
    let (mut one_stayed, mut other_stayed) = (0, 0);
    for accesses in 1.. {
        let (one, other) = ask_both(accesses);
        let Some(other) = other else {
            assert_eq!(one, Ok(()), "nobody else was asked");
            assert!(accesses > 10, "it looks at rows, and says something");
            break;
        };
        assert!(one.is_err() || other.is_err(), "at access {accesses}");
        one_stayed += u64::from(one.is_err());
        other_stayed += u64::from(other.is_err());
    }
    assert!(one_stayed > 1 && other_stayed > 1, "they met in the middle");
}
