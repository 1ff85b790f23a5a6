//! A subscriber reads at one broker what lies in another's memory.

use embar_broker::BrokerConfig;
use embar_wire::control::{Control, StartAt, Subscribe};
use embar_wire::isolation::Isolation;
use embar_wire::share::Share;

use super::thread::Thread;
use super::world::World;

/// A slow subscriber takes a batch in many sends, and its owner may use the memory again between any
/// two of them: so it is asked after each.
#[test]
fn the_owner_is_asked_after_every_partial_send() {
    for sends_before in [0, 1, 5] {
        let world = World::new();
        let mut sequencer = world.sequencer();
        let topic = world.create_topic("far", 5);
        let mut owner = world.broker(1, &mut sequencer);
        owner.log.open_topic(&topic);
        let session = owner.open(topic.id, 7, &mut sequencer);
        for number in 0..3 {
            owner.submit(&session, number, 20_000);
        }
        sequencer.step(0, &|_| true);
        assert_eq!(owner.answers().len(), 3);
        let node = world.node(2, &topic, BrokerConfig::default(), &mut sequencer);
        let mut thread = Thread::new(node);
        thread.ask(&Control::Subscribe(Subscribe {
            topic: "far".into(),
            start: StartAt::Earliest,
            topic_id: 0,
            share: Share::All,
            isolation: Isolation::Durable,
        }));
        for _ in 0..sends_before {
            thread.send(1000);
            assert!(thread.sending.is_some() && !thread.closed);
        }
        // Its owner gives the memory up. Nobody but it says so.
        owner.log.close_topic(topic.id);
        thread.send(1000);
        assert!(thread.closed, "after {sends_before} sends");
        assert!(thread.sending.is_none(), "after {sends_before} sends");
    }
}
