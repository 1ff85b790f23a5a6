//! Ends that somebody stands in the way of: a paused handler, a peer that takes nothing, a body
//! that nobody wants.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use embar_memory::Buffer;
use embar_session::{
    BodyTarget, Client, CloseReason, Flow, Handler, Message, OnFull, Plain, SendError, Server,
    Session, Settings,
};

use crate::support::{LONG, closed, fill_up, loopback, recorder, small, until};

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

fn server(settings: Settings) -> (Server, std::sync::mpsc::Receiver<Session>) {
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
