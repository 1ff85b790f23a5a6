//! A broker of a few lines that keeps batches in a `Vec`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use embar_wire::ack::encode_ack;
use embar_wire::batch::Batch;
use embar_wire::control::{
    self, BrokerInfo, BrokerRole, BrokerState, ClusterMetadata, Control, ErrorCode, ErrorReply,
    Partition, PublisherOpened, StartAt, Subscribed, Topic, TopicCreated, TopicDescription, Topics,
    Welcome,
};
use embar_wire::frame::{FrameHeader, FrameId, PROTOCOL_VERSION};
use embar_wire::limits::{BATCH_HEADER_BYTES, Limits, MAX_BATCH_BYTES};
use embar_wire::time::WallNs;

pub const TOPIC: u32 = 3;

#[derive(Default)]
pub struct Log {
    topic: Option<String>,
    frames: Vec<Vec<u8>>,
    pub next: u64,
    /// Hang up instead of acknowledging this many batches.
    pub hang_ups: u32,
    pub duplicates: u32,
}

/// Head and only data broker in one, number 0.
#[derive(Clone)]
pub struct FakeBroker {
    address: SocketAddr,
    pub log: Arc<Mutex<Log>>,
}

impl FakeBroker {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let broker = Self {
            address: listener.local_addr().expect("an address"),
            log: Arc::default(),
        };
        let accepting = broker.clone();
        // Ends with the test process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let broker = accepting.clone();
                thread::spawn(move || broker.serve(stream));
            }
        });
        broker
    }

    pub fn bootstrap(&self) -> String {
        self.address.to_string()
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut batches = 0;
        let mut acks = true;
        while let Some((id, frame)) = read_frame(&mut stream) {
            let mut out = Vec::new();
            if id == FrameId::Batch {
                let offset = {
                    let mut log = self.log.lock().expect("no panic");
                    if log.hang_ups > 0 {
                        log.hang_ups -= 1;
                        return;
                    }
                    log.append(&frame)
                };
                if acks {
                    encode_ack(batches, None, &[offset], &mut out);
                }
                batches += 1;
            } else {
                let request = control::decode(id, &frame[8..]).expect("a good request");
                if let Control::OpenPublisher(open) = &request {
                    acks = open.acks == 1;
                }
                if let Control::Subscribe(subscribe) = &request {
                    return self.export(stream, subscribe.start);
                }
                control::encode(&self.answer(request), &mut out).expect("small");
            }
            if stream.write_all(&out).is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: Control) -> Control {
        let mut log = self.log.lock().expect("no panic");
        match request {
            Control::Hello(_) => Control::Welcome(Welcome {
                version: PROTOCOL_VERSION,
                broker_id: 0,
                incarnation: 1,
                max_control_bytes: Limits::default().max_control_bytes,
                max_batch_bytes: MAX_BATCH_BYTES,
                server: "fake".into(),
            }),
            Control::Metadata => Control::ClusterMetadata(ClusterMetadata {
                head: 0,
                brokers: vec![BrokerInfo {
                    id: 0,
                    state: BrokerState::Ready,
                    address: self.bootstrap(),
                    incarnation: 1,
                    role: BrokerRole::Head,
                    takes_data: true,
                }],
            }),
            Control::CreateTopic(spec) => {
                log.topic = Some(spec.name);
                Control::TopicCreated(TopicCreated {
                    topic: log.describe(),
                })
            }
            Control::ListTopics => Control::Topics(Topics {
                topics: log.topic.iter().map(|_| log.describe()).collect(),
            }),
            Control::OpenPublisher(open) if log.topic.as_ref() == Some(&open.topic) => {
                Control::PublisherOpened(PublisherOpened {
                    topic_id: TOPIC,
                    max_batch_bytes: MAX_BATCH_BYTES,
                    max_message_bytes: 1 << 20,
                })
            }
            Control::DescribeTopic(_) if log.topic.is_some() => {
                Control::TopicDescription(TopicDescription {
                    topic: log.describe(),
                    partitions: vec![Partition {
                        broker: 0,
                        next: log.next,
                        ..Partition::default()
                    }],
                })
            }
            _ => Control::Error(ErrorReply {
                code: ErrorCode::UnknownTopic,
                message: "no such topic".into(),
                retryable: false,
                topic: Some("t".into()),
                first_available: None,
            }),
        }
    }

    fn export(&self, mut stream: TcpStream, start: StartAt) {
        let next = self.log.lock().expect("no panic").next;
        let start = match start {
            StartAt::Earliest => 0,
            StartAt::Latest => next,
            StartAt::Offset(offset) => offset,
        };
        let mut out = Vec::new();
        let subscribed = Subscribed {
            topic_id: TOPIC,
            start,
            first: 0,
            next,
        };
        control::encode(&Control::Subscribed(subscribed), &mut out).expect("small");
        let mut sent = 0;
        while stream.write_all(&out).is_ok() {
            let log = self.log.lock().expect("no panic");
            out.clear();
            for frame in &log.frames[sent..] {
                let (batch, _) =
                    Batch::split_first(frame, MAX_BATCH_BYTES).expect("checked before");
                let header = batch.header();
                if header.base_offset() + u64::from(header.message_count()) > start {
                    out.extend_from_slice(frame);
                }
            }
            sent = log.frames.len();
            drop(log);
            if out.is_empty() {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Log {
    fn append(&mut self, frame: &[u8]) -> u64 {
        let (batch, _) = Batch::split_first(frame, MAX_BATCH_BYTES).expect("a good batch");
        let mut header = *batch.header();
        assert_eq!(header.topic(), TOPIC);
        if header.flags().bits() != 0 {
            self.duplicates += 1;
        }
        let base = self.next;
        self.next += u64::from(header.message_count());
        header.stamp(base, WallNs(1));
        let mut stored = header.as_bytes().to_vec();
        stored.extend_from_slice(&frame[BATCH_HEADER_BYTES..]);
        self.frames.push(stored);
        base
    }

    fn describe(&self) -> Topic {
        Topic {
            id: TOPIC,
            name: self.topic.clone().unwrap_or_default(),
            ..Topic::default()
        }
    }
}

fn read_frame(stream: &mut TcpStream) -> Option<(FrameId, Vec<u8>)> {
    let mut frame = vec![0; 8];
    stream.read_exact(&mut frame).ok()?;
    let header = FrameHeader::parse(frame.first_chunk()?);
    let id = header.check(&Limits::default()).expect("a good frame");
    frame.resize(header.frame_bytes(), 0);
    stream.read_exact(&mut frame[8..]).ok()?;
    Some((id, frame))
}
