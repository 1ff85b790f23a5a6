//! A connection until it has greeted: what it takes, what it refuses, and how.

mod common;

use common::{at, config, first_bytes, hello, rings, seconds};
use embar_frame::{Now, Protocol, verify_checksum};
use embar_session::buffer::Mapped;
use embar_session::{
    Arrival, CloseReason, Incoming, MAX_GREETING_BYTES, Plain, SessionConfig, SessionCore, Side,
    Step,
};
use embar_transport::{RecvBuf, SendBuf};
use embar_wire::frame::LogProtocol;

const CLOSE: u16 = 0xFF05;

/// An arrival and what its owner has of it.
struct Door<P: Protocol = Plain> {
    arrival: Arrival<P>,
    recv: Option<RecvBuf>,
    send: Option<SendBuf>,
    said: Vec<u8>,
    write_ended: bool,
    closed: bool,
    now: Now,
}

impl<P: Protocol> Door<P> {
    fn new(config: &SessionConfig) -> Self {
        let mut door = Self {
            arrival: Arrival::new(config, Now(0)),
            recv: None,
            send: None,
            said: Vec::new(),
            write_ended: false,
            closed: false,
            now: Now(0),
        };
        door.poll();
        door
    }

    fn poll(&mut self) {
        while let Some(step) = self.arrival.poll() {
            match step {
                Step::Recv(buf) => assert!(self.recv.replace(buf).is_none(), "one receive"),
                Step::Send(buf) => assert!(self.send.replace(buf).is_none(), "one send"),
                Step::ShutdownWrite => self.write_ended = true,
                Step::Close => self.closed = true,
            }
        }
    }

    /// What it sends arrives.
    fn write(&mut self) {
        while let Some(buf) = self.send.take() {
            buf.with_unsent(|head, _| self.said.extend_from_slice(head));
            self.arrival.sent(buf, &Ok(()));
            self.poll();
        }
    }

    /// Bytes come, `piece` at a time, as long as any are asked for; returns how many were taken.
    fn feed(&mut self, bytes: &[u8], piece: usize) -> usize {
        let mut left = bytes;
        while !left.is_empty()
            && let Some(mut buf) = self.recv.take()
        {
            let count = buf.fill(&left[..piece.min(left.len())]);
            left = &left[count..];
            self.arrival.received(buf, &Ok(count), self.now);
            self.poll();
        }
        bytes.len() - left.len()
    }

    fn end(&mut self) {
        if let Some(buf) = self.recv.take() {
            self.arrival.received(buf, &Ok(0), self.now);
            self.poll();
        }
    }

    fn reason(&self) -> Option<CloseReason> {
        self.arrival.closed().map(|closed| closed.reason)
    }
}

fn session<P: Protocol>(door: &Door<P>, protocol: P) -> SessionCore<P> {
    let core = door
        .arrival
        .session(protocol, &config(), &rings(), door.now);
    core.expect("a core")
}

fn greeting_of<P: Protocol>(core: &mut SessionCore<P>) -> Vec<u8> {
    match core.next(Now(0)) {
        Some(Incoming::Opened { greeting }) => greeting.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hello_in_any_pieces_makes_a_session_and_what_follows_is_its_own() {
    let hello = hello();
    let behind = common::frame(3, 0, b"first");
    let bytes = [&hello[..], &behind].concat();
    for piece in 1..=bytes.len() {
        let mut door = Door::<Plain>::new(&config());
        let taken = door.feed(&bytes, piece);
        assert!(door.arrival.has_greeted() && taken >= hello.len());
        assert!(door.recv.is_none(), "nothing more is asked for");
        let mut core = session(&door, Plain);
        assert_eq!(greeting_of(&mut core), b"hello");
        core.welcome(b"", Now(0)).expect("room");
        // What was not taken is received by the core.
        while core.stats().messages_in == 0 {
            match core.next(Now(0)) {
                Some(Incoming::Message(message)) => assert_eq!(message.payload(), b"first"),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            if core.stats().messages_in == 0 {
                let Some(Step::Recv(mut buf)) = core.poll() else {
                    continue;
                };
                let count = buf.fill(&bytes[taken..]);
                core.received(buf, &Ok(count), Now(0));
            }
        }
    }
}

#[test]
fn the_longest_greeting_gets_in_and_its_memory_only_when_it_is_announced() {
    let greeting = vec![7; MAX_GREETING_BYTES];
    let core = SessionCore::<_, Mapped>::connecting(Plain, &config(), &rings(), &greeting, Now(0));
    let bytes = first_bytes(core.expect("a core"));
    let mut door = Door::<Plain>::new(&config());
    let before = door.recv.as_ref().map(RecvBuf::remaining);
    assert!(before.is_some_and(|room| room <= 128), "{before:?}");
    door.feed(&bytes, usize::MAX);
    assert_eq!(greeting_of(&mut session(&door, Plain)), greeting);
}

#[test]
fn what_is_no_hello_is_told_so_and_asked_for_no_more() {
    let good = hello();
    let mut long = good.clone();
    long[..4].copy_from_slice(&4000u32.to_le_bytes());
    let mut flagged = good.clone();
    flagged[6] = 1;
    let mut welcome = good.clone();
    welcome[4..6].copy_from_slice(&0xFF01u16.to_le_bytes());
    let mut magic = good.clone();
    let at_magic = good.windows(4).position(|it| it == b"EMBS").expect("it");
    magic[at_magic] = b'e';
    let http = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    for bytes in [
        long,
        flagged,
        welcome,
        magic,
        http,
        vec![0; 8],
        vec![0xFF; 64],
    ] {
        for piece in [1, 5, usize::MAX] {
            let mut door = Door::<Plain>::new(&config());
            door.feed(&bytes, piece);
            door.write();
            assert_eq!(door.reason(), Some(CloseReason::NotSession), "{bytes:?}");
            assert_eq!(door.said[4..6], CLOSE.to_le_bytes());
            assert!(door.write_ended && !door.closed);
            // The peer has read it, and leaves.
            door.end();
            assert!(door.closed);
        }
    }
}

#[test]
fn who_does_not_leave_after_a_refusal_is_cut_in_time_or_after_so_many_bytes() {
    let mut door = Door::<Plain>::new(&config());
    door.feed(&[0; 8], 8);
    door.write();
    assert_eq!(door.arrival.next_tick(), Some(at(1)));
    door.arrival.tick(Now(at(1).0 - 1));
    door.poll();
    assert!(!door.closed);
    door.arrival.tick(at(1));
    door.poll();
    assert!(door.closed);

    let mut door = Door::<Plain>::new(&config());
    door.feed(&[0; 8], 8);
    door.write();
    let taken = door.feed(&vec![0; 1 << 20], usize::MAX);
    assert!(door.closed && taken <= 65 << 10, "{taken}");
}

#[test]
fn silence_and_slowness_end_at_the_same_time() {
    let config = config().with(|config| config.hello_timeout = seconds(10));
    for part in [&[][..], &hello()[..20]] {
        let mut door = Door::<Plain>::new(&config);
        door.feed(part, 1);
        assert_eq!(door.arrival.next_tick(), Some(at(10)));
        door.now = at(10);
        door.arrival.tick(at(10));
        door.poll();
        door.write();
        let closed = door.arrival.closed().expect("a reason");
        assert_eq!(closed.reason, CloseReason::HelloTimeout);
        assert_eq!(closed.by, Side::Local);
        assert_eq!(door.said[4..6], CLOSE.to_le_bytes());
    }
}

#[test]
fn who_leaves_is_told_from_who_is_refused() {
    for (part, reason) in [(0, CloseReason::Disconnected), (20, CloseReason::CutFrame)] {
        let mut door = Door::<Plain>::new(&config());
        door.feed(&hello()[..part], usize::MAX);
        door.end();
        let closed = door.arrival.closed().expect("a reason");
        assert_eq!((closed.by, closed.reason), (Side::Network, reason));
        assert!(door.closed && door.said.is_empty());
    }
}

#[test]
fn a_checked_greeting_is_verified_and_answered_with_a_checksum() {
    let protocol = LogProtocol::default();
    let core = SessionCore::<_, Mapped>::connecting(protocol, &config(), &rings(), b"hi", Now(0));
    let good = first_bytes(core.expect("a core"));
    let mut door = Door::<LogProtocol>::new(&config());
    door.feed(&good, usize::MAX);
    assert_eq!(greeting_of(&mut session(&door, protocol)), b"hi");

    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut door = Door::<LogProtocol>::new(&config());
        door.feed(&bytes, usize::MAX);
        door.write();
        assert!(!door.arrival.has_greeted(), "bit {bit}");
        if !door.said.is_empty() && door.reason() == Some(CloseReason::Damaged) {
            assert_eq!(verify_checksum(&door.said), Ok(()), "bit {bit}");
        }
    }
    // Of a protocol without checksums: its speaker understands none.
    let mut door = Door::<LogProtocol>::new(&config());
    door.feed(&hello(), usize::MAX);
    door.write();
    assert_eq!(door.reason(), Some(CloseReason::Protocol));
    assert_eq!(door.said[6..8], [0, 0]);
}
