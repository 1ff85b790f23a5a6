//! Damaged memory where brokers come back or change sequencers, and what is given up by others.

use embar_broker::log::{Answer, Read, Wanted};
use embar_transport::Pieces;
use embar_wire::control::ErrorCode;

use crate::world::{KEPT, LOOSE, STRICT, World};

#[test]
fn a_broker_that_returns_to_a_damaged_older_order_keeps_its_memory() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut dies = world.broker(1, &mut sequencer);
    let mut lives = world.broker(2, &mut sequencer);
    let session = dies.open(STRICT, 7, &mut sequencer);
    for number in 0..6 {
        dies.submit(&session, number, 20_000);
    }
    sequencer.step(0, &|_| true);
    assert_eq!(dies.answers().len(), 6);
    lives.answers();
    drop((dies, sequencer));
    let mut sequencer = world.sequencer();
    lives.answers();
    world.damage(3, &session, 3, |record| record.base += 1000);

    let mut back = world.broker(1, &mut sequencer);
    assert_eq!(back.read(STRICT), [(0, 0), (1, 1), (2, 2)]);
    let read = back.log.read(&Wanted::latest(STRICT, 3), 1, &mut 0, || {
        Box::new(Pieces::new())
    });
    assert!(matches!(read, Read::Damaged));
    // It uses what it has, and that is not what the other one still serves.
    for number in 0..60 {
        back.append(number, 20_000);
    }
    let loose = back.open(LOOSE, 8, &mut sequencer);
    let ticket = back.submit(&loose, 0, 100);
    sequencer.step(0, &|_| true);
    assert_eq!(back.answers(), [(ticket, Answer::Stored(0))]);
    lives.answers();
    let all: Vec<_> = (0..6).map(|number| (number, number)).collect();
    assert_eq!(lives.read(STRICT), all);
    assert!(!back.read(KEPT).is_empty());
}

#[test]
fn a_broker_with_a_damaged_older_order_goes_to_the_next_sequencer() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut slow = world.broker(1, &mut sequencer);
    let mut quick = world.broker(2, &mut sequencer);
    let session = slow.open(STRICT, 7, &mut sequencer);
    let doubtful = [0, 1, 2].map(|number| slow.submit(&session, number, 100));
    sequencer.step(0, &|_| true);
    drop(sequencer);
    let mut sequencer = world.sequencer();
    world.damage(1, &session, 1, |record| record.count = 0);
    let answers = slow.answers();
    let lost = Answer::Refused(ErrorCode::Damaged, 0);
    let expected = [Answer::Stored(0), lost, lost];
    let told: Vec<_> = answers.iter().map(|(_, answer)| *answer).collect();
    let tickets: Vec<_> = answers.iter().map(|(ticket, _)| *ticket).collect();
    assert_eq!((&tickets[..], &told[..]), (&doubtful[..], &expected[..]));
    let loose = slow.open(LOOSE, 8, &mut sequencer);
    let ticket = slow.submit(&loose, 0, 100);
    sequencer.step(0, &|_| true);
    assert_eq!(slow.answers(), [(ticket, Answer::Stored(0))]);
    quick.answers();
    assert_eq!(quick.read(LOOSE).len(), 1);
}

#[test]
fn a_record_that_names_a_larger_extent_is_one_lost_batch() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut dies = world.broker(1, &mut sequencer);
    let session = dies.open(STRICT, 7, &mut sequencer);
    // Each in an extent of its own.
    for number in 0..4 {
        dies.submit(&session, number, 60_000);
    }
    sequencer.step(0, &|_| true);
    assert_eq!(dies.answers().len(), 4);
    drop(dies);
    world.damage(1, &session, 1, |record| record.lane_and_order ^= 0x10);
    let back = world.broker(1, &mut sequencer);
    let found = back.log.recovered();
    assert_eq!((found.batches, found.damaged), (3, 1));
}

#[test]
fn what_the_sequencer_gave_up_is_given_up_by_brokers_that_live() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    let session = broker.open(STRICT, 7, &mut sequencer);
    for round in 0..45 {
        for i in 0..100 {
            broker.submit(&session, round * 100 + i, 16);
        }
        sequencer.step(0, &|_| true);
        sequencer.beat(&|_| true);
        assert_eq!(broker.answers().len(), 100);
    }
    broker.log.refresh_windows();
    let kept = broker.log.topic_stats(STRICT).expect("it is open");
    assert!(kept.first > 0, "{kept:?}");
    let next_life = world.broker(2, &mut sequencer);
    assert_eq!(
        next_life.log.topic_stats(STRICT).expect("it is open").first,
        kept.first
    );
}

#[test]
fn memory_of_a_topic_that_was_deleted_is_not_taken_for_kept() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut owner = world.broker(1, &mut sequencer);
    let mut reader = world.broker(2, &mut sequencer);
    let session = owner.open(STRICT, 7, &mut sequencer);
    owner.submit(&session, 0, 1000);
    sequencer.step(0, &|_| true);
    owner.answers();
    reader.answers();
    let read = reader.log.read(&Wanted::latest(STRICT, 0), 1, &mut 0, || {
        Box::new(Pieces::new())
    });
    let Read::Pieces { foreign, .. } = read else {
        panic!("it is there");
    };
    assert!(reader.log.was_kept(STRICT, &foreign));
    owner.log.close_topic(STRICT);
    assert!(!reader.log.was_kept(STRICT, &foreign));
}
