//! A subscriber reads at one broker what lies in another's memory.

use std::sync::Arc;

use embar_broker::node::Node;
use embar_broker::shard::{Action, At, Shard};
use embar_fabric::Simulated;
use embar_session::{Link, LinkConfig, Rings, Step};
use embar_transport::{RecvBuf, SendBuf, Token};
use embar_wire::control::{Control, Hello, Role, StartAt, Subscribe, encode};
use embar_wire::frame::LogProtocol;
use embar_wire::time::{Now, WallNs};

use super::world::World;

const READER: Token = Token::new(1, 1);
const AT: At = At {
    now: Now(1),
    wall: WallNs(1),
};

/// A broker's thread with one connection.
struct Thread {
    shard: Shard<Simulated>,
    /// What the subscriber sent, and was not received.
    inbox: Vec<u8>,
    receiving: Option<RecvBuf<Simulated>>,
    /// Of other brokers' memory, on its way.
    sending: Option<SendBuf<Simulated>>,
    closed: bool,
}

impl Thread {
    /// Its subscriber has asked for all of a topic.
    fn new(node: Arc<Node<Simulated>>, topic: &str) -> Self {
        let mut thread = Self {
            shard: Shard::new(node, 0).expect("memory for rings"),
            inbox: hello(),
            receiving: None,
            sending: None,
            closed: false,
        };
        let subscribe = Control::Subscribe(Subscribe {
            topic: topic.into(),
            start: StartAt::Earliest,
            topic_id: 0,
        });
        encode(&subscribe, &mut thread.inbox).expect("small");
        let mut out = Vec::new();
        thread.shard.opened(READER, None, AT, &mut out);
        thread.run(out);
        thread
    }

    /// Goes on until it waits for a send of other brokers' memory, or for nothing.
    fn run(&mut self, mut out: Vec<Action<Simulated>>) {
        loop {
            self.shard.settle(AT, &mut out);
            let mut moved = !out.is_empty();
            for action in out.drain(..) {
                match action {
                    Action::Recv(_, buf) => self.receiving = Some(buf),
                    Action::Send(_, buf) if buf.goes_in_steps() => self.sending = Some(buf),
                    Action::Send(_, mut buf) => {
                        buf.advance(buf.remaining());
                        self.shard.sent(READER, buf, &Ok(()), AT);
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
                    .received(READER, buf, &Ok(count), 0, AT, &mut out);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    /// The kernel takes so much of what is on its way.
    fn send(&mut self, bytes: usize) {
        let mut buf = self.sending.take().expect("something is on its way");
        assert!(bytes < buf.remaining());
        buf.advance(bytes);
        self.shard.sent(READER, buf, &Ok(()), AT);
        self.run(Vec::new());
    }
}

fn hello() -> Vec<u8> {
    let hello = Hello {
        role: Role::Client,
        name: "test".into(),
    };
    let rings = Rings::new(16 << 10, 16 << 10, 0).expect("sizes");
    let (protocol, config) = (LogProtocol::default(), LinkConfig::default());
    let link =
        Link::<_, Simulated>::connecting(protocol, &config, &rings, &hello.to_greeting(), AT.now);
    let mut link = link.expect("memory for rings");
    loop {
        if let Step::Send(buf) = link.poll().expect("it says hello") {
            return buf.with_unsent(|head, _| head.to_vec());
        }
    }
}

/// A slow subscriber takes a batch in many sends, and its owner may use the memory again between any
/// two of them: so it is asked after each.
#[test]
fn the_owner_is_asked_after_every_partial_send() {
    for sends_before in [0, 1, 5] {
        let world = World::new();
        let mut sequencer = world.sequencer();
        let topic = world.create_topic("far");
        let mut owner = world.broker(1, &mut sequencer);
        owner.log.open_topic(&topic);
        let session = owner.open(topic.id, 7, &mut sequencer);
        for number in 0..3 {
            owner.submit(&session, number, 20_000);
        }
        sequencer.step(0, &|_| true);
        assert_eq!(owner.answers().len(), 3);
        let node = world.node(2, &topic, &mut sequencer);
        let mut thread = Thread::new(node, "far");
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
