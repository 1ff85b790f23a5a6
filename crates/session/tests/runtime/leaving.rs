//! Ends that somebody stands in the way of: a paused handler, a peer that takes nothing, a body
//! that nobody wants.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use embar_memory::Buffer;
use embar_session::{
    BodyTarget, Client, CloseReason, Flow, Handler, Message, OnFull, Plain, SendError, Server,
    Session, Settings, Side,
};

use crate::support::{LONG, closed, fill_up, loopback, message, recorder, small, until};

/// Takes no message, and no body.
struct Closed(Sender<Session>);

impl Handler for Closed {
    fn opened(&mut self, session: &Session, _: &[u8]) {
        self.0.send(session.clone()).unwrap();
    }

    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Pause
    }

    fn body(&mut self, _: &Session, _: u16, head: &[u8], _: usize) -> BodyTarget {
        assert_ne!(head, b"panic");
        BodyTarget::Refuse("no".to_owned())
    }
}

fn server(settings: Settings) -> (Server, Receiver<Session>) {
    let (sessions, seen) = channel();
    let sessions = Mutex::new(sessions);
    let server = Server::builder()
        .settings(settings)
        .listen(loopback())
        .start(move |_| Closed(sessions.lock().unwrap().clone()))
        .unwrap();
    (server, seen)
}

fn client() -> Client {
    let mut settings = small();
    settings.on_full = OnFull::Fail;
    settings.session.linger = Duration::from_millis(50);
    Client::with(Plain, settings).unwrap()
}

#[test]
fn a_paused_session_ends_with_its_connection() {
    let (server, seen) = server(small());
    let client = client();
    let (handler, _events) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    let paused = seen.recv_timeout(LONG).unwrap();
    session.send_with(1, 4, |buf| buf.fill(1)).unwrap();
    session.send_with(1, 4, |buf| buf.fill(2)).unwrap();
    until("paused", || paused.stats().bytes_received > 0);
    session.abort();
    until("the senders know", || {
        paused.send_with(1, 4, |buf| buf.fill(3)) == Err(SendError::Closed)
    });
    until("it is gone", || server.stats().sessions == 0);
    assert!(paused.closed().is_some());
}

#[test]
fn a_close_with_bodies_ends_although_the_peer_takes_nothing() {
    let (server, _seen) = server(small());
    let client = client();
    let (handler, events) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    session.send_with(1, 4, |buf| buf.fill(1)).unwrap();
    let body = Arc::new(Buffer::from(vec![1; 64 << 10]));
    fill_up(|| session.send_body(2, &[], Arc::clone(&body)));
    session.close();
    assert_eq!(closed(&events).reason, CloseReason::Finished);
}

#[test]
fn the_end_of_a_peer_is_seen_behind_a_body_that_nobody_wanted() {
    for (head, reason) in [
        (&b""[..], CloseReason::Refused),
        (b"panic", CloseReason::HandlerPanicked),
    ] {
        let mut settings = small();
        settings.session.linger = LONG * 10;
        let (server, _seen) = server(settings);
        let client = client();
        let (handler, events) = recorder();
        let session = client.connect(server.address(), handler).unwrap();
        let body = Arc::new(Buffer::from(vec![1; 200_000]));
        session.send_body(2, head, body).unwrap();
        assert_eq!(closed(&events).reason, reason);
        until("the server is done", || server.stats().sessions == 0);
    }
}

/// What a handler still has to say, and how often it was asked for that.
#[derive(Default)]
struct LastWord {
    is_said: AtomicBool,
    asked: AtomicUsize,
}

impl LastWord {
    fn is_asked_for(&self, times: usize) {
        until("it is asked", || self.asked.load(Ordering::SeqCst) >= times);
    }

    fn say(&self, session: &Session) {
        self.is_said.store(true, Ordering::SeqCst);
        session.send_with(7, 1, |to| to.fill(7)).unwrap();
    }
}

/// Says its last word by another thread.
struct Ponders(Arc<LastWord>, Sender<Session>);

impl Handler for Ponders {
    fn opened(&mut self, session: &Session, _: &[u8]) {
        self.1.send(session.clone()).unwrap();
    }

    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }

    fn may_end(&mut self, _: &Session) -> bool {
        let may = self.0.is_said.load(Ordering::SeqCst);
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        may
    }
}

fn pondering(settings: Settings) -> (Server, Arc<LastWord>, Receiver<Session>) {
    let (sessions, seen) = channel();
    let word = Arc::new(LastWord::default());
    let its = Arc::clone(&word);
    let sessions = Mutex::new(sessions);
    let server = Server::builder()
        .settings(settings)
        .listen(loopback())
        .start(move |_| Ponders(Arc::clone(&its), sessions.lock().unwrap().clone()));
    (server.unwrap(), word, seen)
}

#[test]
fn a_peer_that_has_nothing_to_take_hears_the_last_word_however_long_that_takes() {
    let mut settings = small();
    settings.session.linger = Duration::from_millis(20);
    let (server, word, seen) = pondering(settings);
    let client = Client::new().unwrap();
    let (handler, events) = recorder();
    let _session = client.connect(server.address(), handler).unwrap();
    let theirs = seen.recv_timeout(LONG).unwrap();
    theirs.close();
    // Each time that a peer that takes nothing would be cut.
    word.is_asked_for(4);
    word.say(&theirs);
    assert_eq!(message(&events), (7, vec![7]));
    let why = closed(&events);
    assert_eq!((why.by, why.reason), (Side::Peer, CloseReason::Finished));
}

#[test]
fn a_session_that_is_to_end_does_so_with_its_last_word_whoever_writes_that() {
    let mut settings = small();
    // Nothing else has it looked at.
    settings.session.linger = LONG * 100;
    settings.session.keep_alive = Duration::ZERO;
    settings.session.idle_timeout = Duration::ZERO;
    settings.session.reservation_timeout = Duration::ZERO;
    let (server, word, seen) = pondering(settings.clone());
    let client = Client::with(Plain, settings).unwrap();
    let (handler, events) = recorder();
    let _session = client.connect(server.address(), handler).unwrap();
    let theirs = seen.recv_timeout(LONG).unwrap();
    theirs.close();
    word.is_asked_for(1);
    word.say(&theirs);
    assert_eq!(message(&events), (7, vec![7]));
    assert_eq!(closed(&events).reason, CloseReason::Finished);
}
