//! Order 2: as they arrive, each once.

use embar_fabric::NoticeKind::{BeyondWindow, Duplicate};
use embar_order::Limits;

use crate::support::Said::{Fenced, Notified, Placed};
use crate::support::{Scene, publisher, small};

#[test]
fn batches_are_placed_as_they_arrive_and_once() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 2));
    assert_eq!(
        scene.batches(&session, [2, 0, 2, 0, 15, 1]),
        [
            Placed(1, 0),
            Placed(2, 1),
            Notified(3, Duplicate),
            Notified(4, Duplicate),
            Placed(5, 2),
            Placed(6, 3),
        ]
    );
    assert_eq!(scene.batches(&session, [15]), [Notified(7, Duplicate)]);
    assert_eq!(scene.pass(100_000), [], "nobody waits for a missing batch");
}

#[test]
fn the_window_begins_at_the_lowest_missing_number() {
    let mut scene = Scene::new(Limits {
        window: 1024,
        ..small()
    });
    let session = scene.open(publisher(1, 2));
    assert_eq!(scene.batches(&session, [128]), [Notified(1, BeyondWindow)]);
    assert_eq!(scene.batches(&session, 1..128).len(), 127);
    assert_eq!(
        scene.batches(&session, [128]),
        [Notified(129, BeyondWindow)]
    );
    assert_eq!(scene.batches(&session, [0]), [Placed(130, 127)]);
    assert_eq!(scene.batches(&session, [128]), [Placed(131, 128)]);
}

#[test]
fn a_new_epoch_begins_at_the_lowest_missing_number() {
    let mut scene = Scene::small();
    let old = scene.open(publisher(1, 2));
    scene.batches(&old, [0, 1, 4]);
    let new = scene.try_renew(old).unwrap();
    assert_eq!((new.epoch, new.mark), (2, 2));
    assert_eq!(scene.batches(&new, [4]), [Placed(5, 3)], "another batch");
    assert_eq!(scene.batches(&old, [3]), [Fenced(6, 2)]);
}
