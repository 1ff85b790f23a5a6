//! A broker's thread with one connection, whose bytes are moved by hand.

use std::sync::Arc;
use std::time::Duration;

use embar_broker::clock::Timestamp;
use embar_broker::node::Node;
use embar_broker::shard::{Action, Shard};
use embar_frame::{CHECKSUM_BYTES, FRAME_HEADER_BYTES};
use embar_frame::{FrameHeader, Now};
use embar_memory::Simulated;
use embar_session::{RingPools, SessionConfig, SessionCore, Step};
use embar_transport::{Peer as Origin, RecvBuf, SendBuf, Token};
use embar_wire::control::{Control, Hello, Role, decode, encode};
use embar_wire::frame::{FrameId, LogProtocol};
use embar_wire::limits::MAX_BATCH_BYTES;
use embar_wire::time::WallNs;

const PEER: Token = Token::new(1, 1);
const START: Timestamp = Timestamp {
    now: Now(1),
    wall: WallNs(1),
};

/// See the module.
pub struct Thread {
    shard: Shard<Simulated>,
    at: Timestamp,
    /// What the peer sent, and was not received.
    inbox: Vec<u8>,
    receiving: Option<RecvBuf<Simulated>>,
    /// What is being received into is wanted back.
    pub recalled: bool,
    /// Of other brokers' memory, on its way.
    pub sending: Option<SendBuf<Simulated>>,
    /// All else that was sent.
    sent: Vec<u8>,
    pub closed: bool,
}

impl Thread {
    /// Its peer has shaken hands.
    pub fn new(node: Arc<Node<Simulated>>) -> Self {
        let mut thread = Self {
            shard: Shard::new(node, 0).expect("memory for rings"),
            at: START,
            inbox: Vec::new(),
            receiving: None,
            recalled: false,
            sending: None,
            sent: Vec::new(),
            closed: false,
        };
        let mut out = Vec::new();
        thread.shard.opened(PEER, Origin::Unix, START, &mut out);
        thread.run(out);
        thread.hear(&hello());
        thread
    }

    /// The peer asks for something.
    pub fn ask(&mut self, request: &Control) {
        let mut bytes = Vec::new();
        encode(request, &mut bytes).expect("small");
        self.hear(&bytes);
    }

    /// The peer sends this.
    pub fn hear(&mut self, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
        self.run(Vec::new());
    }

    /// Whether it asks to be woken by the sequencer, before it sleeps for long.
    pub fn waits_for_order(&self) -> bool {
        self.shard.waits_for_order()
    }

    /// So much time passes, and the thread looks at it.
    pub fn pass(&mut self, time: Duration) {
        self.at.now = self.at.now.after(time);
        self.shard.tick(self.at);
        self.run(Vec::new());
    }

    /// Goes on until it waits for a send of other brokers' memory, or for nothing.
    fn run(&mut self, mut out: Vec<Action<Simulated>>) {
        loop {
            self.shard.settle(self.at, &mut out);
            let mut moved = !out.is_empty();
            for action in out.drain(..) {
                match action {
                    Action::Recv(_, buf) => self.receiving = Some(buf),
                    Action::Recall(_) => self.recalled = true,
                    Action::Send(_, buf) if buf.goes_in_steps() => self.sending = Some(buf),
                    Action::Send(_, mut buf) => {
                        buf.with_unsent(|head, body| {
                            self.sent.extend_from_slice(head);
                            self.sent.extend_from_slice(body);
                        });
                        buf.advance(buf.remaining());
                        self.shard.sent(PEER, buf, &Ok(()), self.at);
                    }
                    Action::Close(_) => self.closed = true,
                    _ => {}
                }
            }
            if !self.inbox.is_empty()
                && let Some(mut buf) = self.receiving.take()
            {
                let count = buf.fill(&self.inbox);
                self.inbox.drain(..count);
                self.shard
                    .received(PEER, buf, &Ok(count), 0, self.at, &mut out);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    /// The kernel takes so much of what is on its way.
    pub fn send(&mut self, bytes: usize) {
        let mut buf = self.sending.take().expect("something is on its way");
        assert!(bytes < buf.remaining());
        buf.advance(bytes);
        self.shard.sent(PEER, buf, &Ok(()), self.at);
        self.run(Vec::new());
    }

    /// The ids of the frames that the peer was sent since it was last asked.
    pub fn said(&mut self) -> Vec<u16> {
        let (bytes, mut at, mut ids) = (std::mem::take(&mut self.sent), 0, Vec::new());
        while let Some(header) = bytes[at..].first_chunk() {
            let header = FrameHeader::parse(header);
            at += header.frame_bytes();
            ids.push(header.id);
        }
        ids
    }

    /// The log's last message to the peer since it was last asked.
    pub fn answer(&mut self) -> Control {
        let (bytes, mut at, mut last) = (std::mem::take(&mut self.sent), 0, None);
        while let Some(header) = bytes[at..].first_chunk() {
            let header = FrameHeader::parse(header);
            let end = at + header.frame_bytes();
            let body = at + FRAME_HEADER_BYTES..end - CHECKSUM_BYTES;
            if let Ok(id) = FrameId::try_from(header.id) {
                last = Some((id, body));
            }
            at = end;
        }
        let (id, body) = last.expect("a frame of the log's protocol");
        decode(id, &bytes[body]).expect("a control message")
    }
}

pub fn hello() -> Vec<u8> {
    let hello = Hello {
        role: Role::Client,
        name: "test".into(),
    };
    let rings = RingPools::new(16 << 10, 16 << 10, 0).expect("sizes");
    let protocol = LogProtocol::default();
    let config = SessionConfig::default().with(|it| it.max_body_bytes = MAX_BATCH_BYTES);
    let core = SessionCore::<_, Simulated>::connecting(
        protocol,
        &config,
        &rings,
        &hello.to_greeting(),
        START.now,
    );
    let mut core = core.expect("memory for rings");
    loop {
        if let Step::Send(buf) = core.poll().expect("it says hello") {
            return buf.with_unsent(|head, _| head.to_vec());
        }
    }
}
