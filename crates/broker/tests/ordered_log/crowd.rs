//! Many connections of one thread of a broker, in rounds of one event.

use std::collections::BTreeMap;
use std::sync::Arc;

use embar_broker::clock::Timestamp;
use embar_broker::node::Node;
use embar_broker::profile::Stage;
use embar_broker::shard::{Action, Shard};
use embar_frame::Now;
use embar_memory::Simulated;
use embar_transport::{RecvBuf, Token};
use embar_wire::control::{Control, OpenPublisher, Secret, encode};
use embar_wire::time::WallNs;

use super::thread::hello;
use super::world::{Session, sealed};

/// Somebody at the other end of a connection, who reads all that comes.
#[derive(Default)]
pub struct Peer {
    /// What it sent, and was not received.
    inbox: Vec<u8>,
    receiving: Option<RecvBuf<Simulated>>,
    pub read: Vec<u8>,
}

/// See the module.
pub struct Crowd {
    shard: Shard<Simulated>,
    now: Now,
    pub peers: BTreeMap<u32, Peer>,
}

impl Crowd {
    pub fn new(node: Arc<Node<Simulated>>) -> Self {
        Self {
            shard: Shard::new(node, 0).expect("memory for rings"),
            now: Now(1),
            peers: BTreeMap::new(),
        }
    }

    fn at(&self) -> Timestamp {
        Timestamp {
            now: self.now,
            wall: WallNs(1),
        }
    }

    /// Time passes.
    pub fn tick(&mut self, now: Now) {
        self.now = now;
        self.shard.tick(self.at());
        self.run(Vec::new());
    }

    /// A publisher that says hello and asks to be opened.
    pub fn publisher(&mut self, number: u32) {
        let mut inbox = hello();
        let open = Control::OpenPublisher(OpenPublisher {
            topic: "t".into(),
            producer: number.into(),
            instance: 1,
            secret: Secret([7; 16]),
            acks: 1,
            ..OpenPublisher::default()
        });
        encode(&open, &mut inbox).expect("small");
        self.peers.insert(number, Peer::default());
        let mut out = Vec::new();
        self.shard.opened(token(number), None, self.at(), &mut out);
        self.run(out);
        self.send(number, &inbox);
    }

    /// What it reads of that.
    pub fn send(&mut self, number: u32, bytes: &[u8]) -> usize {
        let peer = self.peers.get_mut(&number).expect("it is connected");
        let before = peer.read.len();
        peer.inbox.extend_from_slice(bytes);
        self.run(Vec::new());
        self.peers[&number].read.len() - before
    }

    /// Goes on until nothing moves, in rounds of one event.
    fn run(&mut self, mut out: Vec<Action<Simulated>>) {
        let at = self.at();
        loop {
            self.shard.settle(at, &mut out);
            let mut moved = !out.is_empty();
            for action in out.drain(..) {
                match action {
                    Action::Recv(token, buf) => self.peer(token).receiving = Some(buf),
                    Action::Send(token, mut buf) => {
                        let read = &mut self.peer(token).read;
                        buf.with_unsent(|head, _| read.extend_from_slice(head));
                        buf.advance(buf.remaining());
                        self.shard.sent(token, buf, &Ok(()), at);
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
                    .received(token(*number), buf, &received, 0, at, &mut out);
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
    pub fn asked(&self) -> u64 {
        let profile = self.shard.meter().profile().snapshot();
        profile.stages[Stage::ReserveBLogSpace as usize].count
    }
}

/// An only batch of a producer, of orders 0 and 1.
pub fn batch(topic: u32, producer: u64, bytes: usize) -> Vec<u8> {
    let session = Session {
        topic,
        producer,
        slot: 0,
        epoch: 0,
    };
    sealed(&session, 0, bytes)
}

fn token(number: u32) -> Token {
    Token::new(number, 1)
}
