//! What a worker survives, and that nobody waits for one that has ended.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use embar_frame::{FrameError, FrameHeader, Protocol, Shape};
use embar_session::{
    Client, CloseReason, Closed, Connecting, Flow, Handler, Message, Plain, Server, Session,
    Settings,
};
use embar_transport::{Address, Peer};

use crate::support::{
    Echo, Event, LONG, Recorder, closed, echo_server, loopback, message, recorder, until,
};

/// A protocol of the user's that panics when it is told to.
#[derive(Default)]
struct Delicate {
    cloning_panics: Arc<AtomicBool>,
}

/// The id of the frames whose shape it cannot tell.
const DEADLY: u16 = 66;

impl Clone for Delicate {
    fn clone(&self) -> Self {
        assert!(
            !self.cloning_panics.swap(false, Ordering::SeqCst),
            "as asked"
        );
        Self {
            cloning_panics: Arc::clone(&self.cloning_panics),
        }
    }
}

impl Protocol for Delicate {
    const NAME: &'static str = "delicate";
    const VERSION: u32 = 1;

    fn shape(&self, header: FrameHeader) -> Result<Shape, FrameError> {
        assert_ne!(header.id, DEADLY, "as asked");
        Ok(Shape::Whole)
    }
}

fn delicate_server(protocol: Delicate, workers: usize) -> Server {
    Server::builder()
        .protocol(protocol)
        .workers(workers)
        .listen(loopback())
        .start(|_| Echo)
        .unwrap()
}

/// The outcome of a connect, in time.
fn outcome(connecting: Connecting) -> Result<Session, Closed> {
    let (told, outcome) = channel();
    std::thread::spawn(move || told.send(connecting.wait()));
    outcome.recv_timeout(LONG).expect("an outcome in time")
}

fn send(session: &Session, id: u16) {
    session.send_with(id, 1, |buf| buf.fill(9)).unwrap();
}

#[test]
fn a_protocol_that_panics_ends_its_session_and_no_other() {
    let (events, at_server) = channel();
    let events = std::sync::Mutex::new(events);
    let server = Server::builder()
        .protocol(Delicate::default())
        .listen(loopback())
        .start(move |_| Recorder(events.lock().unwrap().clone()))
        .unwrap();
    let client = Client::with(Delicate::default(), Settings::default()).unwrap();
    let (handler, seen) = recorder();
    let session = outcome(client.open(server.address(), &[], handler)).unwrap();
    let (handler, _other_seen) = recorder();
    let other = outcome(client.open(server.address(), &[], handler)).unwrap();

    send(&session, DEADLY);
    assert_eq!(closed(&at_server).reason, CloseReason::HandlerPanicked);
    closed(&seen);
    until("forgotten", || server.stats().sessions == 1);
    assert_eq!(server.stats().panics, 1);
    send(&other, 1);
    assert_eq!(message(&at_server), (1, vec![9]));
    server.shutdown(LONG);
}

/// The client's only worker dies: sessions, connects on their way and connects to come all end.
#[test]
fn nobody_waits_for_a_worker_that_died() {
    let server = delicate_server(Delicate::default(), 1);
    let protocol = Delicate::default();
    let cloning_panics = Arc::clone(&protocol.cloning_panics);
    let client = Client::with(protocol, Settings::default()).unwrap();
    let (handler, seen) = recorder();
    let session = outcome(client.open(server.address(), &[], handler)).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = Address::Tcp(listener.local_addr().unwrap());
    let (handler, on_its_way_seen) = recorder();
    let on_its_way = client.open(silent, &[], handler);
    until("on its way", || client.stats().sessions == 2);

    cloning_panics.store(true, Ordering::SeqCst);
    let deadly = client.open(server.address(), &[], recorder().0);
    assert_eq!(outcome(deadly).unwrap_err().reason, CloseReason::Shutdown);
    assert_eq!(closed(&seen).reason, CloseReason::Shutdown);
    assert_eq!(closed(&on_its_way_seen).reason, CloseReason::Shutdown);
    assert_eq!(
        outcome(on_its_way).unwrap_err().reason,
        CloseReason::Shutdown
    );
    until("forgotten", || client.stats().sessions == 0);
    assert_eq!(session.closed().unwrap().reason, CloseReason::Shutdown);
    assert!(session.send_with(1, 0, |_| ()).is_err());
    let next = client.open(server.address(), &[], recorder().0);
    assert_eq!(outcome(next).unwrap_err().reason, CloseReason::Shutdown);
    until("the peer noticed", || server.stats().sessions == 0);
    client.shutdown(LONG);
}

/// A connection that would be a dead worker's turn goes to one that runs.
#[test]
fn the_other_workers_of_a_server_take_over() {
    let protocol = Delicate::default();
    let cloning_panics = Arc::clone(&protocol.cloning_panics);
    let server = delicate_server(protocol, 2);
    let client = Client::with(Delicate::default(), Settings::default()).unwrap();
    let open = || {
        let (handler, seen) = recorder();
        let session = outcome(client.open(server.address(), &[], handler));
        session.map(|session| (session, seen))
    };
    // In turn; the first worker, which accepts, begins with itself.
    let first = open().unwrap();
    cloning_panics.store(true, Ordering::SeqCst);
    open().expect_err("its worker died");
    for _ in 0..4 {
        let (session, seen) = open().unwrap();
        send(&session, 1);
        assert_eq!(message(&seen), (1, vec![9]));
    }
    send(&first.0, 1);
    assert_eq!(message(&first.1), (1, vec![9]));
    assert_eq!(server.stats().sessions, 5);
    server.shutdown(LONG);
}

/// Never takes its message, and asks for it again each time, until it is told to stop.
struct Stubborn {
    enough: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Handler for Stubborn {
    fn message(&mut self, session: &Session, _: Message<'_>) -> Flow {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.enough.load(Ordering::SeqCst) {
            return Flow::Continue;
        }
        session.resume();
        Flow::Pause
    }
}

#[test]
fn a_handler_that_resumes_itself_holds_up_no_other_session() {
    let server = echo_server(Settings::default(), loopback());
    let client = Client::with(Plain, Settings::default()).unwrap();
    let (enough, asked) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let stubborn = Stubborn {
        enough: Arc::clone(&enough),
        asked: Arc::clone(&asked),
    };
    let session = outcome(client.open(server.address(), &[], stubborn)).unwrap();
    let (handler, seen) = recorder();
    let other = outcome(client.open(server.address(), &[], handler)).unwrap();
    send(&session, 1);
    until("it is asked over and over", || {
        asked.load(Ordering::SeqCst) > 10
    });
    send(&other, 2);
    let answer = loop {
        match seen.recv_timeout(LONG) {
            Ok(Event::Message(id, payload)) => break Some((id, payload)),
            Ok(_) => {}
            Err(_) => break None,
        }
    };
    enough.store(true, Ordering::SeqCst);
    assert_eq!(answer, Some((2, vec![9])));
    client.shutdown(LONG);
}

/// As the documentation of `Handler::closed` says: the connect tells why, the handler is dropped.
#[test]
fn a_connect_that_cannot_begin_tells_its_caller_and_not_its_handler() {
    let server = echo_server(Settings::default(), loopback());
    let settings = Settings::default().with(|settings| settings.max_sessions = 1);
    let client = Client::with(Plain, settings).unwrap();
    let (handler, first_seen) = recorder();
    let first = outcome(client.open(server.address(), &[], handler)).unwrap();
    let (handler, seen) = recorder();
    let why = outcome(client.open(server.address(), &[], handler)).unwrap_err();
    assert_eq!(why.reason, CloseReason::TooManySessions);
    first.close();
    closed(&first_seen);
    until("room again", || client.stats().sessions == 0);
    assert!(matches!(
        seen.recv_timeout(LONG),
        Err(RecvTimeoutError::Disconnected)
    ));
}

#[test]
fn more_sessions_than_the_system_carries_are_an_error_at_the_start() {
    const ASKED: usize = 258_000;
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let settings = Settings::default().with(|settings| settings.max_sessions = ASKED);
    match Client::with(Plain, settings) {
        Ok(_) => assert!(limit > 4 * ASKED),
        Err(error) => {
            let text = error.to_string();
            assert!(
                limit < 5 * ASKED && text.contains("vm.max_map_count"),
                "{text}"
            );
        }
    }
    let all = Settings::default().with(|settings| settings.max_sessions = usize::MAX);
    Client::with(Plain, all).expect("as many as fit");
}

/// Connects to a server in a handler, and waits there.
struct Connects {
    client: Arc<Client>,
    address: Address,
    ended: std::sync::mpsc::Sender<Closed>,
}

impl Handler for Connects {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        let (handler, _) = recorder();
        let connected = self.client.connect(self.address.clone(), handler);
        let _ = self
            .ended
            .send(connected.expect_err("a handler cannot wait"));
        Flow::Continue
    }
}

#[test]
fn a_handler_that_waits_for_a_connect_gets_an_error() {
    let server = echo_server(Settings::default(), loopback());
    let client = Arc::new(Client::new().unwrap());
    let (ended, end) = channel();
    let handler = Connects {
        client: Arc::clone(&client),
        address: server.address(),
        ended,
    };
    let session = client.connect(server.address(), handler).unwrap();
    session.send_with(1, 1, |buf| buf.fill(0)).unwrap();
    let why = end.recv_timeout(LONG).unwrap();
    assert_eq!(why.reason, CloseReason::Io(ErrorKind::Deadlock));
    assert!(why.text.contains("Client::open"), "{why}");
    // The worker goes on, and what it opened nevertheless is closed.
    until("one is left", || {
        server.stats().sessions == 1 && server.stats().closed >= 1
    });
    assert_eq!(session.closed(), None);
}

/// The id of a message with which a handler waits until it may go on.
const WAIT: u16 = 13;

/// Holds its worker up, and echoes.
struct Waits(Arc<AtomicUsize>, Arc<AtomicBool>);

impl Handler for Waits {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        if message.id() == WAIT {
            self.0.fetch_add(1, Ordering::SeqCst);
            until("it may go on", || self.1.load(Ordering::SeqCst));
        }
        Echo.message(session, message)
    }
}

#[test]
fn a_handler_that_blocks_holds_up_its_worker_and_newcomers_get_another_one() {
    let (waiting, goes_on) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let (its, may) = (Arc::clone(&waiting), Arc::clone(&goes_on));
    let handler = move |_: &Peer| Waits(Arc::clone(&its), Arc::clone(&may));
    let server = Server::builder().workers(3).start(handler).unwrap();
    let front = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Client::new().unwrap();
    let connect = || {
        let (handler, seen) = recorder();
        let connecting = client.open(front.local_addr().unwrap(), &[], handler);
        let (stream, peer) = front.accept().unwrap();
        server.adopt(stream, Peer::Tcp(peer)).unwrap();
        (outcome(connecting).unwrap(), seen)
    };
    let (held_up, its_answer) = connect();
    let (neighbour, seen) = connect();
    send(&held_up, WAIT);
    let since = Instant::now();
    until("a handler holds its worker up for long", || {
        waiting.load(Ordering::SeqCst) == 1 && since.elapsed() > Duration::from_millis(300)
    });
    send(&neighbour, 1);
    assert_eq!(message(&seen).0, 1);
    for _ in 0..9 {
        let (newcomer, seen) = connect();
        send(&newcomer, 2);
        assert_eq!(message(&seen).0, 2);
    }
    goes_on.store(true, Ordering::SeqCst);
    assert_eq!(message(&its_answer).0, WAIT);
}
