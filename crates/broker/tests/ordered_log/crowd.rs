//! Many connections of one thread of a broker, in rounds of one event, or of what all of them have sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use embar_broker::clock::Timestamp;
use embar_broker::node::Node;
use embar_broker::profile::{Counter, Stage};
use embar_broker::shard::{Action, Shard};
use embar_frame::{FrameHeader, Now};
use embar_memory::Simulated;
use embar_transport::{Peer as Origin, RecvBuf, Token};
use embar_wire::batch::BatchHeader;
use embar_wire::control::{Control, OpenPublisher, Secret, encode};
use embar_wire::frame::FrameId;
use embar_wire::limits::MAX_BATCH_BYTES;
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

impl Peer {
    /// Where the batches begin that it has read.
    pub fn positions(&self) -> Vec<u64> {
        let (mut at, mut positions) = (0, Vec::new());
        while let Some(header) = self.read[at..].first_chunk() {
            let header = FrameHeader::parse(header);
            if header.id == FrameId::Batch as u16 {
                let batch = BatchHeader::parse(&self.read[at..], MAX_BATCH_BYTES);
                positions.push(batch.expect("a header").base_offset());
            }
            at += header.frame_bytes();
        }
        positions
    }
}

/// See the module.
pub struct Crowd {
    shard: Shard<Simulated>,
    now: Now,
    /// What the driver has to do in the next round.
    actions: Vec<Action<Simulated>>,
    /// Batches that the log passed over in one round, at most.
    pub passed_over_most: u64,
    pub peers: BTreeMap<u32, Peer>,
}

impl Crowd {
    pub fn new(node: Arc<Node<Simulated>>) -> Self {
        Self {
            shard: Shard::new(node, 0).expect("memory for rings"),
            now: Now(1),
            actions: Vec::new(),
            passed_over_most: 0,
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
        self.run();
    }

    /// A publisher that says hello and asks to be opened.
    pub fn publisher(&mut self, number: u32) {
        self.connect(number);
        let mut inbox = Vec::new();
        let open = Control::OpenPublisher(OpenPublisher {
            topic: "t".into(),
            producer: number.into(),
            instance: 1,
            secret: Secret([7; 16]),
            acks: 1,
            ..OpenPublisher::default()
        });
        encode(&open, &mut inbox).expect("small");
        self.send(number, &inbox);
    }

    /// Somebody who says hello.
    pub fn connect(&mut self, number: u32) {
        self.peers.insert(number, Peer::default());
        let at = self.at();
        self.shard
            .opened(token(number), Origin::Unix, at, &mut self.actions);
        self.send(number, &hello());
    }

    /// It sends this, which a later round brings.
    pub fn say(&mut self, number: u32, request: &Control) {
        let peer = self.peers.get_mut(&number).expect("it is connected");
        encode(request, &mut peer.inbox).expect("small");
    }

    /// What it reads of that.
    pub fn send(&mut self, number: u32, bytes: &[u8]) -> usize {
        let peer = self.peers.get_mut(&number).expect("it is connected");
        let before = peer.read.len();
        peer.inbox.extend_from_slice(bytes);
        self.run();
        self.peers[&number].read.len() - before
    }

    /// Goes on until nothing moves, in rounds of one event.
    fn run(&mut self) {
        while self.step(1) {}
    }

    /// A round that brings what all have sent, as far as it is received at once.
    pub fn round(&mut self) {
        self.step(usize::MAX);
    }

    /// A round that brings at most so many events. False if nothing moved.
    fn step(&mut self, events: usize) -> bool {
        let at = self.at();
        let mut out = std::mem::take(&mut self.actions);
        let before = self.passed_over();
        self.shard.settle(at, &mut out);
        self.passed_over_most = self.passed_over_most.max(self.passed_over() - before);
        let mut moved = !out.is_empty();
        for action in out.drain(..) {
            match action {
                Action::Recv(token, buf) => self.peer(token).receiving = Some(buf),
                Action::Send(token, mut buf) => {
                    let read = &mut self.peer(token).read;
                    buf.with_unsent(|head, body| {
                        read.extend_from_slice(head);
                        read.extend_from_slice(body);
                    });
                    buf.advance(buf.remaining());
                    self.shard.sent(token, buf, &Ok(()), at);
                }
                _ => {}
            }
        }
        let ready = |peer: &Peer| !peer.inbox.is_empty() && peer.receiving.is_some();
        let ready = self.peers.iter_mut().filter(|(_, peer)| ready(peer));
        for (number, peer) in ready.take(events) {
            let mut buf = peer.receiving.take().expect("it is there");
            let count = buf.fill(&peer.inbox);
            peer.inbox.drain(..count);
            let received = Ok(count);
            self.shard
                .received(token(*number), buf, &received, 0, at, &mut out);
            moved = true;
        }
        self.actions = out;
        moved
    }

    fn peer(&mut self, token: Token) -> &mut Peer {
        let mut peers = self.peers.iter_mut();
        let found = peers.find(|(number, _)| self::token(**number) == token);
        found.expect("it is connected").1
    }

    /// Batches that the log has looked at for subscribers in whose shares they are not.
    fn passed_over(&self) -> u64 {
        let profile = self.shard.meter().profile().snapshot();
        profile.counters[Counter::PassedOver as usize].1
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
