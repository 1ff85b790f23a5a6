//! Sessions from their greeting to their end.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use embar_resume::{
    Connector, End, Ended, Handler, Keeper, KeeperSettings, Resumable, State, Target,
};
use embar_session::{Address, Client, Closed, Flow, Message, Plain, Server, Settings, Side};

use crate::support::{
    Event, LONG, Proxy, Site, connect, connector, ended, expect, is_open, loopback, next,
    number_of, opened, quick, recorder, resumed, send, small_rings, suspended, until,
};

#[test]
fn a_session_goes_on_when_its_connection_is_cut() {
    let site = Site::start(KeeperSettings::default(), true);
    let proxy = Proxy::start(&site.address(), []);
    let connector = connector(quick());
    let (handler, seen) = recorder(false);
    let target = Target::new(&proxy.address).greeting("you");
    let session = connector.open(target, handler);
    let greeting = next(&seen, |event| match event {
        Event::Opened(_, greeting) => Some(greeting.clone()),
        _ => None,
    });
    assert_eq!(greeting, b"hello you");
    let at_server = opened(&site.seen);
    assert_eq!(session.state(), State::Open);
    for round in 0..5 {
        let numbers = round * 10..round * 10 + 10;
        for number in numbers.clone() {
            send(&session, number).unwrap();
        }
        expect(&site.seen, numbers.clone());
        expect(&seen, numbers);
        proxy.cut_all();
        suspended(&seen);
        suspended(&site.seen);
        resumed(&seen);
        resumed(&site.seen);
        assert_eq!(session.state(), State::Resumed);
        assert_eq!(at_server.state(), State::Resumed);
        assert_eq!(site.keeper.suspended(), 0);
    }
    session.close();
    let finished = |by| End::Finished { by };
    let at_client = ended(&seen);
    assert_eq!(at_client.why, finished(Side::Local));
    assert_eq!(at_client.unacknowledged, 0);
    assert_eq!(ended(&site.seen).why, finished(Side::Peer));
    until("it is forgotten", || site.keeper.sessions().is_empty());
    assert_eq!(session.state().ended(), Some(&at_client));
    assert!(send(&session, 0).is_err());
}

#[test]
fn what_is_sent_without_a_connection_waits_for_one() {
    let site = Site::start(KeeperSettings::default(), false);
    let proxy = Proxy::start(&site.address(), []);
    let connector = connector(quick());
    let (session, seen) = connect(&connector, &proxy.address);
    for number in 0..10 {
        send(&session, number).unwrap();
    }
    is_open(&session);
    let at_server = opened(&site.seen);
    expect(&site.seen, 0..10);
    proxy.lead_to(&"127.0.0.1:1".parse().unwrap());
    proxy.cut_all();
    suspended(&seen);
    suspended(&site.seen);
    for number in 10..20 {
        send(&session, number).unwrap();
        send(&at_server, number).unwrap();
    }
    assert!(matches!(
        at_server.state(),
        State::Resuming { attempt: 0, .. }
    ));
    session.wait_until(LONG, |state| {
        matches!(state, State::Resuming { attempt: 3.., .. })
    });
    proxy.lead_to(&site.address());
    expect(&site.seen, 10..20);
    expect(&seen, 10..20);
}

/// Sends much as soon as it can.
struct Talkative {
    numbers: Sender<u64>,
    len: usize,
}

const MUCH: u64 = 500;

fn send_much(session: &Resumable, len: usize) {
    for number in 0..MUCH {
        let fill = |to: &mut [u8]| to[..8].copy_from_slice(&number.to_le_bytes());
        session.send_with(1, len, fill).unwrap();
    }
}

impl Handler for Talkative {
    fn opened(&mut self, session: &Resumable, _: &[u8]) {
        send_much(session, self.len);
    }

    fn message(&mut self, _: &Resumable, message: Message<'_>) -> Flow {
        let _ = self.numbers.send(number_of(message.payload()));
        Flow::Continue
    }
}

/// Both ends of a connection with these settings send messages of this length.
fn both_send_much(settings: impl FnOnce(&mut Settings), len: usize) {
    let narrow = small_rings().with(|it| {
        it.sockets.unix_send_buffer_bytes = Some(4096);
        settings(it);
    });
    let large = |settings: &mut embar_resume::Replay| settings.max_bytes = 32 << 20;
    let keeping = KeeperSettings::default().with(|it| large(&mut it.replay));
    let folder = tempfile::tempdir().unwrap();
    let socket = Address::Unix(folder.path().join("socket"));
    let keeper = Keeper::new(keeping).unwrap();
    let (numbers, at_server) = channel();
    let numbers = Mutex::new(numbers);
    let make = keeper.handlers(move |_| Talkative {
        numbers: numbers.lock().unwrap().clone(),
        len,
    });
    let server = Server::builder()
        .settings(narrow.clone())
        .listen(socket)
        .start(make)
        .unwrap();
    let settings = quick().with(|it| large(&mut it.replay));
    let client = Client::with(Plain, narrow).unwrap();
    let connector = Connector::new(client, settings).unwrap();
    let (session, seen) = connect(&connector, &server.address());
    send_much(&session, len);
    expect(&seen, 0..MUCH);
    for number in 0..MUCH {
        assert_eq!(at_server.recv_timeout(LONG), Ok(number));
    }
}

#[test]
fn both_ends_may_have_much_to_send_at_once() {
    // What a send ring holds is more than the sockets and receive rings behind it take.
    let wide = |settings: &mut Settings| {
        settings.send_ring_bytes = 256 << 10;
        settings.recv_ring_bytes = 8 << 10;
    };
    both_send_much(wide, 4000);
}

#[test]
fn both_ends_may_send_messages_as_long_as_their_rings() {
    both_send_much(|settings| settings.session.max_frame_bytes = 16_000, 15_900);
}

/// Does with a message what a test wants.
struct Moody {
    events: Sender<String>,
    mood: Arc<Mutex<Mood>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Takes,
    Pauses,
    Panics,
    PanicsWhenSuspended,
}

impl Handler for Moody {
    fn message(&mut self, _: &Resumable, message: Message<'_>) -> Flow {
        let number = number_of(message.payload());
        let mood = *self.mood.lock().unwrap();
        let _ = self.events.send(format!("message {number}"));
        match mood {
            Mood::Pauses => Flow::Pause,
            Mood::Panics => panic!("a handler"),
            _ => Flow::Continue,
        }
    }

    fn suspended(&mut self, _: &Resumable, _: &Closed) {
        let mood = *self.mood.lock().unwrap();
        let _ = self.events.send("suspended".to_owned());
        assert!(mood != Mood::PanicsWhenSuspended, "a handler");
    }

    fn closed(&mut self, _: &Resumable, ended: &Ended) {
        let _ = self.events.send(format!("closed: {}", ended.why));
    }
}

struct MoodyServer {
    keeper: Keeper,
    server: Server,
    mood: Arc<Mutex<Mood>>,
    said: std::sync::mpsc::Receiver<String>,
}

impl MoodyServer {
    fn start(first: Mood) -> Self {
        let (events, said) = channel();
        let events = Mutex::new(events);
        let mood = Arc::new(Mutex::new(first));
        let theirs = Arc::clone(&mood);
        let keeper = Keeper::new(KeeperSettings::default()).unwrap();
        let make = keeper.handlers(move |_| Moody {
            events: events.lock().unwrap().clone(),
            mood: Arc::clone(&theirs),
        });
        let server = Server::builder().listen(loopback()).start(make).unwrap();
        Self {
            keeper,
            server,
            mood,
            said,
        }
    }

    fn says(&self, expected: &str) {
        assert_eq!(self.said.recv_timeout(LONG).unwrap(), expected);
    }
}

#[test]
fn a_message_that_was_left_comes_again_also_on_another_connection() {
    let moody = MoodyServer::start(Mood::Pauses);
    let proxy = Proxy::start(&moody.server.address(), []);
    let connector = connector(quick());
    let (session, _seen) = connect(&connector, &proxy.address);
    send(&session, 0).unwrap();
    send(&session, 1).unwrap();
    moody.says("message 0");
    moody.keeper.sessions()[0].go_on();
    moody.says("message 0");
    proxy.cut_all();
    moody.says("suspended");
    *moody.mood.lock().unwrap() = Mood::Takes;
    moody.says("message 0");
    moody.says("message 1");
}

#[test]
fn a_handler_that_panics_loses_its_session_and_no_other() {
    let moody = MoodyServer::start(Mood::Takes);
    let connector = connector(quick());
    let address = moody.server.address();
    let (other, _other_seen) = connect(&connector, &address);
    send(&other, 0).unwrap();
    moody.says("message 0");
    *moody.mood.lock().unwrap() = Mood::Panics;
    let (session, seen) = connect(&connector, &address);
    send(&session, 1).unwrap();
    moody.says("message 1");
    moody.says("closed: the handler panicked");
    assert!(matches!(ended(&seen).why, End::Connection(_)));
    let proxy = Proxy::start(&address, []);
    *moody.mood.lock().unwrap() = Mood::PanicsWhenSuspended;
    let (session, _seen) = connect(&connector, &proxy.address);
    send(&session, 2).unwrap();
    moody.says("message 2");
    proxy.cut_all();
    moody.says("suspended");
    moody.says("closed: the handler panicked");
    *moody.mood.lock().unwrap() = Mood::Takes;
    send(&other, 3).unwrap();
    loop {
        // The client of the session that is over begins anew, and may send its message again.
        if moody.said.recv_timeout(LONG).unwrap() == "message 3" {
            break;
        }
    }
}

#[test]
fn a_server_refuses_and_a_client_does_not_insist() {
    let site = Site::start(KeeperSettings::default(), false);
    let connector = connector(quick());
    let (handler, seen) = recorder(false);
    let target = Target::new(site.address()).greeting("refuse me");
    connector.open(target, handler);
    let why = ended(&seen).why;
    assert!(
        matches!(&why, End::Refused { text, .. } if text == "as you like"),
        "{why}"
    );
    assert!(site.keeper.sessions().is_empty());
}

#[test]
fn what_is_dropped_ends_its_sessions() {
    let site = Site::start(KeeperSettings::default(), false);
    let first = connector(quick());
    let (session, seen) = connect(&first, &site.address());
    is_open(&session);
    drop(first);
    assert_eq!(ended(&seen).why, End::Stopped);
    assert_eq!(ended(&site.seen).why, End::Finished { by: Side::Peer });
    let second = connector(quick());
    let (session, seen) = connect(&second, &site.address());
    is_open(&session);
    let Site {
        keeper,
        server,
        seen: at_server,
    } = site;
    drop(server);
    drop(keeper);
    assert_eq!(ended(&at_server).why, End::Stopped);
    suspended(&seen);
}

#[test]
fn a_plain_message_of_a_reserved_id_is_refused() {
    let site = Site::start(KeeperSettings::default(), false);
    let connector = connector(quick());
    let (session, _seen) = connect(&connector, &site.address());
    let id = embar_resume::RESERVED_ID;
    let refused = session.send_with(id, 1, |_| ());
    assert_eq!(refused, Err(embar_session::SendError::ReservedId { id }));
    // Longer than the server takes: it is as if it had not been sent.
    is_open(&session);
    let refused = session.send_with(1, 5000, |_| ());
    assert!(
        matches!(refused, Err(embar_session::SendError::TooLong { .. })),
        "{refused:?}"
    );
    send(&session, 0).unwrap();
    expect(&site.seen, 0..1);
}

/// Counts its calls.
struct Ticks(Sender<State>);

impl Handler for Ticks {
    fn opened(&mut self, session: &Resumable, _: &[u8]) {
        session.wake_after(Duration::from_millis(1));
    }

    fn message(&mut self, _: &Resumable, _: Message<'_>) -> Flow {
        Flow::Continue
    }

    fn woken(&mut self, session: &Resumable) {
        session.wake_after(Duration::from_millis(1));
        let _ = self.0.send(session.state());
    }
}

#[test]
fn a_handler_has_a_timer_over_all_connections() {
    let site = Site::start(KeeperSettings::default(), false);
    let proxy = Proxy::start(&site.address(), []);
    let connector = connector(quick());
    let (ticks, seen) = channel();
    let session = connector.open(Target::new(&proxy.address), Ticks(ticks));
    for _ in 0..3 {
        assert_eq!(seen.recv_timeout(LONG).unwrap(), State::Open);
    }
    proxy.cut_all();
    let state = session.wait_until(LONG, |state| *state == State::Resumed);
    assert_eq!(state, State::Resumed);
    while seen.recv_timeout(LONG).unwrap() != State::Resumed {}
}

/// Owns what serves it, and drops that before `_events`.
struct Owns<T> {
    _owned: T,
    _events: Sender<()>,
}

impl<T: Send + 'static> Handler for Owns<T> {
    fn message(&mut self, _: &Resumable, _: Message<'_>) -> Flow {
        Flow::Continue
    }
}

#[test]
fn a_handler_may_own_the_last_connector() {
    let site = Site::start(KeeperSettings::default(), false);
    let connector = connector(quick());
    let (events, dropped) = channel();
    let handler = Owns {
        _owned: connector.clone(),
        _events: events,
    };
    let session = connector.open(Target::new(site.address()), handler);
    is_open(&session);
    let (_, other) = connect(&connector, &site.address());
    opened(&other);
    drop(connector);
    opened(&site.seen).refuse(1, "go");
    opened(&site.seen).refuse(1, "go");
    let gone = std::sync::mpsc::RecvTimeoutError::Disconnected;
    assert_eq!(dropped.recv_timeout(LONG), Err(gone));
    ended(&other);
}
