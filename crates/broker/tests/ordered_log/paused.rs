//! Publishers that wait for room: what they cost, and that they get it.

use std::collections::BTreeMap;

use embar_broker::BrokerConfig;
use embar_broker::profile::Stage;
use embar_broker::shard::{Action, At, Shard};
use embar_fabric::Simulated;
use embar_transport::{RecvBuf, Token};
use embar_wire::control::{Control, ListTopics, OpenPublisher, encode};
use embar_wire::time::{Now, WallNs};

use super::thread::hello;
use super::world::{Session, World, sealed};

const AT: At = At {
    now: Now(1),
    wall: WallNs(1),
};

/// Somebody at the other end of a connection, who reads all that comes.
#[derive(Default)]
struct Peer {
    /// What it sent, and was not received.
    inbox: Vec<u8>,
    receiving: Option<RecvBuf<Simulated>>,
    read: usize,
}

/// A broker's thread, and who is connected to it.
struct Thread {
    shard: Shard<Simulated>,
    topic: u32,
    peers: BTreeMap<u32, Peer>,
}

impl Thread {
    fn new() -> Self {
        let world = World::new();
        let mut sequencer = world.sequencer();
        let topic = world.create_topic("t", 0);
        let node = world.node(1, &topic, BrokerConfig::default(), &mut sequencer);
        Self {
            shard: Shard::new(node, 0).expect("memory for rings"),
            topic: topic.id,
            peers: BTreeMap::new(),
        }
    }

    /// A publisher that is welcome.
    fn publisher(&mut self, number: u32) {
        let mut inbox = hello();
        let open = Control::OpenPublisher(OpenPublisher {
            topic: "t".into(),
            acks: 1,
            ..OpenPublisher::default()
        });
        encode(&open, &mut inbox).expect("small");
        self.peers.insert(number, Peer::default());
        let mut out = Vec::new();
        self.shard.opened(token(number), None, AT, &mut out);
        self.run(out);
        self.send(number, &inbox);
    }

    /// What it reads of that.
    fn send(&mut self, number: u32, bytes: &[u8]) -> usize {
        let peer = self.peers.get_mut(&number).expect("it is connected");
        let before = peer.read;
        peer.inbox.extend_from_slice(bytes);
        self.run(Vec::new());
        self.peers[&number].read - before
    }

    fn batch(&self, producer: u64, bytes: usize) -> Vec<u8> {
        let session = Session {
            topic: self.topic,
            producer,
            slot: 0,
            epoch: 0,
        };
        sealed(&session, 0, bytes)
    }

    /// Goes on until nothing moves, in rounds of one event.
    fn run(&mut self, mut out: Vec<Action<Simulated>>) {
        loop {
            self.shard.settle(AT, &mut out);
            let mut moved = !out.is_empty();
            for action in out.drain(..) {
                match action {
                    Action::Recv(token, buf) => self.peer(token).receiving = Some(buf),
                    Action::Send(token, mut buf) => {
                        self.peer(token).read += buf.remaining();
                        buf.advance(buf.remaining());
                        self.shard.sent(token, buf, &Ok(()), AT);
                    }
                    _ => {}
                }
            }
            let ready = |peer: &Peer| !peer.inbox.is_empty() && peer.receiving.is_some();
            if let Some((number, peer)) = self.peers.iter_mut().find(|(_, peer)| ready(peer)) {
                let mut buf = peer.receiving.take().expect("it is there");
                let count = buf.fill(&peer.inbox);
                peer.inbox.drain(..count);
                let received = Ok(count);
                self.shard
                    .received(token(*number), buf, &received, 0, AT, &mut out);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    fn peer(&mut self, token: Token) -> &mut Peer {
        let mut peers = self.peers.iter_mut();
        let found = peers.find(|(number, _)| self::token(**number) == token);
        found.expect("it is connected").1
    }

    /// How many times the log was asked for room.
    fn asked(&self) -> u64 {
        let profile = self.shard.meter().profile().snapshot();
        profile.stages[Stage::ReserveBLogSpace as usize].count
    }
}

fn token(number: u32) -> Token {
    Token::new(number, 1)
}

/// What waits is asked for when something is freed, and only then; and then all of it gets its room.
#[test]
fn who_waits_costs_nothing_until_there_is_room_and_gets_it_then() {
    const WAITING: u32 = 100;
    let mut thread = Thread::new();
    thread.publisher(0);
    let large = thread.batch(1, 700_000);
    let (most, rest) = large.split_at(690_000);
    thread.send(0, most);
    for number in 1..=WAITING {
        thread.publisher(number);
        let batch = thread.batch(number.into(), 100);
        assert_eq!(thread.send(number, &batch), 0, "there is no room");
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
    let read: Vec<usize> = thread.peers.values().map(|peer| peer.read).collect();
    assert!(thread.send(0, rest) > 0, "it is acknowledged");
    for (peer, before) in thread.peers.values().zip(read).take(1 + WAITING as usize) {
        assert!(peer.read > before, "each is acknowledged");
    }
    assert!(thread.asked() <= 2 * asked + 16, "{}", thread.asked());
}
