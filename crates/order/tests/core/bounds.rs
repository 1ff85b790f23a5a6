//! One publisher that takes all it can get.

use embar_fabric::NoticeKind::HeldFull;

use crate::support::Said::{Notified, Placed};
use crate::support::{Scene, publisher};

#[test]
fn whoever_fills_the_held_table_leaves_room_for_others() {
    let mut scene = Scene::small();
    let (greedy, other) = (scene.open(publisher(1, 5)), scene.open(publisher(2, 5)));
    // Half of the eight.
    let said = scene.batches(&greedy, 1..7);
    assert_eq!(said, [Notified(6, HeldFull), Notified(7, HeldFull)]);
    assert_eq!(scene.batches(&other, [1]), []);
    assert_eq!(scene.batches(&other, [0]).len(), 2);
    // The expected batch is never refused, and what was held follows it.
    let said = scene.batches(&greedy, [0]);
    assert_eq!(said.len(), 5);
    assert_eq!(said[0], Placed(10, 2));
    // What was refused may come again.
    assert_eq!(scene.batches(&greedy, 5..7).len(), 2);
}

#[test]
fn the_same_batch_over_and_over_takes_no_more_room() {
    let mut scene = Scene::small();
    let (greedy, other) = (scene.open(publisher(1, 5)), scene.open(publisher(2, 5)));
    let said = scene.batches(&greedy, [1; 1000]);
    assert_eq!(said.len(), 996);
    assert_eq!(scene.core.figures().held, 4);
    assert_eq!(scene.batches(&other, [1, 2]), []);
    assert_eq!(scene.batches(&other, [0]).len(), 3);
    let said = scene.batches(&greedy, [0]);
    assert_eq!(said.len(), 5, "all that were held are answered");
    assert_eq!(scene.core.figures().held, 0);
}

#[test]
fn a_full_table_is_free_again_when_leases_end() {
    let mut scene = Scene::small();
    let sessions: Vec<_> = (0..4).map(|it| scene.open(publisher(it, 5))).collect();
    for session in &sessions {
        scene.batches(session, 1..10);
    }
    assert_eq!(scene.core.figures().held, 8);
    scene.pass(1000);
    assert_eq!(scene.core.figures().held, 0);
    assert_eq!(scene.core.figures().gaps, 4);
    for session in sessions {
        let next = scene.try_renew(session).unwrap();
        assert_eq!(scene.batches(&next, [0]).len(), 1);
    }
}
