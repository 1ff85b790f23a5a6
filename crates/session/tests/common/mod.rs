//! Two cores back to back, joined by pipes that cut what goes through at any point.
#![allow(
    dead_code,
    clippy::pedantic,
    reason = "each test program uses a part of it"
)]

pub mod foreign;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::time::Duration;

use embar_frame::{FrameHeader, Now, Protocol};
use embar_session::{
    Closed, Incoming, LaneEvent, Plain, RingPools, SessionConfig, SessionCore, Step,
};
use embar_transport::{Mapped, RecvBuf, SendBuf, Store};

#[allow(missing_docs, unused_imports, clippy::all, reason = "generated")]
pub mod proto {
    mod generated {
        include!(concat!(env!("OUT_DIR"), "/testing.include.rs"));
    }
    pub use generated::embar::testing::v1::*;
}

pub const RING: usize = 16 << 10;
/// Most bytes on their way in one direction.
pub const PIPE: usize = 32 << 10;
/// Longest frame of [`config`].
pub const MAX_FRAME: u32 = 1000;

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn at(seconds: u64) -> Now {
    Now(seconds * 1_000_000_000)
}

pub fn rings() -> RingPools {
    RingPools::new(RING, RING, 4).expect("memory for rings")
}

/// Small limits, no timers.
pub fn config() -> SessionConfig {
    SessionConfig::default().with(|config| {
        config.max_frame_bytes = MAX_FRAME;
        config.max_body_bytes = 100_000;
        config.keep_alive = Duration::ZERO;
        config.idle_timeout = Duration::ZERO;
        config.hello_timeout = Duration::ZERO;
        config.frame_timeout = Duration::ZERO;
        config.reservation_timeout = Duration::ZERO;
        config.linger = seconds(1);
    })
}

/// What a core told, as it told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Opened(Vec<u8>),
    Message(u16, Vec<u8>),
    Body {
        id: u16,
        head: Vec<u8>,
        body: Vec<u8>,
    },
    /// A body begins in a lane.
    Begun(u8),
    Cancelled(u8),
    Refused(u64, String),
    Goodbye(String),
    Status,
    StatusReply(Vec<u8>),
    Closed(Closed),
}

/// One end: a core, its driver, and the bytes on their way to it.
pub struct End<P: Protocol = Plain> {
    pub core: SessionCore<P>,
    pub recv: Option<RecvBuf>,
    pub send: Option<SendBuf>,
    /// Came from the other end and was not received.
    pub inbox: VecDeque<u8>,
    /// The other end writes no more.
    pub inbox_ended: bool,
    pub write_ended: bool,
    pub closed: bool,
    pub told: Vec<Told>,
    /// What to answer a HELLO with; nothing: left undecided.
    pub greeting: Option<Vec<u8>>,
    /// Messages are left unread.
    pub ignores: bool,
    body: Option<(u16, Vec<u8>, Vec<u8>)>,
    /// What the body at hand is a chunk of.
    chunk_of: Option<u8>,
    taken: BTreeSet<u8>,
    /// Bodies that begin in lanes wait until the test takes them.
    pub holds_lanes: bool,
    /// Bodies under way in lanes: id, head, what came, and the whole length.
    pub lanes: BTreeMap<u8, (u16, Vec<u8>, Vec<u8>, usize)>,
    /// The driver reads / writes nothing.
    pub stuck_recv: bool,
    pub stuck_send: bool,
    pub now: Now,
}

impl<P: Protocol> End<P> {
    pub fn new(core: SessionCore<P>) -> Self {
        Self {
            core,
            recv: None,
            send: None,
            inbox: VecDeque::new(),
            inbox_ended: false,
            write_ended: false,
            closed: false,
            told: Vec::new(),
            greeting: Some(b"welcome".to_vec()),
            ignores: false,
            body: None,
            chunk_of: None,
            taken: BTreeSet::new(),
            holds_lanes: false,
            lanes: BTreeMap::new(),
            stuck_recv: false,
            stuck_send: false,
            now: Now(0),
        }
    }

    pub fn messages(&self) -> Vec<(u16, Vec<u8>)> {
        let messages = self.told.iter().filter_map(|told| match told {
            Told::Message(id, payload) => Some((*id, payload.clone())),
            _ => None,
        });
        messages.collect()
    }

    pub fn end(&self) -> Option<&Closed> {
        match self.told.last() {
            Some(Told::Closed(closed)) => Some(closed),
            _ => None,
        }
    }

    /// Listens to the core until it has nothing to tell.
    pub fn listen(&mut self) {
        if self.ignores {
            return;
        }
        loop {
            let mut opened = false;
            let mut body = None;
            let mut begun = None;
            let told = match self.core.next(self.now) {
                None => break,
                Some(Incoming::Opened { greeting }) => {
                    opened = true;
                    Told::Opened(greeting.to_vec())
                }
                Some(Incoming::Message(message)) => {
                    Told::Message(message.id(), message.payload().to_vec())
                }
                Some(Incoming::Head(head)) => {
                    body = Some((head.id(), head.head().to_vec(), head.early().to_vec()));
                    Told::Status
                }
                Some(Incoming::Goodbye(goodbye)) => Told::Goodbye(goodbye.text.to_owned()),
                Some(Incoming::Status) => Told::Status,
                Some(Incoming::StatusReply { body }) => Told::StatusReply(body.to_vec()),
                Some(Incoming::Closed(closed)) => Told::Closed(closed),
                Some(Incoming::Lane(event)) => match event {
                    LaneEvent::Begun {
                        lane,
                        id,
                        head,
                        len,
                    } => {
                        let news = (id, head.to_vec(), Vec::new(), len);
                        let before = self.lanes.insert(lane, news);
                        assert_eq!(before, None, "two at once in lane {lane}");
                        begun = Some(lane);
                        Told::Begun(lane)
                    }
                    LaneEvent::Chunk { lane, early, .. } => {
                        self.chunk_of = Some(lane);
                        body = Some((0, Vec::new(), early.to_vec()));
                        Told::Status
                    }
                    LaneEvent::Cancelled { lane } => {
                        self.lanes.remove(&lane).expect("a body to cancel");
                        Told::Cancelled(lane)
                    }
                    LaneEvent::Refused { number, text } => Told::Refused(number, text.to_owned()),
                    other => panic!("{other:?}"),
                },
            };
            if let Some(body) = body {
                self.body = Some(body);
                self.body_progress();
                continue;
            }
            self.told.push(told);
            if let Some(lane) = begun.filter(|_| !self.holds_lanes) {
                self.take_lane(lane);
            }
            if opened && let Some(greeting) = &self.greeting {
                // Only an accepting core waits for this.
                let _ = self.core.welcome(greeting, self.now);
            }
        }
    }

    fn body_progress(&mut self) {
        let due = self.core.body_due();
        if due > 0 {
            assert!(self.recv.is_none(), "the core receives during a body");
            self.recv = Some(RecvBuf::heap(vec![0; due], 0..due));
        } else if let Some((id, head, body)) = self.body.take() {
            match self.chunk_of.take() {
                None => self.told.push(Told::Body { id, head, body }),
                Some(lane) => {
                    let known = self.lanes.get_mut(&lane).expect("a chunk of a body");
                    known.2.extend(body);
                    self.lane_progress(lane);
                }
            }
        }
    }

    pub fn has_taken(&self, lane: u8) -> bool {
        self.taken.contains(&lane)
    }

    /// Takes the body that began in a lane.
    pub fn take_lane(&mut self, lane: u8) {
        self.core.take_body(lane, self.now);
        self.taken.insert(lane);
        self.lane_progress(lane);
    }

    fn lane_progress(&mut self, lane: u8) {
        let (_, _, body, len) = &self.lanes[&lane];
        if body.len() == *len
            && self.taken.remove(&lane)
            && let Some((id, head, body, _)) = self.lanes.remove(&lane)
        {
            self.told.push(Told::Body { id, head, body });
        }
    }

    /// Does not wait for the rest of a body.
    pub fn abandon_body(&mut self) {
        self.body = None;
    }

    /// Carries out what the core wants.
    pub fn poll(&mut self) {
        self.core.send_chunk();
        while let Some(step) = self.core.poll() {
            assert!(!self.closed, "{step:?} after Close");
            match step {
                Step::Recv(buf) => {
                    assert!(self.recv.replace(buf).is_none(), "one receive at a time");
                }
                Step::Send(buf) => {
                    assert!(!self.write_ended, "a send after the end");
                    assert!(buf.remaining() > 0);
                    assert!(self.send.replace(buf).is_none(), "one send at a time");
                }
                Step::ShutdownWrite => {
                    assert!(self.send.is_none() && !self.write_ended);
                    self.write_ended = true;
                }
                Step::Close => {
                    self.closed = true;
                    self.write_ended = true;
                    let gone = || io::Error::from(io::ErrorKind::ConnectionAborted);
                    if let Some(buf) = self.recv.take()
                        && self.body.is_none()
                    {
                        self.core.received(buf, &Err(gone()), self.now);
                    }
                    if let Some(buf) = self.send.take() {
                        self.core.sent(buf, &Err(gone()), self.now);
                    }
                }
            }
        }
    }

    /// Receives up to `piece` bytes; true if something happened.
    pub fn receive(&mut self, piece: usize) -> bool {
        if self.stuck_recv || (self.inbox.is_empty() && !self.inbox_ended) {
            return false;
        }
        let Some(mut buf) = self.recv.take() else {
            return false;
        };
        let count = piece.min(self.inbox.len()).min(buf.remaining());
        let bytes: Vec<u8> = self.inbox.drain(..count).collect();
        assert_eq!(buf.fill(&bytes), count);
        if self.body.is_none() {
            self.core.received(buf, &Ok(count), self.now);
        } else if count == 0 {
            self.body = None;
            self.core.end_of_stream(&Ok(0), self.now);
        } else {
            self.core.body_received(count, self.now);
            if self.core.is_ending() {
                self.body = None;
                self.core.discard_body(self.now);
            } else if buf.remaining() > 0 {
                self.recv = Some(buf);
            } else if let Store::Heap(bytes) = buf.into_store() {
                self.body.as_mut().expect("a body").2.extend(bytes);
                self.body_progress();
            }
        }
        self.listen();
        self.poll();
        true
    }

    /// Writes up to `piece` bytes into `out`; true if something happened.
    pub fn transmit(&mut self, piece: usize, out: &mut VecDeque<u8>) -> bool {
        if self.stuck_send {
            return false;
        }
        let Some(mut buf) = self.send.take() else {
            return false;
        };
        let room = PIPE.saturating_sub(out.len());
        let count = piece.min(buf.remaining()).min(room);
        if count == 0 {
            self.send = Some(buf);
            return false;
        }
        buf.with_unsent(|head, body| out.extend([head, body].concat().iter().take(count)));
        buf.advance(count);
        if buf.remaining() > 0 && !buf.goes_in_steps() {
            self.send = Some(buf);
        } else {
            self.core.sent(buf, &Ok(()), self.now);
            self.listen();
            self.poll();
        }
        true
    }

    pub fn tick(&mut self, now: Now) {
        self.now = now;
        self.core.tick(now);
        self.listen();
        self.poll();
    }

    /// Bytes from a peer that is no core.
    pub fn feed(&mut self, bytes: &[u8], piece: usize) {
        self.inbox.extend(bytes);
        self.poll();
        while !self.closed && !self.inbox.is_empty() && self.receive(piece) {}
    }
}

/// Both ends of a session: `a` connected to `b`.
pub struct Pair {
    pub a: End,
    pub b: End,
}

impl Pair {
    pub fn new(a: &SessionConfig, b: &SessionConfig) -> Self {
        let rings = rings();
        let a = SessionCore::connecting(Plain, a, &rings, b"hello", Now(0)).expect("a core");
        let b = SessionCore::accepting(Plain, b, &rings, Now(0)).expect("a core");
        let (a, b) = (End::new(a), End::new(b));
        Self { a, b }
    }

    /// Both are open.
    pub fn open() -> Self {
        Self::open_with(&config(), &config())
    }

    pub fn open_with(a: &SessionConfig, b: &SessionConfig) -> Self {
        let mut pair = Self::new(a, b);
        pair.run(usize::MAX);
        assert_eq!(pair.b.told, [Told::Opened(b"hello".to_vec())]);
        assert_eq!(pair.a.told, [Told::Opened(b"welcome".to_vec())]);
        pair.a.told.clear();
        pair.b.told.clear();
        pair
    }

    /// Moves bytes, `piece` at a time, until none moves any more.
    pub fn run(&mut self, piece: usize) {
        for _ in 0..10_000_000 {
            if !self.step(piece) {
                return;
            }
        }
        panic!("the two never come to rest");
    }

    pub fn step(&mut self, piece: usize) -> bool {
        let (a, b) = (&mut self.a, &mut self.b);
        a.listen();
        a.poll();
        b.listen();
        b.poll();
        let mut moved = a.transmit(piece, &mut b.inbox);
        moved |= b.transmit(piece, &mut a.inbox);
        let ended = |end: &mut End, other: bool| {
            let news = other && !end.inbox_ended;
            end.inbox_ended |= other;
            news
        };
        moved |= ended(b, a.write_ended);
        moved |= ended(a, b.write_ended);
        moved |= a.receive(piece);
        moved |= b.receive(piece);
        moved
    }

    pub fn tick(&mut self, now: Now) {
        self.a.tick(now);
        self.b.tick(now);
    }
}

/// A whole frame.
pub fn frame(id: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        length: payload.len() as u32,
        id,
        flags,
    };
    [&header.to_bytes(), payload].concat()
}

/// The bytes of a good HELLO, taken from a core.
pub fn hello() -> Vec<u8> {
    let core = SessionCore::<_, Mapped>::connecting(Plain, &config(), &rings(), b"hello", Now(0));
    first_bytes(core.expect("a core"))
}

/// What a core says first.
pub fn first_bytes<P: Protocol>(core: SessionCore<P>) -> Vec<u8> {
    let mut end = End::new(core);
    end.poll();
    let mut out = VecDeque::new();
    end.transmit(usize::MAX, &mut out);
    out.into()
}

/// An open accepting end whose peer is bytes that a test writes.
pub fn accepted(config: &SessionConfig) -> End {
    let core = SessionCore::accepting(Plain, config, &rings(), Now(0)).expect("a core");
    let mut end = End::new(core);
    end.feed(&hello(), usize::MAX);
    assert_eq!(end.told, [Told::Opened(b"hello".to_vec())]);
    assert!(end.core.is_open());
    end.told.clear();
    end.transmit(usize::MAX, &mut VecDeque::new());
    end
}
