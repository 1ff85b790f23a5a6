//! Subscribers that hardly any batch of an order is for, beside others.

use std::collections::BTreeMap;

use embar_broker::BrokerConfig;
use embar_broker::shard::{PASSED_OVER_MAX, TURN};
use embar_memory::Simulated;
use embar_order::Sequencer;
use embar_wire::control::{Control, StartAt, Subscribe};
use embar_wire::isolation::Isolation;
use embar_wire::share::{BrokerSet, Share};

use super::crowd::Crowd;
use super::world::{Broker, Session, World, sealed};

/// Batches of the order.
const COUNT: u64 = 1200;
/// Their messages.
const SMALL_BYTES: usize = 10;
const LARGE_BYTES: usize = 300;

/// The small ones of those that the first broker stores.
fn small_ones() -> Share {
    let mut brokers = BrokerSet::default();
    assert!(brokers.insert(1));
    Share::Without {
        brokers,
        large_bytes: LARGE_BYTES as u32,
    }
}

fn subscribe(share: Share, start: StartAt) -> Control {
    Control::Subscribe(Subscribe {
        topic: "order".into(),
        start,
        topic_id: 0,
        share,
        isolation: Isolation::Durable,
    })
}

/// A thread of the second broker, and an order of batches that the first one stores.
struct Scene {
    crowd: Crowd,
    /// A topic without an order.
    local: u32,
    _owner: Broker,
    _sequencer: Sequencer<Simulated>,
}

fn start(is_small: impl Fn(u64) -> bool) -> Scene {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let local = world.create_topic("t", 0);
    let topic = world.create_topic("order", 5);
    let mut owner = world.broker(1, &mut sequencer);
    owner.log.open_topic(&topic);
    let session = owner.open(topic.id, 7, &mut sequencer);
    for number in 0..COUNT {
        let bytes = if is_small(number) {
            SMALL_BYTES
        } else {
            LARGE_BYTES
        };
        owner.submit(&session, number, bytes);
        if number % 100 == 99 {
            sequencer.step(0, &|_| true);
            assert_eq!(owner.answers().len(), 100);
        }
    }
    let node = world.node(2, &topic, BrokerConfig::default(), &mut sequencer);
    Scene {
        crowd: Crowd::new(node),
        local: local.id,
        _owner: owner,
        _sequencer: sequencer,
    }
}

#[test]
fn a_crowd_that_finds_nothing_costs_a_round_what_one_may_and_others_go_on() {
    const CROWD: u32 = 50;
    const HONEST: u32 = CROWD;
    const PUBLISHER: u32 = CROWD + 1;
    let nothing = Share::Own {
        large_bytes: u32::MAX,
    };
    let mut scene = start(|number| number % 3 == 0);
    let crowd = &mut scene.crowd;
    crowd.publisher(PUBLISHER);
    (0..=HONEST).for_each(|number| crowd.connect(number));
    for number in 0..CROWD {
        crowd.say(number, &subscribe(nothing, StartAt::Earliest));
    }
    crowd.say(HONEST, &subscribe(small_ones(), StartAt::Earliest));
    let session = Session {
        topic: scene.local,
        producer: 1,
        slot: 0,
        epoch: 0,
    };
    // The subscribers of one cycle, and what it takes to begin and to end it.
    let cycle = (CROWD as usize + 1) * (TURN + 1) / PASSED_OVER_MAX + 2;
    let (mut came, mut rounds_without) = (0, 0);
    for round in 0.. {
        if round < 20 {
            let batch = sealed(&session, round, 100);
            assert!(crowd.send(PUBLISHER, &batch) > 0, "it is acknowledged");
        }
        for number in 0..CROWD {
            crowd.say(number, &subscribe(nothing, StartAt::Latest));
        }
        crowd.round();
        let before = std::mem::replace(&mut came, crowd.peers[&HONEST].positions().len());
        rounds_without = if came > before { 0 } else { rounds_without + 1 };
        assert!(rounds_without <= cycle, "round {round}: {came} came");
        if came as u64 == COUNT / 3 {
            break;
        }
    }
    let expected: Vec<u64> = (0..COUNT).step_by(3).collect();
    assert_eq!(crowd.peers[&HONEST].positions(), expected);
    assert!((0..CROWD).all(|number| crowd.peers[&number].positions().is_empty()));
    assert!(crowd.passed_over_most > 0);
    let most = crowd.passed_over_most as usize;
    assert!(most <= PASSED_OVER_MAX, "{most} in one round");
}

#[test]
fn a_subscriber_that_asks_again_and_again_has_one_place_in_the_queue() {
    const CROWD: u32 = 10;
    const EAGER: u32 = 3;
    let mut scene = start(|number| number == COUNT - 1);
    let crowd = &mut scene.crowd;
    (0..CROWD).for_each(|number| crowd.connect(number));
    for number in 0..CROWD {
        crowd.say(number, &subscribe(small_ones(), StartAt::Earliest));
    }
    // In which round each has come to the only batch that is for it, behind all others.
    let mut found = BTreeMap::new();
    for round in 0..200 {
        for _ in 0..20 {
            crowd.say(EAGER, &subscribe(small_ones(), StartAt::Latest));
        }
        crowd.round();
        for (number, peer) in &crowd.peers {
            if peer.positions() == [COUNT - 1] {
                found.entry(*number).or_insert(round);
            }
        }
    }
    assert_eq!(found.len(), CROWD as usize, "{found:?}");
    let last = found.values().max().expect("there are some");
    let apart = last - found.values().min().expect("there are some");
    // All have come as far as each other, but for one turn.
    let cycle = CROWD as usize * (TURN + 1) / PASSED_OVER_MAX + 1;
    assert!(apart <= cycle, "{found:?}");
    assert!(*last > 3 * cycle, "{found:?}");
}
