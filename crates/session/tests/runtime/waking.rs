//! Handlers that ask to be woken.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use embar_session::{Client, Closed, Flow, Handler, Message, Server, Session};

use crate::support::{Echo, Event, LONG, loopback, message, recorder};

/// Far enough that no test waits for it.
const NEVER: Duration = Duration::from_secs(100_000);

/// What a [`Sleeper`] lived through.
#[derive(Debug, PartialEq)]
enum Step {
    Woken(Instant),
    Message,
    Closed,
}

/// Asks to be woken when it opens, and some times more.
struct Sleeper {
    wait: Duration,
    again: usize,
    /// Leaves its first message until it is woken.
    pauses: bool,
    steps: Sender<Step>,
}

impl Sleeper {
    fn new(wait: Duration) -> (Self, Receiver<Step>) {
        let (steps, seen) = channel();
        let sleeper = Self {
            wait,
            again: 0,
            pauses: false,
            steps,
        };
        (sleeper, seen)
    }
}

impl Handler for Sleeper {
    fn opened(&mut self, session: &Session, _: &[u8]) {
        session.wake_after(self.wait);
    }

    fn message(&mut self, session: &Session, _: Message<'_>) -> Flow {
        if self.pauses {
            session.wake_after(Duration::ZERO);
            return Flow::Pause;
        }
        self.steps.send(Step::Message).unwrap();
        Flow::Continue
    }

    fn woken(&mut self, session: &Session) {
        if std::mem::take(&mut self.pauses) {
            session.resume();
        }
        if self.again > 0 {
            self.again -= 1;
            session.wake_after(self.wait);
        }
        session.send_with(1, 0, |_| ()).unwrap();
        self.steps.send(Step::Woken(Instant::now())).unwrap();
    }

    fn closed(&mut self, _: &Session, _: &Closed) {
        let _ = self.steps.send(Step::Closed);
    }
}

fn woken(seen: &Receiver<Step>) -> Instant {
    match seen.recv_timeout(LONG).unwrap() {
        Step::Woken(at) => at,
        other => panic!("not woken, but {other:?}"),
    }
}

#[test]
fn a_handler_is_woken_when_it_asked_to_be_and_what_it_sends_leaves() {
    let (events, got) = recorder();
    let events = std::sync::Mutex::new(Some(events));
    let make = move |_: &_| events.lock().unwrap().take().unwrap();
    let server = Server::builder().listen(loopback()).start(make).unwrap();
    let client = Client::new().unwrap();
    let wait = Duration::from_millis(20);
    let (mut sleeper, seen) = Sleeper::new(wait);
    sleeper.again = 2;
    let began = Instant::now();
    let session = client.connect(server.address(), sleeper).unwrap();
    for times in 1..=3 {
        assert!(woken(&seen) - began >= wait * times, "too early");
        assert_eq!(message(&got).0, 1);
    }
    // Nobody asked for more.
    session.close();
    assert_eq!(seen.recv_timeout(LONG).unwrap(), Step::Closed);
    assert!(seen.recv_timeout(LONG).is_err(), "after the end");
    while !matches!(got.recv_timeout(LONG).unwrap(), Event::Closed(_)) {}
}

#[test]
fn any_thread_may_have_it_woken_earlier_but_not_later() {
    let server = Server::builder().listen(loopback());
    let server = server.start(|_| Echo).unwrap();
    let client = Client::new().unwrap();
    let (sleeper, seen) = Sleeper::new(NEVER);
    let session = client.connect(server.address(), sleeper).unwrap();
    session.wake_after(Duration::ZERO);
    session.wake_after(NEVER);
    woken(&seen);
    // The echo of what it sent.
    assert_eq!(seen.recv_timeout(LONG).unwrap(), Step::Message);
    session.close();
    assert_eq!(seen.recv_timeout(LONG).unwrap(), Step::Closed);
}

#[test]
fn it_is_woken_while_a_message_waits() {
    let server = Server::builder().listen(loopback());
    let server = server.start(|_| Echo).unwrap();
    let client = Client::new().unwrap();
    let (mut sleeper, seen) = Sleeper::new(NEVER);
    sleeper.pauses = true;
    let session = client.connect(server.address(), sleeper).unwrap();
    session.send_with(1, 0, |_| ()).unwrap();
    woken(&seen);
    assert_eq!(seen.recv_timeout(LONG).unwrap(), Step::Message);
}

#[test]
fn a_handler_that_panics_when_woken_loses_its_own_session_only() {
    struct Panics(Sender<Closed>);
    impl Handler for Panics {
        fn opened(&mut self, session: &Session, _: &[u8]) {
            session.wake_after(Duration::ZERO);
        }
        fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
            Flow::Continue
        }
        fn woken(&mut self, _: &Session) {
            panic!("as the test wants it");
        }
        fn closed(&mut self, _: &Session, why: &Closed) {
            self.0.send(why.clone()).unwrap();
        }
    }
    let server = Server::builder().listen(loopback());
    let server = server.start(|_| Echo).unwrap();
    let client = Client::new().unwrap();
    let (ended, end) = channel();
    let _ = client.connect(server.address(), Panics(ended));
    let why = end.recv_timeout(LONG).unwrap();
    assert_eq!(why.reason, embar_session::CloseReason::HandlerPanicked);
    let (sleeper, seen) = Sleeper::new(Duration::ZERO);
    let _session = client.connect(server.address(), sleeper).unwrap();
    woken(&seen);
}
