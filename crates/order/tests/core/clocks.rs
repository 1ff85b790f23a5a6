//! Clocks that jump, and processes that were paused.

use embar_fabric::NoticeKind::SessionsFull;

use crate::support::Said::{Fenced, Placed, Saved};
use crate::support::{Scene, publisher};

const HOURS: u64 = 3_600_000_000_000 * 5;

#[test]
fn a_jump_forward_ends_no_epoch() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    scene.batches(&session, [1]);
    scene.now += HOURS;
    scene.core.elapse(scene.now, &mut scene.actions);
    assert_eq!(scene.core.next_deadline(), Some(250));
    assert_eq!(scene.batches(&session, [0]), [Placed(2, 0), Placed(1, 1)]);
}

#[test]
fn a_jump_back_neither_ends_nor_prolongs_an_epoch() {
    let mut scene = Scene::small();
    scene.now = HOURS;
    let session = scene.open(publisher(1, 5));
    scene.batches(&session, [1]);
    assert_eq!(scene.pass(500), []);
    scene.now = 3;
    scene.core.elapse(scene.now, &mut scene.actions);
    assert_eq!(scene.pass(499), []);
    assert_eq!(scene.pass(1), [Saved(0), Fenced(1, 0)]);
}

#[test]
fn a_jump_forward_forgets_no_session() {
    let mut scene = Scene::small();
    for producer in 0..4 {
        scene.open(publisher(producer, 5));
    }
    scene.now += HOURS;
    assert_eq!(scene.try_open(publisher(9, 5)), Err(SessionsFull));
}

#[test]
fn leases_end_while_the_core_is_busy() {
    let mut scene = Scene::small();
    let (a, b) = (scene.open(publisher(1, 5)), scene.open(publisher(2, 5)));
    scene.batches(&a, [1]);
    for number in 0..10 {
        scene.now += 100;
        assert_eq!(scene.batches(&b, [number]).len(), 1);
        let before = scene.actions.len();
        scene.core.elapse(scene.now, &mut scene.actions);
        let over = scene.actions.len() - before;
        assert_eq!(over, if number == 9 { 2 } else { 0 });
    }
}

#[test]
fn deadlines_name_the_time_that_is_left() {
    let mut scene = Scene::small();
    let session = scene.open(publisher(1, 5));
    assert_eq!(scene.core.next_deadline(), None);
    scene.batches(&session, [1]);
    assert_eq!(scene.core.next_deadline(), Some(250));
    scene.pass(900);
    assert_eq!(scene.core.next_deadline(), Some(100));
    scene.pass(100);
    assert_eq!(scene.core.next_deadline(), None);
}
