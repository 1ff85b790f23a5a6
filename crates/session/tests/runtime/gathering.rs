//! Messages of other threads gather for a moment before they are written: none stays behind,
//! whatever happens to the session meanwhile.
//!
//! A message gathers if another was written just before. So each test sends two or more in a row,
//! many times, and a little later each time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use embar_memory::Buffer;
use embar_session::{
    Client, CloseReason, Flow, Handler, Message, OnFull, Plain, SendError, Server, Session,
    Settings, StatusAnswer, StatusPolicy,
};

use crate::support::{
    Event, LONG, closed, echo_server, loopback, message, patient, recorder, recording_server,
    small, until,
};

/// More than anything takes on any machine, and less than the deadlines of a session that would
/// send by chance what was left behind. There are no heartbeats that could.
const PROMPTLY: Duration = Duration::from_secs(30);

/// Sends no heartbeats.
fn quiet(mut settings: Settings) -> Settings {
    settings.session.keep_alive = Duration::ZERO;
    settings
}

/// Sends the next numbers.
fn send(session: &Session, numbers: std::ops::Range<u64>) {
    for number in numbers {
        session
            .send_with(1, 8, |buf| buf.copy_from_slice(&number.to_le_bytes()))
            .unwrap();
    }
}

/// The next message is this number, and comes promptly.
fn expect(seen: &Receiver<Event>, number: u64) {
    match seen.recv_timeout(PROMPTLY) {
        Ok(Event::Message(_, payload)) => assert_eq!(payload, number.to_le_bytes()),
        other => panic!("{other:?} instead of {number}"),
    }
}

/// The end comes promptly, whatever comes before.
fn expect_end(seen: &Receiver<Event>) {
    while !matches!(seen.recv_timeout(PROMPTLY).unwrap(), Event::Closed(_)) {}
}

/// Lets some time pass without sleeping, which would be too long.
fn spin(micros: u64) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(micros) {
        std::hint::spin_loop();
    }
}

/// A recording server, a client, and a session between them with its end of the server.
struct Pair {
    server: Server,
    at_server: Receiver<Event>,
    client: Client,
    session: Session,
    at_client: Receiver<Event>,
    peer: Session,
}

fn pair(settings: Settings) -> Pair {
    let settings = quiet(settings);
    let (server, at_server) = recording_server(settings.clone(), loopback());
    let client = Client::with(Plain, settings).unwrap();
    let (session, at_client, peer) = another(&server, &at_server, &client);
    Pair {
        server,
        at_server,
        client,
        session,
        at_client,
        peer,
    }
}

fn another(
    server: &Server,
    at_server: &Receiver<Event>,
    client: &Client,
) -> (Session, Receiver<Event>, Session) {
    let (handler, at_client) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    let Event::Opened(peer, _) = at_server.recv_timeout(LONG).unwrap() else {
        panic!("opening comes first");
    };
    (session, at_client, peer)
}

#[test]
fn a_lone_message_after_a_stream_arrives_promptly() {
    let pair = pair(Settings::default());
    let mut next = 0;
    for round in 0..300 {
        let stream = 1 + round % 40;
        send(&pair.session, next..next + stream);
        // The worker is somewhere between taking the first and having written all.
        spin(round % 60);
        send(&pair.session, next + stream..next + stream + 1);
        for _ in 0..=stream {
            expect(&pair.at_server, next);
            next += 1;
        }
    }
}

#[test]
fn a_stream_arrives_in_order_while_another_thread_sends_now_and_then() {
    const MESSAGES: u64 = 100_000;
    const OTHER: u16 = 2;
    let pair = pair(patient(Settings::default()));
    let (session, done) = (pair.session.clone(), Arc::new(AtomicBool::new(false)));
    let streaming = std::thread::spawn(move || send(&session, 0..MESSAGES));
    let (session, end) = (pair.session.clone(), Arc::clone(&done));
    let other = std::thread::spawn(move || {
        let mut sent = 0u64;
        while !end.load(Ordering::Relaxed) {
            let number = sent.to_le_bytes();
            let mut packet = session.reserve(OTHER, 8).unwrap();
            packet.copy_from_slice(&number);
            // Now and then the others commit behind it, while it is open.
            if sent.is_multiple_of(4) {
                std::thread::sleep(Duration::from_micros(100));
            }
            packet.commit();
            sent += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        sent
    });
    let (mut next, mut next_other) = (0, 0);
    while next < MESSAGES {
        let (id, payload) = message(&pair.at_server);
        let counter = if id == OTHER {
            &mut next_other
        } else {
            &mut next
        };
        assert_eq!(payload, counter.to_le_bytes(), "of thread {id}");
        *counter += 1;
    }
    streaming.join().unwrap();
    done.store(true, Ordering::Relaxed);
    let sent = other.join().unwrap();
    while next_other < sent {
        assert_eq!(
            message(&pair.at_server),
            (OTHER, next_other.to_le_bytes().to_vec())
        );
        next_other += 1;
    }
}

#[test]
fn a_session_that_closes_while_messages_gather_sends_them_first() {
    let Pair {
        server,
        at_server,
        client,
        mut session,
        mut at_client,
        mut peer,
    } = pair(small());
    for round in 0..100 {
        let stream = 2 + round % 5;
        send(&session, 0..stream);
        spin(round % 50);
        // Either end may be the one that closes; the peer takes what it was sent in any case.
        session.close();
        for number in 0..stream {
            expect(&at_server, number);
        }
        assert_eq!(closed(&at_server).reason, CloseReason::Finished);
        assert_eq!(closed(&at_client).reason, CloseReason::Finished);
        assert!(peer.closed().is_some());
        // The next one has the place, and perhaps the socket's number, of the one that is gone.
        (session, at_client, peer) = another(&server, &at_server, &client);
    }
}

#[test]
fn a_cut_while_messages_gather_ends_at_once_and_frees_the_place() {
    let Pair {
        server,
        at_server,
        client,
        mut session,
        mut at_client,
        mut peer,
    } = pair(small());
    for round in 0..100 {
        send(&session, 0..3);
        spin(round % 50);
        if round % 2 == 0 {
            session.abort();
        } else {
            peer.abort();
        }
        expect_end(&at_client);
        expect_end(&at_server);
        (session, at_client, peer) = another(&server, &at_server, &client);
        send(&session, 7..9);
        expect(&at_server, 7);
        expect(&at_server, 8);
    }
}

/// Tells of answers about the peer's figures.
struct Asker(std::sync::mpsc::Sender<()>);

impl Handler for Asker {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }

    fn status(&mut self, _: &Session, _: StatusAnswer) {
        self.0.send(()).unwrap();
    }
}

#[test]
fn what_is_asked_of_the_worker_while_messages_gather_is_done_promptly() {
    let settings = Settings::default().with(|settings| settings.status = StatusPolicy::Local);
    let (server, at_server) = recording_server(quiet(settings), loopback());
    let client = Client::with(Plain, quiet(Settings::default())).unwrap();
    let (told, answers) = channel();
    let session = client.connect(server.address(), Asker(told)).unwrap();
    let Event::Opened(..) = at_server.recv_timeout(LONG).unwrap() else {
        panic!("opening comes first");
    };
    for round in 0..100 {
        send(&session, 0..3);
        spin(round % 50);
        session.request_status();
        answers.recv_timeout(PROMPTLY).unwrap();
        for number in 0..3 {
            expect(&at_server, number);
        }
        send(&session, 0..2);
        spin(round % 50);
        session.goodbye();
        expect(&at_server, 0);
        expect(&at_server, 1);
        let goodbye = at_server.recv_timeout(PROMPTLY).unwrap();
        assert!(matches!(goodbye, Event::Goodbye(None)), "{goodbye:?}");
    }
}

#[test]
fn a_body_behind_messages_that_gather_leaves_promptly_in_its_place() {
    let pair = pair(small());
    let body = Arc::new(Buffer::from(vec![5; 3000]));
    for round in 0..100 {
        send(&pair.session, 0..3);
        spin(round % 50);
        pair.session.send_body(2, &[], Arc::clone(&body)).unwrap();
        send(&pair.session, 3..5);
        (0..3).for_each(|number| expect(&pair.at_server, number));
        match pair.at_server.recv_timeout(PROMPTLY).unwrap() {
            Event::Body(2, bytes) => assert_eq!(bytes, *body),
            other => panic!("{other:?} instead of a body"),
        }
        (3..5).for_each(|number| expect(&pair.at_server, number));
    }
}

#[test]
fn what_gathers_behind_an_open_packet_leaves_with_its_end() {
    let pair = pair(Settings::default());
    for round in 0..100 {
        send(&pair.session, 0..2);
        let packet = pair.session.reserve(1, 8).unwrap();
        let session = pair.session.clone();
        let other = std::thread::spawn(move || send(&session, 2..5));
        spin(round % 50);
        // Committed by its thread while the worker lets the others' messages gather, or dropped.
        if round % 2 == 0 {
            drop(packet);
        } else {
            let mut packet = packet;
            packet.copy_from_slice(&77u64.to_le_bytes());
            packet.commit();
        }
        other.join().unwrap();
        expect(&pair.at_server, 0);
        expect(&pair.at_server, 1);
        if round % 2 == 1 {
            expect(&pair.at_server, 77);
        }
        (2..5).for_each(|number| expect(&pair.at_server, number));

        // Now the packet ends after everything else, and nobody sends any more.
        send(&pair.session, 0..2);
        let packet = pair.session.reserve(1, 8).unwrap();
        send(&pair.session, 2..5);
        expect(&pair.at_server, 0);
        expect(&pair.at_server, 1);
        spin(round % 50);
        drop(packet);
        (2..5).for_each(|number| expect(&pair.at_server, number));
    }
}

/// Leaves every message.
struct Shut(std::sync::mpsc::Sender<()>);

impl Handler for Shut {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        let _ = self.0.send(());
        Flow::Pause
    }
}

#[test]
fn a_session_that_takes_nothing_sends_what_gathers() {
    let (server, at_server) = recording_server(quiet(small()), loopback());
    let client = Client::with(Plain, quiet(small())).unwrap();
    let (told, paused) = channel();
    let session = client.connect(server.address(), Shut(told)).unwrap();
    let Event::Opened(peer, _) = at_server.recv_timeout(LONG).unwrap() else {
        panic!("opening comes first");
    };
    send(&peer, 0..1);
    paused.recv_timeout(LONG).unwrap();
    for round in 0..100 {
        send(&session, 0..3);
        spin(round % 50);
        send(&session, 3..4);
        (0..4).for_each(|number| expect(&at_server, number));
    }
}

#[test]
fn shutting_down_while_messages_gather_sends_them_first() {
    for round in 0..30 {
        let pair = pair(small());
        send(&pair.session, 0..4);
        spin(round * 2);
        pair.client.shutdown(LONG);
        (0..4).for_each(|number| expect(&pair.at_server, number));
        assert_eq!(closed(&pair.at_server).reason, CloseReason::Shutdown);
        drop(pair.server);
    }
}

/// A small ring fills up long before the time is over for which messages gather.
#[test]
fn a_full_ring_does_not_wait_for_messages_to_gather() {
    const MESSAGES: u64 = 50_000;
    let settings = small().with(|settings| {
        settings.send_ring_bytes = 4096;
        settings.on_full = OnFull::Wait { timeout: PROMPTLY };
    });
    let pair = pair(settings);
    let session = pair.session.clone();
    let sender = std::thread::spawn(move || send(&session, 0..MESSAGES));
    for number in 0..MESSAGES {
        assert_eq!(message(&pair.at_server).1, number.to_le_bytes());
    }
    sender.join().unwrap();
}

/// Sends another session of its worker more than its ring takes, and again after each resume.
struct Burst {
    to: Session,
    sent: std::sync::mpsc::Sender<Result<(), SendError>>,
}

impl Handler for Burst {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        let sent = (0..6).try_for_each(|_| self.to.send_with(2, 4000, |buf| buf.fill(1)));
        self.sent.send(sent).unwrap();
        Flow::Pause
    }
}

/// Takes everything and does nothing.
struct Deaf;

impl Handler for Deaf {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }
}

/// A handler cannot wait, so what is in its way is written at once, also what gathers.
#[test]
fn a_handler_finds_room_in_another_session_whose_messages_gather() {
    let server = Server::builder()
        .listen(loopback())
        .start(|_| Deaf)
        .unwrap();
    let echo = echo_server(Settings::default(), loopback());
    let client = Client::with(Plain, small()).unwrap();
    let to = client.connect(server.address(), Deaf).unwrap();
    let (sent, results) = channel();
    let handler = Burst {
        to: to.clone(),
        sent,
    };
    let from = client.connect(echo.address(), handler).unwrap();
    send(&from, 0..1);
    results.recv_timeout(LONG).unwrap().unwrap();
    for round in 0..300 {
        // Only what gathers is in the way; this thread is done with its part.
        until("all is sent", || to.stats().queued_bytes == 0);
        for _ in 0..2 {
            to.send_with(1, 100, |buf| buf.fill(0)).unwrap();
        }
        from.resume();
        let result = results.recv_timeout(LONG).unwrap();
        assert_eq!(result, Ok(()), "round {round}");
    }
}
