//! What a message costs a server and a client that run: no allocation, in any of their threads.

#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
mod proto {
    mod generated {
        include!(concat!(env!("OUT_DIR"), "/testing.include.rs"));
    }
    pub use self::generated::embar::testing::v1::*;
}

use std::fs;
use std::mem;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use buffa::Message as _;
use embar_session::{Client, Flow, Handler, Message, OnFull, Plain, Server, Session, Settings};
use embar_transport::Address;
use embar_transport::alloc::{Counting, of_process, set_counting};
use embar_transport::ring::{RingPool, SendRing};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ECHO: u16 = 1;
const TAKE: u16 = 2;

const MESSAGES: u64 = 10_000;

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Counts messages, and wakes the test's thread for each of those it may wait for.
struct Counted {
    count: AtomicU64,
    waiting: Thread,
}

impl Counted {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            count: AtomicU64::new(0),
            waiting: thread::current(),
        })
    }

    fn one_more(&self, wakes: u64) {
        let count = self.count.fetch_add(1, Ordering::Release) + 1;
        if count.is_multiple_of(wakes) {
            self.waiting.unpark();
        }
    }

    /// Waits until there are so many.
    fn reaches(&self, count: u64) {
        let deadline = Instant::now() + LONG;
        while self.count.load(Ordering::Acquire) < count {
            assert!(Instant::now() < deadline, "{count} are never reached");
            thread::park_timeout(LONG);
        }
    }
}

/// Echoes or takes.
struct Serve {
    taken: Arc<Counted>,
    has_waited: bool,
}

impl Handler for Serve {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let packet: proto::PacketView<'_> = message.decode().unwrap();
        if !mem::replace(&mut self.has_waited, true) {
            wait_for_room();
        }
        if message.id() == ECHO {
            session.send_view(ECHO, &packet).unwrap();
        } else {
            self.taken.one_more(MESSAGES);
        }
        Flow::Continue
    }
}

/// Checks that the answers are those to the questions, one after the other.
struct Answers(Arc<Counted>);

impl Handler for Answers {
    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        let packet: proto::PacketView<'_> = message.decode().unwrap();
        let answers = self.0.count.load(Ordering::Relaxed);
        assert_eq!(packet.number, FIRST + answers);
        self.0.one_more(1);
        Flow::Continue
    }
}

/// As long as all numbers that follow.
const FIRST: u64 = 1 << 14;

/// 64 bytes.
fn packet() -> proto::Packet {
    let packet = proto::Packet {
        number: FIRST,
        name: "eight by".into(),
        data: vec![7; 48],
        ..Default::default()
    };
    assert_eq!(packet.encoded_len(), 64);
    packet
}

/// A thread that waits for room for the first time makes its waker, which it has from then on. On a
/// busy machine it may wait at any message.
fn wait_for_room() {
    let ring = SendRing::new(&RingPool::new(4096, 0).unwrap()).unwrap();
    let _all = ring.reserve(ring.capacity()).unwrap();
    ring.wait_room(1, Duration::ZERO).unwrap_err();
}

/// The thread that waits for the test's end allocates when it begins to wait, and must not do that
/// while we count.
fn wait_for_test_harness() {
    if thread::current().name() == Some("main") {
        return;
    }
    let stat = format!("/proc/self/task/{}/stat", process::id());
    let deadline = Instant::now() + LONG;
    while !fs::read_to_string(&stat).unwrap().contains(") S ") {
        assert!(Instant::now() < deadline, "the main thread never waits");
        thread::yield_now();
    }
}

/// A server and a client in full work, both directions, with rings of so many bytes.
fn work(send_ring_bytes: usize) {
    set_counting(true);
    let settings = Settings::default().with(|settings| {
        settings.send_ring_bytes = send_ring_bytes;
        settings.on_full = OnFull::Wait { timeout: LONG };
    });
    let (taken, answered) = (Counted::new(), Counted::new());
    let at_server = Arc::clone(&taken);
    let server = Server::builder()
        .settings(settings.clone())
        .listen(Address::Tcp(([127, 0, 0, 1], 0).into()))
        .start(move |_| Serve {
            taken: Arc::clone(&at_server),
            has_waited: false,
        })
        .unwrap();
    let client = Client::with(Plain, settings).unwrap();
    let handler = Answers(Arc::clone(&answered));
    let session = client.connect(server.address(), handler).unwrap();

    let echoes = |packet: &mut proto::Packet, count| {
        let before = answered.count.load(Ordering::Relaxed);
        for number in 0..count {
            packet.number = FIRST + before + number;
            session.send(ECHO, packet).unwrap();
            answered.reaches(before + number + 1);
        }
    };
    let mut asked = packet();
    wait_for_test_harness();
    wait_for_room();
    // The first message of a session may allocate, and no other one.
    echoes(&mut asked, 1);
    let before = of_process().times;
    assert!(before > 0, "the first ones are counted");
    echoes(&mut asked, MESSAGES);
    let count = of_process().times - before;
    assert_eq!(count, 0, "{MESSAGES} echoes allocated");

    // A thread of its own, as making one allocates.
    let turns = Arc::new(AtomicU64::new(0));
    let sender = {
        let (session, turns) = (session.clone(), Arc::clone(&turns));
        thread::spawn(move || {
            let packet = packet();
            wait_for_room();
            for turn in 1..=2 {
                while turns.load(Ordering::Acquire) < turn {
                    thread::park();
                }
                for _ in 0..MESSAGES {
                    session.send(TAKE, &packet).unwrap();
                }
            }
        })
    };
    let stream = |turn| {
        turns.store(turn, Ordering::Release);
        sender.thread().unpark();
        taken.reaches(turn * MESSAGES);
    };
    stream(1);
    let before = of_process().times;
    stream(2);
    let count = of_process().times - before;
    assert_eq!(count, 0, "{MESSAGES} messages one way allocated");
    sender.join().unwrap();
    assert_eq!(session.closed(), None);
}

/// One test, as every thread of the process counts.
#[test]
fn a_message_costs_no_allocation_in_any_thread() {
    work(256 << 10);
    // The sender meets a full ring again and again.
    work(4 << 10);
    // Somebody takes debug output, of something else.
    let filter = EnvFilter::new("off,something_else=debug");
    tracing_subscriber::fmt().with_env_filter(filter).init();
    assert_eq!(LevelFilter::current(), LevelFilter::DEBUG);
    work(256 << 10);
}
