//! A session with much to say, and others on the same worker.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use embar_frame::{FIRST_RESERVED_ID, FrameHeader};
use embar_session::{
    Address, Client, CloseReason, Flow, Handler, Message, OnFull, Plain, Server, Session,
    SessionId, Settings,
};

use crate::hello::hello;
use crate::support::{LONG, closed, loopback, recorder, until};

/// What the sessions of the server share. The first to open is the one that floods.
#[derive(Default)]
struct Stage {
    sessions: Mutex<Vec<Session>>,
    /// The other one has a message, which it left for later.
    paused: AtomicBool,
    /// All messages of the flood are on their way.
    open: AtomicBool,
    /// Messages of the flood that were taken.
    flood: AtomicUsize,
    /// How long a handler takes for each.
    pace: Duration,
}

/// Takes the messages of one session.
struct Taker {
    stage: Arc<Stage>,
    /// Learns how many messages of the flood came before the only one of the other session.
    overtaken: Sender<usize>,
}

impl Handler for Taker {
    fn opened(&mut self, session: &Session, _: &[u8]) {
        self.stage.sessions.lock().unwrap().push(session.clone());
    }

    fn message(&mut self, session: &Session, _: Message<'_>) -> Flow {
        let stage = &self.stage;
        let before = stage.flood.load(Ordering::Relaxed);
        let other = stage.sessions.lock().unwrap()[1].clone();
        if other.id() == session.id() {
            if !stage.paused.swap(true, Ordering::AcqRel) {
                return Flow::Pause;
            }
            self.overtaken.send(before).unwrap();
            return Flow::Continue;
        }
        match before {
            // Keeps the worker from reading until there is much to read.
            0 => until("all is sent", || stage.open.load(Ordering::Acquire)),
            // From here on the other one has something to do, too.
            1 => other.resume(),
            _ => {}
        }
        std::thread::sleep(self.stage.pace);
        self.stage.flood.store(before + 1, Ordering::Relaxed);
        Flow::Continue
    }
}

/// How many of `messages` that wait come before the one of another session. All come in the end, although the session
/// is closed.
fn overtaken(messages: usize, pace: Duration) -> usize {
    let stage = Arc::new(Stage {
        pace,
        ..Stage::default()
    });
    let (overtaken, told) = channel();
    let server = {
        let (stage, overtaken) = (Arc::clone(&stage), Mutex::new(overtaken));
        Server::builder()
            .listen(loopback())
            .start(move |_| Taker {
                stage: Arc::clone(&stage),
                overtaken: overtaken.lock().unwrap().clone(),
            })
            .unwrap()
    };
    let settings = Settings::default().with(|settings| {
        settings.on_full = OnFull::Wait { timeout: LONG };
    });
    let client = Client::with(Plain, settings).unwrap();
    let sessions = [(); 2].map(|()| {
        let (handler, seen) = recorder();
        let session = client.connect(server.address(), handler).unwrap();
        (session, seen)
    });
    let [(flood, flood_seen), (other, _)] = &sessions;
    other.send_with(1, 0, |_| ()).unwrap();
    until("it waits", || stage.paused.load(Ordering::Acquire));
    for _ in 0..messages {
        flood.send_with(1, 0, |_| ()).unwrap();
    }
    until("all is sent", || flood.stats().queued_bytes == 0);
    stage.open.store(true, Ordering::Release);
    let overtaken = told.recv_timeout(LONG).unwrap();
    // What arrived before the end is delivered before the end.
    flood.close();
    assert_eq!(closed(flood_seen).reason, CloseReason::Finished);
    until("all was taken", || {
        stage.flood.load(Ordering::Relaxed) == messages
    });
    overtaken
}

#[test]
fn a_flood_of_small_messages_leaves_room_for_others() {
    let before = overtaken(20_000, Duration::ZERO);
    // The first message, which may have come alone, and one turn, in which the other one got something to do.
    assert!(before <= 1 + 1024, "{before} messages came before");
}

#[test]
fn a_slow_handler_leaves_time_for_others() {
    let before = overtaken(200, Duration::from_millis(2));
    assert!(before <= 20, "{before} messages came before");
}

/// Sessions that flood one worker, and a quiet one.
#[derive(Default)]
struct Crowd {
    /// All messages of the floods are on their way.
    open: AtomicBool,
    /// The client's end of the quiet one.
    quiet: OnceLock<Session>,
    /// Messages of the floods that were taken.
    taken: AtomicUsize,
    /// Whose messages were taken since the quiet one has something to say, one entry for each change.
    since: Mutex<Vec<SessionId>>,
}

/// The quiet one speaks when so many messages of the floods were taken.
const SPEAKS_AT: usize = 6_000;

struct InCrowd {
    crowd: Arc<Crowd>,
    /// Learns how many flooding sessions had a turn before the quiet one.
    passed: Sender<usize>,
}

impl Handler for InCrowd {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let crowd = &self.crowd;
        let mut since = crowd.since.lock().unwrap();
        if message.id() == 2 {
            self.passed.send(since.len()).unwrap();
            return Flow::Continue;
        }
        let taken = crowd.taken.fetch_add(1, Ordering::Relaxed) + 1;
        if taken == 1 {
            // Keeps the worker from reading until there is much to read.
            until("all is sent", || crowd.open.load(Ordering::Acquire));
        } else if taken == SPEAKS_AT {
            let quiet = crowd.quiet.get().unwrap();
            quiet.send_with(2, 0, |_| ()).unwrap();
            // Then the kernel has it for the server.
            until("it is sent", || quiet.stats().queued_bytes == 0);
            // However short turns are, this one is over.
            std::thread::sleep(Duration::from_millis(5));
        }
        if taken >= SPEAKS_AT && since.last() != Some(&session.id()) {
            since.push(session.id());
        }
        Flow::Continue
    }
}

#[test]
fn who_has_little_to_say_waits_for_one_turn_of_those_who_flood_and_not_for_all() {
    const FLOODS: usize = 8;
    const EACH: usize = 10_000;
    let crowd = Arc::new(Crowd::default());
    let (passed, told) = channel();
    let server = {
        let (crowd, passed) = (Arc::clone(&crowd), Mutex::new(passed));
        Server::builder()
            .listen(loopback())
            .start(move |_| InCrowd {
                crowd: Arc::clone(&crowd),
                passed: passed.lock().unwrap().clone(),
            })
            .unwrap()
    };
    let settings = Settings::default().with(|settings| {
        settings.on_full = OnFull::Wait { timeout: LONG };
    });
    let client = Client::with(Plain, settings).unwrap();
    let connect = || {
        let (handler, _) = recorder();
        client.connect(server.address(), handler).unwrap()
    };
    assert!(crowd.quiet.set(connect()).is_ok());
    let floods: Vec<_> = (0..FLOODS).map(|_| connect()).collect();
    for flood in &floods {
        for _ in 0..EACH {
            flood.send_with(1, 0, |_| ()).unwrap();
        }
    }
    for flood in &floods {
        until("all is sent", || flood.stats().queued_bytes == 0);
    }
    crowd.open.store(true, Ordering::Release);
    let passed = told.recv_timeout(LONG).unwrap();
    // The one that had its turn then.
    assert_eq!(passed, 1, "sessions that had a turn meanwhile");
    until("all was taken", || {
        crowd.taken.load(Ordering::Relaxed) == FLOODS * EACH
    });
}

#[test]
fn a_flood_of_pings_ends_its_own_session_and_no_other() {
    let server = Server::builder()
        .listen(loopback())
        .start(|_| Deaf)
        .unwrap();
    let (handler, _seen) = recorder();
    let client = Client::with(Plain, Settings::default()).unwrap();
    let other = client.connect(server.address(), handler).unwrap();
    let Address::Tcp(address) = server.address() else {
        panic!("not TCP");
    };
    let mut flood = TcpStream::connect(address).unwrap();
    flood.set_read_timeout(Some(LONG)).unwrap();
    flood.write_all(&hello()).unwrap();
    // PING, whose only field may be left away.
    let ping = FrameHeader::new(FIRST_RESERVED_ID + 2, 0).to_bytes();
    // So many that, however the server is held up, more come in one of its seconds than may. It closes before the last
    // one is written.
    let _ = flood.write_all(&ping.repeat(50_000));
    let closed = || server.monitor().closed_by_reason();
    until("it is closed", || {
        let reason = |it: &(&str, u64)| *it == ("BadFrame", 1);
        closed().iter().any(reason)
    });
    other.send_with(1, 0, |_| ()).unwrap();
    until("the other one is served", || {
        server.stats().messages_received == 1
    });
}

/// Hears, and does nothing.
struct Deaf;

impl Handler for Deaf {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }
}
