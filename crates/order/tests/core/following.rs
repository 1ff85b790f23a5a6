//! Order 5: each batch behind its predecessor.

use embar_fabric::NoticeKind::{BeyondWindow, Duplicate, GivenUp};
use embar_fabric::PbrRecord;

use crate::support::Said::{Fenced, Notified, Placed, Saved};
use crate::support::{Scene, publisher};

#[test]
fn positions_are_dense_over_all_sessions_of_a_chain() {
    let mut scene = Scene::small();
    let (a, b) = (scene.open(publisher(1, 5)), scene.open(publisher(2, 5)));
    let elsewhere = scene.open(publisher(1, 2));
    let of = |session: &crate::support::Session, number, count| PbrRecord {
        count,
        ..session.batch(number)
    };
    let said = scene.send([
        of(&a, 0, 3),
        of(&b, 0, 2),
        of(&elsewhere, 0, 9),
        of(&a, 1, 1),
        of(&b, 1, 4),
    ]);
    assert_eq!(
        said,
        [
            Placed(3, 0),
            Placed(4, 3),
            Placed(5, 0),
            Placed(6, 5),
            Placed(7, 6)
        ]
    );
    assert_eq!(scene.core.chain_next(5), Some(10));
    assert_eq!(scene.core.chain_next(2), Some(9));
}

#[test]
fn batches_that_come_too_early_wait() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    assert_eq!(scene.batches(&session, [3, 1]), []);
    assert_eq!(scene.batches(&session, [0]), [Placed(3, 0), Placed(2, 1)]);
    assert_eq!(scene.core.figures().held, 1);
    assert_eq!(scene.batches(&session, [2]), [Placed(4, 2), Placed(1, 3)]);
    assert_eq!(scene.core.figures().held, 0);
    assert_eq!(scene.core.next_deadline(), None);
}

#[test]
fn a_held_batch_that_comes_twice_is_placed_once() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    assert_eq!(scene.batches(&session, [1, 2, 1]), []);
    assert_eq!(
        scene.batches(&session, [0]),
        [
            Placed(4, 0),
            Placed(1, 1),
            Notified(3, Duplicate),
            Placed(2, 2)
        ]
    );
}

#[test]
fn what_is_behind_or_far_ahead_is_refused_at_once() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    scene.batches(&session, 0..4);
    assert_eq!(scene.batches(&session, [0]), [Notified(5, Duplicate)]);
    assert_eq!(scene.batches(&session, [3]), [Notified(6, Duplicate)]);
    assert_eq!(scene.batches(&session, [20]), [Notified(7, BeyondWindow)]);
    assert_eq!(scene.batches(&session, [19]), []);
}

#[test]
fn a_gap_ends_the_epoch_when_its_lease_does() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    scene.batches(&session, [0, 3, 2, 3]);
    assert_eq!(scene.pass(999), []);
    let mut said = scene.pass(1);
    assert_eq!(said.remove(0), Saved(0), "before anybody is told");
    for number in [2, 3, 4] {
        let outcome = said.iter().filter(|it| **it == Fenced(number, 1));
        assert_eq!(outcome.count(), 1, "{number}");
    }
    assert_eq!(said.len(), 3);
    assert_eq!(scene.core.session_row(0).fenced, 1);
    // What is missing comes too late, and what is placed is known to be.
    assert_eq!(scene.batches(&session, [1]), [Fenced(5, 1)]);
    assert_eq!(scene.batches(&session, [0]), [Notified(6, Duplicate)]);
    assert_eq!(scene.batches(&session, [9]), [Fenced(7, 1)]);
    assert_eq!(scene.core.figures().gaps, 1);
}

#[test]
fn each_missing_batch_has_a_lease_of_its_own() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    scene.batches(&session, [1, 3]);
    assert_eq!(scene.pass(900), []);
    assert_eq!(scene.batches(&session, [0]).len(), 2);
    assert_eq!(scene.pass(900), []);
    assert_eq!(scene.batches(&session, [2]).len(), 2);
    assert_eq!(scene.pass(10_000), []);
}

#[test]
fn sessions_wait_independently() {
    let mut scene = Scene::small();
    let (a, b) = (scene.open(publisher(1, 5)), scene.open(publisher(2, 5)));
    scene.batches(&a, [1]);
    scene.pass(500);
    scene.batches(&b, [1]);
    assert_eq!(
        scene.core.next_deadline(),
        Some(250),
        "a quarter of a lease"
    );
    assert_eq!(scene.pass(500), [Saved(0), Fenced(2, 0)]);
    assert_eq!(scene.batches(&b, [0]), [Placed(4, 0), Placed(3, 1)]);
    assert_eq!(scene.pass(1_000), []);
}

#[test]
fn batches_of_dead_incarnations_are_forgotten() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    scene.batches(&session, [1, 2]);
    scene.broker = (2, 1);
    scene.batches(&session, [1, 3]);
    scene.core.drop_incarnation(1, 2);
    scene.core.drop_incarnation(2, 1);
    // The second one of number 1 is the first now.
    assert_eq!(scene.batches(&session, [0]), [Placed(5, 0), Placed(3, 1)]);
    assert_eq!(scene.batches(&session, [2]), [Placed(6, 2), Placed(4, 3)]);
    scene.batches(&session, [5]);
    scene.core.drop_incarnation(2, 2);
    assert_eq!(scene.core.figures().held, 0);
    assert_eq!(scene.pass(10_000), [], "nobody waits, so nothing is over");
    assert_eq!(scene.batches(&session, [4]), [Placed(8, 4)]);
}

#[test]
fn a_chain_goes_with_its_sessions() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    let other = scene.open(publisher(1, 2));
    scene.batches(&session, [1]);
    let from = scene.actions.len();
    scene.core.drop_chain(5, &mut scene.actions);
    assert_eq!(scene.actions.len() - from, 2);
    assert_eq!(scene.core.session_row(session.place).in_use, 0);
    assert_eq!(scene.core.chains().collect::<Vec<_>>(), [(2, 2, 0)]);
    assert_eq!(scene.batches(&session, [0]), [Notified(3, GivenUp)]);
    assert_eq!(scene.batches(&other, [0]), [Placed(4, 0)]);
    assert_eq!(scene.pass(10_000), []);
    assert_eq!(scene.core.figures().held, 0);
}
