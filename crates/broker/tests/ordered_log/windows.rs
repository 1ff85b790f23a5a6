//! Windows of which both copies are lost: what the log had evicted lies in nobody's way, and nothing is
//! missing without a word.

use embar_broker::log::{AdmitError, Answer};
use embar_memory::{Outage, Simulated};
use embar_order::Sequencer;

use crate::world::{Broker, KEPT, LOOSE, STRICT, Session, World};

/// Positions and numbers of batches, as [`Broker::read`] gives them.
type Batches = Vec<(u64, u64)>;

/// Each batch in an extent of its own.
const BYTES: usize = 60_000;

fn submit(
    broker: &mut Broker,
    sequencer: &mut Sequencer<Simulated>,
    session: &Session,
    numbers: std::ops::Range<u64>,
) {
    for number in numbers {
        let ticket = broker.submit(session, number, BYTES);
        sequencer.step(0, &|_| true);
        assert_eq!(broker.answers(), [(ticket, Answer::Stored(number))]);
    }
}

/// One topic turns over in the log, then another one takes some of its memory.
fn turned_over(world: &World, of: u32) -> (Batches, Batches) {
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    let strict = broker.open(STRICT, 7, &mut sequencer);
    let numbers = 0..30;
    if of == KEPT {
        numbers.for_each(|number| assert_eq!(broker.append(number, BYTES), number));
    } else {
        let session = broker.open(of, 8, &mut sequencer);
        submit(&mut broker, &mut sequencer, &session, numbers);
    }
    submit(&mut broker, &mut sequencer, &strict, 0..5);
    let read = (broker.read(of), broker.read(STRICT));
    assert!(read.0[0].0 > 10, "it turned over: {read:?}");
    assert_eq!(read.1.len(), 5);
    read
}

#[test]
fn a_window_that_is_lost_costs_neither_its_topic_nor_another_one() {
    for of in [KEPT, LOOSE] {
        let world = World::new();
        let (its, others) = turned_over(&world, of);
        world.lose_window(1, of);
        // The first life that finds it so tells the next one.
        for life in 0..2 {
            let mut sequencer = world.sequencer();
            let back = world.broker(1, &mut sequencer);
            assert_eq!(back.read(STRICT), others, "topic {of}, life {life}");
            assert_eq!(back.read(of), its, "topic {of}, life {life}");
            let why = back.log.why_incomplete(of).expect("nobody can tell");
            let first = its[0].0;
            assert!(why.contains(&format!("from offset {first}")), "{why}");
            assert_eq!(back.log.why_incomplete(STRICT), None);
        }
        let mut sequencer = world.sequencer();
        let mut back = world.broker(1, &mut sequencer);
        if of == KEPT {
            (30..50).for_each(|number| assert_eq!(back.append(number, BYTES), number));
        } else {
            let session = back.open(of, 9, &mut sequencer);
            for number in 0..20 {
                let ticket = back.submit(&session, number, BYTES);
                sequencer.step(0, &|_| true);
                assert_eq!(back.answers(), [(ticket, Answer::Stored(30 + number))]);
            }
        }
        assert_eq!(
            back.log.why_incomplete(of),
            None,
            "it would be evicted by now"
        );
    }
}

#[test]
fn a_window_that_is_lost_in_a_log_that_evicted_nothing_costs_nothing() {
    for of in [KEPT, LOOSE, STRICT] {
        let world = World::new();
        let mut sequencer = world.sequencer();
        let mut dies = world.broker(1, &mut sequencer);
        let sessions = [LOOSE, STRICT].map(|topic| dies.open(topic, 7, &mut sequencer));
        for number in 0..5 {
            dies.append(number, 5000);
            for session in &sessions {
                dies.submit(session, number, 5000);
            }
        }
        sequencer.step(0, &|_| true);
        assert_eq!(dies.answers().len(), 10);
        drop((dies, sequencer));
        world.lose_window(1, of);
        let mut sequencer = world.sequencer();
        let back = world.broker(1, &mut sequencer);
        for topic in [KEPT, LOOSE, STRICT] {
            assert_eq!(back.read(topic).len(), 5);
            assert_eq!(back.log.why_incomplete(topic), None);
        }
        assert_eq!(back.log.recovered().damaged, 0);
    }
}

#[test]
fn a_topic_of_which_nothing_is_known_stays_so_in_every_life() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut dies = world.broker(1, &mut sequencer);
    dies.append(0, 100);
    drop(dies);
    world.lose_window(1, KEPT);
    world.lose_index(1);
    for _ in 0..2 {
        let mut back = world.broker(1, &mut sequencer);
        assert!(back.log.why_incomplete(KEPT).is_some());
        assert_eq!(back.refused(KEPT), Some(AdmitError::Damaged));
    }
}

#[test]
fn a_broker_that_dies_as_it_finds_damage_leaves_it_to_be_found() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let mut dies = world.broker(1, &mut sequencer);
    (0..3).for_each(|number| assert_eq!(dies.append(number, 100), number));
    drop(dies);
    world.lose_payload(1);
    // A store of a row takes more accesses than that.
    for accesses in (0..).step_by(16) {
        let died = world.open_and_die(1, accesses, Outage::Process);
        if let Some(window) = world.window(1, KEPT) {
            let told = (window.first, window.lost);
            assert!([(0, 0), (1, 1)].contains(&told), "{accesses}: {window:?}");
            if told == (1, 1) {
                break;
            }
        }
        assert!(died, "it tells what is lost");
    }
}
