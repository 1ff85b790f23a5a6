//! A client that asks for far more than its part: of sessions, of connections, or of answers. It may cost others
//! nothing but a share.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use embar_broker::topics::Topic;
use embar_client::sim_api::Lane;
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::control::{Control, DescribeTopic, ListTopics, Metadata, OpenPublisher, Secret};
use embar_wire::time::Now;

use super::vandal::{hello, say};
use super::{Actor, Scene, Wish};
use crate::books::{Books, VANDALS};
use crate::random::Random;
use crate::violation::Check;

/// Names of those who open sessions, apart from those of vandals and misers.
const FLOODS: u64 = VANDALS << 2;
/// One in so many openings is of somebody else's name.
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

/// What there is too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Sessions are opened, each by a connection of its own.
    Sessions,
    /// Connections are made, and stay.
    Connections,
    /// Small questions are asked, without waiting for answers.
    Questions,
}

impl Flood {
    /// Connections at once.
    fn lines(self) -> usize {
        match self {
            Self::Sessions => 8,
            Self::Connections => 60,
            Self::Questions => 3,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// It connects then.
    Away(Now),
    /// It is connecting, or closing.
    Waiting,
    /// It does the next thing then.
    Open(Now),
}

/// See the module.
pub struct Flooder {
    flood: Flood,
    random: Random,
    topic: String,
    topic_id: u32,
    ordered: bool,
    /// The broker that it picked.
    address: SocketAddr,
    lines: Vec<Line>,
    /// Whether a send of each goes on.
    sending: Vec<bool>,
    /// Names that it may open sessions by besides its own: those of publishers whose session there is, or
    /// everybody's where sessions are forgotten.
    known: Vec<u64>,
    opened: u64,
    is_over: bool,
    wishes: VecDeque<(Lane, Wish)>,
}

impl Flooder {
    /// One that knows a topic.
    pub fn new(flood: Flood, topic: &Topic, address: SocketAddr, random: Random, now: Now) -> Self {
        let lines = flood.lines();
        Self {
            flood,
            random,
            topic: topic.name.clone(),
            topic_id: topic.id,
            ordered: topic.is_ordered(),
            address,
            lines: vec![Line::Away(now); lines],
            sending: vec![false; lines],
            known: Vec::new(),
            opened: 0,
            is_over: false,
            wishes: VecDeque::new(),
        }
    }

    fn push(&mut self, line: usize, wish: Wish) {
        self.wishes.push_back((Lane(line as u32), wish));
    }

    fn send(&mut self, line: usize, bytes: Vec<u8>) {
        self.sending[line] = true;
        self.push(line, Wish::Send(SendBuf::heap(bytes)));
    }

    fn hang_up(&mut self, line: usize) {
        self.push(line, Wish::Close);
        self.lines[line] = Line::Waiting;
    }

    fn opening(&mut self) -> Control {
        let others = !self.known.is_empty() && self.random.one_in(OTHERS_ONE_IN);
        let producer = match others {
            true => *self.random.pick(&self.known),
            false => FLOODS + self.opened,
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

    fn go_on(&mut self, line: usize, scene: &mut Scene<'_>) {
        let now = scene.now;
        match (self.lines[line], self.flood) {
            (Line::Away(_), _) => {
                self.push(line, Wish::Connect(self.address));
                self.lines[line] = Line::Waiting;
                scene.figures.flooded += u64::from(self.flood == Flood::Connections);
            }
            (Line::Open(_), Flood::Questions) if !self.sending[line] => {
                let bytes = self.questions();
                scene.figures.asked += 1;
                self.send(line, bytes);
                self.lines[line] = Line::Open(Now(now.0 + self.random.size(PAUSE_NS)));
            }
            (Line::Open(_), Flood::Questions) => {
                self.lines[line] = Line::Open(Now(now.0 + PAUSE_NS));
            }
            (Line::Open(_), Flood::Sessions) => {
                scene.figures.openings += 1;
                self.hang_up(line);
            }
            (Line::Open(_), Flood::Connections) => self.hang_up(line),
            (Line::Waiting, _) => {}
        }
    }
}

impl Actor for Flooder {
    fn connected(&mut self, lane: Lane, now: Now) {
        let line = lane.0 as usize;
        let mut bytes = hello();
        let stays = match self.flood {
            Flood::Sessions => {
                let opening = self.opening();
                say(&mut bytes, &opening);
                OPENING_NS
            }
            Flood::Connections => STAY_NS,
            Flood::Questions => PAUSE_NS,
        };
        self.send(line, bytes);
        // Some never read an answer.
        if self.flood != Flood::Questions || self.random.one_in(2) {
            self.push(line, receive());
        }
        self.lines[line] = Line::Open(Now(now.0 + self.random.size(stays)));
    }

    fn received(&mut self, lane: Lane, _: RecvBuf, result: &io::Result<usize>, _: Now) {
        match result {
            Ok(bytes) if *bytes > 0 => self.push(lane.0 as usize, receive()),
            _ => self.hang_up(lane.0 as usize),
        }
    }

    fn sent(&mut self, lane: Lane, _: SendBuf, result: &io::Result<()>, _: Now) {
        let line = lane.0 as usize;
        self.sending[line] = false;
        if result.is_err() {
            self.hang_up(line);
        }
    }

    fn disconnected(&mut self, lane: Lane, _: &str, now: Now) {
        let line = lane.0 as usize;
        self.wishes.retain(|(its, _)| *its != lane);
        self.sending[line] = false;
        self.lines[line] = Line::Away(Now(now.0 + self.random.size(REST_NS)));
    }

    fn next_at(&self) -> Option<Now> {
        let due = |line: &Line| match line {
            Line::Away(at) | Line::Open(at) => Some(*at),
            Line::Waiting => None,
        };
        let due = self.lines.iter().filter_map(due).min();
        due.filter(|_| !self.is_over)
    }

    fn work(&mut self, scene: &mut Scene<'_>) -> Check {
        if self.is_over {
            return Ok(());
        }
        if self.flood == Flood::Sessions && self.ordered {
            self.known = match scene.forgets_sessions {
                // Whoever has none yet, or none any more, may find that somebody else has it.
                true => (1..NAMES).collect(),
                false => scene.books.stored_by(self.topic_id),
            };
        }
        for line in 0..self.lines.len() {
            if let Line::Away(at) | Line::Open(at) = self.lines[line]
                && at <= scene.now
            {
                self.go_on(line, scene);
            }
        }
        Ok(())
    }

    fn wish(&mut self, _: Now) -> Option<(Lane, Wish)> {
        self.wishes.pop_front()
    }

    fn heal(&mut self, _: Now) {
        self.is_over = true;
        self.wishes.clear();
    }

    fn is_done(&self, _: &Books) -> bool {
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

fn receive() -> Wish {
    Wish::Receive(RecvBuf::heap(vec![0; 512], 0..512))
}
