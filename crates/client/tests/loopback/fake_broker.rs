//! A broker of a few lines that keeps batches in a `Vec`.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use embar_session::LinkConfig;
use embar_wire::batch::Batch;
use embar_wire::control::{
    BrokerInfo, BrokerRole, BrokerState, ClusterMetadata, Control, ErrorCode, ErrorReply,
    Partition, PublisherOpened, StartAt, Subscribed, Topic, TopicCreated, TopicDescription, Topics,
};
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
use embar_wire::time::WallNs;

use super::conversation::{Conversation, Heard};

pub const TOPIC: u32 = 3;

#[derive(Default)]
pub struct Log {
    topic: Option<String>,
    frames: Vec<Vec<u8>>,
    pub next: u64,
    /// Hang up instead of acknowledging this many batches.
    pub hang_ups: u32,
    pub duplicates: u32,
    /// Connections accepted.
    pub connections: u32,
    /// End the session in place of an answer, with this code.
    pub refuse: Option<ErrorCode>,
    /// Subscriptions that are over, whoever ended them.
    pub ended: u32,
    /// Say nothing any more and hear nothing, on any connection; none is closed.
    frozen: bool,
}

/// Head and only data broker in one, number 0.
#[derive(Clone)]
pub struct FakeBroker {
    address: SocketAddr,
    pub log: Arc<Mutex<Log>>,
    changed: Arc<Condvar>,
}

impl FakeBroker {
    pub fn start() -> Self {
        Self::impatient(LinkConfig::default().idle_timeout)
    }

    /// One that ends the session of a client that is silent for `idle`.
    pub fn impatient(idle: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let broker = Self {
            address: listener.local_addr().expect("an address"),
            log: Arc::default(),
            changed: Arc::default(),
        };
        let accepting = broker.clone();
        // Ends with the test process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let broker = accepting.clone();
                broker.log.lock().expect("no panic").connections += 1;
                broker.changed.notify_all();
                thread::spawn(move || broker.serve(Conversation::new(stream, idle)));
            }
        });
        broker
    }

    pub fn bootstrap(&self) -> String {
        self.address.to_string()
    }

    /// Stops or goes on, as a process does by a signal.
    pub fn freeze(&self, frozen: bool) {
        self.log.lock().expect("no panic").frozen = frozen;
        self.changed.notify_all();
    }

    /// Waits for a connection more than there were.
    pub fn wait_for_connection(&self, before: u32) {
        let limit = Duration::from_secs(5);
        let log = self.log.lock().expect("no panic");
        let waits = |log: &mut Log| log.connections == before;
        let (log, timeout) = self
            .changed
            .wait_timeout_while(log, limit, waits)
            .expect("no panic");
        assert!(!timeout.timed_out(), "{} connections", log.connections);
    }

    /// The log, when this broker is not frozen.
    fn log(&self) -> MutexGuard<'_, Log> {
        let log = self.log.lock().expect("no panic");
        self.changed
            .wait_while(log, |log| log.frozen)
            .expect("no panic")
    }

    fn serve(&self, mut client: Conversation) {
        let mut batches = 0;
        let mut acks = true;
        loop {
            drop(self.log());
            match client.hear(Some(Duration::from_millis(1))) {
                Heard::Silence => {}
                Heard::Gone => return,
                Heard::Batch(frame) => {
                    let offset = {
                        let mut log = self.log();
                        if log.hang_ups > 0 {
                            log.hang_ups -= 1;
                            return;
                        }
                        log.append(&frame)
                    };
                    if acks {
                        client.acknowledge(batches, offset);
                    }
                    batches += 1;
                }
                Heard::Request(request)
                    if !matches!(request, Control::Metadata) && self.log().refuse.is_some() =>
                {
                    let code = self.log().refuse.expect("as before");
                    return client.refuse(code, "not like this");
                }
                Heard::Request(Control::Subscribe(subscribe)) => {
                    self.export(client, subscribe.start);
                    self.log().ended += 1;
                    return;
                }
                Heard::Request(request) => {
                    if let Control::OpenPublisher(open) = &request {
                        acks = open.acks == 1;
                    }
                    client.say(&self.answer(request));
                }
            }
        }
    }

    fn answer(&self, request: Control) -> Control {
        let mut log = self.log();
        match request {
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

    fn export(&self, mut client: Conversation, start: StartAt) {
        let next = self.log().next;
        let start = match start {
            StartAt::Earliest => 0,
            StartAt::Latest => next,
            StartAt::Offset(offset) => offset,
        };
        client.say(&Control::Subscribed(Subscribed {
            topic_id: TOPIC,
            start,
            first: 0,
            next,
        }));
        let mut sent = 0;
        // Whatever else a subscriber says is of the session only.
        while let Heard::Silence = client.hear(Some(Duration::from_millis(1))) {
            let mut out = Vec::new();
            let log = self.log();
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
            if !client.send_batches(&out) {
                return;
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
