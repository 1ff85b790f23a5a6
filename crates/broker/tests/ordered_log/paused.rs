//! Publishers that wait for room: what they cost, and that they get it.

use embar_broker::BrokerConfig;
use embar_wire::control::{Control, ListTopics, encode};

use super::crowd::{Crowd, batch};
use super::world::World;

/// What waits is asked for when something is freed, and only then; and then all of it gets its room.
#[test]
fn a_paused_publisher_costs_nothing_until_it_gets_memory() {
    const WAITING: u32 = 100;
    let world = World::new();
    let mut sequencer = world.sequencer();
    let topic = world.create_topic("t", 0);
    let node = world.node(1, &topic, BrokerConfig::default(), &mut sequencer);
    let mut thread = Crowd::new(node);
    thread.publisher(0);
    let large = batch(topic.id, 1, 700_000);
    let (most, rest) = large.split_at(690_000);
    thread.send(0, most);
    for number in 1..=WAITING {
        thread.publisher(number);
        let small = batch(topic.id, number.into(), 100);
        assert_eq!(thread.send(number, &small), 0, "there is no room");
    }
    let asked = thread.asked();
    assert!(asked <= 2 + u64::from(WAITING), "each as it came: {asked}");
    thread.publisher(WAITING + 1);
    let mut request = Vec::new();
    encode(&Control::ListTopics(ListTopics::default()), &mut request).expect("small");
    for _ in 0..10 {
        assert!(thread.send(WAITING + 1, &request) > 0, "others are served");
    }
    assert_eq!(thread.asked(), asked, "nothing was freed");
    let read: Vec<usize> = thread.peers.values().map(|peer| peer.read.len()).collect();
    assert!(thread.send(0, rest) > 0, "it is acknowledged");
    for (peer, before) in thread.peers.values().zip(read).take(1 + WAITING as usize) {
        assert!(peer.read.len() > before, "each is acknowledged");
    }
    assert!(thread.asked() <= 2 * asked + 16, "{}", thread.asked());
}
