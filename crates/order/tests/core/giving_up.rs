//! Who comes when: takeovers between instances, and places that are needed by others.

use embar_fabric::NoticeKind::{GivenUp, InUse, SessionsFull, TakenOver};
use embar_order::{Limits, Operation};

use crate::support::Said::{Notified, Placed};
use crate::support::{Scene, Session, publisher, small};

fn instance(instance: u64) -> Session {
    Session {
        instance,
        ..publisher(7, 5)
    }
}

#[test]
fn a_later_instance_learns_the_epoch_and_takes_over_from_it() {
    let mut scene = Scene::small();
    let first = scene.open(instance(1));
    scene.batches(&first, 0..2);
    let outcome = scene.ask(instance(2).opening());
    assert_eq!((outcome.kind, outcome.session_epoch), (InUse, 1));
    assert_eq!(scene.batches(&first, [2]).len(), 1, "nothing happened");
    let second = scene.take_over(first, 2);
    assert_eq!((second.epoch, second.first_epoch, second.mark), (2, 1, 3));
    // By way of another broker, it asks the same.
    let again = Operation::Open { takes_over: 1 };
    assert_eq!(scene.try_ask(instance(2), again), Ok(second));
    assert_eq!(scene.try_ask(instance(2), Operation::Resume), Ok(second));
    assert_eq!(
        scene.try_ask(instance(1), Operation::Resume),
        Err(TakenOver)
    );
}

#[test]
fn a_dead_instance_never_takes_a_session_from_its_successor() {
    let mut scene = Scene::small();
    let first = scene.open(instance(1));
    let late_takeover = instance(2).asking(Operation::Open { takes_over: 1 });
    let late_opening = instance(3).opening();
    let current = scene.take_over(first, 4);
    for late in [late_takeover, late_opening, first.renewing()] {
        let outcome = scene.ask(late);
        assert!([InUse, TakenOver].contains(&outcome.kind), "{outcome:?}");
    }
    assert_eq!(scene.batches(&current, [0]).len(), 1);
    // Also where it comes first: a publisher that lives asks again.
    let mut scene = Scene::small();
    scene.send([late_opening]);
    let outcome = scene.ask(instance(4).opening());
    let takes_over = outcome.session_epoch;
    let current = scene.try_ask(instance(4), Operation::Open { takes_over });
    assert_eq!(current.map(|it| it.epoch), Ok(2));
}

#[test]
fn a_session_that_a_broker_holds_keeps_its_place() {
    let mut scene = Scene::small();
    let sessions: Vec<_> = (0..4).map(|it| scene.open(publisher(it, 5))).collect();
    for session in [0, 2, 3] {
        scene.core.set_attached(session, true);
    }
    scene.pass(20_000);
    let fifth = scene.open(publisher(9, 5));
    assert_eq!((fifth.place, fifth.epoch, fifth.first_epoch), (1, 2, 2));
    assert_eq!(scene.batches(&sessions[0], [0]).len(), 1);
    assert_eq!(scene.try_open(publisher(10, 5)), Err(SessionsFull));
    scene.core.set_attached(2, false);
    scene.pass(10_000);
    // That of the fifth, which no broker was seen to hold.
    assert_eq!(scene.open(publisher(10, 5)).place, 1);
    assert_eq!(scene.open(publisher(11, 5)).place, 2);
}

#[test]
fn a_session_that_was_held_until_just_now_is_not_the_first_to_go() {
    let mut scene = Scene::new(Limits {
        sessions: 2,
        ..small()
    });
    let quiet = scene.open(publisher(1, 5));
    scene.core.set_attached(quiet.place, true);
    scene.pass(20_000);
    let dead = scene.open(publisher(2, 5));
    scene.pass(20_000);
    // Its connections blink.
    scene.core.set_attached(quiet.place, false);
    assert_eq!(scene.open(publisher(3, 5)).place, dead.place);
    assert_eq!(scene.try_open(publisher(4, 5)), Err(SessionsFull));
    assert_eq!(scene.try_ask(quiet, Operation::Resume), Ok(quiet));
    // As long as a broker cannot say what it holds, no session is idle.
    for _ in 0..3 {
        scene.pass(20_000);
        scene.core.await_holders();
        assert_eq!(scene.try_open(publisher(4, 5)), Err(SessionsFull));
    }
    scene.pass(20_000);
    scene.open(publisher(4, 5));
}

#[test]
fn a_publisher_without_its_place_is_refused_and_stores_nothing_twice() {
    let mut scene = Scene::new(Limits {
        sessions: 1,
        ..small()
    });
    let old = scene.open(publisher(7, 5));
    assert_eq!(scene.batches(&old, [0, 1]), [Placed(1, 0), Placed(2, 1)]);
    scene.pass(20_000);
    let other = scene.open(publisher(8, 5));
    let given_up = |scene: &mut Scene| {
        for number in 0..3 {
            let next = scene.next;
            assert_eq!(scene.batches(&old, [number]), [Notified(next, GivenUp)]);
        }
        assert_eq!(scene.try_renew(old), Err(GivenUp));
        assert_eq!(scene.ask(old.closing()).kind, GivenUp);
    };
    given_up(&mut scene);
    assert_eq!(scene.try_ask(old, Operation::Resume), Err(GivenUp));
    scene.send([other.closing()]);
    given_up(&mut scene);
    // Its own first opening, by way of a broker that was late, begins another session at the same
    // place: what it asks in the name of the one that it had does not go on in that one.
    let late = scene.open(publisher(7, 5));
    assert_eq!((late.place, late.first_epoch), (old.place, 3));
    given_up(&mut scene);
    let resumed = scene.try_ask(old, Operation::Resume).unwrap();
    assert_ne!(resumed.first_epoch, old.first_epoch, "it can tell");
    assert_eq!(scene.batches(&late, [0]).len(), 1);
}

#[test]
fn a_peer_that_opens_without_end_takes_its_own_places() {
    let mut scene = Scene::new(Limits {
        sessions: 8,
        ..small()
    });
    let from = |peer, producer| Session {
        peer,
        ..publisher(producer, 5)
    };
    let honest: Vec<_> = (0..3).map(|it| scene.open(from(1, it))).collect();
    for producer in 100..200 {
        scene.pass(10_000);
        scene.open(from(2, producer));
    }
    for session in &honest {
        assert_eq!(scene.try_ask(*session, Operation::Resume), Ok(*session));
    }
    // The others with few come in, too, at the cost of the one with many.
    scene.pass(10_000);
    for peer in 3..5 {
        scene.open(from(peer, peer.into()));
    }
    for session in &honest {
        assert_eq!(scene.try_ask(*session, Operation::Resume), Ok(*session));
    }
}
