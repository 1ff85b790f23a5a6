//! A client as bare as can be: blocking sockets and `embar-wire`.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use embar_broker::{BrokerConfig, Cluster, ClusterBuilder};
use embar_wire::ack::Ack;
use embar_wire::batch::{BatchFlags, BatchHeader, SealFields};
use embar_wire::builder::BatchBuilder;
use embar_wire::control::{
    self, Control, CreateTopic, ErrorReply, Hello, OpenPublisher, PublisherOpened, Role, StartAt,
    Subscribe, Subscribed,
};
use embar_wire::frame::{FrameHeader, FrameId, PROTOCOL_VERSION};
use embar_wire::limits::{BATCH_HEADER_BYTES, FRAME_HEADER_BYTES, Limits};
use embar_wire::message::Messages;
use embar_wire::time::WallNs;

pub const PATIENCE: Duration = Duration::from_secs(10);

/// The smallest cluster: a head and one broker that takes data.
pub fn small() -> ClusterBuilder {
    Cluster::builder().brokers(2).region_bytes(64 << 20)
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
    Control(Control),
    Ack {
        first: u64,
        bases: Vec<u64>,
    },
    Batch {
        header: BatchHeader,
        payload: Vec<u8>,
    },
}

pub struct Peer {
    pub stream: TcpStream,
    /// Batches acknowledged so far.
    acked: u64,
}

impl Peer {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the broker listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        Self { stream, acked: 0 }
    }

    /// A connection that said hello.
    pub fn greet(address: SocketAddr) -> Self {
        let mut peer = Self::connect(address);
        let hello = Hello {
            version: PROTOCOL_VERSION,
            role: Role::Client,
            name: "test".into(),
        };
        let welcome = peer.ask(&Control::Hello(hello));
        assert!(matches!(welcome, Control::Welcome(_)), "{welcome:?}");
        peer
    }

    pub fn send(&mut self, message: &Control) {
        let mut bytes = Vec::new();
        control::encode(message, &mut bytes).expect("small enough");
        self.stream.write_all(&bytes).expect("the broker reads");
    }

    pub fn ask(&mut self, message: &Control) -> Control {
        self.send(message);
        match self.receive().expect("an answer") {
            Frame::Control(answer) => answer,
            other => panic!("{other:?} is no answer"),
        }
    }

    /// The next frame; `None` once the broker closed the connection.
    pub fn receive(&mut self) -> Option<Frame> {
        let mut head = [0; FRAME_HEADER_BYTES];
        if !self.fill(&mut head) {
            return None;
        }
        let header = FrameHeader::parse(&head);
        let id = header
            .check(&Limits::default())
            .expect("brokers send good frames");
        let mut body = vec![0; header.length as usize];
        assert!(self.fill(&mut body), "half a frame");
        Some(match id {
            FrameId::Batch => {
                let mut bytes = head.to_vec();
                bytes.extend_from_slice(&body);
                let header = BatchHeader::parse(&bytes, u32::MAX).expect("a good header");
                let payload = bytes.split_off(BATCH_HEADER_BYTES);
                header.check_payload(&payload).expect("a good payload");
                Frame::Batch { header, payload }
            }
            FrameId::Ack => {
                let ack = Ack::parse(&body).expect("a good ack");
                Frame::Ack {
                    first: ack.first(),
                    bases: ack.base_offsets().collect(),
                }
            }
            id => Frame::Control(control::decode(id, &body).expect("a good message")),
        })
    }

    fn fill(&mut self, into: &mut [u8]) -> bool {
        match self.stream.read_exact(into) {
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

    /// The error that the broker sends before it closes, and that it does close.
    pub fn expect_refusal(&mut self) -> ErrorReply {
        let error = loop {
            match self.receive().expect("an error before the end") {
                Frame::Control(Control::Error(error)) => break error,
                Frame::Ack { .. } | Frame::Batch { .. } => {}
                other => panic!("{other:?} instead of an error"),
            }
        };
        assert!(
            self.receive().is_none(),
            "the connection ends after {error:?}"
        );
        error
    }

    pub fn open_publisher(&mut self, topic: &str, acks: u32) -> PublisherOpened {
        let open = OpenPublisher {
            topic: topic.into(),
            producer: 7,
            acks,
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
        })) {
            Control::Subscribed(subscribed) => subscribed,
            other => panic!("{other:?}"),
        }
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the broker reads");
    }

    pub fn expect_ack(&mut self) -> (u64, Vec<u64>) {
        match self.receive().expect("an ack") {
            Frame::Ack { first, bases } => (first, bases),
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

    /// Messages until `count` of them came: offsets and values.
    pub fn read(&mut self, count: usize) -> Vec<(u64, Vec<u8>)> {
        let mut got = Vec::new();
        while got.len() < count {
            match self.receive().expect("a batch") {
                Frame::Batch { header, payload } => got.extend(messages(&header, &payload)),
                other => panic!("{other:?} instead of a batch"),
            }
        }
        got
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
    let bytes: usize = values.iter().map(|v| v.len() + 64).sum();
    let mut builder = BatchBuilder::new(Vec::new(), (bytes + 256).next_multiple_of(64));
    for value in values {
        builder.try_push(None, &[], value).expect("it fits");
    }
    builder.seal(SealFields {
        producer: 7,
        sequence,
        topic,
        epoch: 0,
        append_time: WallNs(1),
        flags: BatchFlags::default(),
    })
}

pub fn create_topic(cluster: &Cluster, name: &str, retention_bytes: u64) {
    let spec = CreateTopic {
        name: name.into(),
        order: 0,
        retention_bytes,
        max_message_bytes: 0,
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

/// The same batch over another payload, with right checksums.
pub fn reseal(batch: &[u8], payload: &[u8]) -> Vec<u8> {
    let crc = embar_wire::crc::crc32c(payload);
    let mut header = batch[..BATCH_HEADER_BYTES].to_vec();
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    header[8..12].fill(0);
    let crc = embar_wire::crc::crc32c(&header);
    header[8..12].copy_from_slice(&crc.to_le_bytes());
    [&header, payload].concat()
}
