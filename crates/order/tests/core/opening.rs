//! Identities, instances and epochs.

use embar_fabric::NoticeKind::{
    BeyondWindow, Closed, Duplicate, GivenUp, Opened, SessionsFull, TakenOver,
};
use embar_order::{Action, Limits, Operation};

use crate::support::Said::{Fenced, Notified, Placed, Saved};
use crate::support::{Scene, Session, publisher, small};

#[test]
fn a_new_identity_begins_at_its_beginning_and_is_saved_first() {
    let mut scene = Scene::small();
    let said = scene.send([publisher(7, 5).opening()]);
    assert_eq!(said, [Saved(0), Notified(0, Opened)]);
    let [
        Action::SaveOwner { owner, .. },
        Action::SaveSession { row, .. },
        ..,
    ] = scene.actions[..]
    else {
        panic!("{:?}", scene.actions);
    };
    assert_eq!((row.producer, row.instance, row.chain), (7, 1, 5));
    assert_eq!((row.epoch, row.expected, row.order), (1, 0, 5));
    assert_eq!((row.in_use, row.fenced), (1, 0));
    assert_eq!((owner.first_epoch, row.first_epoch), (1, 1));
    let other = scene.open(publisher(8, 5));
    assert_eq!((other.place, other.epoch, other.mark), (1, 1, 0));
}

#[test]
fn the_same_instance_finds_its_session_again() {
    let mut scene = Scene::small();
    let first = scene.open(publisher(7, 5));
    scene.batches(&first, 0..3);
    let said = scene.send([publisher(7, 5).opening()]);
    assert_eq!(said, [Notified(4, Opened)], "nothing changed");
    let again = scene.open(publisher(7, 5));
    assert_eq!(again, Session { mark: 3, ..first });
    // In another chain it is another session.
    let elsewhere = scene.open(publisher(7, 2));
    assert_ne!(elsewhere.place, first.place);
    assert_eq!(elsewhere.mark, 0);
}

#[test]
fn giving_up_an_epoch_begins_the_next_at_the_mark() {
    let mut scene = Scene::small();
    let old = scene.open(publisher(7, 5));
    assert_eq!(scene.batches(&old, [0, 1, 3]).len(), 2);
    let said = scene.send([old.renewing()]);
    // The held batch is of an epoch that is over.
    assert_eq!(said, [Saved(0), Fenced(3, 2), Notified(4, Opened)]);
    let new = scene.open(old);
    assert_eq!((new.place, new.epoch, new.mark), (0, 2, 2));
    // The same opening by way of another broker: that epoch was given up already.
    assert_eq!(scene.try_renew(old), Ok(new));
    assert_eq!(scene.batches(&new, [2]), [Placed(7, 2)]);
    assert_eq!(scene.core.next_deadline(), None, "nobody waits any more");
}

#[test]
fn batches_of_an_epoch_that_is_over_are_known_or_fenced() {
    let mut scene = Scene::small();
    let old = scene.open(publisher(7, 5));
    scene.batches(&old, 0..3);
    let new = scene.try_renew(old).unwrap();
    scene.batches(&new, 3..8);
    assert_eq!(scene.batches(&old, [0]), [Notified(10, Duplicate)]);
    assert_eq!(scene.batches(&old, [2]), [Notified(11, Duplicate)]);
    // Number 3 is placed, but that is another batch.
    assert_eq!(scene.batches(&old, [3]), [Fenced(12, 8)]);
    assert_eq!(scene.batches(&old, [9]), [Fenced(13, 8)]);
    let newest = scene.try_renew(new).unwrap();
    assert_eq!(scene.batches(&new, [7]), [Notified(15, Duplicate)]);
    assert_eq!(scene.batches(&newest, [8]), [Placed(16, 8)]);
    // Which of these were of the oldest epoch is not known any more.
    assert_eq!(scene.batches(&old, [7]), [Fenced(17, 9)]);
}

#[test]
fn another_instance_takes_over_and_the_older_one_is_over() {
    for order in [2, 5] {
        let mut scene = Scene::small();
        let older = scene.open(publisher(7, order));
        scene.batches(&older, 0..2);
        let younger = scene.take_over(older, 2);
        assert_eq!((younger.epoch, younger.mark), (2, 2));
        assert_eq!(scene.batches(&younger, [2]), [Placed(4, 2)]);
        // The older one's batch of that number is not the one that is placed.
        assert_eq!(scene.batches(&older, [2]), [Fenced(5, 3)]);
        assert_eq!(scene.try_renew(older), Err(TakenOver));
        assert_eq!(scene.batches(&younger, [3]), [Placed(7, 3)]);
    }
}

#[test]
fn a_fenced_epoch_opens_again_as_it_is() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(7, 5));
    scene.batches(&session, [0, 2]);
    assert_eq!(scene.pass(1000), [Saved(0), Fenced(2, 1)]);
    let again = scene.open(publisher(7, 5));
    assert_eq!(again, Session { mark: 1, ..session });
    assert_eq!(scene.batches(&again, [1]), [Fenced(4, 1)]);
    let next = scene.try_renew(again).unwrap();
    assert_eq!((next.epoch, next.mark), (2, 1));
    assert_eq!(scene.batches(&next, [1]), [Placed(6, 1)]);
}

#[test]
fn whoever_was_forgotten_may_not_begin_anew_in_silence() {
    let mut scene = Scene::small();
    for operation in [
        Operation::Resume,
        Operation::Renew {
            session: 0,
            gives_up: 3,
        },
    ] {
        assert_eq!(scene.try_ask(publisher(7, 5), operation), Err(GivenUp));
    }
    assert_eq!(scene.core.figures().sessions, 0);
    assert_eq!(scene.core.chain_next(5), None);
}

#[test]
fn closing_frees_the_place_and_its_epochs_go_on() {
    let mut scene = Scene::small();
    let old = scene.open(publisher(7, 5));
    scene.batches(&old, 0..3);
    assert_eq!(
        scene.send([old.closing()]),
        [Saved(0), Notified(4, Closed)],
        "saved, so that a successor does not know it either"
    );
    assert_eq!(scene.core.figures().sessions, 0);
    let row = scene.core.session_row(0);
    assert_eq!((row.in_use, row.epoch, row.producer), (0, 1, 0));
    for record in [old.batch(3), old.closing(), old.renewing()] {
        let number = scene.next;
        assert_eq!(scene.send([record]), [Notified(number, GivenUp)]);
    }
    // The same publisher at the same place: what was of the old session is not of the new one.
    let new = scene.open(publisher(7, 5));
    assert_eq!((new.place, new.epoch, new.mark), (0, 2, 0));
    assert_eq!(new.first_epoch, 2);
    assert_eq!(scene.batches(&old, [0]), [Notified(9, GivenUp)]);
    assert_eq!(scene.batches(&new, [0]), [Placed(10, 3)]);
    assert_eq!(scene.batches(&old, [0]), [Notified(11, GivenUp)]);
    assert_eq!(scene.try_renew(old), Err(GivenUp), "that was another one");
    assert_eq!(scene.send([old.closing()]), [Notified(13, GivenUp)]);
}

#[test]
fn a_session_that_holds_batches_stays_open() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(7, 5));
    scene.batches(&session, [1]);
    assert_eq!(scene.send([session.closing()]), [Notified(2, BeyondWindow)]);
    let said = scene.batches(&session, [0]);
    assert_eq!(said, [Placed(3, 0), Placed(1, 1)]);
    assert_eq!(
        scene.send([session.closing()]),
        [Saved(0), Notified(4, Closed)]
    );
}

#[test]
fn an_older_instance_cannot_close_the_session() {
    let mut scene = Scene::small();
    let older = scene.open(publisher(7, 5));
    let younger = scene.take_over(older, 2);
    assert_eq!(scene.send([older.closing()]), [Fenced(2, 0)]);
    assert_eq!(scene.batches(&younger, [0]), [Placed(3, 0)]);
}

#[test]
fn a_full_table_forgets_only_who_was_silent_for_long() {
    let mut scene = Scene::small();
    let sessions: Vec<_> = (0..4).map(|it| scene.open(publisher(it, 5))).collect();
    assert_eq!(scene.try_open(publisher(9, 5)), Err(SessionsFull));
    scene.pass(6_000);
    scene.batches(&sessions[0], [0]);
    assert_eq!(scene.try_open(publisher(9, 5)), Err(SessionsFull));
    scene.pass(4_000);
    scene.batches(&sessions[1], [0]);
    // It waits for a batch, and so it is not forgotten.
    scene.batches(&sessions[2], [1]);
    let nine = scene.open(publisher(9, 5));
    assert_eq!((nine.place, nine.epoch), (3, 2));
    assert_eq!(scene.try_open(publisher(10, 5)), Err(SessionsFull));
    assert_eq!(scene.core.figures().forgotten, 1);
    let number = scene.next;
    let said = scene.batches(&sessions[3], [0]);
    assert_eq!(said, [Notified(number, GivenUp)]);
}

#[test]
fn whoever_waits_for_a_batch_is_not_forgotten() {
    let mut scene = Scene::new(Limits {
        sessions: 1,
        session_idle_ns: 500,
        ..small()
    });
    let session = scene.open(publisher(1, 5));
    scene.batches(&session, [1]);
    scene.pass(900);
    assert_eq!(scene.try_open(publisher(2, 5)), Err(SessionsFull));
    // Its batch is forgotten, and its publisher has time to send it again.
    scene.core.drop_incarnation(1, 2);
    scene.pass(499);
    assert_eq!(scene.try_open(publisher(2, 5)), Err(SessionsFull));
    scene.pass(1);
    assert_eq!(scene.open(publisher(2, 5)).epoch, 2);
}
