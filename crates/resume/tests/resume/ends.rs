//! That each end hears the true reason of an end.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use embar_resume::{End, Handler, Keeper, KeeperSettings, Resumable, Target};
use embar_session::{Address, CloseReason, Flow, Message, Server, Side};

use crate::support::{LONG, Site, connect, connector, ended, loopback, number, quick, recorder};
use crate::wire;

/// What a handler does as its session begins.
#[derive(Clone, Copy)]
enum Whim {
    /// An error of `greeted`.
    Errs,
    /// Not an error, but a refusal with a code.
    Refuses,
    PanicsWhenGreeted,
    PanicsWhenOpened,
}

struct Whimsical {
    whim: Whim,
    sessions: Sender<Resumable>,
}

impl Handler for Whimsical {
    fn greeted(&mut self, session: &Resumable, _: &[u8]) -> Result<Vec<u8>, String> {
        let _ = self.sessions.send(session.clone());
        match self.whim {
            Whim::Errs => return Err("not today".to_owned()),
            Whim::Refuses => session.refuse(77, "cheating"),
            Whim::PanicsWhenGreeted => panic!("a handler"),
            Whim::PanicsWhenOpened => {}
        }
        Ok(Vec::new())
    }

    fn opened(&mut self, session: &Resumable, _: &[u8]) {
        let _ = self.sessions.send(session.clone());
        assert!(!matches!(self.whim, Whim::PanicsWhenOpened), "a handler");
    }

    fn message(&mut self, _: &Resumable, _: Message<'_>) -> Flow {
        Flow::Continue
    }
}

fn whimsical(whim: Whim) -> (Server, Keeper, Receiver<Resumable>) {
    let keeper = Keeper::new(KeeperSettings::default()).unwrap();
    let (sessions, seen) = channel();
    let sessions = Mutex::new(sessions);
    let make = keeper.handlers(move |_| Whimsical {
        whim,
        sessions: sessions.lock().unwrap().clone(),
    });
    let server = Server::builder().listen(loopback()).start(make).unwrap();
    (server, keeper, seen)
}

/// How a session ends at a server with that whim, and at its client.
fn ends(whim: Whim) -> (End, End) {
    let (server, keeper, sessions) = whimsical(whim);
    let connector = connector(quick());
    let (_, seen) = connect(&connector, &server.address());
    let at_client = ended(&seen).why;
    let session = sessions.recv_timeout(LONG).unwrap();
    let state = session.wait_until(LONG, |_| false);
    let at_server = state.ended().expect("it is over").why.clone();
    crate::support::until("it is forgotten", || keeper.sessions().is_empty());
    let has_opened = sessions.try_recv().is_ok();
    assert_eq!(has_opened, matches!(whim, Whim::PanicsWhenOpened));
    (at_server, at_client)
}

fn refused(by: Side, code: u32, text: &str) -> End {
    let text = text.to_owned();
    End::Refused { by, code, text }
}

#[test]
fn a_client_that_is_refused_as_it_greets_hears_why_and_its_handle_is_over() {
    assert_eq!(
        ends(Whim::Errs),
        (
            refused(Side::Local, 0, "not today"),
            refused(Side::Peer, 0, "not today")
        )
    );
    assert_eq!(
        ends(Whim::Refuses),
        (
            refused(Side::Local, 77, "cheating"),
            refused(Side::Peer, 77, "cheating")
        )
    );
}

#[test]
fn a_handler_that_panics_as_its_session_begins_is_the_reason() {
    let (at_server, at_client) = ends(Whim::PanicsWhenGreeted);
    assert_eq!(at_server, End::Panicked);
    let panicked = |end: &End| matches!(end, End::Connection(why) if why.reason == CloseReason::HandlerPanicked);
    assert!(panicked(&at_client), "{at_client}");
    let (at_server, at_client) = ends(Whim::PanicsWhenOpened);
    assert_eq!(at_server, End::Panicked);
    let panicked = |end: &End| matches!(end, End::Refused { by: Side::Peer, text, .. } if text == "the handler panicked");
    assert!(panicked(&at_client), "{at_client}");
    // And the other way round.
    let site = Site::start(KeeperSettings::default(), false);
    let connector = connector(quick());
    let (sessions, _seen) = channel();
    let whim = Whim::PanicsWhenOpened;
    let session = connector.open(Target::new(site.address()), Whimsical { whim, sessions });
    let state = session.wait_until(LONG, |_| false);
    assert_eq!(state.ended().expect("it is over").why, End::Panicked);
    let at_server = ended(&site.seen).why;
    assert!(panicked(&at_server), "{at_server}");
}

#[test]
fn a_server_whose_answer_comes_after_the_end_hears_why() {
    let (go, told) = channel::<()>();
    let (heard, reasons) = channel();
    let server: Address = wire::fake_server(move |connection| {
        told.recv().unwrap();
        connection.welcome(wire::FRESH, &[5; 32], 0);
        heard.send(connection.closed()).unwrap();
    });
    let connector = connector(quick());
    let (handler, seen) = recorder(false);
    let session = connector.open(Target::new(&server), handler);
    session.wait_until(LONG, |state| {
        matches!(state, embar_resume::State::Connecting { attempt: 1 })
    });
    session.refuse(77, "changed my mind");
    assert_eq!(
        ended(&seen).why,
        refused(Side::Local, 77, "changed my mind")
    );
    go.send(()).unwrap();
    let expected = (CloseReason::Refused.number(), "changed my mind".to_owned());
    assert_eq!(reasons.recv_timeout(LONG).unwrap(), expected);
}

#[test]
fn who_is_overtaken_before_its_answer_was_read_hears_that() {
    let site = Site::start(KeeperSettings::default(), false);
    let to_site = || wire::Wire::connect(crate::support::tcp(&site.address()));
    let token = to_site().hello(&[], 0).token;
    // Each takes the session from those before, wherever they are with their greetings.
    let mut all = Vec::new();
    for attempt in 1..=20 {
        let mut next = to_site();
        next.say_attempt(&token, 0, attempt);
        all.push(next);
    }
    let mut last = all.pop().unwrap();
    for mut wire in all {
        let (reason, text) = wire.closed();
        assert_eq!(reason, CloseReason::Refused.number(), "{text}");
    }
    last.message(&5u64.to_le_bytes());
    assert_eq!(number(&site.seen), 5);
}
