//! A client that asks for far more than its part: of sessions, of connections, or of answers. It may cost other
//! clients nothing but a share.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use embar_broker::topics::Topic;
use embar_client::sim_api::ChannelId;
use embar_frame::Now;
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::control::{Control, DescribeTopic, ListTopics, Metadata, OpenPublisher, Secret};

use super::byzantine::{hello, say};
use super::{Actor, ActorContext, SocketOp};
use crate::oracle::{FIRST_BYZANTINE, Oracle};
use crate::plan::FloodKind;
use crate::random::Random;
use crate::violation::Check;

/// Identities of the clients that open sessions, apart from those of byzantine and slowloris clients.
const FIRST_FLOODING: u64 = FIRST_BYZANTINE << 2;
/// One in so many openings names the identity of another client.
const OTHERS_ONE_IN: u64 = 6;
/// Names of publishers that may come: those below.
const NAMES: u64 = 6;
/// Questions asked at once, at most.
const QUESTIONS: u64 = 60;
/// How long a connection that is over stays away, in nanoseconds, at most.
const REST_NS: u64 = 100_000_000;
/// How long one stays that nothing is said by, in nanoseconds, at most.
const STAY_NS: u64 = 5_000_000_000;
/// How long one stays that asked for a session, in nanoseconds, at most: an answer may come meanwhile.
const OPENING_NS: u64 = 60_000_000;
/// Between two series of questions, in nanoseconds, at most.
const PAUSE_NS: u64 = 30_000_000;

/// Connections at once.
fn connections_of(flood: FloodKind) -> usize {
    match flood {
        FloodKind::Sessions => 8,
        FloodKind::Connections => 60,
        FloodKind::Questions => 3,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    /// It connects then.
    Away(Now),
    /// It is connecting, or closing.
    Waiting,
    /// It does the next thing then.
    Open(Now),
}

/// Floods one broker.
pub struct FloodingClient {
    flood: FloodKind,
    random: Random,
    topic: String,
    topic_id: u32,
    ordered: bool,
    /// The broker that it picked.
    address: SocketAddr,
    connections: Vec<Connection>,
    /// Whether a send of each goes on.
    sending: Vec<bool>,
    /// Names that it may open sessions by besides its own: those of publishers whose session there is, or
    /// everybody's where sessions are forgotten.
    known: Vec<u64>,
    opened: u64,
    is_over: bool,
    ops: VecDeque<(ChannelId, SocketOp)>,
}

impl FloodingClient {
    /// One that knows a topic.
    pub fn new(
        flood: FloodKind,
        topic: &Topic,
        address: SocketAddr,
        random: Random,
        now: Now,
    ) -> Self {
        let connections = connections_of(flood);
        Self {
            flood,
            random,
            topic: topic.name.clone(),
            topic_id: topic.id,
            ordered: topic.is_ordered(),
            address,
            connections: vec![Connection::Away(now); connections],
            sending: vec![false; connections],
            known: Vec::new(),
            opened: 0,
            is_over: false,
            ops: VecDeque::new(),
        }
    }

    fn push(&mut self, connection: usize, op: SocketOp) {
        self.ops.push_back((ChannelId(connection as u32), op));
    }

    fn send(&mut self, connection: usize, bytes: Vec<u8>) {
        self.sending[connection] = true;
        self.push(connection, SocketOp::Send(SendBuf::heap(bytes)));
    }

    fn hang_up(&mut self, connection: usize) {
        self.push(connection, SocketOp::Close);
        self.connections[connection] = Connection::Waiting;
    }

    fn opening(&mut self) -> Control {
        let others = !self.known.is_empty() && self.random.one_in(OTHERS_ONE_IN);
        let producer = match others {
            true => *self.random.pick(&self.known),
            false => FIRST_FLOODING + self.opened,
        };
        self.opened += 1;
        Control::OpenPublisher(OpenPublisher {
            topic: self.topic.clone(),
            producer,
            acks: 1,
            instance: self.random.between(1, 3),
            resumes: false,
            topic_id: self.topic_id,
            secret: Secret([1; 16]),
            takes_over: self.random.below(4) as u32,
        })
    }

    fn questions(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..self.random.between(1, QUESTIONS) {
            let name = self.topic.clone();
            let question = match self.random.below(3) {
                0 => Control::Metadata(Metadata::default()),
                1 => Control::ListTopics(ListTopics::default()),
                _ => Control::DescribeTopic(DescribeTopic { name }),
            };
            say(&mut bytes, &question);
        }
        bytes
    }

    fn go_on(&mut self, connection: usize, context: &mut ActorContext<'_>) {
        let now = context.now;
        match (self.connections[connection], self.flood) {
            (Connection::Away(_), _) => {
                self.push(connection, SocketOp::Connect(self.address));
                self.connections[connection] = Connection::Waiting;
                context.figures.flooded += u64::from(self.flood == FloodKind::Connections);
            }
            (Connection::Open(_), FloodKind::Questions) if !self.sending[connection] => {
                let bytes = self.questions();
                context.figures.asked += 1;
                self.send(connection, bytes);
                self.connections[connection] =
                    Connection::Open(Now(now.0 + self.random.size(PAUSE_NS)));
            }
            (Connection::Open(_), FloodKind::Questions) => {
                self.connections[connection] = Connection::Open(Now(now.0 + PAUSE_NS));
            }
            (Connection::Open(_), FloodKind::Sessions) => {
                context.figures.openings += 1;
                self.hang_up(connection);
            }
            (Connection::Open(_), FloodKind::Connections) => self.hang_up(connection),
            (Connection::Waiting, _) => {}
        }
    }
}

impl Actor for FloodingClient {
    fn connected(&mut self, channel: ChannelId, now: Now) {
        let connection = channel.0 as usize;
        let mut bytes = hello();
        let stays = match self.flood {
            FloodKind::Sessions => {
                let opening = self.opening();
                say(&mut bytes, &opening);
                OPENING_NS
            }
            FloodKind::Connections => STAY_NS,
            FloodKind::Questions => PAUSE_NS,
        };
        self.send(connection, bytes);
        // Some never read an answer.
        if self.flood != FloodKind::Questions || self.random.one_in(2) {
            self.push(connection, receive());
        }
        self.connections[connection] = Connection::Open(Now(now.0 + self.random.size(stays)));
    }

    fn received(&mut self, channel: ChannelId, _: RecvBuf, result: &io::Result<usize>, _: Now) {
        match result {
            Ok(bytes) if *bytes > 0 => self.push(channel.0 as usize, receive()),
            _ => self.hang_up(channel.0 as usize),
        }
    }

    fn sent(&mut self, channel: ChannelId, _: SendBuf, result: &io::Result<()>, _: Now) {
        let connection = channel.0 as usize;
        self.sending[connection] = false;
        if result.is_err() {
            self.hang_up(connection);
        }
    }

    fn disconnected(&mut self, channel: ChannelId, _: &str, now: Now) {
        let connection = channel.0 as usize;
        self.ops.retain(|(its, _)| *its != channel);
        self.sending[connection] = false;
        self.connections[connection] = Connection::Away(Now(now.0 + self.random.size(REST_NS)));
    }

    fn next_at(&self) -> Option<Now> {
        let due = |connection: &Connection| match connection {
            Connection::Away(at) | Connection::Open(at) => Some(*at),
            Connection::Waiting => None,
        };
        let due = self.connections.iter().filter_map(due).min();
        due.filter(|_| !self.is_over)
    }

    fn work(&mut self, context: &mut ActorContext<'_>) -> Check {
        if self.is_over {
            return Ok(());
        }
        if self.flood == FloodKind::Sessions && self.ordered {
            self.known = match context.forgets_sessions {
                // A publisher that has no session, or has it no more, may find that this client has it.
                true => (1..NAMES).collect(),
                false => context.oracle.stored_by(self.topic_id),
            };
        }
        for connection in 0..self.connections.len() {
            if let Connection::Away(at) | Connection::Open(at) = self.connections[connection]
                && at <= context.now
            {
                self.go_on(connection, context);
            }
        }
        Ok(())
    }

    fn next_op(&mut self, _: Now) -> Option<(ChannelId, SocketOp)> {
        self.ops.pop_front()
    }

    fn heal(&mut self, _: Now) {
        self.is_over = true;
        self.ops.clear();
    }

    fn is_done(&self, _: &Oracle) -> bool {
        true
    }

    fn leaves_when_healed(&self) -> bool {
        true
    }

    fn is_greedy(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        format!("flood of {:?}", self.flood)
    }
}

fn receive() -> SocketOp {
    SocketOp::Receive(RecvBuf::heap(vec![0; 512], 0..512))
}
