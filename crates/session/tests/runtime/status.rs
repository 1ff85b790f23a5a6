//! STATUS packets: who is told the figures.

use std::sync::mpsc::{Receiver, Sender, channel};

use embar_session::{
    Address, Client, Flow, Handler, Message, PeerStatus, Plain, Session, Settings, StatusAnswer,
    StatusPolicy,
};

use crate::support::{LONG, echo_server, loopback, message, recorder, until};

/// Tells what it is answered.
struct Asker {
    answers: Sender<StatusAnswer>,
    messages: Sender<()>,
}

impl Handler for Asker {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        let _ = self.messages.send(());
        Flow::Continue
    }

    fn status(&mut self, _: &Session, answer: StatusAnswer) {
        self.answers.send(answer).unwrap();
    }
}

fn asked(client: &Client, address: Address) -> (Session, Receiver<StatusAnswer>) {
    let (answers, answered) = channel();
    let messages = channel().0;
    let session = client.connect(address, Asker { answers, messages });
    let session = session.unwrap();
    session.request_status();
    (session, answered)
}

fn with(status: StatusPolicy) -> Settings {
    Settings::default().with(|settings| settings.status = status)
}

#[test]
fn by_default_nobody_gets_an_answer_and_the_session_goes_on() {
    let server = echo_server(Settings::default(), loopback());
    let client = Client::new().unwrap();
    let (answers, answered) = channel();
    let (messages, seen) = channel();
    let session = client
        .connect(server.address(), Asker { answers, messages })
        .unwrap();
    let before = session.stats().bytes_sent;
    session.request_status();
    until("the question is there", || {
        let sent = session.stats().bytes_sent;
        sent > before && server.stats().bytes_received == sent
    });
    // An answer would come before this one.
    session.send_with(1, 1, |buf| buf.fill(0)).unwrap();
    seen.recv_timeout(LONG).unwrap();
    assert!(answered.try_recv().is_err());
    assert!(session.closed().is_none());
}

#[test]
fn peers_of_this_machine_are_told_if_the_policy_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let unix = Address::Unix(folder.path().join("socket"));
    for (policy, address) in [
        (StatusPolicy::Local, loopback()),
        (StatusPolicy::Local, unix),
        (StatusPolicy::Everyone, loopback()),
    ] {
        let server = echo_server(with(policy), address);
        let client = Client::new().unwrap();
        let (handler, seen) = recorder();
        let other = client.connect(server.address(), handler).unwrap();
        other.send_with(1, 100, |buf| buf.fill(1)).unwrap();
        message(&seen);
        let (session, answered) = asked(&client, server.address());
        let StatusAnswer::Given(status) = answered.recv_timeout(LONG).unwrap() else {
            panic!("{policy:?} refuses");
        };
        let PeerStatus {
            session: its,
            totals,
            ..
        } = *status;
        assert_eq!((totals.sessions, totals.opened), (2, 2));
        assert_eq!(totals.messages_received, 1);
        assert!(totals.bytes_received > 108 && its.bytes_received > 0);
        assert!(its.bytes_received < totals.bytes_received);
        assert_eq!(its.messages_received, 0, "questions are no messages");
        drop(session);
    }
}

/// Whoever asks without a break is answered as far as there is room, and keeps nobody else from
/// being served.
#[test]
fn a_flood_of_questions_harms_nobody() {
    let server = echo_server(with(StatusPolicy::Everyone), loopback());
    let client = Client::with(Plain, Settings::default()).unwrap();
    let (session, answered) = asked(&client, server.address());
    let (handler, seen) = recorder();
    let other = client.connect(server.address(), handler).unwrap();
    for number in 0..200u8 {
        for _ in 0..50 {
            session.request_status();
        }
        other.send_with(1, 1, |buf| buf[0] = number).unwrap();
        assert_eq!(message(&seen).1, [number]);
    }
    until("an answer", || answered.try_recv().is_ok());
    assert!(session.closed().is_none());
}
