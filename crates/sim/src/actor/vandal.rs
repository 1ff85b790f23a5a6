//! A client that breaks the rules, again and again. It may hurt nobody but itself.

use embar_client::sim_api::Lane;
use embar_wire::batch::{BatchFlags, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{Control, Hello, OpenPublisher, Role, encode};
use embar_wire::frame::PROTOCOL_VERSION;
use embar_wire::time::{Now, WallNs};

use super::{Actor, Scene, Wish};
use crate::books::Books;
use crate::network::Outgoing;
use crate::random::Random;
use crate::violation::Check;

/// How long it waits to be thrown out, at most.
const PATIENCE_NS: u64 = 20_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle(Now),
    Busy(Now),
    Over,
}

/// See the module.
pub struct Vandal {
    random: Random,
    topic: String,
    topic_id: u32,
    state: State,
    wishes: Vec<Wish>,
    reads: bool,
}

impl Vandal {
    /// One that knows a topic.
    pub fn new(topic: (&str, u32), random: Random, now: Now) -> Self {
        Self {
            random,
            topic: topic.0.into(),
            topic_id: topic.1,
            state: State::Idle(now),
            wishes: Vec::new(),
            reads: false,
        }
    }

    fn attack(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let kind = self.random.below(8);
        if kind >= 2 {
            say(
                &mut bytes,
                &Control::Hello(Hello {
                    version: PROTOCOL_VERSION,
                    role: Role::Client,
                    name: "vandal".into(),
                }),
            );
        }
        if kind >= 5 {
            say(
                &mut bytes,
                &Control::OpenPublisher(OpenPublisher {
                    topic: self.topic.clone(),
                    producer: 0,
                    acks: 1,
                }),
            );
        }
        let len = self.random.size(4096) as usize;
        match kind {
            // Noise, before and after a greeting.
            0 | 2 => bytes.extend(self.random.bytes(len)),
            // A header that promises the world, and nothing more.
            1 | 3 => bytes.extend([0xFF, 0xFF, 0xFF, 0x7F, self.random.bits() as u8, 0, 0, 0]),
            // Questions without reading the answers.
            4 => (0..200).for_each(|_| say(&mut bytes, &Control::Metadata)),
            // A batch that is damaged, cut short, or not for this topic.
            5 => {
                let mut batch = self.batch(self.topic_id);
                let hit = self.random.below(batch.len() as u64) as usize;
                batch[hit] ^= 0x40;
                bytes.extend(batch);
            }
            6 => {
                let batch = self.batch(self.topic_id);
                bytes.extend(&batch[..batch.len() - 1 - self.random.below(64) as usize]);
            }
            _ => bytes.extend(self.batch(self.topic_id ^ 0x5000)),
        }
        bytes
    }

    fn batch(&mut self, topic: u32) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Vec::new(), 2048);
        let value = self.random.bytes(600);
        builder.try_push(None, &[], &value).expect("it fits");
        builder.seal(SealFields {
            producer: 0,
            sequence: self.random.bits(),
            topic,
            epoch: 0,
            append_time: WallNs(0),
            flags: BatchFlags::NONE,
        })
    }

    fn rest(&mut self, now: Now) {
        if self.state != State::Over {
            self.state = State::Idle(Now(now.0 + self.random.below(500_000_000)));
        }
    }
}

fn say(bytes: &mut Vec<u8>, message: &Control) {
    encode(message, bytes).expect("small");
}

impl Actor for Vandal {
    fn connected(&mut self, _: Lane, _: Now) {
        let bytes = self.attack();
        self.wishes.push(Wish::Send(Outgoing::Own(bytes)));
        self.reads = self.random.one_in(2);
        if self.reads {
            self.wishes.push(Wish::Receive(vec![0; 512], 0..512));
        }
    }

    fn received(&mut self, _: Lane, buffer: Vec<u8>, _: usize, _: Now) {
        self.wishes.push(Wish::Receive(buffer, 0..512));
    }

    fn sent(&mut self, _: Lane, _: Now) {}

    fn disconnected(&mut self, _: Lane, _: &str, now: Now) {
        self.wishes.clear();
        self.rest(now);
    }

    fn next_at(&self) -> Option<Now> {
        match self.state {
            State::Idle(at) | State::Busy(at) => Some(at),
            State::Over => None,
        }
    }

    fn work(&mut self, scene: &mut Scene<'_>) -> Check {
        match self.state {
            State::Idle(at) if at <= scene.now => {
                self.wishes.push(Wish::Connect);
                self.state = State::Busy(Now(scene.now.0 + self.random.below(PATIENCE_NS)));
            }
            State::Busy(at) if at <= scene.now => {
                self.wishes.push(Wish::Close);
                self.state = State::Busy(Now(u64::MAX));
            }
            _ => {}
        }
        Ok(())
    }

    fn wish(&mut self, _: Now) -> Option<(Lane, Wish)> {
        (!self.wishes.is_empty()).then(|| (Lane::CONTROL, self.wishes.remove(0)))
    }

    fn heal(&mut self, _: Now) {
        self.state = State::Over;
        self.wishes.clear();
    }

    fn leaves_when_healed(&self) -> bool {
        true
    }

    fn is_done(&self, _: &Books) -> bool {
        true
    }

    fn describe(&self) -> String {
        format!("vandal: {:?}", self.state)
    }
}
