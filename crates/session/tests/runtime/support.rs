//! What the runtime's tests share.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use embar_session::{
    Closed, Flow, Goodbye, Handler, Message, OnFull, SendError, Server, Session, Settings,
};
use embar_transport::Address;

pub mod proto {
    #![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
    mod generated {
        include!(concat!(env!("OUT_DIR"), "/testing.include.rs"));
    }
    pub use self::generated::embar::testing::v1::*;
}

/// Longer than anything takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Any free port of the loopback interface.
pub fn loopback() -> Address {
    Address::Tcp(([127, 0, 0, 1], 0).into())
}

/// Polls until `condition` holds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `work` on a thread of its own, and waits for its end.
pub fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, end) = channel();
    std::thread::spawn(move || done.send(work()));
    end.recv_timeout(LONG)
        .unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Calls `send` until the session and the sockets behind it are full; how often it succeeded. The
/// kernel reports nowhere that it takes no more, so callers must not rely on that.
pub fn fill_up(mut send: impl FnMut() -> Result<(), SendError>) -> usize {
    let mut sent = 0;
    let mut moved = Instant::now();
    while moved.elapsed() < Duration::from_millis(100) {
        match send() {
            Ok(()) => {
                sent += 1;
                moved = Instant::now();
            }
            Err(SendError::Full) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    }
    sent
}

/// Sends until that fails.
pub fn while_ok(mut send: impl FnMut() -> Result<(), SendError>) -> SendError {
    loop {
        if let Err(error) = send() {
            return error;
        }
    }
}

/// The calling thread, for [`is_asleep`].
pub fn this_thread() -> PathBuf {
    Path::new("/proc").join(std::fs::read_link("/proc/thread-self").unwrap())
}

/// Whether a thread of this process waits for something.
pub fn is_asleep(thread: &Path) -> bool {
    let stat = std::fs::read_to_string(thread.join("stat")).unwrap();
    // Behind the name of the thread, which is in parentheses.
    stat.rsplit(") ").next().unwrap().starts_with('S')
}

/// Settings by which bodies may come.
pub fn with_bodies() -> Settings {
    let mut settings = Settings::default();
    settings.session.max_body_bytes = 16 << 20;
    settings
}

/// Settings with small rings, so that limits are met soon, and with bodies.
pub fn small() -> Settings {
    with_bodies().with(|settings| {
        settings.send_ring_bytes = 16 << 10;
        settings.recv_ring_bytes = 16 << 10;
    })
}

/// These settings, with senders that wait for room.
pub fn patient(settings: Settings) -> Settings {
    settings.with(|settings| settings.on_full = OnFull::Wait { timeout: LONG })
}

/// What happened to a session.
#[derive(Debug)]
pub enum Event {
    Opened(Session, Vec<u8>),
    Message(u16, Vec<u8>),
    Body(u16, Vec<u8>),
    Goodbye(Option<(String, Duration)>),
    Closed(Closed),
}

/// Tells everything that happens to a channel.
pub struct Recorder(pub Sender<Event>);

/// A recorder and its other end.
pub fn recorder() -> (Recorder, Receiver<Event>) {
    let (events, seen) = channel();
    (Recorder(events), seen)
}

impl Handler for Recorder {
    fn opened(&mut self, session: &Session, greeting: &[u8]) {
        let _ = self
            .0
            .send(Event::Opened(session.clone(), greeting.to_vec()));
    }

    fn message(&mut self, _: &Session, message: Message<'_>) -> Flow {
        let payload = message.payload().to_vec();
        let _ = self.0.send(Event::Message(message.id(), payload));
        Flow::Continue
    }

    fn body_done(
        &mut self,
        _: &Session,
        id: u16,
        store: embar_session::BodyStore,
        range: std::ops::Range<usize>,
    ) {
        let bytes = store.into_heap().expect("the default is a Vec");
        let _ = self.0.send(Event::Body(id, bytes[range].to_vec()));
    }

    fn goodbye(&mut self, _: &Session, goodbye: &Goodbye<'_>) {
        let redirect = goodbye.redirect.map(|to| (to.to_owned(), goodbye.after));
        let _ = self.0.send(Event::Goodbye(redirect));
    }

    fn closed(&mut self, _: &Session, why: &Closed) {
        let _ = self.0.send(Event::Closed(why.clone()));
    }
}

/// The next message.
pub fn message(seen: &Receiver<Event>) -> (u16, Vec<u8>) {
    loop {
        match seen.recv_timeout(LONG).expect("a message in time") {
            Event::Message(id, payload) => return (id, payload),
            Event::Closed(why) => panic!("closed instead of a message: {why}"),
            _ => {}
        }
    }
}

/// The end, whatever comes before.
pub fn closed(seen: &Receiver<Event>) -> Closed {
    loop {
        if let Event::Closed(why) = seen.recv_timeout(LONG).expect("the end in time") {
            return why;
        }
    }
}

/// Sends every message back.
pub struct Echo;

impl Handler for Echo {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        let payload = message.payload();
        let sent = session.send_with(message.id(), payload.len(), |buf| {
            buf.copy_from_slice(payload);
        });
        // The session may be ending; a full ring would be a bug.
        assert_ne!(sent, Err(SendError::Full));
        Flow::Continue
    }
}

/// A server that records; the recorders of all its sessions tell the same channel.
pub fn recording_server(settings: Settings, address: Address) -> (Server, Receiver<Event>) {
    let (events, seen) = channel();
    let events = Arc::new(Mutex::new(events));
    let server = Server::builder()
        .settings(settings)
        .listen(address)
        .start(move |_| Recorder(events.lock().unwrap().clone()))
        .unwrap();
    (server, seen)
}

/// A server that echoes.
pub fn echo_server(settings: Settings, address: Address) -> Server {
    Server::builder()
        .settings(settings)
        .listen(address)
        .start(|_| Echo)
        .unwrap()
}

/// Descriptors that this process has open.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Threads of this process.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Runs the test `name` in a process of its own, and tells the caller in there to go on.
pub fn alone(name: &str) -> bool {
    const MARK: &str = "EMBAR_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "no such test: {said}");
    false
}
