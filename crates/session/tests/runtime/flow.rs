//! Backpressure, pausing, keeping, bodies to memory of the handler's own.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use embar_memory::Buffer;
use embar_session::{
    BodyStore, BodyTarget, Client, CloseReason, Closed, Flow, Handler, Kept, Message, OnFull,
    Plain, SendError, Server, Session, Settings,
};

use crate::support::{
    LONG, closed, fill_up, in_time, is_asleep, loopback, message, recorder, small, this_thread,
    until, while_ok,
};

/// Takes nothing until it is told to.
struct Gate {
    open: Arc<Mutex<bool>>,
    sessions: Sender<Session>,
    taken: Arc<AtomicUsize>,
}

impl Handler for Gate {
    fn opened(&mut self, session: &Session, _: &[u8]) {
        self.sessions.send(session.clone()).unwrap();
    }

    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        if !*self.open.lock().unwrap() {
            return Flow::Pause;
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        Flow::Continue
    }
}

struct Gated {
    server: Server,
    open: Arc<Mutex<bool>>,
    sessions: Receiver<Session>,
    taken: Arc<AtomicUsize>,
}

fn gated_server() -> Gated {
    let (open, taken) = (Arc::new(Mutex::new(false)), Arc::new(AtomicUsize::new(0)));
    let (sessions, seen) = channel();
    let sessions = Mutex::new(sessions);
    let server = {
        let (open, taken) = (Arc::clone(&open), Arc::clone(&taken));
        Server::builder()
            .settings(small())
            .listen(loopback())
            .start(move |_| Gate {
                open: Arc::clone(&open),
                sessions: sessions.lock().unwrap().clone(),
                taken: Arc::clone(&taken),
            })
            .unwrap()
    };
    Gated {
        server,
        open,
        sessions: seen,
        taken,
    }
}

fn client(on_full: OnFull) -> Client {
    let settings = small().with(|settings| settings.on_full = on_full);
    Client::with(Plain, settings).unwrap()
}

/// Sends until it fails; how many were sent, and the error.
fn fill(session: &Session) -> (usize, SendError) {
    let mut sent = 0;
    loop {
        match session.send_with(1, 4000, |buf| buf.fill(1)) {
            Ok(()) => sent += 1,
            Err(error) => return (sent, error),
        }
    }
}

#[test]
fn a_paused_peer_makes_the_ring_full_and_resume_lets_all_through() {
    let gated = gated_server();
    let client = client(OnFull::Fail);
    let (handler, _seen) = recorder();
    let session = client.connect(gated.server.address(), handler).unwrap();
    let at_server = gated.sessions.recv_timeout(LONG).unwrap();
    let mut sent = 0;
    until("the ring stays full", || {
        sent += fill_up(|| session.send_with(1, 4000, |buf| buf.fill(1)));
        session.stats().queued_bytes > 8000
    });
    assert_eq!(gated.taken.load(Ordering::Relaxed), 0);
    *gated.open.lock().unwrap() = true;
    at_server.resume();
    until("all taken", || gated.taken.load(Ordering::Relaxed) == sent);
}

#[test]
fn on_full_wait_waits_as_long_as_it_says() {
    let gated = gated_server();
    let timeout = Duration::from_millis(50);
    let client = client(OnFull::Wait { timeout });
    let (handler, _seen) = recorder();
    let session = client.connect(gated.server.address(), handler).unwrap();
    let at_server = gated.sessions.recv_timeout(LONG).unwrap();
    let mut before = 0;
    let started = Instant::now();
    loop {
        let (sent, error) = fill(&session);
        assert_eq!(error, SendError::Full);
        assert!(started.elapsed() >= timeout);
        before += sent;
        // Until the kernel takes no more.
        if sent == 0 {
            break;
        }
    }
    // A longer wait ends when there is room.
    session.set_on_full(OnFull::Wait { timeout: LONG });
    let waiting = {
        let session = session.clone();
        std::thread::spawn(move || session.send_with(1, 4000, |buf| buf.fill(2)))
    };
    *gated.open.lock().unwrap() = true;
    at_server.resume();
    assert_eq!(waiting.join().unwrap(), Ok(()));
    until("all taken", || {
        gated.taken.load(Ordering::Relaxed) == before + 1
    });
    let its = session.stats();
    assert!(
        its.times_full >= 2 && its.waited_for_room >= timeout,
        "{its:?}"
    );
    assert!(its.writes > 0, "{its:?}");
    until("reads are counted", || at_server.stats().reads > 0);
}

#[test]
fn a_peer_that_does_not_read_costs_its_senders_one_wait() {
    const SENDS: usize = 100;
    let gated = gated_server();
    let timeout = Duration::from_millis(20);
    let client = client(OnFull::Wait { timeout });
    let (handler, _seen) = recorder();
    let session = client.connect(gated.server.address(), handler).unwrap();
    let peer = gated.sessions.recv_timeout(LONG).unwrap();
    let mut sent = 0;
    let send = || session.send_with(1, 4000, |buf| buf.fill(1));
    until("nobody waits any more", || {
        sent += fill(&session).0;
        let before = session.stats();
        let now = (0..SENDS).filter(|_| send().is_ok()).count();
        sent += now;
        let after = session.stats();
        // The kernel may have taken some more, which is the beginning of another stall.
        let stalled = now == 0 && before.bytes_sent == after.bytes_sent;
        stalled && before.waited_for_room == after.waited_for_room
    });
    assert!(session.stats().waited_for_room >= timeout);
    // Once it reads again, senders wait again.
    *gated.open.lock().unwrap() = true;
    peer.resume();
    until("all taken", || gated.taken.load(Ordering::Relaxed) == sent);
    session.set_on_full(OnFull::Wait { timeout: LONG });
    for _ in 0..SENDS {
        send().unwrap();
    }
}

#[test]
fn by_default_nobody_waits_for_a_peer_that_does_not_read() {
    let gated = gated_server();
    let client = Client::with(Plain, small()).unwrap();
    let (handler, _seen) = recorder();
    let session = client.connect(gated.server.address(), handler).unwrap();
    assert_eq!(fill(&session).1, SendError::Full);
    let its = session.stats();
    assert_eq!((its.times_full, its.waited_for_room), (1, Duration::ZERO));
    assert_eq!(session.closed(), None);
}

#[test]
fn on_full_close_closes() {
    let gated = gated_server();
    let client = client(OnFull::Close);
    let (handler, seen) = recorder();
    let session = client.connect(gated.server.address(), handler).unwrap();
    assert_eq!(fill(&session).1, SendError::Full);
    assert_eq!(closed(&seen).reason, CloseReason::Full);
    assert_eq!(fill(&session), (0, SendError::Closed));
}

/// Both ends answer all they get, and one end floods: nobody dies, nothing is lost.
#[test]
fn a_flood_is_answered_in_full() {
    let server = crate::support::echo_server(small(), loopback());
    let client = client(OnFull::Wait { timeout: LONG });
    let (handler, seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    for number in 0..20_000u32 {
        session
            .send_with(1, 100, |buf| {
                buf.fill(0);
                buf[..4].copy_from_slice(&number.to_le_bytes());
            })
            .unwrap();
    }
    for number in 0..20_000u32 {
        assert_eq!(message(&seen).1[..4], number.to_le_bytes());
    }
}

/// Keeps what it can, and says what it could not.
struct Keeper(Sender<Result<Kept, usize>>);

impl Handler for Keeper {
    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        let kept = message.keep().map_err(|error| error.limit);
        self.0.send(kept).unwrap();
        Flow::Continue
    }
}

#[test]
fn messages_are_kept_up_to_the_limit_and_their_release_lets_more_in() {
    let mut settings = small();
    settings.session.max_kept_bytes = 4096;
    let (kept, seen) = channel();
    let kept = Mutex::new(kept);
    let server = Server::builder()
        .settings(settings)
        .listen(loopback())
        .start(move |_| Keeper(kept.lock().unwrap().clone()))
        .unwrap();
    let client = client(OnFull::Wait { timeout: LONG });
    let (handler, _seen) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    let (mut held, mut refused) = (Vec::new(), 0);
    for number in 0..10u8 {
        session.send_with(1, 1000, |buf| buf.fill(number)).unwrap();
        match seen.recv_timeout(LONG).unwrap() {
            Ok(kept) => held.push((number, kept)),
            Err(limit) => {
                assert_eq!(limit, 4096);
                refused += 1;
            }
        }
    }
    assert!((1..=4).contains(&held.len()), "{} kept", held.len());
    assert_eq!(held.len() + refused, 10);
    // More than the ring has room for with those kept in it: the release lets them in.
    let sender = std::thread::spawn(move || {
        for _ in 0..40 {
            session.send_with(1, 1000, |buf| buf.fill(0xEE)).unwrap();
        }
    });
    for (number, kept) in held {
        assert!(kept.iter().all(|&byte| byte == number));
    }
    for _ in 0..40 {
        drop(seen.recv_timeout(LONG).unwrap());
    }
    sender.join().unwrap();
}

/// Directs bodies to a buffer of its own, behind what is there.
struct Collector {
    buffer: Vec<u8>,
    done: Sender<Vec<u8>>,
    asked: usize,
}

impl Handler for Collector {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }

    fn body(&mut self, session: &Session, _: u16, head: &[u8], len: usize) -> BodyTarget {
        self.asked += 1;
        if head == b"later" && self.asked == 1 {
            // As another thread would, once it has room.
            session.resume();
            return BodyTarget::Pause;
        }
        if head == b"never" {
            return BodyTarget::Refuse("no".to_owned());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let start = buffer.len();
        buffer.resize(start + len, 0);
        BodyTarget::buffer(buffer, start..start + len)
    }

    fn body_done(&mut self, _: &Session, _: u16, store: BodyStore, range: Range<usize>) {
        self.buffer = store.into_heap().unwrap();
        assert_eq!(range.end, self.buffer.len());
        self.done.send(self.buffer.clone()).unwrap();
    }
}

#[test]
fn the_handler_directs_bodies_to_its_memory_delays_and_refuses_them() {
    let (done, seen) = channel();
    let done = Mutex::new(done);
    let server = Server::builder()
        .settings(small())
        .listen(loopback())
        .start(move |_| Collector {
            buffer: b"before".to_vec(),
            done: done.lock().unwrap().clone(),
            asked: 0,
        })
        .unwrap();
    let client = client(OnFull::default());
    let (handler, events) = recorder();
    let session = client.connect(server.address(), handler).unwrap();
    session
        .send_body(1, b"later", Arc::new(Buffer::from(vec![1; 100_000])))
        .unwrap();
    session
        .send_body(1, b"", Arc::new(Buffer::from(vec![2; 10])))
        .unwrap();
    seen.recv_timeout(LONG).unwrap();
    let all = seen.recv_timeout(LONG).unwrap();
    assert!(all.starts_with(b"before") && all.ends_with(&[2; 10]));
    assert_eq!(all.len(), 6 + 100_000 + 10);
    session
        .send_body(1, b"never", Arc::new(Buffer::from(vec![3; 10])))
        .unwrap();
    let why: Closed = closed(&events);
    assert_eq!((why.reason, &*why.text), (CloseReason::Refused, "no"));
}

/// Asked once, answers with as much as it can send.
struct Talker(Sender<usize>);

impl Handler for Talker {
    fn message(&mut self, session: &Session, _: Message<'_>) -> Flow {
        let (sent, error) = fill(session);
        assert_eq!(error, SendError::Full);
        self.0.send(sent).unwrap();
        Flow::Continue
    }
}

#[test]
fn a_handler_never_waits_and_what_it_sent_arrives() {
    let (sent, counts) = channel();
    let sent = Mutex::new(sent);
    let server = Server::builder()
        .settings(small().with(|settings| settings.on_full = OnFull::Wait { timeout: LONG }))
        .listen(loopback())
        .start(move |_| Talker(sent.lock().unwrap().clone()))
        .unwrap();
    // A peer that does not read, so that the sockets fill up too.
    let (gate, open) = (Arc::new(Mutex::new(false)), Arc::new(AtomicUsize::new(0)));
    let (sessions, _seen) = channel();
    let client = client(OnFull::default());
    let handler = Gate {
        open: Arc::clone(&gate),
        sessions,
        taken: Arc::clone(&open),
    };
    let session = client.connect(server.address(), handler).unwrap();
    session.send_with(1, 1, |buf| buf.fill(0)).unwrap();
    let sent = counts.recv_timeout(LONG).unwrap();
    // More than the ring: what is in the way is written in between.
    assert!(sent * 4008 > 16 << 10, "{sent} sent");
    *gate.lock().unwrap() = true;
    session.resume();
    until("all arrived", || open.load(Ordering::Relaxed) == sent);
}

#[test]
fn bodies_that_wait_are_limited() {
    let gated = gated_server();
    let settings = small().with(|settings| {
        settings.max_queued_body_bytes = 1 << 20;
        settings.on_full = OnFull::Fail;
    });
    let client = Client::with(Plain, settings).unwrap();
    let (handler, _seen) = recorder();
    let session = client.connect(gated.server.address(), handler).unwrap();
    let at_server = gated.sessions.recv_timeout(LONG).unwrap();
    // Nothing is read behind this one.
    session.send_with(1, 1, |buf| buf.fill(0)).unwrap();
    let body = Arc::new(Buffer::from(vec![0; 400 << 10]));
    let mut queued = 0;
    let error = loop {
        match session.send_body(2, &[], Arc::clone(&body)) {
            Ok(()) => queued += 1,
            Err(error) => break error,
        }
        assert!(queued < 1000, "no limit");
    };
    assert_eq!(error, SendError::Full);
    session.set_on_full(OnFull::Wait { timeout: LONG });
    let waiting = {
        let (session, body) = (session.clone(), Arc::clone(&body));
        std::thread::spawn(move || session.send_body(2, &[], body))
    };
    *gated.open.lock().unwrap() = true;
    at_server.resume();
    assert_eq!(waiting.join().unwrap(), Ok(()));
    until("all released", || Arc::strong_count(&body) == 1);
}

const BODY: u16 = 2;

/// A session whose peer takes nothing, with as many bodies queued as may wait; the body, and the
/// peer's end.
fn full_of_bodies(gated: &Gated, settings: Settings) -> (Client, Session, Arc<Buffer>, Session) {
    let settings = settings.with(|settings| {
        settings.max_queued_body_bytes = 1 << 20;
        settings.on_full = OnFull::Fail;
    });
    let client = Client::with(Plain, settings).unwrap();
    let (handler, _seen) = recorder();
    let session = client.connect(gated.server.address(), handler).unwrap();
    let peer = gated.sessions.recv_timeout(LONG).unwrap();
    // Nothing is read behind this one.
    session.send_with(1, 1, |buf| buf.fill(0)).unwrap();
    // A session that ends politely gives a body time in proportion to its length.
    let body = Arc::new(Buffer::from(vec![0; 16 << 10]));
    // The sockets take many of them.
    fill_up(|| session.send_body(BODY, &[], Arc::clone(&body)));
    (client, session, body, peer)
}

#[test]
fn a_sender_of_bodies_waits_as_long_as_it_says_and_takes_no_room() {
    let gated = gated_server();
    let (_client, session, body, peer) = full_of_bodies(&gated, small());
    let timeout = Duration::from_millis(50);
    session.set_on_full(OnFull::Wait { timeout });
    let mut in_vain = 0;
    let begun = Instant::now();
    while in_vain < 3 {
        let before = Arc::strong_count(&body);
        let (sender, bytes) = (session.clone(), Arc::clone(&body));
        if in_time("the wait", move || sender.send_body(BODY, &[], bytes)).is_ok() {
            // The kernel took some more.
            continue;
        }
        assert!(begun.elapsed() >= timeout);
        assert!(Arc::strong_count(&body) <= before, "kept for nothing");
        in_vain += 1;
    }
    // What was given up takes no room for ever: all that fits fits once more.
    *gated.open.lock().unwrap() = true;
    peer.resume();
    until("all released", || Arc::strong_count(&body) == 1);
    session.set_on_full(OnFull::Fail);
    let large = Arc::new(Buffer::from(vec![0; 1 << 20]));
    session.send_body(BODY, &[], Arc::clone(&large)).unwrap();
    until("it is sent, too", || Arc::strong_count(&large) == 1);
}

#[test]
fn a_sender_of_bodies_that_waits_is_told_when_the_session_ends() {
    // Whoever ends it, and however.
    let ends: [fn(&Session, &Session); 4] = [
        |ours, _| ours.abort(),
        |_, theirs| theirs.abort(),
        |ours, _| ours.close(),
        |_, theirs| theirs.close(),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let gated = gated_server();
        let mut settings = small();
        // A polite end waits for the bodies in front, which nobody takes.
        settings.session.linger = Duration::from_millis(100);
        let (_client, session, body, peer) = full_of_bodies(&gated, settings);
        session.set_on_full(OnFull::Wait { timeout: LONG });
        let (threads, begun) = channel();
        let (told, outcome) = channel();
        for _ in 0..2 {
            let (session, body, told) = (session.clone(), Arc::clone(&body), told.clone());
            let threads = threads.clone();
            std::thread::spawn(move || {
                threads.send(this_thread()).unwrap();
                // The kernel may take some more.
                let end = while_ok(|| session.send_body(BODY, &[], Arc::clone(&body)));
                told.send(end)
            });
        }
        let senders = [(); 2].map(|()| begun.recv_timeout(LONG).unwrap());
        until("both wait", || senders.iter().all(|it| is_asleep(it)));
        assert!(outcome.try_recv().is_err(), "it does not wait");
        end(&session, &peer);
        for _ in 0..2 {
            let sent = outcome.recv_timeout(LONG);
            assert_eq!(sent, Ok(SendError::Closed), "end {number}");
        }
        until("all released", || Arc::strong_count(&body) == 1);
    }
}
