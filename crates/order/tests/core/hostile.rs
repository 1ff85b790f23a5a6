//! Records that no honest publisher sends.

use embar_fabric::NoticeKind::{
    Duplicate, GivenUp, Malformed, SessionsFull, UnknownSession, WrongSecret,
};
use embar_fabric::PbrRecord;
use embar_order::Operation;

use crate::support::Said::{Notified, Placed};
use crate::support::{Scene, Session, publisher};

/// The outcome of the record is `kind`, and it changes nothing.
#[track_caller]
fn is_refused(scene: &mut Scene, record: PbrRecord, kind: embar_fabric::NoticeKind) {
    let rows = |scene: &Scene| {
        (0..4)
            .map(|it| scene.core.session_row(it))
            .collect::<Vec<_>>()
    };
    let chains = |scene: &Scene| scene.core.chains().collect::<Vec<_>>();
    let before = (rows(scene), chains(scene), scene.core.figures().held);
    let number = scene.next;
    assert_eq!(scene.send([record]), [Notified(number, kind)], "{record:?}");
    let after = (rows(scene), chains(scene), scene.core.figures().held);
    assert_eq!(after, before, "{record:?}");
}

#[test]
fn forged_sessions_are_unknown_or_over() {
    let mut scene = Scene::small();
    let (a, b) = (scene.open(publisher(1, 5)), scene.open(publisher(2, 5)));
    let elsewhere = scene.open(publisher(1, 2));
    scene.batches(&a, 0..2);
    let forged = |forge: fn(&mut Session)| {
        let mut session = a;
        forge(&mut session);
        session.batch(2)
    };
    // That epoch was never granted there.
    for record in [
        forged(|it| it.place = 3),
        forged(|it| it.place = 4),
        forged(|it| it.place = u32::MAX),
        forged(|it| it.epoch = 0),
        forged(|it| it.epoch = 2),
        forged(|it| it.epoch = u32::MAX),
        Session { place: 3, ..b }.closing(),
        Session { epoch: 2, ..b }.closing(),
        Session { epoch: 0, ..b }.closing(),
    ] {
        is_refused(&mut scene, record, UnknownSession);
    }
    // That epoch was granted, to another session than the one that is there now.
    for record in [
        forged(|it| it.place = 1),
        forged(|it| it.producer = 2),
        forged(|it| it.producer = 0),
        forged(|it| it.chain = 77),
        Session {
            place: elsewhere.place,
            ..a
        }
        .batch(2),
        Session { producer: 1, ..b }.closing(),
    ] {
        is_refused(&mut scene, record, GivenUp);
    }
    assert_eq!(scene.batches(&a, [2]).len(), 1);
    assert_eq!(scene.batches(&b, [0]).len(), 1);
}

#[test]
fn records_that_make_no_sense_change_nothing() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    scene.batches(&session, [0]);
    let orders = |order| PbrRecord::pack_orders(0, order);
    let batch = session.batch(1);
    let opening = publisher(9, 5).opening();
    for record in [
        PbrRecord { count: 0, ..batch },
        PbrRecord { kind: 3, ..batch },
        PbrRecord {
            kind: u8::MAX,
            ..batch
        },
        PbrRecord {
            orders: orders(2),
            ..batch
        },
        PbrRecord {
            orders: orders(0),
            ..batch
        },
        PbrRecord {
            sequence: u64::MAX,
            ..batch
        },
        PbrRecord {
            orders: orders(2),
            ..opening
        },
        PbrRecord {
            orders: orders(1),
            chain: 8,
            ..opening
        },
        PbrRecord {
            orders: orders(15),
            chain: 8,
            ..opening
        },
        PbrRecord {
            orders: orders(2),
            ..session.opening()
        },
        PbrRecord {
            orders: orders(2),
            ..session.closing()
        },
    ] {
        is_refused(&mut scene, record, Malformed);
    }
    assert_eq!(scene.send([batch]).len(), 1);
}

#[test]
fn positions_do_not_overflow() {
    for order in [2, 5] {
        let mut scene = Scene::small();
        let near = u64::MAX - 10;
        scene.core.restore_chain(order.into(), order, near).unwrap();
        let session = scene.open(publisher(1, order));
        let batch = |number, count| PbrRecord {
            count,
            ..session.batch(number)
        };
        is_refused(&mut scene, batch(0, u32::MAX), Malformed);
        is_refused(&mut scene, batch(0, 11), Malformed);
        assert_eq!(scene.send([batch(0, 10)]), [Placed(3, near)]);
        is_refused(&mut scene, batch(1, 1), Malformed);
        is_refused(&mut scene, batch(0, 1), Duplicate);
    }
}

#[test]
fn a_held_batch_without_positions_is_refused_when_its_turn_comes() {
    let mut scene = Scene::small();
    scene.core.restore_chain(5, 5, u64::MAX - 2).unwrap();
    let session = scene.open(publisher(1, 5));
    let large = PbrRecord {
        count: 2,
        ..session.batch(1)
    };
    assert_eq!(scene.send([large, large, session.batch(2)]), []);
    let said = scene.batches(&session, [0]);
    assert_eq!(said, [Placed(4, u64::MAX - 2), Notified(1, Malformed)]);
    // One of one message has room, and it is the one that is placed.
    let said = scene.batches(&session, [1]);
    assert_eq!(
        said,
        [
            Placed(5, u64::MAX - 1),
            Notified(2, Duplicate),
            Notified(3, Malformed)
        ]
    );
    assert_eq!(scene.core.figures().held, 0);
    assert_eq!(scene.pass(10_000), []);
}

#[test]
fn chains_are_bounded() {
    let mut scene = Scene::small();
    scene.open(publisher(1, 5));
    scene.open(publisher(1, 2));
    let third = Session {
        chain: 77,
        ..publisher(1, 5)
    };
    is_refused(&mut scene, third.opening(), SessionsFull);
}

#[test]
fn epochs_end_before_they_repeat() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    let row = embar_fabric::SessionRow {
        epoch: u32::MAX,
        ..scene.core.session_row(session.place)
    };
    let owner = scene.core.session_owner(session.place).unwrap();
    let mut scene = Scene::small();
    scene.core.restore_session(0, &row, &owner).unwrap();
    let last = scene.open(publisher(1, 5));
    assert_eq!(last.epoch, u32::MAX);
    is_refused(&mut scene, last.renewing(), SessionsFull);
    assert_eq!(scene.batches(&last, [0]).len(), 1);
    scene.send([last.closing()]);
    let next = scene.open(publisher(1, 5));
    assert_eq!((next.place, next.epoch), (1, 1), "the place is worn out");
}

#[test]
fn whoever_does_not_know_the_secret_gets_nothing() {
    let mut scene = Scene::small();
    let victim = scene.open(publisher(7, 5));
    scene.batches(&victim, [0, 2]);
    // All that subscribers and brokers' logs can find out, and an instance of its own or the victim's.
    for instance in [1, 2] {
        let thief = Session {
            secret: 8,
            instance,
            ..victim
        };
        let session = victim.place;
        for operation in [
            Operation::Open { takes_over: 0 },
            Operation::Open { takes_over: 1 },
            Operation::Resume,
            Operation::Renew {
                session,
                gives_up: 1,
            },
            Operation::Close { session, epoch: 1 },
        ] {
            is_refused(&mut scene, thief.asking(operation), WrongSecret);
        }
    }
    assert_eq!(scene.batches(&victim, [1]).len(), 2, "nothing happened");
    assert_eq!(scene.core.figures().wrong_secret, 10);
}
