//! A byzantine client: it breaks the rules, again and again. It may hurt no other client.

use std::io;
use std::net::SocketAddr;

use embar_broker::topics::Topic;
use embar_client::sim_api::ChannelId;
use embar_frame::{CHECKSUM_BYTES, FIRST_RESERVED_ID, FrameHeader, Now, write_checksum};
use embar_session::{RingPools, SessionConfig, SessionCore, Step};
use embar_transport::{Mapped, RecvBuf, SendBuf};
use embar_wire::batch::{BatchFlags, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{Control, Hello, Metadata, OpenPublisher, Role, Secret, encode};
use embar_wire::frame::LogProtocol;
use embar_wire::limits::MAX_BATCH_BYTES;
use embar_wire::time::WallNs;

use super::{Actor, ActorContext, SocketOp};
use crate::oracle::{FIRST_BYZANTINE, Name, Oracle, name_bytes};
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

/// Attacks that need an open publisher.
const FIRST_FORGERY: u64 = 11;
/// How long it waits for one, in nanoseconds, at most.
const OPENS_WITHIN_NS: u64 = 300_000_000;

/// A client that sends garbage and forged requests.
pub struct ByzantineClient {
    random: Random,
    topic: String,
    topic_id: u32,
    /// Its topic has one order over all brokers.
    ordered: bool,
    maker: u64,
    batches: u64,
    addresses: Vec<SocketAddr>,
    /// When the second part of an attack follows.
    forges_at: Option<Now>,
    /// Publishers whose session there is: it may try to get one of them.
    known: Vec<u64>,
    /// What a session begins with.
    hello: Vec<u8>,
    state: State,
    ops: Vec<SocketOp>,
    reads: bool,
    /// Its first words are sent.
    sent: bool,
}

impl ByzantineClient {
    /// One that knows a topic.
    pub fn new(
        number: u64,
        topic: &Topic,
        addresses: Vec<SocketAddr>,
        random: Random,
        now: Now,
    ) -> Self {
        Self {
            random,
            topic: topic.name.clone(),
            topic_id: topic.id,
            ordered: topic.is_ordered(),
            maker: FIRST_BYZANTINE + number,
            batches: 0,
            addresses,
            forges_at: None,
            known: Vec::new(),
            hello: hello(),
            state: State::Idle(now),
            ops: Vec::new(),
            reads: false,
            sent: false,
        }
    }

    fn attack(&mut self, now: Now) -> Vec<u8> {
        let mut bytes = Vec::new();
        let kinds = if self.ordered { 18 } else { FIRST_FORGERY };
        let kind = self.random.below(kinds);
        if kind >= 2 {
            bytes.extend(&self.hello);
        }
        if matches!(kind, 5..=7) {
            let opening = OpenPublisher {
                topic: self.topic.clone(),
                acks: 1,
                secret: Secret([1; 16]),
                ..OpenPublisher::default()
            };
            say(&mut bytes, &Control::OpenPublisher(opening));
        }
        if kind >= FIRST_FORGERY {
            self.open_any_session(&mut bytes, now);
            return bytes;
        }
        let len = self.random.size(4096) as usize;
        match kind {
            // Noise, before and after a greeting.
            0 | 2 => bytes.extend(self.random.bytes(len)),
            // A header that promises the world, and nothing more.
            1 | 3 => bytes.extend([0xFF, 0xFF, 0xFF, 0x7F, self.random.bits() as u8, 0, 0, 0]),
            // Questions without reading the answers.
            4 => {
                let question = Control::Metadata(Metadata::default());
                (0..200).for_each(|_| say(&mut bytes, &question));
            }
            // A batch that is damaged, cut short, or not for this topic.
            5 => {
                let mut batch = self.nobodys(self.topic_id);
                let hit = self.random.below(batch.len() as u64) as usize;
                batch[hit] ^= 0x40;
                bytes.extend(batch);
            }
            6 => {
                let batch = self.nobodys(self.topic_id);
                bytes.extend(&batch[..batch.len() - 1 - self.random.below(64) as usize]);
            }
            7 => bytes.extend(self.nobodys(self.topic_id ^ 0x5000)),
            // The session's own frames, with any content.
            8 => (0..20).for_each(|_| bytes.extend(self.session_frame())),
            // A greeting out of turn, or a damaged one.
            9 => bytes.extend(self.hello.clone()),
            _ => {
                let hit = self.random.below(self.hello.len() as u64) as usize;
                bytes[hit] ^= 1 << self.random.below(8);
            }
        }
        bytes
    }

    /// Asks for a session of its own, to forge batches in, or for another publisher's.
    fn open_any_session(&mut self, bytes: &mut Vec<u8>, now: Now) {
        // It knows every publisher's identity and no publisher's secret.
        let others = !self.known.is_empty() && self.random.one_in(3);
        let producer = match others {
            true => *self.random.pick(&self.known),
            false => self.maker,
        };
        let opening = OpenPublisher {
            topic: self.topic.clone(),
            producer,
            acks: 1,
            instance: self.random.between(1, 3),
            resumes: self.random.one_in(2),
            topic_id: 0,
            secret: Secret([self.random.between(1, 2) as u8; 16]),
            takes_over: self.random.below(4) as u32,
        };
        say(bytes, &Control::OpenPublisher(opening));
        if !others {
            self.forges_at = Some(Now(now.0 + self.random.below(OPENS_WITHIN_NS)));
        }
    }

    fn session_frame(&mut self) -> Vec<u8> {
        let len = if self.random.one_in(2) {
            self.random.below(16) as usize
        } else {
            self.random.size(4096) as usize
        };
        let header = FrameHeader {
            length: len as u32,
            id: FIRST_RESERVED_ID + self.random.below(10) as u16,
            flags: u16::from(self.random.one_in(8)),
        };
        let content = if self.random.one_in(2) {
            // Valid fields that no version knows.
            [0x78, 1].repeat(len / 2)
        } else {
            self.random.bytes(len)
        };
        if self.random.one_in(4) {
            return [&header.to_bytes()[..], &content].concat();
        }
        // What has a checksum gets further.
        let header = header.with_checksum();
        let mut frame = [&header.to_bytes()[..], &content, &[0; CHECKSUM_BYTES]].concat();
        write_checksum(&mut frame);
        frame
    }

    /// A batch that is never stored.
    fn nobodys(&mut self, topic: u32) -> Vec<u8> {
        let sequence = self.random.bits();
        self.batch((0, 0), topic, (0, 0, sequence))
    }

    fn batch(
        &mut self,
        name: Name,
        topic: u32,
        (producer, epoch, sequence): (u64, u32, u64),
    ) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Vec::new(), 2048);
        let mut value = self.random.bytes(600);
        value[..16].copy_from_slice(&name_bytes(name));
        builder.try_push(None, &[], &value).expect("it fits");
        builder
            .seal(SealFields {
                producer,
                sequence,
                topic,
                epoch,
                append_time: WallNs(0),
                flags: BatchFlags::NONE,
            })
            .into()
    }

    /// Batches whose numbers go back and jump, of epochs that never were, and in others' names.
    fn forge(&mut self, context: &mut ActorContext<'_>) {
        let mut bytes = Vec::new();
        let mut sequence = self.random.below(4);
        for _ in 0..self.random.between(1, 12) {
            let producer = if self.random.one_in(12) {
                self.random.between(1, 4)
            } else {
                self.maker
            };
            let epoch = *self.random.pick(&[1, 1, 1, 1, 0, 2, 3, 99]);
            let name = (self.maker, self.batches);
            self.batches += 1;
            let batch = self.batch(name, self.topic_id, (producer, epoch, sequence));
            context.oracle.seal(name, &batch, false);
            bytes.extend(batch);
            sequence = match self.random.below(8) {
                0 => sequence.saturating_sub(2),
                1 => sequence + 2,
                2 => sequence,
                3 => self.random.bits() >> self.random.below(64),
                _ => sequence.saturating_add(1),
            };
        }
        self.ops.push(SocketOp::Send(SendBuf::heap(bytes)));
    }

    fn rest(&mut self, now: Now) {
        if self.state != State::Over {
            self.state = State::Idle(Now(now.0 + self.random.below(500_000_000)));
        }
    }
}

/// What the core of a good client sends first.
pub(super) fn hello() -> Vec<u8> {
    let hello = Hello {
        role: Role::Client,
        name: "client".into(),
    };
    let rings = RingPools::new(4096, 4096, 0).expect("rings can be made here");
    let log = LogProtocol::default();
    let config = SessionConfig::default().with(|it| it.max_body_bytes = MAX_BATCH_BYTES);
    let greeting = hello.to_greeting();
    let core = SessionCore::<_, Mapped>::connecting(log, &config, &rings, &greeting, Now(0));
    let mut core = core.expect("rings can be made here");
    loop {
        match core.poll().expect("it says hello") {
            Step::Send(buf) => return buf.with_unsent(|head, _| head.to_vec()),
            _ => continue,
        }
    }
}

pub(super) fn say(bytes: &mut Vec<u8>, message: &Control) {
    encode(message, bytes).expect("small");
}

fn receive() -> SocketOp {
    SocketOp::Receive(RecvBuf::heap(vec![0; 512], 0..512))
}

impl Actor for ByzantineClient {
    fn connected(&mut self, _: ChannelId, now: Now) {
        let bytes = self.attack(now);
        self.ops.push(SocketOp::Send(SendBuf::heap(bytes)));
        self.reads = self.random.one_in(2);
        if self.reads {
            self.ops.push(receive());
        }
    }

    fn received(&mut self, _: ChannelId, _: RecvBuf, result: &io::Result<usize>, _: Now) {
        let alive = matches!(result, Ok(bytes) if *bytes > 0);
        self.ops
            .push(if alive { receive() } else { SocketOp::Close });
    }

    fn sent(&mut self, _: ChannelId, _: SendBuf, result: &io::Result<()>, _: Now) {
        self.sent = result.is_ok();
        if !self.sent {
            self.forges_at = None;
        }
    }

    fn disconnected(&mut self, _: ChannelId, _: &str, now: Now) {
        self.ops.clear();
        self.forges_at = None;
        self.rest(now);
    }

    fn next_at(&self) -> Option<Now> {
        let own = match self.state {
            State::Idle(at) | State::Busy(at) => Some(at),
            State::Over => None,
        };
        own.into_iter().chain(self.forges_at).min()
    }

    fn work(&mut self, context: &mut ActorContext<'_>) -> Check {
        // What it said first is still on its way if it could not be sent.
        if self.forges_at.is_some_and(|at| at <= context.now) && self.sent {
            self.forges_at = None;
            self.forge(context);
        }
        match self.state {
            State::Idle(at) if at <= context.now => {
                self.sent = false;
                // A publisher without a session has none that this client could not open.
                if !context.forgets_sessions {
                    self.known = context.oracle.stored_by(self.topic_id);
                }
                let address = *self.random.pick(&self.addresses);
                self.ops.push(SocketOp::Connect(address));
                self.state = State::Busy(Now(context.now.0 + self.random.below(PATIENCE_NS)));
            }
            State::Busy(at) if at <= context.now => {
                self.ops.push(SocketOp::Close);
                self.state = State::Busy(Now(u64::MAX));
            }
            _ => {}
        }
        Ok(())
    }

    fn next_op(&mut self, _: Now) -> Option<(ChannelId, SocketOp)> {
        (!self.ops.is_empty()).then(|| (ChannelId::CONTROL, self.ops.remove(0)))
    }

    fn heal(&mut self, _: Now) {
        self.state = State::Over;
        self.forges_at = None;
        self.ops.clear();
    }

    fn leaves_when_healed(&self) -> bool {
        true
    }

    fn is_greedy(&self) -> bool {
        true
    }

    fn is_done(&self, _: &Oracle) -> bool {
        true
    }

    fn describe(&self) -> String {
        format!("byzantine: {:?}", self.state)
    }
}
