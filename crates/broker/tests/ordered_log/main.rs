//! A broker's log of ordered topics, with a sequencer that is driven by hand: who comes too late, and
//! what the dead leave.

mod asking;
mod connections;
mod crowd;
mod damage;
mod disk;
mod durable;
mod durable_local;
mod export;
mod held;
mod paused;
mod refusals;
mod searching;
mod several;
mod shares;
mod thread;
mod windows;
mod world;

use embar_broker::log::{AdmitError, Answer, Read, Wanted};
use embar_memory::{Outage, Simulated};
use embar_order::Sequencer;
use embar_transport::Pieces;
use embar_wire::ack::POSITION_UNKNOWN;
use embar_wire::control::ErrorCode;
use world::{KEPT, LOOSE, STRICT, World};

/// Positions and numbers, as [`world::Broker::read`] gives them, of one session that was alone.
fn dense(read: &[(u64, u64)]) {
    let first = read.first().expect("something is kept").0;
    let expected: Vec<_> = (first..).take(read.len()).map(|n| (n, n)).collect();
    assert_eq!(read, expected);
}

#[test]
fn an_overtaken_broker_ends_and_its_next_life_goes_on() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut slow = world.broker(1, &mut sequencer);
    let mut busy = world.broker(2, &mut sequencer);
    let session = busy.open(STRICT, 7, &mut sequencer);

    // Batch 1 waits for batch 0, which comes by the other broker while this one stands still.
    slow.answers();
    slow.submit(&session, 1, 1000);
    sequencer.step(0, &|_| true);
    assert_eq!(slow.answers(), []);
    assert!(slow.log.reserved_bytes() > 0);
    busy.submit(&session, 0, 1000);
    for number in 2..400 {
        busy.submit(&session, number, 8000);
        sequencer.step(0, &|_| true);
        busy.answers();
        sequencer.beat(&|_| true);
    }
    assert!(!slow.log.is_overtaken(), "it has not looked yet");
    assert_eq!(slow.answers(), []);
    assert!(slow.log.is_overtaken());

    drop(slow);
    let mut slow = world.broker(1, &mut sequencer);
    assert!(!slow.log.is_overtaken());
    assert_eq!(slow.log.reserved_bytes(), 0);
    // Whoever waited for the answer sends again.
    let again = slow.submit(&session, 1, 1000);
    let next = slow.submit(&session, 400, 1000);
    sequencer.step(0, &|_| true);
    let mut answers = slow.answers();
    answers.sort_by_key(|(ticket, _)| ticket.batch);
    let expected = [
        (again, Answer::Stored(POSITION_UNKNOWN)),
        (next, Answer::Stored(400)),
    ];
    assert_eq!(answers, expected);
    assert_eq!(slow.log.reserved_bytes(), 0);
    busy.answers();
    let read = busy.read(STRICT);
    dense(&read);
    assert_eq!(read.last(), Some(&(400, 400)));
    assert_eq!(slow.read(STRICT), read);
}

#[test]
fn a_batch_of_a_topic_that_was_deleted_takes_no_page_of_the_index() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    // All pages; the last one has a record.
    (0..=15 * 63).for_each(|number| assert_eq!(broker.append(number, 64), number));
    let kept = broker.log.topic_stats(KEPT);
    let deleted = broker.log.reserve(99, 256).err();
    assert_eq!(deleted, Some(AdmitError::UnknownTopic));
    assert_eq!(broker.log.topic_stats(KEPT), kept);
}

#[test]
fn a_broker_that_was_overtaken_with_nothing_in_doubt_goes_on() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut slow = world.broker(1, &mut sequencer);
    let mut busy = world.broker(2, &mut sequencer);
    let session = busy.open(STRICT, 7, &mut sequencer);
    let ticket = slow.submit(&session, 0, 1000);
    sequencer.step(0, &|_| true);
    assert_eq!(slow.answers(), [(ticket, Answer::Stored(0))]);
    for number in 1..400 {
        busy.submit(&session, number, 8000);
        sequencer.step(0, &|_| true);
        busy.answers();
        sequencer.beat(&|_| true);
    }
    assert_eq!(slow.answers(), []);
    assert!(!slow.log.is_overtaken());
    let ticket = slow.submit(&session, 400, 1000);
    sequencer.step(0, &|_| true);
    assert_eq!(slow.answers(), [(ticket, Answer::Stored(400))]);
    assert_eq!(slow.log.reserved_bytes(), 0);
    busy.answers();
    slow.log.refresh_windows();
    dense(&slow.read(STRICT));
    assert_eq!(slow.read(STRICT), busy.read(STRICT));
}

#[test]
fn a_batch_that_was_refused_is_not_ordered_when_its_broker_has_died() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut dies = world.broker(1, &mut sequencer);
    let mut lives = world.broker(2, &mut sequencer);
    let session = lives.open(LOOSE, 7, &mut sequencer);
    dies.answers();
    let early = dies.submit(&session, 130, 1000);
    sequencer.step(0, &|_| true);
    let refused = Answer::Refused(ErrorCode::BeyondWindow, 0);
    assert_eq!(dies.answers(), [(early, refused)]);
    for number in 0..20 {
        lives.submit(&session, number, 100);
    }
    sequencer.step(0, &|_| true);
    lives.answers();

    // Batch 130 would have its place now.
    drop((dies, sequencer));
    let mut sequencer = world.sequencer();
    lives.answers();
    for _ in 0..10 {
        sequencer.beat(&|row| row == 2);
        sequencer.step(0, &|_| true);
        lives.answers();
    }
    assert_eq!(lives.log.topic_stats(LOOSE).expect("it is open").next, 20);
    // Its publisher may have another one of that number.
    let other = lives.submit(&session, 130, 2000);
    sequencer.step(0, &|_| true);
    assert_eq!(lives.answers(), [(other, Answer::Stored(20))]);
}

#[test]
fn an_unanswered_batch_without_position_blocks_no_later_life() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut dies = world.broker(1, &mut sequencer);
    let mut lives = world.broker(2, &mut sequencer);
    let session = lives.open(LOOSE, 7, &mut sequencer);
    dies.answers();
    // Both are too far ahead. The second one lies apart from the start of its extent.
    dies.submit(&session, 200, 1000);
    dies.submit(&session, 130, 60_000);
    sequencer.step(0, &|_| true);
    drop(dies);

    // The next life may use that memory for what it likes, and does not get to the second one.
    let mut dies = world.broker(1, &mut sequencer);
    assert_eq!(dies.append(0, 100), 0);
    for number in 0..20 {
        lives.submit(&session, number, 100);
    }
    sequencer.step(0, &|_| true);
    lives.answers();
    drop((dies, sequencer));

    let mut sequencer = world.sequencer();
    lives.answers();
    for _ in 0..10 {
        sequencer.beat(&|row| row == 2);
        sequencer.step(0, &|_| true);
        lives.answers();
    }
    let mut last = world.broker(1, &mut sequencer);
    lives.answers();
    assert_eq!(last.log.recovered().damaged, 0);
    assert_eq!(last.log.recovered().batches, 1);
    assert_eq!(last.append(1, 60_000), 1);
    assert_eq!(last.read(KEPT), [(0, 0), (1, 1)]);
    assert_eq!(last.read(LOOSE), lives.read(LOOSE));
    assert_eq!(last.read(LOOSE).len(), 20);
}

#[test]
fn a_restarted_broker_counts_and_keeps_batches_of_all_orders() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut dies = world.broker(1, &mut sequencer);
    let strict = dies.open(STRICT, 7, &mut sequencer);
    let loose = dies.open(LOOSE, 8, &mut sequencer);
    for number in 0..10 {
        dies.append(number, 10_000);
        dies.submit(&strict, number, 10_000);
        dies.submit(&loose, number, 10_000);
    }
    sequencer.step(0, &|_| true);
    assert_eq!(dies.answers().len(), 20);
    // Whole, and seen by nobody.
    dies.submit(&strict, 10, 10_000);
    drop((dies, sequencer));

    let mut sequencer = world.sequencer();
    let mut back = world.broker(1, &mut sequencer);
    let found = back.log.recovered();
    assert_eq!((found.topics, found.batches, found.damaged), (3, 31, 0));
    assert!(found.bytes > 31 * 10_000);
    for number in 11..20 {
        back.append(number, 10_000);
        back.submit(&strict, number, 10_000);
        back.submit(&loose, number, 10_000);
    }
    sequencer.step(0, &|_| true);
    assert_eq!(back.answers().len(), 18);
    dense(&back.read(STRICT));
    assert_eq!(back.read(STRICT).len(), 20);
    assert_eq!(back.read(LOOSE).len(), 19);
    assert_eq!(back.read(KEPT).len(), 19);
}

/// A broker dies after so many accesses of a submission; its next life and the sequencer go on. Whether
/// it died before the end, and whether the batch was ordered all the same.
fn die_in_a_submission(fuse: u64, outage: Outage) -> (bool, bool) {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut dies = world.broker(1, &mut sequencer);
    let mut lives = world.broker(2, &mut sequencer);
    let session = lives.open(STRICT, 7, &mut sequencer);
    dies.answers();
    let ticket = dies.submit(&session, 0, 300);
    sequencer.step(0, &|_| true);
    assert_eq!(dies.answers(), [(ticket, Answer::Stored(0))]);
    dies.power.fail_after(fuse, outage);
    dies.submit(&session, 1, 300);
    let died = dies.end(outage);

    let mut back = world.broker(1, &mut sequencer);
    lives.answers();
    let ordered = lives.log.topic_stats(STRICT).expect("it is open").next == 2;
    // The publisher does not know, and sends it again.
    let again = back.submit(&session, 1, 300);
    let next = back.submit(&session, 2, 300);
    sequencer.step(0, &|_| true);
    let mut answers = back.answers();
    answers.sort_by_key(|(ticket, _)| ticket.batch);
    let expected = [(again, Answer::Stored(1)), (next, Answer::Stored(2))];
    assert_eq!(answers, expected, "{outage:?} after {fuse} accesses");
    lives.answers();
    for reader in [&back, &lives] {
        assert_eq!(reader.read(STRICT), [(0, 0), (1, 1), (2, 2)]);
    }
    (died, ordered)
}

#[test]
fn a_submission_is_whole_or_never_was_wherever_its_broker_dies() {
    for outage in [Outage::Host, Outage::Process] {
        let (mut fuse, mut seen) = (1, [0, 0]);
        loop {
            let (died, ordered) = die_in_a_submission(fuse, outage);
            seen[usize::from(ordered)] += 1;
            if !died {
                assert!(ordered, "a whole one is ordered");
                break;
            }
            fuse += 1;
        }
        assert!(
            fuse > 20 && seen[0] > 10 && seen[1] > 0,
            "{outage:?} {fuse}: {seen:?}"
        );
    }
}

#[test]
fn an_order_that_is_damaged_ends_and_holds_up_no_other() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    let strict = broker.open(STRICT, 7, &mut sequencer);
    let loose = broker.open(LOOSE, 7, &mut sequencer);
    let stored =
        |broker: &mut world::Broker, sequencer: &mut Sequencer<Simulated>, session, number| {
            let ticket = broker.submit(session, number, 100);
            sequencer.step(0, &|_| true);
            assert_eq!(broker.answers(), [(ticket, Answer::Stored(number))]);
        };
    (0..3).for_each(|number| stored(&mut broker, &mut sequencer, &strict, number));

    // Two more are ordered, and the first record is damaged before anybody has read it.
    let doubtful = [3, 4].map(|number| broker.submit(&strict, number, 100));
    let held = broker.submit(&strict, 9, 100);
    sequencer.step(0, &|_| true);
    world.damage(3, &strict, 3, |record| record.base += 1000);
    let lost = Answer::Refused(ErrorCode::Damaged, 0);
    let expected = [doubtful[0], doubtful[1], held].map(|ticket| (ticket, lost));
    assert_eq!(broker.answers(), expected);
    assert_eq!(broker.log.reserved_bytes(), 0);
    assert!(matches!(
        broker.log.reserve(STRICT, 256),
        Err(AdmitError::Damaged)
    ));
    let read = |broker: &world::Broker, from| {
        let read = broker
            .log
            .read(&Wanted::latest(STRICT, from), 1, &mut 0, || {
                Box::new(Pieces::new())
            });
        matches!(read, Read::Damaged)
    };
    assert!(
        read(&broker, 3) && !read(&broker, 2),
        "what is below can be read"
    );
    assert_eq!(broker.read(STRICT), [(0, 0), (1, 1), (2, 2)]);
    (0..300).for_each(|number| stored(&mut broker, &mut sequencer, &loose, number));

    // Also for a successor: positions that somebody may have read are not given again.
    drop(sequencer);
    let mut sequencer = world.sequencer();
    assert_eq!(sequencer.damaged(), [STRICT]);
    broker.answers();
    assert!(read(&broker, 3));
    assert!(matches!(
        broker.log.reserve(STRICT, 256),
        Err(AdmitError::Damaged)
    ));
    let loose = broker.open(LOOSE, 8, &mut sequencer);
    let ticket = broker.submit(&loose, 0, 100);
    sequencer.step(0, &|_| true);
    assert_eq!(broker.answers(), [(ticket, Answer::Stored(300))]);
}

#[test]
fn a_broker_whose_order_changes_behind_it_ends() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    let session = broker.open(STRICT, 7, &mut sequencer);
    for number in 0..5 {
        broker.submit(&session, number, 100);
    }
    sequencer.step(0, &|_| true);
    assert_eq!(broker.answers().len(), 5);
    world.damage(3, &session, 3, |record| record.count += 100);
    // It reads again from where the successor goes on.
    drop(sequencer);
    let _successor = world.sequencer();
    assert_eq!(broker.answers(), []);
    assert!(broker.log.is_overtaken());
}
