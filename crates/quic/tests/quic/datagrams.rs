//! Datagrams: they arrive or not, and never where they do not belong.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use embar_session::{
    Address, Datagram, DatagramError, Flow, Handler, Message, Server, Session, Settings,
};

use crate::support::{
    Both, Caller, Echo, Event, LONG, closed, datagram_through, loopback, opened, recorder, until,
};

#[test]
fn datagrams_go_both_ways_beside_messages() {
    let both = Both::start(Settings::default(), || Echo);
    let caller = Caller::new(Settings::default());
    let (handler, seen) = recorder();
    let session = caller.connect(&both, handler).unwrap();
    let (id, _, payload) = datagram_through(&session, &seen, b"where I am");
    assert_eq!((id, &payload[..]), (5, &b"where I am"[..]));
    session
        .send_with(1, 2, |buf| buf.copy_from_slice(b"hi"))
        .unwrap();
    assert_eq!(crate::support::message(&seen), (1, b"hi".to_vec()));
    let stats = session.datagram_stats().unwrap();
    assert!(stats.sent >= 1 && stats.received >= 1, "{stats:?}");
}

/// The longest that the path takes passes, and one byte more is refused with that limit.
#[test]
fn one_that_is_too_long_is_refused_with_the_limit() {
    let (both, at_server) = Both::recording(Settings::default());
    let caller = Caller::new(Settings::default());
    let (handler, _seen) = recorder();
    let session = caller.connect(&both, handler).unwrap();
    let max = session.max_datagram_bytes().unwrap();
    assert!((1000..1500).contains(&max), "{max}");
    let longest = vec![7; max];
    let (_, _, payload) = datagram_through(&session, &at_server, &longest);
    assert_eq!(payload, longest);
    let bytes = 1 << 16;
    let error = session.send_datagram_with(5, bytes, |_| panic!("not called"));
    let Err(DatagramError::TooLong { bytes: 65_536, max }) = error else {
        panic!("{error:?}");
    };
    assert!((1000..1500).contains(&max), "{max}");
    let reserved = session.send_datagram_with(0xFF00, 0, |_| ());
    assert_eq!(reserved, Err(DatagramError::ReservedId { id: 0xFF00 }));
}

#[test]
fn a_session_by_tcp_has_none_and_says_so() {
    let address = Address::Tcp(loopback());
    let server = Server::builder().listen(address).start(|_| Echo).unwrap();
    let caller = Caller::new(Settings::default());
    let (handler, _seen) = recorder();
    let session = caller.client.connect(server.address(), handler).unwrap();
    let sent = session.send_datagram_with(1, 1, |_| ());
    assert_eq!(sent, Err(DatagramError::Unsupported));
    assert_eq!(session.max_datagram_bytes(), None);
    assert_eq!(session.datagram_stats(), None);
}

/// Waits in its first datagram until it is told to go on.
struct Slow {
    go_on: Receiver<()>,
    seen: std::sync::mpsc::Sender<u32>,
}

impl Handler for Slow {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }

    fn datagram(&mut self, _: &Session, datagram: Datagram<'_>) {
        let number = u32::from_le_bytes(*datagram.payload().first_chunk().unwrap());
        let _ = self.seen.send(number);
        let _ = self.go_on.recv();
    }
}

/// A handler that is behind gets the newest ones: older ones were thrown away, and counted.
#[test]
fn the_oldest_go_when_the_handler_is_behind() {
    const LIMIT: usize = 4;
    let settings = Settings::default().with(|settings| settings.datagrams.max_received = LIMIT);
    let (go, go_on) = channel();
    let (seen, datagrams) = channel();
    let handler = std::sync::Mutex::new(Some(Slow { go_on, seen }));
    let both = Both::start(settings, move || handler.lock().unwrap().take().unwrap());
    // The sender loses none, however slow the machine is.
    let caller = Caller::new(Settings::default().with(|settings| {
        settings.datagrams.max_wait = LONG;
        settings.datagrams.max_queued = 1 << 16;
    }));
    let session = caller.connect(&both, recorder().0).unwrap();
    let [other] = &both.server.sessions()[..] else {
        panic!("one session");
    };
    let arrived = |other: &Session| {
        let stats = other.datagram_stats().unwrap();
        stats.received + stats.dropped
    };
    // The session of the server may open a moment later, and what comes before that is dropped.
    let mut next = 0u32;
    let mut send = || {
        session
            .send_datagram_with(1, 4, |buf| buf.copy_from_slice(&next.to_le_bytes()))
            .unwrap();
        next += 1;
        next - 1
    };
    let first = loop {
        send();
        if let Ok(first) = datagrams.recv_timeout(Duration::from_millis(100)) {
            break first;
        }
    };
    // The handler waits. One after the other, as the sender's own queue is bounded, too.
    let mut last = first;
    while other.datagram_stats().unwrap().dropped < 20 {
        last = send();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(last > first && arrived(other) >= 21);
    // Those that are still on their way.
    let mut before = 0;
    while before != arrived(other) {
        before = arrived(other);
        std::thread::sleep(Duration::from_millis(200));
    }
    drop(go);
    let rest: Vec<u32> =
        std::iter::from_fn(|| datagrams.recv_timeout(Duration::from_secs(1)).ok()).collect();
    assert!(rest.len() <= LIMIT + 1, "{rest:?}");
    assert!(
        rest.is_sorted() && rest.last().unwrap() + 10 > last,
        "{rest:?} of {last}"
    );
}

#[test]
fn none_comes_after_the_end_or_is_taken_then() {
    let (both, at_server) = Both::recording(Settings::default());
    let caller = Caller::new(Settings::default());
    let (handler, seen) = recorder();
    let session = caller.connect(&both, handler).unwrap();
    let other = opened(&at_server);
    datagram_through(&other, &seen, b"x");
    session.close();
    // The server's end goes on sending until it knows.
    while other.send_datagram_with(5, 1, |_| ()).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    closed(&seen);
    closed(&at_server);
    assert_eq!(
        session.send_datagram_with(5, 1, |_| ()),
        Err(DatagramError::Closed)
    );
    assert_eq!(
        other.send_datagram_with(5, 1, |_| ()),
        Err(DatagramError::Closed)
    );
    until("nothing of the sessions is left", || {
        both.server.sessions().is_empty()
    });
    // Closed was the last event, at both ends.
    assert!(seen.try_recv().is_err() && at_server.try_recv().is_err());
}

/// Sends a datagram as its first word.
struct Hasty;

impl Handler for Hasty {
    fn greeted(&mut self, session: &Session, _: &[u8]) -> Result<Vec<u8>, String> {
        let sent = session.send_datagram_with(1, 1, |_| ());
        assert_eq!(sent, Err(DatagramError::NotOpen));
        Ok(Vec::new())
    }

    fn opened(&mut self, session: &Session, _: &[u8]) {
        session.send_datagram_with(1, 1, |_| ()).unwrap();
    }

    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }
}

#[test]
fn none_is_taken_before_the_session_is_open() {
    let both = Both::start(Settings::default(), || Hasty);
    let caller = Caller::new(Settings::default());
    let (handler, seen) = recorder();
    caller.connect(&both, handler).unwrap();
    // Opening is first; a datagram that was quicker than that is dropped.
    let first = seen.recv_timeout(LONG).unwrap();
    assert!(matches!(first, Event::Opened(..)), "{first:?}");
}

/// A panic in it ends its own session.
#[test]
fn a_handler_that_panics_loses_its_session_alone() {
    struct Panics;
    impl Handler for Panics {
        fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
            Echo.message(session, message)
        }
        fn datagram(&mut self, _: &Session, _: Datagram<'_>) {
            panic!("as the test wants");
        }
    }
    let both = Both::start(Settings::default(), || Panics);
    let caller = Caller::new(Settings::default());
    let (handler, seen) = recorder();
    let session = caller.connect(&both, handler).unwrap();
    let (handler, at_other) = recorder();
    let other = caller.connect(&both, handler).unwrap();
    while session.send_datagram_with(5, 1, |_| ()).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        closed(&seen).reason,
        embar_session::CloseReason::HandlerPanicked
    );
    other.send_with(1, 1, |buf| buf.fill(9)).unwrap();
    assert_eq!(crate::support::message(&at_other), (1, vec![9]));
}
