//! Publishers that ask the sequencer when there is none, or none that answers.

use embar_broker::BrokerConfig;
use embar_frame::Now;

use super::crowd::Crowd;
use super::world::World;

const SECOND: u64 = 1_000_000_000;

#[test]
fn who_is_opened_is_told_when_no_sequencer_answers() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let topic = world.create_topic("t", 5);
    let node = world.node(1, &topic, BrokerConfig::default(), &mut sequencer);
    let mut thread = Crowd::new(node);
    thread.publisher(1);
    let welcome = thread.peers[&1].read.len();
    thread.tick(Now(2 * SECOND));
    assert_eq!(thread.peers[&1].read.len(), welcome, "it may come");
    thread.tick(Now(3 * SECOND));
    let said = String::from_utf8_lossy(&thread.peers[&1].read[welcome..]);
    assert!(said.contains("no sequencer has answered"), "{said}");
    // What was asked is answered, and nobody waits for that any more.
    sequencer.step(0, &|_| true);
    thread.publisher(2);
    sequencer.step(0, &|_| true);
    let before = thread.peers[&2].read.len();
    thread.tick(Now(3 * SECOND + 1));
    let answered = &thread.peers[&2].read[before..];
    assert!(!answered.is_empty(), "it is opened");
    assert!(!String::from_utf8_lossy(answered).contains("sequencer"));
}

#[test]
fn a_sequencer_that_ended_or_stands_still_is_none() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let topic = world.create_topic("t", 5);
    let node = world.node(1, &topic, BrokerConfig::default(), &mut sequencer);
    let membership = node.membership();
    let mut now = 0;
    let mut looks = |beats: bool| {
        for _ in 0..20 {
            now += SECOND / 4;
            if beats {
                sequencer.beat(&|_| true);
            }
            node.watch_sequencer(Now(now));
        }
    };
    looks(true);
    assert_eq!((node.sequencer(), node.membership()), (Some(0), membership));
    looks(false);
    assert_eq!(node.sequencer(), None);
    assert_ne!(node.membership(), membership, "streams are told");
    looks(true);
    assert_eq!((node.sequencer(), node.membership()), (Some(0), membership));
}
