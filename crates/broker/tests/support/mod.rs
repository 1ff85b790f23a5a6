//! A client as bare as can be: a blocking socket, a session's core to read with, and `embar-wire`.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use embar_broker::{BrokerConfig, Cluster, ClusterBuilder};
use embar_frame::{FrameError, FrameHeader, Now, Protocol, Shape};
use embar_session::{
    CloseReason, Closed, Incoming, RingPools, SessionConfig, SessionCore, Side, Step,
};
use embar_transport::{Mapped, SendBuf};
use embar_wire::ack::Ack;
use embar_wire::batch::{BatchFlags, BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{
    self, Control, CreateTopic, ErrorCode, ErrorReply, Hello, OpenPublisher, PublisherOpened, Role,
    Secret, StartAt, Subscribe, Subscribed, Welcome,
};
use embar_wire::frame::{FrameId, LogProtocol};
use embar_wire::isolation::Isolation;
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES, MAX_CONTROL_BYTES};
use embar_wire::message::Messages;
use embar_wire::share::Share;
use embar_wire::time::WallNs;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// The smallest cluster: a head and one broker that takes data. However slow the machine is, it takes no [`Peer`]
/// that waits for its turn for dead.
pub fn small() -> ClusterBuilder {
    let patient = BrokerConfig {
        idle_timeout: Duration::ZERO,
        ..BrokerConfig::default()
    };
    let cluster = Cluster::builder().brokers(2).region_bytes(64 << 20);
    cluster.config(patient)
}

pub fn start(config: BrokerConfig) -> Cluster {
    small()
        .config(config)
        .start()
        .expect("a small cluster starts")
}

/// What came from a broker.
#[derive(Debug)]
pub enum Frame {
    /// The handshake is over.
    Welcome(Welcome),
    Control(Control),
    Ack {
        first: u64,
        refused: Option<ErrorCode>,
        bases: Vec<u64>,
    },
    Batch {
        header: BatchHeader,
        payload: Vec<u8>,
    },
    Goodbye(String),
    /// The broker said that it is over.
    Closed(Closed),
}

/// It reads through a session's core, which never reads past the frame at hand, and writes as it
/// likes. It sends no heartbeats.
pub struct Peer {
    pub stream: TcpStream,
    core: SessionCore<LogProtocol>,
    /// Until [`Peer::greet`] sends it.
    hello: Option<SendBuf>,
    silent: bool,
    /// Batches acknowledged so far.
    acked: u64,
}

fn rings() -> &'static RingPools {
    static RINGS: OnceLock<RingPools> = OnceLock::new();
    RINGS.get_or_init(|| RingPools::new(16 << 10, 256 << 10, 16).expect("memory for rings"))
}

/// Of a peer that waits for ever.
fn patient() -> SessionConfig {
    SessionConfig::default().with(|config| {
        config.max_frame_bytes = MAX_CONTROL_BYTES;
        config.max_body_bytes = MAX_BATCH_BYTES;
        config.keep_alive = Duration::ZERO;
        config.idle_timeout = Duration::ZERO;
        config.read_ahead = 0;
    })
}

impl Peer {
    /// A connection that says nothing of itself.
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the broker listens");
        stream.set_nodelay(true).expect("an option");
        Self::on(stream)
    }

    /// As [`Peer::connect`], by the broker's Unix socket.
    pub fn connect_unix(file: &Path) -> Self {
        let stream = UnixStream::connect(file).expect("the broker listens");
        // Reading and writing is the same for both; what only TCP has fails.
        Self::on(TcpStream::from(OwnedFd::from(stream)))
    }

    fn on(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let hello = Hello {
            role: Role::Client,
            name: "test".into(),
        };
        let core = SessionCore::connecting(
            LogProtocol::default(),
            &patient(),
            rings(),
            &hello.to_greeting(),
            Now(0),
        );
        Self {
            stream,
            core: core.expect("memory for rings"),
            hello: None,
            silent: true,
            acked: 0,
        }
    }

    /// A connection that said hello.
    pub fn greet(address: SocketAddr) -> Self {
        Self::connect(address).greeted()
    }

    /// After it said hello.
    pub fn greeted(mut self) -> Self {
        let answer = self.say_hello();
        assert!(matches!(answer, Some(Frame::Welcome(_))), "{answer:?}");
        self
    }

    pub fn say_hello(&mut self) -> Option<Frame> {
        self.silent = false;
        if let Some(hello) = self.hello.take() {
            self.carry_out(hello);
        }
        self.receive()
    }

    pub fn send(&mut self, message: &Control) {
        let mut bytes = Vec::new();
        control::encode(message, &mut bytes).expect("small enough");
        self.stream.write_all(&bytes).expect("the broker reads");
    }

    pub fn ask(&mut self, message: &Control) -> Control {
        self.send(message);
        let answer = match message {
            Control::Metadata(_) => self.receive(),
            _ => self.receive_own(),
        };
        match answer.expect("an answer") {
            Frame::Control(answer) => answer,
            other => panic!("{other:?} is no answer"),
        }
    }

    /// As [`Peer::receive`], but for what streams are told of the cluster.
    fn receive_own(&mut self) -> Option<Frame> {
        loop {
            match self.receive() {
                Some(Frame::Control(Control::ClusterMetadata(_))) => {}
                other => return other,
            }
        }
    }

    /// The next frame; `None` once the broker closed the connection.
    pub fn receive(&mut self) -> Option<Frame> {
        loop {
            let Some(incoming) = self.core.next(Now(0)) else {
                if !self.exchange() {
                    return None;
                }
                continue;
            };
            return Some(match incoming {
                Incoming::Opened { greeting } => {
                    Frame::Welcome(Welcome::from_greeting(greeting).expect("a good greeting"))
                }
                Incoming::Message(message) if message.id() == FrameId::Ack as u16 => {
                    let ack = Ack::parse(message.payload()).expect("a good ack");
                    Frame::Ack {
                        first: ack.first(),
                        refused: ack.refused(),
                        bases: ack.base_offsets().collect(),
                    }
                }
                Incoming::Message(message) => {
                    let id = FrameId::try_from(message.id()).expect("a known id");
                    let message = control::decode(id, message.payload());
                    Frame::Control(message.expect("a good message"))
                }
                Incoming::Head(head) => {
                    let header = head.header().to_bytes();
                    let header = BatchHeader::parse(&[&header, head.head()].concat(), u32::MAX);
                    let header = header.expect("a good header");
                    let mut payload = vec![0; self.core.body_due()];
                    if !fill(&mut self.stream, &mut payload) {
                        panic!("half a frame");
                    }
                    self.core.body_received(payload.len(), Now(0));
                    header.check_payload(&payload).expect("a good payload");
                    Frame::Batch { header, payload }
                }
                Incoming::Goodbye(goodbye) => Frame::Goodbye(goodbye.text.into()),
                Incoming::Closed(closed) if closed.by == Side::Peer => Frame::Closed(closed),
                Incoming::Closed(closed) if closed.reason == CloseReason::Disconnected => {
                    return None;
                }
                other => panic!("brokers send good frames: {other:?}"),
            });
        }
    }

    /// Sends what the core wants and receives once; false when all is over.
    fn exchange(&mut self) -> bool {
        let mut wanted = None;
        while let Some(step) = self.core.poll() {
            match step {
                Step::Recv(buf) => wanted = Some(buf),
                Step::Send(buf) if self.silent => self.hello = Some(buf),
                Step::Send(buf) => self.carry_out(buf),
                Step::ShutdownWrite | Step::Close => return false,
            }
        }
        let Some(mut buf) = wanted else {
            return !self.core.is_over();
        };
        let result = match self.stream.read(buf.spaces().0) {
            Err(e) if e.kind() == ErrorKind::ConnectionReset => Ok(0),
            other => Ok(other.expect("the broker sends")),
        };
        if let Ok(count) = result {
            buf.advance(count);
        }
        self.core.received(buf, &result, Now(0));
        true
    }

    fn carry_out(&mut self, mut buf: SendBuf) {
        // If the broker has closed, what it said before is still to be read.
        let _ = buf.with_unsent(|head, body| {
            self.stream.write_all(head)?;
            self.stream.write_all(body)
        });
        buf.advance(buf.remaining());
        self.core.sent(buf, &Ok(()), Now(0));
    }

    /// The error that the broker sends before it closes, as the log's own or as the session's, and
    /// that it does close.
    pub fn expect_refusal(&mut self) -> ErrorReply {
        let error = loop {
            match self.receive_own().expect("an error before the end") {
                Frame::Control(Control::Error(error)) => break error,
                Frame::Closed(closed) => break error_of(closed),
                Frame::Ack { .. } | Frame::Batch { .. } => {}
                other => panic!("{other:?} instead of an error"),
            }
        };
        self.expect_end();
        error
    }

    /// Nothing comes any more but the session's end and that of the connection.
    pub fn expect_end(&mut self) {
        match self.receive() {
            None => {}
            Some(Frame::Closed(_)) => assert!(self.receive().is_none()),
            other => panic!("{other:?} instead of the end"),
        }
        let ended = self.stream.read(&mut [0]);
        let reset = |e: &std::io::Error| e.kind() == ErrorKind::ConnectionReset;
        assert!(
            ended.as_ref().is_ok_and(|n| *n == 0) || ended.as_ref().is_err_and(reset),
            "the connection ends: {ended:?}"
        );
    }

    pub fn open_publisher(&mut self, topic: &str, acks: u32) -> PublisherOpened {
        self.open_publisher_as(topic, 7, acks)
    }

    /// On an ordered topic: the session of that producer.
    pub fn open_session(&mut self, topic: &str, producer: u64) -> PublisherOpened {
        self.open_publisher_as(topic, producer, 1)
    }

    fn open_publisher_as(&mut self, topic: &str, producer: u64, acks: u32) -> PublisherOpened {
        let open = OpenPublisher {
            topic: topic.into(),
            producer,
            acks,
            instance: 1,
            secret: Secret([7; 16]),
            ..OpenPublisher::default()
        };
        match self.ask(&Control::OpenPublisher(open)) {
            Control::PublisherOpened(opened) => opened,
            other => panic!("{other:?}"),
        }
    }

    pub fn subscribe(&mut self, topic: &str, start: StartAt) -> Subscribed {
        match self.ask(&Control::Subscribe(Subscribe {
            topic: topic.into(),
            start,
            topic_id: 0,
            share: Share::All,
            isolation: Isolation::Durable,
        })) {
            Control::Subscribed(subscribed) => subscribed,
            other => panic!("{other:?}"),
        }
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the broker reads");
    }

    pub fn expect_ack(&mut self) -> (u64, Vec<u64>) {
        match self.receive_own().expect("an ack") {
            Frame::Ack {
                first,
                refused: None,
                bases,
            } => (first, bases),
            other => panic!("{other:?} instead of an ack"),
        }
    }

    /// Acks of `count` batches, whichever frames they come in.
    pub fn expect_acks(&mut self, count: usize) -> Vec<u64> {
        let mut all = Vec::new();
        while all.len() < count {
            let (first, bases) = self.expect_ack();
            assert_eq!(first, self.acked, "acks are cumulative");
            self.acked += bases.len() as u64;
            all.extend(bases);
        }
        all
    }

    /// What became of `count` batches: where they are, or why not and the session's mark.
    pub fn expect_answers(&mut self, count: usize) -> Vec<Result<u64, (ErrorCode, u64)>> {
        let mut all = Vec::new();
        while all.len() < count {
            match self.receive_own().expect("an ack") {
                Frame::Ack {
                    first,
                    refused,
                    bases,
                } => {
                    assert_eq!(first, self.acked, "acks are cumulative");
                    self.acked += bases.len() as u64;
                    let answer = |base| refused.map_or(Ok(base), |code| Err((code, base)));
                    all.extend(bases.into_iter().map(answer));
                }
                other => panic!("{other:?} instead of an ack"),
            }
        }
        all
    }

    /// Messages until `count` of them came: offsets and values.
    pub fn read(&mut self, count: usize) -> Vec<(u64, Vec<u8>)> {
        let mut got = Vec::new();
        while got.len() < count {
            match self.receive_own().expect("a batch") {
                Frame::Batch { header, payload } => got.extend(messages(&header, &payload)),
                other => panic!("{other:?} instead of a batch"),
            }
        }
        got
    }
}

fn fill(stream: &mut TcpStream, into: &mut [u8]) -> bool {
    match stream.read_exact(into) {
        Ok(()) => true,
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
            ) =>
        {
            false
        }
        Err(e) => panic!("nothing came: {e}"),
    }
}

/// What the session layer says, in the words of the log.
pub fn error_of(closed: Closed) -> ErrorReply {
    let code = match closed.reason {
        CloseReason::Refused => ErrorCode::from_number(closed.code),
        CloseReason::TooLarge => ErrorCode::TooLarge,
        CloseReason::NotSession | CloseReason::UnknownFrame | CloseReason::BadFrame => {
            ErrorCode::BadFrame
        }
        CloseReason::Protocol | CloseReason::SessionVersion => ErrorCode::UnsupportedVersion,
        CloseReason::HelloTimeout | CloseReason::FrameTimeout | CloseReason::Idle => {
            ErrorCode::Timeout
        }
        other => panic!("no refusal: {other}"),
    };
    ErrorReply {
        code,
        message: closed.text,
        retryable: false,
        topic: None,
        first_available: None,
    }
}

/// The first bytes of a client that speaks another version of the log's protocol.
pub struct Future;

impl Protocol for Future {
    const NAME: &'static str = LogProtocol::NAME;
    const VERSION: u32 = 99;

    fn shape(&self, _: FrameHeader) -> Result<Shape, FrameError> {
        Ok(Shape::Whole)
    }
}

/// The HELLO of a client that speaks `protocol`.
pub fn hello_of(protocol: impl Protocol) -> Vec<u8> {
    let hello = Hello {
        role: Role::Client,
        name: "test".into(),
    };
    let core = SessionCore::<_, Mapped>::connecting(
        protocol,
        &patient(),
        rings(),
        &hello.to_greeting(),
        Now(0),
    );
    let mut core = core.expect("memory for rings");
    loop {
        match core.poll().expect("it says hello") {
            Step::Send(buf) => return buf.with_unsent(|head, _| head.to_vec()),
            _ => continue,
        }
    }
}

pub fn messages(header: &BatchHeader, payload: &[u8]) -> Vec<(u64, Vec<u8>)> {
    Messages::new(payload, header.message_count())
        .map(|m| m.expect("a good message"))
        .map(|m| (header.base_offset() + u64::from(m.index), m.value.to_vec()))
        .collect()
}

/// A sealed batch of these values.
pub fn batch(topic: u32, sequence: u64, values: &[&[u8]]) -> Vec<u8> {
    batch_of(7, 0, topic, sequence, values)
}

/// A sealed batch of a producer's session.
pub fn batch_of(producer: u64, epoch: u32, topic: u32, sequence: u64, values: &[&[u8]]) -> Vec<u8> {
    let bytes: usize = values.iter().map(|v| v.len() + 64).sum();
    let mut builder = BatchBuilder::new(Vec::new(), (bytes + 256).next_multiple_of(64));
    for value in values {
        builder.try_push(None, &[], value).expect("it fits");
    }
    builder
        .seal(SealFields {
            producer,
            sequence,
            topic,
            epoch,
            append_time: WallNs(1),
            flags: BatchFlags::default(),
        })
        .into()
}

pub fn create_topic(cluster: &Cluster, name: &str, retention_bytes: u64) {
    create_topic_of_order(cluster, name, 0, retention_bytes);
}

pub fn create_topic_of_order(cluster: &Cluster, name: &str, order: u32, retention_bytes: u64) {
    let spec = CreateTopic {
        name: name.into(),
        order,
        retention_bytes,
        retention_ms: 0,
        max_message_bytes: 0,
        replication_factor: 1,
    };
    let answer = Peer::greet(cluster.bootstrap()).ask(&Control::CreateTopic(spec));
    assert!(matches!(answer, Control::TopicCreated(_)), "{answer:?}");
}

/// The address of the first broker that takes data.
pub fn data(cluster: &Cluster) -> SocketAddr {
    cluster.broker(1).expect("broker 1 runs").address()
}

/// Waits until `what` holds, and says so if it never does.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `figure` stands still while the broker's network thread has many rounds, in each of which it does
/// whatever it can.
pub fn until_still(what: &str, cluster: &Cluster, mut figure: impl FnMut() -> u64) {
    const ROUNDS: usize = 500;
    let mut asker = Peer::greet(data(cluster));
    let mut last = figure();
    eventually(what, || {
        for _ in 0..ROUNDS {
            asker.ask(&Control::Status);
        }
        let now = figure();
        std::mem::replace(&mut last, now) == now
    });
}

/// The same batch over another payload, with right checksums.
pub fn reseal(batch: &[u8], payload: &[u8]) -> Vec<u8> {
    let crc = embar_frame::crc32c(payload);
    let mut header = batch[..BATCH_HEADER_BYTES].to_vec();
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    header[8..12].fill(0);
    let crc = embar_frame::crc32c(&header);
    header[8..12].copy_from_slice(&crc.to_le_bytes());
    [&header, payload].concat()
}
