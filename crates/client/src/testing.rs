//! What tests of both cores share: frames a broker would send, and a driver that does nothing by itself.

use std::collections::HashMap;
use std::time::Duration;

use embar_frame::{
    CHECKSUM_BYTES, FIRST_RESERVED_ID, FRAME_HEADER_BYTES, FrameHeader, Now, verify_checksum,
};
use embar_session::{Incoming, RingPools, SessionConfig, Step};
use embar_transport::{Address, RecvBuf, SendBuf};
use embar_wire::control::{
    self, BrokerInfo, BrokerRole, BrokerState, ClusterMetadata, Control, ErrorCode, ErrorReply,
    Hello, Role, Topic, TopicDescription, Welcome,
};
use embar_wire::frame::{FrameId, LogProtocol};
use embar_wire::limits::{Limits, MAX_BATCH_BYTES};
use embar_wire::topic::Order;

use crate::connection::ChannelId;

/// A heartbeat, as the session layer numbers it.
const PING: u16 = FIRST_RESERVED_ID + 2;

type Session = embar_session::SessionCore<LogProtocol>;

pub(crate) const SECOND: u64 = 1_000_000_000;

/// Nonce of the region of every test's cluster.
pub(crate) const REGION: u64 = 77;

pub(crate) fn bootstrap() -> Vec<Address> {
    vec!["127.0.0.1:9400".parse().expect("an address")]
}

pub(crate) fn frame(message: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    control::encode(message, &mut bytes).expect("small");
    bytes
}

/// All that a session wants to send now.
fn said(session: &mut Session) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(step) = session.poll() {
        if let Step::Send(buf) = step {
            buf.with_unsent(|head, body| bytes.extend([head, body].concat()));
            session.sent(all_sent(buf), &Ok(()), Now(0));
        }
    }
    bytes
}

/// A broker's end that heard `hello` and has to decide, and the greeting in it.
pub(crate) fn far_end(hello: &[u8]) -> (Session, Vec<u8>) {
    let rings = RingPools::new(16 << 10, 16 << 10, 0).expect("sizes");
    let config = SessionConfig::default().with(|config| {
        config.max_frame_bytes = 4096;
        config.max_body_bytes = MAX_BATCH_BYTES;
        config.idle_timeout = Duration::ZERO;
    });
    let session = Session::accepting(LogProtocol::default(), &config, &rings, Now(0));
    let mut session = session.expect("memory");
    let Some(Step::Recv(mut buf)) = session.poll() else {
        panic!("a session begins with the peer's Hello");
    };
    assert_eq!(buf.fill(hello), hello.len());
    session.received(buf, &Ok(hello.len()), Now(0));
    let Some(Incoming::Opened { greeting }) = session.next(Now(0)) else {
        panic!("no Hello");
    };
    let greeting = greeting.to_vec();
    (session, greeting)
}

/// A broker's end that is open, and what it said for that.
fn open_end(broker_id: u32, region: u64) -> (Session, Vec<u8>) {
    let greeting = Hello {
        role: Role::Client,
        name: String::new(),
    };
    let rings = RingPools::new(16 << 10, 16 << 10, 0).expect("sizes");
    let protocol = LogProtocol::default();
    let config = SessionConfig::default().with(|it| it.max_body_bytes = MAX_BATCH_BYTES);
    let near = Session::connecting(protocol, &config, &rings, &greeting.to_greeting(), Now(0));
    let (mut far, _) = far_end(&said(&mut near.expect("memory")));
    let welcome = Welcome {
        broker_id,
        incarnation: 1,
        max_control_bytes: Limits::default().max_control_bytes,
        max_batch_bytes: Limits::default().max_batch_bytes,
        server: "test".into(),
        region,
    };
    far.welcome(&welcome.to_greeting(), Now(0))
        .expect("decided now");
    let bytes = said(&mut far);
    (far, bytes)
}

/// What broker `broker_id` answers to a Hello.
pub(crate) fn welcome(broker_id: u32) -> Vec<u8> {
    welcome_of(broker_id, REGION)
}

/// The same of a broker of another cluster, or of this.
pub(crate) fn welcome_of(broker_id: u32, region: u64) -> Vec<u8> {
    open_end(broker_id, region).1
}

/// What a broker says that drains.
pub(crate) fn goodbye() -> Vec<u8> {
    let (mut far, _) = open_end(0, REGION);
    far.goodbye("test");
    said(&mut far)
}

/// A sign of life from a broker.
pub(crate) fn pong() -> Vec<u8> {
    let (mut far, _) = open_end(0, REGION);
    far.ping();
    said(&mut far)
}

/// What a broker says as the last thing, with a code of its own.
pub(crate) fn refused(code: ErrorCode) -> Vec<u8> {
    let (mut far, _) = open_end(0, REGION);
    far.refuse(code.number(), "refused", Now(0));
    said(&mut far)
}

pub(crate) fn refusal(code: ErrorCode, retryable: bool, first_available: Option<u64>) -> Control {
    Control::Error(ErrorReply {
        code,
        message: format!("{code:?}"),
        retryable,
        topic: None,
        first_available,
    })
}

/// A head, 0, that takes no data, and data brokers 1 to `data`.
pub(crate) fn cluster(data: u32) -> Control {
    cluster_without(data, None)
}

/// What the head says of topic "t" with this id.
pub(crate) fn topic_description(id: u32) -> Control {
    Control::TopicDescription(TopicDescription {
        topic: Topic {
            id,
            name: "t".into(),
            ..Topic::default()
        },
        ..TopicDescription::default()
    })
}

/// As [`cluster`], with one of them gone.
pub(crate) fn cluster_without(data: u32, gone: Option<u32>) -> Control {
    cluster_with(data, gone, Some(Order::None))
}

/// As [`cluster_without`], with a topic of this order, if there is one.
pub(crate) fn cluster_with(data: u32, gone: Option<u32>, topic_order: Option<Order>) -> Control {
    let state = |id| match Some(id) == gone {
        true => BrokerState::Gone,
        false => BrokerState::Ready,
    };
    cluster_of(data, state, topic_order)
}

/// As a broker tells it unasked.
pub(crate) fn cluster_now(data: u32, state: impl Fn(u32) -> BrokerState) -> Control {
    cluster_of(data, state, None)
}

/// As [`cluster_now`], with a topic of this order, if there is one.
pub(crate) fn cluster_of(
    data: u32,
    state: impl Fn(u32) -> BrokerState,
    topic_order: Option<Order>,
) -> Control {
    let broker = |id| BrokerInfo {
        id,
        state: state(id),
        address: format!("127.0.0.1:{}", 9400 + id),
        incarnation: 1,
        role: if id == 0 {
            BrokerRole::Head
        } else {
            BrokerRole::Member
        },
        takes_data: id > 0,
        socket_machine: 0,
    };
    Control::ClusterMetadata(ClusterMetadata {
        head: 0,
        brokers: (0..=data).map(broker).collect(),
        topic_order,
        sequencer: None,
        region: 0,
        socket_dir: String::new(),
    })
}

/// As a reactor gives it back that sent all of it.
pub(crate) fn all_sent(mut buf: SendBuf) -> SendBuf {
    buf.advance(buf.remaining());
    buf
}

/// Whole frames: their ids, and their bytes.
fn frames(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut frames = Vec::new();
    while let Some(header) = bytes.first_chunk() {
        let header = FrameHeader::parse(header);
        let (frame, rest) = bytes.split_at(header.frame_bytes());
        frames.push((header.id, frame));
        bytes = rest;
    }
    frames
}

/// The control messages in what a client sent; what belongs to the session is left out.
pub(crate) fn control_frames(bytes: &[u8]) -> Vec<Control> {
    let log = frames(bytes)
        .into_iter()
        .filter(|(id, _)| *id < FIRST_RESERVED_ID);
    log.map(|(id, frame)| {
        let id = FrameId::try_from(id).expect("a known frame");
        assert_eq!(verify_checksum(frame), Ok(()));
        let content = &frame[FRAME_HEADER_BYTES..frame.len() - CHECKSUM_BYTES];
        control::decode(id, content).expect("a good frame")
    })
    .collect()
}

/// What a core asked the driver for on one channel, and what it sent.
#[derive(Default)]
pub(crate) struct Socket {
    pub(crate) connecting: Option<Address>,
    pub(crate) receiving: Option<RecvBuf>,
    pub(crate) sent: Vec<Control>,
    /// Heartbeats it sent.
    pub(crate) pings: u32,
    /// It sends nothing any more, or was closed.
    pub(crate) closing: bool,
}

impl Socket {
    /// Takes the control messages of a send; true if a batch follows them.
    pub(crate) fn take_control(&mut self, buf: &SendBuf) -> bool {
        buf.with_unsent(|head, batch| {
            self.sent.extend(control_frames(head));
            let pings = frames(head).into_iter().filter(|(id, _)| *id == PING);
            self.pings += pings.count() as u32;
            !batch.is_empty()
        })
    }

    /// Puts as much of `bytes` into the waiting receive as fits; returns the buffer, how much that was, and the rest.
    pub(crate) fn fill<'a>(&mut self, bytes: &'a [u8]) -> Option<(RecvBuf, usize, &'a [u8])> {
        let mut buf = self.receiving.take()?;
        let count = buf.fill(bytes);
        Some((buf, count, &bytes[count..]))
    }
}

#[derive(Default)]
pub(crate) struct Sockets(HashMap<u32, Socket>);

impl Sockets {
    pub(crate) fn channel(&mut self, channel: ChannelId) -> &mut Socket {
        self.0.entry(channel.0).or_default()
    }

    /// Takes the names of the control frames that were sent on a channel.
    pub(crate) fn taken(&mut self, channel: ChannelId) -> Vec<FrameId> {
        self.channel(channel)
            .sent
            .drain(..)
            .map(|message| message.id())
            .collect()
    }
}
