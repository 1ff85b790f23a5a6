//! What readers keep that are not heard any more.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use embar_broker::BrokerConfig;

use super::world::World;

/// The kernel may take long to say what is still read, and batches do not wait for that.
#[test]
fn what_is_held_is_asked_for_while_others_use_the_log() {
    let world = World::new();
    let mut sequencer = world.sequencer();
    let topic = world.create_topic("t", 0);
    let node = world.node(1, &topic, BrokerConfig::default(), &mut sequencer);
    let log = node.log();
    let (done, is_done) = channel();
    let asking = Arc::clone(&node);
    let thread = std::thread::spawn(move || {
        asking.release_held();
        let _ = done.send(());
    });
    let asked = is_done.recv_timeout(Duration::from_secs(60));
    drop(log);
    thread.join().expect("it asked");
    asked.expect("it waits for the log");
}
