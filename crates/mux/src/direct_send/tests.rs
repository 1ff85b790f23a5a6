//! What callers send by themselves while the driver sleeps.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::ENOUGH;
use crate::{
    BadReply, CallError, CloseReason, Connection, ConnectionLimits, FrameKind, Framing, Greeting,
    Mux, MuxSettings, Part, Protocol,
};

/// Nothing takes so long, on no machine: what does hangs.
const LONG: Duration = Duration::from_secs(60);

/// Each reply is one line, and arrives in one piece.
struct Lines;

impl Framing for Lines {
    fn advance(&mut self, bytes: &[u8]) -> Result<Part, BadReply> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        Ok(Part {
            taken: end.map_or(bytes.len(), |end| end + 1),
            kind: FrameKind::Reply,
            complete: end.is_some(),
        })
    }
}

impl Protocol for Lines {
    fn greet(&mut self, _: Option<&[u8]>) -> Result<Greeting, String> {
        Ok(Greeting::Done)
    }

    fn push(&mut self, _: &[u8]) {}

    fn closed(&mut self, _: &CloseReason) {}
}

fn ask(connection: &Connection, line: &[u8; 4], timeout: Duration) -> Result<Vec<u8>, CallError> {
    let fill = |to: &mut [u8]| to.copy_from_slice(line);
    let call = connection.submit(4, 1, 0, Some(timeout), None, fill);
    call.expect("there is room").wait(|reply| reply.clone())
}

#[test]
fn what_a_caller_sends_itself_is_given_up_in_time_and_counts_as_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    // Answers the first line, and no other.
    thread::spawn(move || {
        let mut stream = listener.accept().expect("a connection").0;
        let mut lines = BufReader::new(stream.try_clone().expect("a descriptor")).lines();
        lines.next();
        stream.write_all(b"one\n").expect("the caller reads it");
        lines.for_each(drop);
    });
    let limits = ConnectionLimits {
        dead_after: Duration::from_secs(1),
        ..ConnectionLimits::default()
    };
    let mux = Mux::on_thread(&MuxSettings::default()).expect("a thread");
    let connection = mux.open(address.into(), limits, Lines);
    let connection = connection.expect("room for a connection");
    assert_eq!(ask(&connection, b"one\n", LONG).expect("a reply"), b"one\n");
    // The driver has no reason of its own to wake up again.
    let deadline = Instant::now() + LONG;
    while connection.0.notifier.watches_deadlines() {
        assert!(Instant::now() < deadline, "the driver looks for ever");
        thread::sleep(Duration::from_millis(1));
    }
    let soon = Duration::from_millis(100);
    assert_eq!(ask(&connection, b"two\n", soon), Err(CallError::TimedOut));
    let silent = CallError::Unknown(CloseReason::Silent);
    assert_eq!(ask(&connection, b"six\n", LONG), Err(silent));
    let stats = connection.stats();
    assert_eq!((stats.writes, stats.bytes_sent), (3, 12));
}

/// As [`Lines`], but with these its driver stands still at each reply, says so, and waits.
struct Held(Option<(Sender<()>, Receiver<()>)>);

impl Framing for Held {
    fn advance(&mut self, bytes: &[u8]) -> Result<Part, BadReply> {
        if let Some((stands, go_on)) = &self.0 {
            stands.send(()).expect("the test waits for it");
            go_on.recv().expect("the test lets it go on");
        }
        Lines.advance(bytes)
    }
}

impl Protocol for Held {
    fn greet(&mut self, _: Option<&[u8]>) -> Result<Greeting, String> {
        Ok(Greeting::Done)
    }

    fn push(&mut self, _: &[u8]) {}

    fn closed(&mut self, _: &CloseReason) {}
}

#[test]
fn a_caller_sends_what_has_gathered_once_that_is_worth_a_write() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut from = stream.expect("a connection");
            let mut to = from.try_clone().expect("a descriptor");
            thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
    });
    let mux = Mux::on_thread(&MuxSettings::default()).expect("a thread");
    let (stands, is_standing) = channel();
    let (goes_on, go_on) = channel();
    let limits = ConnectionLimits::default();
    let held = mux.open(address.into(), limits.clone(), Held(Some((stands, go_on))));
    let held = held.expect("room for a connection");
    let connection = mux.open(address.into(), limits, Held(None));
    let connection = connection.expect("room for a connection");
    assert_eq!(ask(&connection, b"one\n", LONG).expect("a reply"), b"one\n");

    let submit = |connection: &Connection| {
        let fill = |to: &mut [u8]| to.copy_from_slice(b"two\n");
        let call = connection.submit(4, 1, 0, Some(LONG), None, fill);
        call.expect("there is room")
    };
    let first = submit(&held);
    is_standing.recv_timeout(LONG).expect("the reply comes");
    // As the driver does before it wakes so many callers; it now writes nothing by itself.
    connection.0.notifier.gather.begin(100);
    let mut calls = Vec::new();
    let mut writes_after = |commands: u32| {
        calls.extend((0..commands).map(|_| submit(&connection)));
        connection.0.caller_writes.read().writes
    };
    let before = writes_after(0);
    // The driver has two connections.
    let enough = 2 * ENOUGH;
    assert_eq!(writes_after(enough - 1), before);
    assert_eq!(writes_after(1), before + 1);
    assert_eq!(writes_after(enough - 1), before + 1);
    assert_eq!(writes_after(1), before + 2);
    assert_eq!(writes_after(1), before + 2);
    // 64 are with the server. It has more to do than half of what gathers, until as many have gathered.
    assert_eq!(writes_after(2 * enough - 2), before + 2);
    assert_eq!(writes_after(1), before + 3);
    goes_on.send(()).expect("the driver stands");
    for call in calls.into_iter().chain([first]) {
        assert_eq!(call.wait(|reply| reply.clone()).expect("a reply"), b"two\n");
    }
}
