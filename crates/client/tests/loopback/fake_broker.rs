//! A broker of a few lines that keeps batches in a `Vec`.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use embar_session::SessionConfig;
use embar_wire::batch::Batch;
use embar_wire::control::{
    BrokerInfo, BrokerRole, BrokerState, ClusterMetadata, Control, ErrorCode, ErrorReply,
    Partition, PublisherOpened, SessionOpened, StartAt, Subscribed, Topic, TopicCreated,
    TopicDescription, Topics,
};
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};
use embar_wire::time::WallNs;
use embar_wire::topic::Order;

use super::LONG;
use super::conversation::{Conversation, Heard};

pub const TOPIC: u32 = 3;

#[derive(Default)]
pub struct Log {
    topic: Option<String>,
    frames: Vec<Vec<u8>>,
    pub next: u64,
    /// Order of the topic.
    pub order: Order,
    /// Epoch of the one session there is, on a topic of order 5.
    epoch: u32,
    /// It is over.
    fenced: bool,
    /// Where its batches are, by number; and so the number that it expects next.
    stored: Vec<u64>,
    /// End the epoch at this many batches instead of storing them.
    pub fences: u32,
    /// Store this many batches and hang up.
    pub lost_acks: u32,
    /// The session was closed.
    pub closed: bool,
    /// Hang up instead of acknowledging this many batches.
    pub hang_ups: u32,
    pub duplicates: u32,
    /// Connections accepted.
    pub connections: u32,
    /// End the session in place of an answer, with this code.
    pub refuse: Option<ErrorCode>,
    /// End the session in place of a welcome, with this code.
    pub turn_away: Option<ErrorCode>,
    /// Subscriptions that are over, whoever ended them.
    pub ended: u32,
    /// How often a subscriber said something after its subscription began: that it lives.
    pub heartbeats: u64,
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
        Self::impatient(SessionConfig::default().idle_timeout)
    }

    /// One that tells its clients that they may be silent for `idle`; their heartbeats are counted.
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

    /// Wait for something to be so.
    pub fn wait_until(&self, is_so: impl Fn(&Log) -> bool) {
        let log = self.log.lock().expect("no panic");
        let (log, timeout) = self
            .changed
            .wait_timeout_while(log, LONG, |log| !is_so(log))
            .expect("no panic");
        let (connections, heartbeats) = (log.connections, log.heartbeats);
        assert!(
            !timeout.timed_out(),
            "{connections} connections, {heartbeats} heartbeats"
        );
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
        let turn_away = self.log().turn_away;
        if let Some(code) = turn_away {
            return client.turn_away(code, "not like this");
        }
        loop {
            drop(self.log());
            match client.hear(Some(Duration::from_millis(1))) {
                Heard::Silence => {}
                Heard::Gone => return,
                Heard::Batch(frame) => {
                    let stored = {
                        let mut log = self.log();
                        // Somebody may wait until as much has broken.
                        self.changed.notify_all();
                        if take_one(&mut log.hang_ups) {
                            return;
                        }
                        let stored = log.take_in(&frame);
                        if stored.is_ok() && take_one(&mut log.lost_acks) {
                            return;
                        }
                        stored
                    };
                    if acks {
                        client.acknowledge(batches, stored);
                    }
                    batches += 1;
                }
                Heard::Request(request)
                    if !matches!(request, Control::Metadata(_)) && self.log().refuse.is_some() =>
                {
                    let code = self.log().refuse.expect("as before");
                    return client.refuse(code, "not like this");
                }
                Heard::Request(Control::Subscribe(subscribe)) => {
                    self.export(client, subscribe.start);
                    self.log().ended += 1;
                    self.changed.notify_all();
                    return;
                }
                Heard::Request(request) => {
                    if let Control::OpenPublisher(open) = &request {
                        acks = open.acks != 0;
                    }
                    client.say(&self.answer(request));
                }
            }
        }
    }

    fn answer(&self, request: Control) -> Control {
        let mut log = self.log();
        match request {
            Control::Metadata(_) => Control::ClusterMetadata(ClusterMetadata {
                head: 0,
                brokers: vec![BrokerInfo {
                    id: 0,
                    state: BrokerState::Ready,
                    address: self.bootstrap(),
                    incarnation: 1,
                    role: BrokerRole::Head,
                    takes_data: true,
                    socket_machine: 0,
                }],
                topic_order: log.topic.as_ref().map(|_| log.order),
                sequencer: None,
                region: 0,
                socket_dir: String::new(),
            }),
            Control::CreateTopic(spec) => {
                log.topic = Some(spec.name);
                Control::TopicCreated(TopicCreated {
                    topic: log.describe(),
                })
            }
            Control::ListTopics(_) => Control::Topics(Topics {
                topics: log.topic.iter().map(|_| log.describe()).collect(),
                next: 0,
            }),
            Control::OpenPublisher(open) if log.topic.as_ref() == Some(&open.topic) => {
                Control::PublisherOpened(PublisherOpened {
                    topic_id: TOPIC,
                    max_batch_bytes: MAX_BATCH_BYTES,
                    max_message_bytes: 1 << 20,
                    order: log.order,
                    session: 0,
                    session_epoch: log.epoch,
                    mark: log.stored.len() as u64,
                    window: 64,
                    first_epoch: 1,
                })
            }
            Control::OpenSession(open) => {
                if open.gives_up == log.epoch {
                    (log.epoch, log.fenced) = (log.epoch + 1, false);
                }
                Control::SessionOpened(SessionOpened {
                    session: 0,
                    session_epoch: log.epoch,
                    mark: log.stored.len() as u64,
                    first_epoch: 1,
                })
            }
            Control::CloseSession => {
                log.closed = true;
                Control::Done
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
            order: self.log().order,
        }));
        let mut sent = 0;
        let before = client.receipts();
        // Whatever else a subscriber says is of the session only.
        while let Heard::Silence = client.hear(Some(Duration::from_millis(1))) {
            let mut out = Vec::new();
            let mut log = self.log();
            log.heartbeats = client.receipts() - before;
            self.changed.notify_all();
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

fn take_one(left: &mut u32) -> bool {
    let any = *left > 0;
    *left = left.saturating_sub(1);
    any
}

impl Log {
    /// Where the batch is, or why it is nowhere, with the session's mark.
    fn take_in(&mut self, frame: &[u8]) -> Result<u64, (ErrorCode, u64)> {
        if !self.order.is_total() {
            return Ok(self.append(frame));
        }
        let (batch, _) = Batch::split_first(frame, MAX_BATCH_BYTES).expect("a good batch");
        let (epoch, number) = (batch.header().epoch(), batch.header().sequence());
        let mark = self.stored.len() as u64;
        if number < mark {
            return Ok(self.stored[number as usize]);
        }
        if number == mark && take_one(&mut self.fences) {
            self.fenced = true;
        }
        if epoch < self.epoch || self.fenced {
            return Err((ErrorCode::Fenced, mark));
        }
        if number > mark {
            return Err((ErrorCode::HeldFull, 0));
        }
        let base = self.append(frame);
        self.stored.push(base);
        Ok(base)
    }

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
            order: self.order,
            ..Topic::default()
        }
    }
}
