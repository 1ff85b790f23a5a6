//! Sessions that are refused with a code, and what a sender may know of its ring and of its thread.

use std::sync::mpsc::channel;

use embar_session::{
    Client, CloseReason, Flow, Handler, Message, Plain, SendError, Session, Side, is_worker,
};

use crate::support::{
    Event, LONG, closed, loopback, message, recorder, recording_server, small, until,
};

#[test]
fn the_peer_learns_the_code_and_the_text_after_what_was_sent() {
    let (server, at_server) = recording_server(small(), loopback());
    let client = Client::with(Plain, small()).unwrap();
    let (handler, seen) = recorder();
    client.connect(server.address(), handler).unwrap();
    let Event::Opened(session, _) = at_server.recv_timeout(LONG).unwrap() else {
        panic!("not opened first");
    };
    session
        .send_with(1, 3, |to| to.copy_from_slice(b"bye"))
        .unwrap();
    session.refuse(7, "the room is closed");
    session.refuse(8, "too late");
    assert_eq!(message(&seen), (1, b"bye".to_vec()));
    for (why, by) in [
        (closed(&seen), Side::Peer),
        (closed(&at_server), Side::Local),
    ] {
        assert_eq!(
            (why.by, why.reason, why.code),
            (by, CloseReason::Refused, 7)
        );
        assert_eq!(why.text, "the room is closed");
    }
    assert_eq!(session.send_with(1, 1, |_| ()), Err(SendError::Closed));
}

/// Reads nothing.
struct Pauses;

impl Handler for Pauses {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Pause
    }
}

#[test]
fn a_sender_sees_how_much_room_there_is_and_what_replies_need() {
    let (server, at_server) = recording_server(small(), loopback());
    let client = Client::with(Plain, small()).unwrap();
    let session = client.connect(server.address(), Pauses).unwrap();
    assert_eq!(
        session.reply_room(),
        (16 << 10) / 2,
        "no more than half of the ring"
    );
    assert!(session.has_room(8 << 10));
    assert!(
        session.has_room(usize::MAX),
        "an empty ring has all the room there ever is"
    );
    let Event::Opened(to_client, _) = at_server.recv_timeout(LONG).unwrap() else {
        panic!("not opened first");
    };
    // The kernel may take more at any time.
    until("it is full", || {
        while to_client.send_with(1, 1000, |to| to.fill(0)).is_ok() {}
        !to_client.has_room(1000) && !to_client.has_room(usize::MAX)
    });
    session.abort();
    until("the end", || to_client.closed().is_some());
    assert_eq!(to_client.reply_room(), 0);
}

/// Tells whether it is called on a worker.
struct Asks(std::sync::mpsc::Sender<bool>);

impl Handler for Asks {
    fn opened(&mut self, _: &Session, _: &[u8]) {
        let _ = self.0.send(is_worker());
    }

    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }
}

#[test]
fn code_can_ask_whether_it_runs_on_a_worker() {
    let (server, _at_server) = recording_server(small(), loopback());
    let client = Client::with(Plain, small()).unwrap();
    let (says, said) = channel();
    client.connect(server.address(), Asks(says)).unwrap();
    assert!(said.recv_timeout(LONG).unwrap());
    assert!(!is_worker());
}
