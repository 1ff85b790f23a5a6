//! What sessions that wait for their missing batches leave to the others.

use embar_broker::log::{Answer, Submitter};
use embar_wire::control::ErrorCode;

use embar_memory::Simulated;

use crate::world::{Broker, KEPT, LOOSE, STRICT, Session, World};
use embar_order::Sequencer;

const LATER: Answer = Answer::Refused(ErrorCode::HeldFull, 0);

/// Submits when there is room, which comes at the latest with the sequencer's next step.
fn submit(
    broker: &mut Broker,
    sequencer: &mut Sequencer<Simulated>,
    batch: (&Session, u64, usize),
    answers: &mut Vec<(Submitter, Answer)>,
) -> Submitter {
    let (session, number, bytes) = batch;
    if broker.is_congested(session.topic) {
        sequencer.step(0, &|_| true);
        answers.append(&mut broker.answers());
    }
    broker.submit(session, number, bytes)
}

/// Another publisher goes on, and so does another topic.
fn others_go_on(broker: &mut Broker, sequencer: &mut Sequencer<Simulated>, other: &Session) {
    let mut answers = Vec::new();
    for number in 0..100 {
        submit(broker, sequencer, (other, number, 128), &mut answers);
        broker.append(number, 128);
    }
    sequencer.step(0, &|_| true);
    answers.append(&mut broker.answers());
    let stored = |(_, answer): &&(Submitter, Answer)| matches!(answer, Answer::Stored(_));
    assert_eq!(answers.iter().filter(stored).count(), 100);
    assert_eq!(broker.read(KEPT).len(), 100);
}

/// `gap` sends batches, but not its first one, which are more bytes than it may hold; `other` goes on.
fn a_gap_leaves_bytes(
    broker: &mut Broker,
    sequencer: &mut Sequencer<Simulated>,
    (gap, numbers): (&Session, impl Iterator<Item = u64>),
    other: &Session,
) {
    let mut answers = Vec::new();
    for number in numbers {
        submit(broker, sequencer, (gap, number, 50_000), &mut answers);
        sequencer.step(0, &|_| true);
        answers.append(&mut broker.answers());
    }
    assert!(answers.len() > 30, "{}", answers.len());
    assert!(answers.iter().all(|(_, answer)| *answer == LATER));
    assert!(broker.log.reserved_bytes() > 50_000);
    others_go_on(broker, sequencer, other);
    // What is expected always gets in, and with it what was refused.
    for number in 0..40 {
        let expected = broker.submit(gap, number, 50_000);
        sequencer.step(0, &|_| true);
        let answers = broker.answers();
        let is_stored = |(ticket, answer): &(Submitter, Answer)| {
            *ticket == expected && matches!(answer, Answer::Stored(_))
        };
        assert!(answers.iter().any(is_stored), "{number}: {answers:?}");
    }
    assert_eq!(broker.log.reserved_bytes(), 0);
}

#[test]
fn sessions_that_withhold_a_number_leave_slots_to_the_others() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    let gaps = [11, 12, 13, 14, 15].map(|it| broker.open(STRICT, it, &mut sequencer));
    let other = broker.open(STRICT, 7, &mut sequencer);
    let mut answers = Vec::new();
    for session in &gaps {
        for number in 1..256 {
            let batch = (session, number, 128);
            submit(&mut broker, &mut sequencer, batch, &mut answers);
        }
    }
    sequencer.step(0, &|_| true);
    answers.append(&mut broker.answers());
    assert!(answers.len() > 1000, "{}", answers.len());
    assert!(answers.iter().all(|(_, answer)| *answer == LATER));
    others_go_on(&mut broker, &mut sequencer, &other);

    // What they all wait for always gets in.
    for session in &gaps {
        let expected = broker.submit(session, 0, 128);
        sequencer.step(0, &|_| true);
        let answers = broker.answers();
        let found = answers.iter().find(|(ticket, _)| *ticket == expected);
        assert!(matches!(found, Some((_, Answer::Stored(_)))), "{found:?}");
    }
    assert_eq!(broker.log.reserved_bytes(), 0);
    assert!(!broker.log.waits_for_order(0));
}

#[test]
fn a_session_that_withholds_a_number_leaves_bytes_to_others() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    let gap = broker.open(STRICT, 11, &mut sequencer);
    let other = broker.open(STRICT, 7, &mut sequencer);
    a_gap_leaves_bytes(&mut broker, &mut sequencer, (&gap, 1..40), &other);
}

fn a_gap_of_a_session_that_another_broker_opened(numbers: impl Iterator<Item = u64>) {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut elsewhere = world.broker(2, &mut sequencer);
    let mut broker = world.broker(1, &mut sequencer);
    let gap = elsewhere.open(STRICT, 11, &mut sequencer);
    let other = broker.open(STRICT, 7, &mut sequencer);
    a_gap_leaves_bytes(&mut broker, &mut sequencer, (&gap, numbers), &other);
}

#[test]
fn a_session_that_another_broker_opened_leaves_as_much() {
    a_gap_of_a_session_that_another_broker_opened(1..40);
}

#[test]
fn a_session_of_another_broker_leaves_as_much_in_reverse_order() {
    a_gap_of_a_session_that_another_broker_opened((1..40).rev());
}

#[test]
fn a_session_that_comes_in_order_has_what_a_lane_has() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    let session = broker.open(STRICT, 7, &mut sequencer);
    for round in 0..10 {
        // Half of the lane's slots, then all of it is judged.
        for i in 0..100 {
            broker.submit(&session, round * 100 + i, 128);
        }
        sequencer.step(0, &|_| true);
        let answers = broker.answers();
        assert_eq!(answers.len(), 100);
        let stored = |(_, answer): &(Submitter, Answer)| matches!(answer, Answer::Stored(_));
        assert!(answers.iter().all(stored));
    }
}

#[test]
fn what_waits_in_a_topic_that_was_deleted_gives_its_slots_back() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    let session = broker.open(STRICT, 7, &mut sequencer);
    for number in 1..50 {
        broker.submit(&session, number, 128);
    }
    sequencer.step(0, &|_| true);
    assert_eq!(broker.answers(), []);
    for topic in [LOOSE, STRICT] {
        broker.log.close_topic(topic);
    }
    assert_eq!(broker.answers().len(), 49);
    assert!(broker.log.has_ordered(), "the lane is not free yet");
    sequencer.retain_chains(&|_| false);
    sequencer.step(0, &|_| true);
    broker.answers();
    assert!(!broker.log.has_ordered());
}

#[test]
fn looking_for_originals_has_an_end() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    let session = broker.open(STRICT, 7, &mut sequencer);
    for round in 0..15 {
        for i in 0..100 {
            broker.submit(&session, round * 100 + i, 16);
        }
        sequencer.step(0, &|_| true);
        broker.answers();
    }
    for _ in 0..100 {
        broker.submit(&session, 0, 16);
    }
    sequencer.step(0, &|_| true);
    let answers = broker.answers();
    assert_eq!(answers.len(), 100);
    assert_eq!(answers[0].1, Answer::Stored(0));
    let unknown = Answer::Stored(embar_wire::ack::POSITION_UNKNOWN);
    assert_eq!(answers[99].1, unknown);
}

#[test]
fn refused_batches_cost_nothing_that_was_retained() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    let session = broker.open(LOOSE, 7, &mut sequencer);
    (0..10).for_each(|number| assert_eq!(broker.append(number, 60_000), number));
    let kept = broker.read(KEPT);
    for _ in 0..40 {
        let ticket = broker.submit(&session, 130, 20_000);
        sequencer.step(0, &|_| true);
        let beyond = Answer::Refused(ErrorCode::BeyondWindow, 0);
        assert_eq!(broker.answers(), [(ticket, beyond)]);
    }
    assert_eq!(broker.log.usage().dead_bytes, 0);
    assert_eq!(broker.read(KEPT), kept);
    // What comes next lies where they lay.
    let ticket = broker.submit(&session, 0, 20_000);
    sequencer.step(0, &|_| true);
    assert_eq!(broker.answers(), [(ticket, Answer::Stored(0))]);
    drop((broker, sequencer));
    let mut sequencer = world.sequencer();
    let back = world.broker(1, &mut sequencer);
    assert_eq!(back.read(LOOSE), [(0, 0)]);
    assert_eq!(back.read(KEPT), kept);
}
