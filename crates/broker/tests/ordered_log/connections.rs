//! Who is let in, whoever else comes.

use embar_broker::BrokerConfig;
use embar_broker::clock::Timestamp;
use embar_broker::shard::{Action, Shard};
use embar_frame::Now;
use embar_memory::Simulated;
use embar_transport::{Peer as Origin, Token};
use embar_wire::time::WallNs;

use super::world::World;

const AT: Timestamp = Timestamp {
    now: Now(1),
    wall: WallNs(1),
};

/// What becomes of somebody who connects.
#[derive(Debug, PartialEq, Eq)]
enum Reception {
    Served,
    Told(String),
    Cut,
}

/// A broker's thread to which nobody says anything.
struct Door {
    shard: Shard<Simulated>,
    came: u32,
}

impl Door {
    fn of_eight() -> Self {
        let world = World::new();
        let mut sequencer = world.sequencer();
        let topic = world.create_topic("t", 0);
        let config = BrokerConfig {
            max_connections: 8,
            ..BrokerConfig::default()
        };
        let node = world.node(1, &topic, config, &mut sequencer);
        Self {
            shard: Shard::new(node, 0).expect("memory for rings"),
            came: 0,
        }
    }

    fn knock(&mut self, from: &str) -> Reception {
        self.came += 1;
        let token = Token::new(self.came, 1);
        let mut out = Vec::new();
        let address = from.parse().expect("an address");
        self.shard.opened(token, Origin::Tcp(address), AT, &mut out);
        self.shard.settle(AT, &mut out);
        let mut reception = Reception::Cut;
        for action in out {
            match action {
                Action::Send(_, buf) => {
                    let said = buf.with_unsent(|head, _| String::from_utf8_lossy(head).into());
                    reception = Reception::Told(said);
                }
                Action::Recv(..) if reception == Reception::Cut => reception = Reception::Served,
                _ => {}
            }
        }
        reception
    }

    /// Comes so often; how many times it was served.
    fn served(&mut self, times: usize, from: &str) -> usize {
        let receptions = (0..times).map(|_| self.knock(from));
        receptions.filter(|it| *it == Reception::Served).count()
    }
}

#[test]
fn a_greedy_host_leaves_connections_to_others_and_administrators() {
    let mut door = Door::of_eight();
    assert_eq!(door.served(200, "192.0.2.1:1"), 4);
    assert_eq!(
        door.knock("192.0.2.1:2"),
        Reception::Cut,
        "it was told often enough"
    );
    assert_eq!(door.knock("192.0.2.2:1"), Reception::Served);
    assert_eq!(door.knock("127.0.0.1:1"), Reception::Served);
    // Whatever networks it has.
    let networks = (1..9).map(|n| format!("[2001:db8:0:{n}::1]:1"));
    let served: usize = networks.map(|it| door.served(2, &it)).sum();
    assert_eq!(served, 1);
    let Reception::Told(why) = door.knock("192.0.2.2:1") else {
        panic!("there is no place");
    };
    assert!(why.contains("8 connections"), "{why}");
    assert_eq!(door.knock("[::ffff:127.0.0.1]:1"), Reception::Served);
}
