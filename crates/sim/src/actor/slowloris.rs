//! A slowloris client: it claims room for large batches and sends next to nothing of them, just enough not to be
//! silent. It may hold up no other client.

use std::io;
use std::net::SocketAddr;

use embar_broker::topics::Topic;
use embar_client::sim_api::ChannelId;
use embar_frame::Now;
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::batch::{BatchFlags, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{Control, OpenPublisher, Secret};
use embar_wire::limits::BATCH_HEADER_BYTES;
use embar_wire::time::WallNs;

use super::byzantine::{hello, say};
use super::{Actor, ActorContext, SocketOp};
use crate::oracle::{FIRST_BYZANTINE, Oracle};
use crate::random::Random;
use crate::violation::Check;

/// Bytes that it sends at a time, at most.
const DRIBBLE_BYTES: u64 = 40;
/// Between two of them, in nanoseconds, at most.
const PAUSE_NS: u64 = 900_000_000;
/// How long it waits before it begins, in nanoseconds, at most.
const REST_NS: u64 = 300_000_000;
/// Names of slowloris clients, apart from those of byzantine clients.
const FIRST_SLOWLORIS: u64 = FIRST_BYZANTINE << 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It connects then.
    Away(Now),
    /// It is connecting, or closing.
    Waiting,
    /// It sends a little more then, if the send before is over.
    Claiming(Now),
    /// It does nothing more.
    Over,
}

/// Sends one long batch, a few bytes at a time.
pub struct SlowlorisClient {
    random: Random,
    topic: String,
    topic_id: u32,
    producer: u64,
    addresses: Vec<SocketAddr>,
    /// A batch as long as it may be.
    batch: Vec<u8>,
    /// Bytes of it that were sent; none before the greeting was.
    sent: usize,
    is_sending: bool,
    state: State,
    ops: Vec<SocketOp>,
}

impl SlowlorisClient {
    /// One that knows a topic, and how long a batch may be.
    pub fn new(
        number: u64,
        topic: &Topic,
        claims: u32,
        addresses: Vec<SocketAddr>,
        random: Random,
        now: Now,
    ) -> Self {
        let producer = FIRST_SLOWLORIS + number;
        Self {
            random,
            topic: topic.name.clone(),
            topic_id: topic.id,
            producer,
            addresses,
            batch: batch(topic.id, producer, claims),
            sent: 0,
            is_sending: false,
            state: State::Away(now),
            ops: Vec::new(),
        }
    }

    /// The batch's header goes first, whole; never its last byte.
    fn dribble(&mut self, context: &mut ActorContext<'_>) {
        let left = self.batch.len() - 1 - self.sent;
        let next = match self.sent {
            0 => {
                context.figures.claimed += 1;
                BATCH_HEADER_BYTES
            }
            _ => self.random.size(DRIBBLE_BYTES) as usize,
        };
        let end = self.sent + next.min(left);
        if end == self.sent {
            return self.hang_up();
        }
        let bytes = self.batch[self.sent..end].to_vec();
        (self.sent, self.is_sending) = (end, true);
        self.ops.push(SocketOp::Send(SendBuf::heap(bytes)));
        self.state = State::Claiming(Now(context.now.0 + self.random.size(PAUSE_NS)));
    }

    fn hang_up(&mut self) {
        self.ops.push(SocketOp::Close);
        self.state = State::Waiting;
    }
}

fn batch(topic: u32, producer: u64, claims: u32) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Vec::new(), claims as usize);
    while builder.try_push(None, &[], &[7; 100]).is_ok() {}
    builder
        .seal(SealFields {
            producer,
            sequence: 0,
            topic,
            epoch: 1,
            append_time: WallNs(0),
            flags: BatchFlags::NONE,
        })
        .into()
}

impl Actor for SlowlorisClient {
    fn connected(&mut self, _: ChannelId, now: Now) {
        let mut bytes = hello();
        say(
            &mut bytes,
            &Control::OpenPublisher(OpenPublisher {
                topic: self.topic.clone(),
                producer: self.producer,
                acks: 1,
                instance: 1,
                topic_id: self.topic_id,
                secret: Secret([1; 16]),
                ..OpenPublisher::default()
            }),
        );
        (self.sent, self.is_sending) = (0, true);
        self.ops.push(SocketOp::Send(SendBuf::heap(bytes)));
        self.ops.push(receive());
        self.state = State::Claiming(Now(now.0 + self.random.size(REST_NS)));
    }

    fn received(&mut self, _: ChannelId, _: RecvBuf, result: &io::Result<usize>, _: Now) {
        match result {
            Ok(bytes) if *bytes > 0 => self.ops.push(receive()),
            _ => self.hang_up(),
        }
    }

    fn sent(&mut self, _: ChannelId, _: SendBuf, result: &io::Result<()>, _: Now) {
        self.is_sending = false;
        if result.is_err() && self.state != State::Over {
            self.hang_up();
        }
    }

    fn disconnected(&mut self, _: ChannelId, _: &str, now: Now) {
        self.ops.clear();
        if self.state != State::Over {
            self.state = State::Away(Now(now.0 + self.random.size(REST_NS)));
        }
    }

    fn next_at(&self) -> Option<Now> {
        match self.state {
            State::Away(at) => Some(at),
            State::Claiming(at) if !self.is_sending => Some(at),
            State::Claiming(_) | State::Waiting | State::Over => None,
        }
    }

    fn work(&mut self, context: &mut ActorContext<'_>) -> Check {
        match self.state {
            State::Away(at) if at <= context.now => {
                let address = *self.random.pick(&self.addresses);
                self.ops.push(SocketOp::Connect(address));
                self.state = State::Waiting;
            }
            State::Claiming(at) if at <= context.now && !self.is_sending => self.dribble(context),
            _ => {}
        }
        Ok(())
    }

    fn next_op(&mut self, _: Now) -> Option<(ChannelId, SocketOp)> {
        (!self.ops.is_empty()).then(|| (ChannelId::CONTROL, self.ops.remove(0)))
    }

    fn heal(&mut self, _: Now) {
        self.state = State::Over;
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
        format!("slowloris client: {:?}", self.state)
    }
}

fn receive() -> SocketOp {
    SocketOp::Receive(RecvBuf::heap(vec![0; 512], 0..512))
}
