//! What callers send by themselves while the driver sleeps.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

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
