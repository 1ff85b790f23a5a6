//! Bodies of pieces, some of them in the log of another broker.

use std::io::Read;
use std::sync::Arc;
use std::thread;

use embar_transport::buffer::PIECES_MAX;
use embar_transport::{Body, Mapped, Payload, Pieces, Reactor, SendBuf, Stream, Token};
use rustix::net::sockopt;

use crate::Kind;
use crate::driver::{Driver, driver, pattern};
use crate::log::Log;

/// Builds a body, and what is to arrive of it.
struct Run {
    pieces: Box<Pieces>,
    expected: Vec<u8>,
}

impl Run {
    fn new() -> Self {
        Self {
            pieces: Box::default(),
            expected: Vec::new(),
        }
    }

    fn header(&mut self) -> [u8; 64] {
        let header = [self.pieces.count() as u8 + 1; 64];
        self.expected.extend(header);
        header
    }

    fn own(&mut self, log: &Log, bytes: &[u8]) {
        let header = self.header();
        let mut reservation = log.reserve(bytes.len());
        reservation.write(0, bytes);
        self.pieces.push(header, Payload::Own(reservation.commit()));
        self.expected.extend(bytes);
    }

    fn foreign(&mut self, log: &Log, bytes: &[u8]) {
        let header = self.header();
        self.pieces
            .push(header, Payload::Foreign(log.foreign(bytes)));
        self.expected.extend(bytes);
    }

    fn frame(&mut self, bytes: &[u8]) {
        let frame = [&self.header()[..], bytes].concat();
        self.pieces.push_frame(Arc::new(frame.into()));
        self.expected.extend(bytes);
    }

    fn body(self) -> (Body<Mapped>, Vec<u8>) {
        (Body::Pieces(self.pieces), self.expected)
    }
}

/// As many pieces as one body may have, far more than the socket takes at once.
fn long_run(log: &Log, with_foreign: bool) -> (Body<Mapped>, Vec<u8>) {
    let bytes = pattern(16_000);
    let mut run = Run::new();
    for number in 0..PIECES_MAX {
        let part = &bytes[number..];
        if with_foreign && number % 2 == 1 {
            run.foreign(log, part);
        } else {
            run.own(log, part);
        }
    }
    run.body()
}

/// A connection that takes little at once.
fn narrow_pair<K: Kind>(driver: &mut Driver<K::Reactor>) -> (Token, Stream) {
    let (ours, theirs) = K::pair();
    sockopt::set_socket_send_buffer_size(&ours, 8 << 10).unwrap();
    sockopt::set_socket_recv_buffer_size(&theirs, 8 << 10).unwrap();
    (driver.reactor.add(ours).unwrap(), theirs)
}

fn read_exactly(mut peer: Stream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    peer.read_exact(&mut bytes).unwrap();
    bytes
}

pub fn pieces_leave_by_one_call_wherever_they_were_cut<K: Kind>() {
    let log = Log::new();
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    let total = 3 + 5 * 64 + 64 + 5 + 70 + 130 + 1;
    for cut in 0..total {
        let mut run = Run::new();
        run.own(&log, &pattern(64));
        run.foreign(&log, &pattern(5));
        run.frame(&pattern(70));
        run.foreign(&log, &pattern(130));
        run.own(&log, b"!");
        let (body, mut expected) = run.body();
        expected.splice(..0, *b"hi!");
        let mut buf = SendBuf::new(b"hi!".to_vec(), body);
        assert_eq!(buf.total(), total);
        buf.advance(cut);

        let calls = driver.reactor.counters().send_calls;
        driver.send_all(token, buf);
        assert_eq!(driver.reactor.counters().send_calls, calls + 1, "{cut}");
        let mut got = vec![0; total - cut];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(got, expected[cut..], "cut at {cut}");
    }
    let mut all = SendBuf::new(Vec::new(), Run::new().body().0);
    all = driver.send_all(token, all);
    assert_eq!(all.total(), 0, "nothing to send is done at once");
}

pub fn own_pieces_come_back_when_all_are_sent<K: Kind>() {
    let log = Log::new();
    let mut driver = driver::<K>();
    let (token, peer) = narrow_pair::<K>(&mut driver);
    let (body, expected) = long_run(&log, false);
    let count = expected.len();
    let reader = thread::spawn(move || read_exactly(peer, count));
    let buf = driver.send_all(token, SendBuf::new(Vec::new(), body));
    assert!(reader.join().unwrap() == expected, "bytes differ");
    assert!(
        driver.reactor.counters().send_partial > 0,
        "nothing was cut"
    );
    assert_eq!(log.pins(), PIECES_MAX);
    drop(buf);
    assert_eq!(log.pins(), 0);
}

pub fn foreign_pieces_come_back_after_each_step<K: Kind>() {
    let log = Log::new();
    let mut driver = driver::<K>();
    let (token, peer) = narrow_pair::<K>(&mut driver);
    let (body, expected) = long_run(&log, true);
    let count = expected.len();
    let reader = thread::spawn(move || read_exactly(peer, count));
    let mut buf = SendBuf::new(Vec::new(), body);
    let mut steps = 0;
    while buf.remaining() > 0 {
        let before = buf.sent();
        driver.reactor.send(token, buf);
        let (back, result, _) = driver.sent(token);
        result.unwrap();
        assert!(back.sent() > before, "a step sends something");
        buf = back;
        steps += 1;
    }
    assert!(reader.join().unwrap() == expected, "bytes differ");
    assert!(steps > 1, "nothing was cut");
    let counters = driver.reactor.counters();
    assert_eq!(counters.send_partial, steps - 1);
    assert_eq!(counters.send_bytes, count as u64);
    assert_eq!(driver.reactor.outstanding(), 0);
}

pub fn closing_between_steps_sends_no_more<K: Kind>() {
    let log = Log::new();
    let mut driver = driver::<K>();
    let (token, mut peer) = narrow_pair::<K>(&mut driver);
    let (body, expected) = long_run(&log, true);
    driver.reactor.send(token, SendBuf::new(Vec::new(), body));
    let (buf, result, _) = driver.sent(token);
    result.unwrap();
    assert!(buf.remaining() > 0, "the socket took all of it");
    driver.nothing_happens();
    driver.reactor.close(token);
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert!(got == expected[..buf.sent()], "bytes differ");
}
