//! The drivers on real sockets, against a broker of a few lines that keeps batches in a `Vec`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use embar_client::admin::TopicSpec;
use embar_client::{Acks, Admin, Error, NewMessage, Publisher, Start, Subscriber};
use embar_wire::ack::encode_ack;
use embar_wire::batch::Batch;
use embar_wire::control::{
    self, BrokerInfo, BrokerRole, BrokerState, ClusterMetadata, Control, ErrorCode, ErrorReply,
    Partition, PublisherOpened, StartAt, Subscribed, Topic, TopicCreated, TopicDescription, Topics,
    Welcome,
};
use embar_wire::frame::{FrameHeader, FrameId, PROTOCOL_VERSION};
use embar_wire::limits::{BATCH_HEADER_BYTES, Limits, MAX_BATCH_BYTES};
use embar_wire::message::Header;
use embar_wire::time::WallNs;

const TOPIC: u32 = 3;

#[derive(Default)]
struct Log {
    topic: Option<String>,
    frames: Vec<Vec<u8>>,
    next: u64,
    /// Hang up instead of acknowledging this many batches.
    hang_ups: u32,
    duplicates: u32,
}

/// Head and only data broker in one, number 0.
#[derive(Clone)]
struct FakeBroker {
    address: SocketAddr,
    log: Arc<Mutex<Log>>,
}

impl FakeBroker {
    fn start() -> Self {
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

    fn bootstrap(&self) -> String {
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

#[test]
fn what_is_published_is_acknowledged_and_read_in_order() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .batch_bytes(4096)
        .threads_per_broker(2)
        .open()
        .expect("opens and creates the topic");
    let count = 5_000u32;
    let tickets: Vec<_> = (0..count)
        .map(|number| publisher.publish(&number.to_le_bytes()).expect("published"))
        .collect();
    publisher.flush().expect("all stored");
    let mut offsets: Vec<u64> = tickets
        .iter()
        .map(|ticket| publisher.acked(*ticket).wait().expect("stored").offset)
        .collect();
    let by_ticket = offsets.clone();
    offsets.sort_unstable();
    assert!(
        offsets.iter().copied().eq(0..u64::from(count)),
        "each offset once"
    );
    assert_eq!(
        publisher.profile().counters[4].1,
        u64::from(count),
        "messages are counted"
    );
    publisher.close().expect("closes");

    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .from(Start::Earliest)
        .until_end(true)
        .open()
        .expect("opens");
    let mut read = 0;
    while let Some(message) = subscriber.next().expect("reads") {
        assert_eq!(message.offset, read);
        let number = u32::from_le_bytes(message.value.try_into().expect("4 bytes"));
        assert_eq!(by_ticket[number as usize], read);
        read += 1;
    }
    assert_eq!(read, u64::from(count));
    assert_eq!(subscriber.position().to_string(), format!("0:{count}"));
}

#[test]
fn a_single_message_goes_out_after_the_linger_time_without_a_flush() {
    let broker = FakeBroker::start();
    let open = |linger| {
        Publisher::builder(&broker.bootstrap())
            .topic("t")
            .linger(linger)
            .open()
            .expect("opens")
    };
    for linger in [Duration::ZERO, Duration::from_millis(2)] {
        let publisher = open(linger);
        let ticket = publisher.publish(b"one").expect("published");
        publisher
            .acked(ticket)
            .wait_timeout(Duration::from_secs(5))
            .expect("sent by the timer");
    }
    let publisher = open(Duration::from_secs(3600));
    let ticket = publisher.publish(b"two").expect("published");
    let early = publisher
        .acked(ticket)
        .wait_timeout(Duration::from_millis(20));
    assert!(matches!(early, Err(Error::TimedOut { .. })), "{early:?}");
    publisher.close().expect("closing sends it");
    assert_eq!(broker.log.lock().expect("no panic").next, 3);
}

#[test]
fn handles_reservations_keys_and_headers_arrive() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .acks(Acks::None)
        .open()
        .expect("opens");
    let headers = [Header {
        name: "h",
        value: b"v",
    }];
    publisher
        .publish_message(&NewMessage {
            key: Some(b"k"),
            headers: &headers,
            value: b"first",
        })
        .expect("published");
    let mut place = publisher.reserve(6).expect("room");
    place.write_all(b"sec").expect("fits");
    place.write_all(b"ond").expect("fits");
    place.commit();
    drop(publisher.reserve(100).expect("room"));
    let mut place = publisher.reserve(100).expect("room");
    place.with(|bytes| bytes[..5].copy_from_slice(b"third"));
    place.commit_first(5);
    let handle = publisher.handle();
    thread::scope(|scope| {
        scope.spawn(|| handle.publish(b"fourth").expect("published"));
    });
    let too_large = publisher.publish(&vec![0; (1 << 20) + 1]);
    assert!(
        matches!(too_large, Err(Error::MessageTooLarge { .. })),
        "{too_large:?}"
    );
    publisher.close().expect("all handed over");
    assert_eq!(handle.publish(b"late").expect_err("closed"), Error::Closed);

    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .open()
        .expect("opens");
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let message = subscriber
            .next_timeout(Duration::from_secs(5))
            .expect("reads")
            .expect("no end")
            .to_owned();
        seen.push((
            message.key,
            message.headers,
            String::from_utf8(message.value).expect("text"),
        ));
    }
    seen.sort_by(|a, b| a.2.cmp(&b.2));
    assert_eq!(
        seen[0],
        (
            Some(b"k".to_vec()),
            vec![("h".to_string(), b"v".to_vec())],
            "first".to_string()
        )
    );
    let rest: Vec<&str> = seen[1..].iter().map(|message| message.2.as_str()).collect();
    assert_eq!(rest, ["fourth", "second", "third"]);
}

#[test]
fn batches_of_a_lost_connection_are_sent_again_and_marked() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .open()
        .expect("opens");
    broker.log.lock().expect("no panic").hang_ups = 2;
    let ticket = publisher.publish(b"again").expect("published");
    publisher.flush().expect("stored in the end");
    assert_eq!(publisher.acked(ticket).wait().expect("stored").offset, 0);
    assert_eq!(broker.log.lock().expect("no panic").duplicates, 1);
    publisher.close().expect("closes");
}

#[test]
fn few_buffers_block_the_publisher_but_lose_nothing() {
    let broker = FakeBroker::start();
    let acked = Arc::new(Mutex::new(0u64));
    let counter = acked.clone();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .batch_bytes(1024)
        .buffers(2)
        .on_ack(move |delivery| {
            assert!(delivery.result.is_ok());
            *counter.lock().expect("no panic") += u64::from(delivery.messages);
        })
        .open()
        .expect("opens");
    for _ in 0..2_000 {
        publisher.publish(&[7; 100]).expect("published");
    }
    publisher.close().expect("closes");
    assert_eq!(*acked.lock().expect("no panic"), 2_000);
    assert_eq!(broker.log.lock().expect("no panic").next, 2_000);
}

#[test]
fn a_subscriber_waits_for_what_comes_and_resumes_elsewhere() {
    let broker = FakeBroker::start();
    let publisher = Publisher::builder(&broker.bootstrap())
        .topic("t")
        .linger(Duration::ZERO)
        .open()
        .expect("opens");
    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .from(Start::Latest)
        .open()
        .expect("opens");
    let nothing = subscriber
        .next_timeout(Duration::from_millis(5))
        .map(|message| message.is_some());
    assert!(
        matches!(nothing, Err(Error::TimedOut { .. })),
        "{nothing:?}"
    );
    for value in [b"a", b"b", b"c"] {
        publisher.publish(value).expect("published");
    }
    publisher.flush().expect("stored");
    for expected in [b"a", b"b"] {
        let message = subscriber.next().expect("reads").expect("no end");
        assert_eq!(message.value, expected);
    }
    let position = subscriber
        .position()
        .to_string()
        .parse()
        .expect("a position");
    drop(subscriber);
    let mut subscriber = Subscriber::builder(&broker.bootstrap())
        .topic("t")
        .from(Start::Positions(position))
        .open()
        .expect("opens");
    assert_eq!(
        subscriber.next().expect("reads").expect("no end").value,
        b"c"
    );
}

#[test]
fn admin_asks_and_is_answered() {
    let broker = FakeBroker::start();
    let admin = Admin::connect(&broker.bootstrap()).expect("a thread");
    assert!(matches!(
        admin.describe_topic("t").wait(),
        Err(Error::UnknownTopic { .. })
    ));
    let topic = admin
        .create_topic(TopicSpec::new("t"))
        .wait()
        .expect("created");
    assert_eq!((topic.id, topic.name.as_str()), (TOPIC, "t"));
    assert_eq!(
        admin
            .describe_topic("t")
            .wait()
            .expect("there")
            .partitions
            .len(),
        1
    );
    assert_eq!(admin.metadata().wait().expect("answers").brokers.len(), 1);
    assert!(matches!(
        admin.status(7).wait(),
        Err(Error::BadSetting { .. })
    ));
}

#[test]
fn nobody_there_is_told_in_time() {
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("free")
        .port();
    let address = format!("127.0.0.1:{port}");
    let limit = Duration::from_millis(100);
    let publisher = Publisher::builder(&address)
        .topic("t")
        .open_timeout(limit)
        .open();
    assert!(
        matches!(publisher, Err(Error::Unreachable { .. })),
        "{publisher:?}"
    );
    let subscriber = Subscriber::builder(&address)
        .topic("t")
        .open_timeout(limit)
        .open();
    assert!(
        matches!(subscriber, Err(Error::Unreachable { .. })),
        "{subscriber:?}"
    );
}
