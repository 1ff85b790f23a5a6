//! How sessions live and die: timers, panics, malformed frames, cut connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use embar_session::{
    Client, CloseReason, Closed, Flow, Handler, Message, Plain, Refusal, Server, Session, Settings,
};
use embar_transport::Address;

use crate::support::{
    Event, LONG, Recorder, closed, echo_server, loopback, message, recorder, recording_server,
    until,
};

/// How long a silent peer may live. A busy machine must not keep a worker from its PINGs for so long.
const IDLE: Duration = Duration::from_secs(1);

fn tcp(address: &Address) -> std::net::SocketAddr {
    match address {
        Address::Tcp(address) => *address,
        Address::Unix(_) | Address::Shm(_) => panic!("not TCP"),
    }
}

#[test]
fn a_silent_peer_is_kicked_and_one_that_keeps_alive_is_not() {
    let mut settings = Settings::default();
    settings.session.idle_timeout = IDLE;
    let (server, at_server) = recording_server(settings, loopback());

    let mut lively = Settings::default();
    lively.session.keep_alive = Duration::from_millis(20);
    let lively = Client::with(Plain, lively).unwrap();
    let (handler, lively_seen) = recorder();
    let session = lively.connect(server.address(), handler).unwrap();

    let mut silent = Settings::default();
    silent.session.keep_alive = Duration::ZERO;
    let silent = Client::with(Plain, silent).unwrap();
    let (handler, silent_seen) = recorder();
    let _silent = silent.connect(server.address(), handler).unwrap();

    assert_eq!(closed(&silent_seen).reason, CloseReason::Idle);
    assert_eq!(closed(&at_server).reason, CloseReason::Idle);
    assert_eq!(server.stats().idle_kicks, 1);
    // Several idle timeouts later the other one still lives.
    until("pings", || session.stats().bytes_sent > 400);
    assert!(session.closed().is_none());
    assert!(session.stats().round_trip.is_some());
    assert!(
        lively_seen
            .try_iter()
            .all(|e| matches!(e, Event::Opened(..)))
    );
}

/// Timers fire under load, too: one session is flooded while another one is silent.
#[test]
fn deadlines_are_met_under_load() {
    let mut settings = Settings::default();
    settings.session.idle_timeout = IDLE;
    let server = echo_server(settings, loopback());
    let busy = Client::new().unwrap();
    let (handler, _seen) = recorder();
    let session = busy.connect(server.address(), handler).unwrap();
    let mut quiet = Settings::default();
    quiet.session.keep_alive = Duration::ZERO;
    let quiet = Client::with(Plain, quiet).unwrap();
    let (handler, seen) = recorder();
    let _quiet = quiet.connect(server.address(), handler).unwrap();
    until("kicked under load", || {
        for _ in 0..100 {
            session.send_with(1, 64, |buf| buf.fill(0)).unwrap();
        }
        seen.try_iter().any(|e| matches!(e, Event::Closed(_)))
    });
}

#[test]
fn a_peer_that_says_nothing_at_all_is_cut_off() {
    let mut settings = Settings::default();
    settings.session.hello_timeout = Duration::from_millis(50);
    settings.session.linger = Duration::from_millis(50);
    let (server, at_server) = recording_server(settings, loopback());
    let mut stranger = TcpStream::connect(tcp(&server.address())).unwrap();
    stranger.set_read_timeout(Some(LONG)).unwrap();
    let mut rest = Vec::new();
    let _ = stranger.read_to_end(&mut rest);
    until("forgotten", || server.stats().arrivals == 0);
    let refused = server.monitor().refused_by_reason();
    assert_eq!(refused, [(Refusal::HelloTimeout, 1)]);
    assert_eq!(server.stats().closed, 0, "there was no session");
    assert!(at_server.try_recv().is_err(), "nor a handler");
}

/// Panics on the word.
struct Fragile;

impl Handler for Fragile {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        assert_ne!(message.payload(), b"die", "as asked");
        session
            .send_with(1, 2, |buf| buf.copy_from_slice(b"ok"))
            .unwrap();
        Flow::Continue
    }
}

#[test]
fn a_panic_ends_its_session_and_no_other() {
    let server = Server::builder()
        .listen(loopback())
        .start(|_| Fragile)
        .unwrap();
    let client = Client::new().unwrap();
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    let (handler, other_seen) = recorder();
    let other = client.connect(server.address(), handler).unwrap();
    session
        .send_with(1, 3, |buf| buf.copy_from_slice(b"die"))
        .unwrap();
    assert_eq!(closed(&seen).reason, CloseReason::HandlerPanicked);
    other.send_with(1, 1, |buf| buf.fill(0)).unwrap();
    assert_eq!(message(&other_seen).1, b"ok");
    until("counted", || server.stats().panics == 1);
}

#[test]
fn bad_bytes_end_their_connection_and_no_other() {
    let (server, at_server) = recording_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let (handler, _seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    assert!(matches!(
        at_server.recv_timeout(LONG).unwrap(),
        Event::Opened(..)
    ));
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xFF; 64], &[0; 8]] {
        let mut stranger = TcpStream::connect(tcp(&server.address())).unwrap();
        stranger.write_all(bytes).unwrap();
        stranger.set_read_timeout(Some(LONG)).unwrap();
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert_eq!(answer[4..6], 0xFF05u16.to_le_bytes(), "CLOSE");
    }
    session.send_with(1, 1, |buf| buf.fill(7)).unwrap();
    assert_eq!(message(&at_server).1, [7]);
    let refused = server.monitor().refused_by_reason();
    assert_eq!(refused, [(Refusal::NotSession, 3)]);
}

#[test]
fn a_connection_cut_at_any_byte_ends_its_session_once() {
    // What a client says: recorded by a listener that is no session.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let client = Client::new().unwrap();
    let (handler, _seen) = recorder();
    let _connecting = client.open(address, b"hi", handler);
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut header = [0; 8];
    stream.read_exact(&mut header).unwrap();
    let length = u32::from_le_bytes(header[..4].try_into().unwrap()) as usize;
    let mut hello = header.to_vec();
    hello.resize(8 + length, 0);
    stream.read_exact(&mut hello[8..]).unwrap();
    // Behind it, a message of 5 bytes.
    hello.extend([5, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5]);

    let (server, at_server) = recording_server(Settings::default(), loopback());
    for cut in 0..=hello.len() {
        let mut stream = TcpStream::connect(tcp(&server.address())).unwrap();
        stream.write_all(&hello[..cut]).unwrap();
        drop(stream);
        if cut < 8 + length {
            continue;
        }
        let why = closed(&at_server);
        let whole = [8 + length, hello.len()].contains(&cut);
        if whole {
            assert_ne!(why.reason, CloseReason::CutFrame, "after {cut}: {why}");
        }
    }
    until("all gone", || {
        let stats = server.stats();
        stats.sessions == 0 && stats.left_early == 8 + length as u64
    });
    assert!(at_server.try_recv().is_err(), "each closed once");
    let sessions = hello.len() + 1 - (8 + length);
    assert_eq!(server.stats().closed, sessions as u64);
    assert_eq!(server.stats().arrivals, 0);
}

/// Counts its ends.
struct Ends(Arc<AtomicUsize>);

impl Handler for Ends {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }
    fn closed(&mut self, _: &Session, _: &Closed) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn closed_is_told_exactly_once_whoever_closes_and_however_often() {
    let (at_server, at_client) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (sessions, accepted) = channel();
    let sessions = Mutex::new(sessions);
    struct Tells(Ends, std::sync::mpsc::Sender<Session>);
    impl Handler for Tells {
        fn opened(&mut self, session: &Session, _: &[u8]) {
            self.1.send(session.clone()).unwrap();
        }
        fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
            Flow::Continue
        }
        fn closed(&mut self, session: &Session, why: &Closed) {
            self.0.closed(session, why);
        }
    }
    let counter = Arc::clone(&at_server);
    let server = Server::builder()
        .listen(loopback())
        .start(move |_| Tells(Ends(Arc::clone(&counter)), sessions.lock().unwrap().clone()))
        .unwrap();
    let client = Client::new().unwrap();
    const ROUNDS: usize = 50;
    for round in 0..ROUNDS {
        let session = client
            .connect(server.address(), Ends(Arc::clone(&at_client)))
            .unwrap();
        let other = accepted.recv_timeout(LONG).unwrap();
        match round % 4 {
            0 => session.close(),
            1 => other.abort(),
            2 => {
                session.close();
                other.close();
                session.abort();
            }
            _ => {
                other.close();
                other.close();
                session.goodbye();
            }
        }
    }
    until("all over", || {
        client.stats().sessions == 0 && server.stats().sessions == 0
    });
    client.shutdown(LONG);
    server.shutdown(LONG);
    assert_eq!(at_client.load(Ordering::Relaxed), ROUNDS);
    assert_eq!(at_server.load(Ordering::Relaxed), ROUNDS);
}

#[test]
fn nobody_there_is_an_error_with_a_reason() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(gone.local_addr().unwrap());
    drop(gone);
    let client = Client::new().unwrap();
    let (events, seen) = channel();
    let why = client.connect(address, Recorder(events)).unwrap_err();
    assert!(matches!(why.reason, CloseReason::Io(_)), "{why}");
    assert!(matches!(seen.recv_timeout(LONG).unwrap(), Event::Closed(_)));
    until("forgotten", || client.stats().sessions == 0);
}

#[test]
fn peers_above_the_limit_are_told_so() {
    let settings = Settings::default().with(|settings| settings.max_sessions = 2);
    let server = echo_server(settings, loopback());
    let client = Client::new().unwrap();
    let open = || {
        let (handler, seen) = recorder();
        client
            .connect(server.address(), handler)
            .map(|session| (session, seen))
    };
    let first = open().unwrap();
    let second = open().unwrap();
    assert_eq!(open().unwrap_err().reason, CloseReason::TooManySessions);
    let refused = server.monitor().refused_by_reason();
    assert_eq!(refused, [(Refusal::TooManySessions, 1)]);
    first.0.close();
    until("room again", || open().is_ok());
    second.0.send_with(1, 1, |buf| buf.fill(1)).unwrap();
    assert_eq!(message(&second.1).1, [1]);
}
