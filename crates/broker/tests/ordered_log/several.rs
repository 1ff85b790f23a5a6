//! Several records that are lost at once. Windows of several topics: what the records of one tell of may lie
//! where another one has its batches by now. A window and parts of the index.

use embar_broker::log::{AdmitError, Answer};
use embar_memory::Simulated;
use embar_meter::random::SplitMix64;
use embar_order::Sequencer;
use embar_wire::time::WallNs;

use crate::world::{Broker, KEPT, LOOSE, STRICT, Session, World};

/// Positions and numbers of batches, as [`Broker::read`] gives them.
type Batches = Vec<(u64, u64)>;

const TOPICS: [u32; 3] = [KEPT, LOOSE, STRICT];

/// Three in an extent.
const THIRD: usize = 20_000;

/// One topic's publisher.
struct Publisher {
    session: Option<Session>,
    /// Batches so far.
    batches: u64,
}

impl Publisher {
    fn open(topic: u32, broker: &mut Broker, sequencer: &mut Sequencer<Simulated>) -> Self {
        let is_ordered = topic != KEPT;
        Self {
            session: is_ordered.then(|| broker.open(topic, topic.into(), sequencer)),
            batches: 0,
        }
    }

    fn publish(&mut self, bytes: usize, broker: &mut Broker, sequencer: &mut Sequencer<Simulated>) {
        let number = self.batches;
        self.batches += 1;
        let Some(session) = &self.session else {
            assert_eq!(broker.append(number, bytes), number);
            return;
        };
        let ticket = broker.submit(session, number, bytes);
        sequencer.step(0, &|_| true);
        assert_eq!(broker.answers(), [(ticket, Answer::Stored(number))]);
    }
}

/// Three batches of a topic fill an extent, and it fills the log; then another one takes some of its
/// memory, and overwrites the first one or two of three batches there.
fn taken_over_in_part(world: &World, of: u32, by: u32, batches: u64) -> (Batches, Batches) {
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    for (topic, batches) in [(of, 48), (by, batches)] {
        let mut publisher = Publisher::open(topic, &mut broker, &mut sequencer);
        (0..batches).for_each(|_| publisher.publish(THIRD, &mut broker, &mut sequencer));
    }
    let read = (broker.read(of), broker.read(by));
    assert!(read.0[0].0 > 0, "it evicted: {read:?}");
    assert_eq!(read.1.len() as u64, batches);
    read
}

/// Two topics.
fn pairs() -> impl Iterator<Item = (u32, u32)> {
    let pairs = TOPICS.map(|of| TOPICS.map(|by| (of, by)));
    pairs.into_iter().flatten().filter(|(of, by)| of != by)
}

#[test]
fn of_two_topics_neither_takes_what_the_other_one_has() {
    for (of, by) in pairs() {
        for batches in [1, 2, 3, 5] {
            let world = World::new();
            let (its, others) = taken_over_in_part(&world, of, by, batches);
            world.lose_window(1, of);
            world.lose_window(1, by);
            // What the first life finds it tells the next one.
            for life in 0..2 {
                let mut sequencer = world.sequencer();
                let back = world.broker(1, &mut sequencer);
                let what = format!("{batches} of topic {by} where {of} was, life {life}");
                assert_eq!(back.read(by), others, "{what}");
                assert_eq!(back.log.why_incomplete(by), None, "{what}");
                assert_eq!(back.read(of), its, "{what}");
                let why = back.log.why_incomplete(of).expect("nobody can tell");
                assert!(why.contains(&format!("from offset {}", its[0].0)), "{why}");
            }
        }
    }
}

#[test]
fn a_damaged_topic_stays_readable_when_another_loses_its_window() {
    for of in [KEPT, LOOSE] {
        let world = World::new();
        let mut sequencer = world.sequencer();
        let mut broker = world.broker(1, &mut sequencer);
        let mut publisher = Publisher::open(of, &mut broker, &mut sequencer);
        (0..48).for_each(|_| publisher.publish(THIRD, &mut broker, &mut sequencer));
        let mut publisher = Publisher::open(STRICT, &mut broker, &mut sequencer);
        (0..2).for_each(|_| publisher.publish(THIRD, &mut broker, &mut sequencer));
        let its = broker.read(of);
        drop((broker, sequencer));
        let session = publisher.session.expect("it is ordered");
        world.damage(1, &session, 1, |record| record.count = 0);
        world.lose_window(1, of);
        let mut sequencer = world.sequencer();
        let back = world.broker(1, &mut sequencer);
        assert_eq!(back.read(STRICT), [(0, 0)], "where {of} was");
        let why = back.log.why_incomplete(STRICT).expect("it is damaged");
        assert!(why.contains("damaged at position 1"), "{why}");
        assert!(back.read(of).ends_with(&its));
    }
}

#[test]
fn a_topic_that_lost_a_block_when_the_clock_went_back_says_so() {
    for (of, by) in pairs() {
        let world = World::new();
        let mut sequencer = world.sequencer();
        let mut broker = world.broker(1, &mut sequencer);
        for (topic, batches, now) in [(of, 48, 1 << 40), (by, 1, 0)] {
            let mut publisher = Publisher::open(topic, &mut broker, &mut sequencer);
            broker.now = WallNs(now);
            (0..batches).for_each(|_| publisher.publish(THIRD, &mut broker, &mut sequencer));
        }
        let its = broker.read(of);
        drop((broker, sequencer));
        world.lose_window(1, of);
        world.lose_window(1, by);
        for life in 0..2 {
            let mut sequencer = world.sequencer();
            let back = world.broker(1, &mut sequencer);
            assert!(back.read(of).ends_with(&its), "topic {of}, life {life}");
            assert_eq!(back.read(by), [], "topic {by}, life {life}");
            let why = back.log.why_incomplete(by).expect("it is lost");
            assert!(why.contains("below 1 are lost"), "{why}");
        }
    }
}

/// A broker's index has a full page of a topic, and one with so many records.
const IN_LAST_PAGE: u64 = 10;

/// A broker that stored that much and is gone.
fn with_two_pages(world: &World) {
    let mut sequencer = world.sequencer();
    let mut dies = world.broker(1, &mut sequencer);
    (0..63 + IN_LAST_PAGE).for_each(|number| assert_eq!(dies.append(number, 100), number));
}

#[test]
fn no_offset_is_given_twice_after_window_and_index_end_are_lost() {
    // All of its last page, the header, all but the header, and the last record.
    for lines in [0..64, 0..1, 1..64, IN_LAST_PAGE..IN_LAST_PAGE + 1] {
        let world = World::new();
        with_two_pages(&world);
        world.lose_window(1, KEPT);
        world.lose_index_page(1, 1, lines.clone());
        for life in 0..2 {
            let mut sequencer = world.sequencer();
            let mut back = world.broker(1, &mut sequencer);
            let what = format!("lines {lines:?} of the page, life {life}");
            let refused = back.refused(KEPT);
            assert_eq!(refused, Some(AdmitError::Damaged), "{what}");
            assert!(back.log.why_incomplete(KEPT).is_some(), "{what}");
        }
    }
}

#[test]
fn a_lost_window_and_first_index_page_are_reported_to_readers() {
    let world = World::new();
    with_two_pages(&world);
    world.lose_window(1, KEPT);
    // All but the header.
    world.lose_index_page(1, 0, 1..64);
    for _ in 0..2 {
        let mut sequencer = world.sequencer();
        let back = world.broker(1, &mut sequencer);
        assert_eq!(back.read(KEPT).len() as u64, IN_LAST_PAGE);
        let why = back.log.why_incomplete(KEPT).expect("it is lost");
        assert!(why.contains("below 63 are lost"), "{why}");
    }
}

/// Batches of all sizes, of topics in turn, each for a while, by a broker that comes back now and then.
fn turmoil(world: &World, random: &mut SplitMix64) -> [Batches; 3] {
    let mut sequencer = world.sequencer();
    let mut broker = world.broker(1, &mut sequencer);
    let mut publishers = TOPICS.map(|topic| Publisher::open(topic, &mut broker, &mut sequencer));
    for _ in 0..8 {
        let publisher = &mut publishers[random.next_u64() as usize % 3];
        let largest = [2_000, 30_000, 120_000][random.next_u64() as usize % 3];
        for _ in 0..random.next_u64() % 40 {
            let bytes = 100 + random.next_u64() as usize % largest;
            publisher.publish(bytes, &mut broker, &mut sequencer);
        }
        if random.next_u64().is_multiple_of(4) {
            drop(broker);
            broker = world.broker(1, &mut sequencer);
        }
    }
    TOPICS.map(|topic| broker.read(topic))
}

#[test]
fn whatever_windows_are_lost_nothing_that_was_kept_is() {
    for seed in 0..24 {
        let mut random = SplitMix64::new(seed);
        let world = World::new();
        let kept = turmoil(&world, &mut random);
        let is_lost = TOPICS.map(|topic| {
            let how = random.next_u64() % 3;
            match how {
                0 => world.lose_window(1, topic),
                1 => world.blank_window(1, topic),
                _ => {}
            }
            how < 2
        });
        for life in 0..2 {
            let mut sequencer = world.sequencer();
            let back = world.broker(1, &mut sequencer);
            for ((topic, kept), is_lost) in TOPICS.into_iter().zip(&kept).zip(is_lost) {
                let read = back.read(topic);
                let what = format!("seed {seed}, topic {topic}, lost: {is_lost}, life {life}");
                if is_lost {
                    assert!(read.ends_with(kept), "{what}: {read:?}, {kept:?}");
                } else {
                    assert_eq!(&read, kept, "{what}");
                }
                let why = back.log.why_incomplete(topic);
                assert!(why.is_none() || is_lost, "{what}: {why:?}");
            }
        }
    }
}
