//! Servers that hand their listeners over to the process that replaces them.

mod state;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use embar_session::hand_over::{self, HandOverError};
use embar_session::{
    Accepting, Address, Client, Flow, Handler, Message, Server, ServerBuilder, Session, Settings,
};
use rustix::event::{PollFd, PollFlags, poll};

use crate::listeners::{echoes, this_program};
use crate::support::{Echo, LONG, loopback, until};

const PATH: &str = "EMBAR_TEST_HAND_OVER";
const DIES: &str = "EMBAR_TEST_DIES";
const GREETING: &[u8] = b"EMBHAND2";

/// A process that takes the listeners at `path`. Its server ends with its input.
fn successor(path: &Path, dies: bool) -> Child {
    let program = this_program("hand_overs::as_successor");
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).env(PATH, path);
    if dies {
        command.env(DIES, "1");
    }
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// The program of the new process.
#[test]
fn as_successor() {
    let Some(path) = std::env::var_os(PATH) else {
        return;
    };
    let mut taken = hand_over::take(path, LONG).unwrap();
    if std::env::var_os(DIES).is_some() {
        // As if it had crashed: nothing is dropped.
        std::process::abort();
    }
    let mut server = Server::builder();
    for listener in taken.listeners() {
        server = server.listener(listener);
    }
    let server = server.start(|_| Echo).unwrap();
    taken.ready().unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    writeln!(std::io::stdout(), "served {}", server.stats().opened).unwrap();
    server.shutdown(LONG);
}

/// How many it has served, at its end.
fn end(mut successor: Child) -> u64 {
    drop(successor.stdin.take());
    let mut said = String::new();
    successor
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(successor.wait().unwrap().success(), "{said}");
    let (_, served) = said.split_once("served ").unwrap();
    served.lines().next().unwrap().parse().unwrap()
}

/// A server with a TCP address and a Unix socket; the files are in `directory`.
fn server(directory: &Path) -> ServerBuilder<embar_session::Plain> {
    Server::builder()
        .listen(loopback())
        .listen(Address::Unix(directory.join("socket")))
}

/// Threads that connect, have an echo, and leave, over and over.
struct Stream {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Stream {
    fn new(addresses: &[Address]) -> Self {
        let (stop, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let threads = addresses.iter().map(|address| {
            let address = address.clone();
            let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
            thread::spawn(move || {
                let client = Client::new().unwrap();
                while !stop.load(Ordering::Relaxed) {
                    assert!(echoes(&client, &address), "{address} was not served");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let threads = threads.collect();
        Self {
            stop,
            served,
            threads,
        }
    }

    fn more(&self, count: usize) {
        let from = self.served.load(Ordering::Relaxed);
        until("more are served", || {
            assert!(!self.threads.iter().any(thread::JoinHandle::is_finished));
            self.served.load(Ordering::Relaxed) >= from + count
        });
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

fn handed_over_in_a_stream(settings: Settings) {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let server = server(directory.path()).settings(settings);
    let server = server.start(|_| Echo).unwrap();
    let addresses = server.addresses().to_vec();
    let stream = Stream::new(&addresses);
    stream.more(20);
    let successor = successor(&door, false);
    hand_over::offer(&server, &door, LONG).unwrap();
    assert_eq!(server.stats().listening, 0);
    assert!(!door.exists());
    // Everybody who came to the old process is served by it.
    until("the last has left", || {
        let stats = server.stats();
        stats.sessions + stats.arrivals == 0
    });
    let before = server.stats();
    assert_eq!(before.refused, 0);
    server.shutdown(LONG);
    stream.more(50);
    stream.end();
    assert!(directory.path().join("socket").exists());
    assert!(end(successor) >= 50);
    assert!(
        !directory.path().join("socket").exists(),
        "it was the new one's"
    );
}

#[test]
fn a_new_process_takes_over_and_no_connect_is_refused_or_lost() {
    handed_over_in_a_stream(Settings::default());
}

#[test]
fn listeners_of_each_worker_go_over_too() {
    let settings = Settings::default().with(|settings| {
        settings.workers = 3;
        settings.accepting = Accepting::EachWorker;
    });
    handed_over_in_a_stream(settings);
}

#[test]
fn the_old_process_goes_on_where_the_new_one_dies_before_it_is_ready() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let server = server(directory.path()).start(|_| Echo).unwrap();
    let addresses = server.addresses().to_vec();
    let stream = Stream::new(&addresses);
    stream.more(5);
    thread::scope(|scope| {
        let offer = scope.spawn(|| hand_over::offer(&server, &door, LONG));
        for _ in 0..2 {
            assert!(!successor(&door, true).wait().unwrap().success());
            stream.more(10);
        }
        // Nor does it care for who says something else.
        let mut noise = UnixStream::connect(&door).unwrap();
        noise.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        stream.more(5);
        assert_eq!(server.stats().listening, 2);
        // The next one may come, in the same offer.
        let last = successor(&door, false);
        offer.join().unwrap().unwrap();
        stream.more(20);
        stream.end();
        assert!(end(last) > 0);
    });
}

#[test]
fn who_is_not_ready_in_time_is_told_that_the_old_process_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("door");
    let door = path.clone();
    let server = server(directory.path()).start(|_| Echo).unwrap();
    thread::scope(|scope| {
        let (hangs, goes_on) = channel();
        let taker = scope.spawn(move || {
            let mut taken = hand_over::take(&door, LONG).unwrap();
            assert_eq!(taken.listeners().len(), 2);
            goes_on.recv().unwrap();
            taken.ready()
        });
        let offered = hand_over::offer_with_state(&server, &path, LONG, || Ok(b"frozen".into()));
        let Err(HandOverError::NotReady(why)) = &offered else {
            panic!("{offered:?}");
        };
        assert_eq!(why.kind(), ErrorKind::TimedOut);
        assert!(!path.exists());
        hangs.send(()).unwrap();
        let ready = taker.join().unwrap();
        assert!(matches!(ready, Err(HandOverError::Withdrawn)));
    });
    serves_on(&server);
}

fn serves_on(server: &Server) {
    let client = Client::new().unwrap();
    assert_eq!(server.stats().listening, 2);
    assert!(server.addresses().iter().all(|it| echoes(&client, it)));
}

#[test]
fn a_new_process_whose_turn_never_came_takes_from_the_next_offer() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let server = server(directory.path()).start(|_| Echo).unwrap();
    thread::scope(|scope| {
        let ended = UnixListener::bind(&door).unwrap();
        let taker = scope.spawn(|| hand_over::take(&door, LONG));
        // Closed; reset, as it had said something; and closed while it waits in the backlog.
        drop(ended.accept().unwrap());
        let (mut reset, _) = ended.accept().unwrap();
        reset.read_exact(&mut [0]).unwrap();
        drop(reset);
        wait_readable(&ended);
        std::fs::remove_file(&door).unwrap();
        drop(ended);
        let offer = scope.spawn(|| hand_over::offer(&server, &door, LONG));
        taker.join().unwrap().unwrap().ready().unwrap();
        offer.join().unwrap().unwrap();
    });
}

fn wait_readable(listener: &UnixListener) {
    let mut listener = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut listener, None).unwrap();
}

#[test]
fn a_server_that_stops_ends_its_offer_and_keeps_no_listener_open() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let server = server(directory.path()).start(|_| Echo).unwrap();
    thread::scope(|scope| {
        let offer = scope.spawn(|| hand_over::offer(&server, &door, LONG));
        until("there is an offer", || door.exists());
        server.stop_accepting();
        let offered = offer.join().unwrap();
        assert!(matches!(offered, Err(HandOverError::NoListeners)));
        assert!(!door.exists());
        let Address::Tcp(address) = server.address() else {
            unreachable!()
        };
        // A process that another test starts just now has the listener until it runs.
        until("nobody listens", || {
            let connected = TcpStream::connect(address);
            connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        });
    });
}

/// A stop does not come between the two processes: who is about to take the listeners gets them, with the files of their sockets.
#[test]
fn a_server_that_is_told_to_stop_while_it_hands_over_does_that_first() {
    let directory = tempfile::tempdir().unwrap();
    let (door, other) = (
        directory.path().join("door"),
        directory.path().join("other"),
    );
    let file = directory.path().join("socket");
    let server = Server::builder().listen(Address::Unix(file.clone()));
    let server = server.start(|_| Echo).unwrap();
    thread::scope(|scope| {
        let (server, other, door) = (&server, &other, &door);
        let state = move || {
            scope.spawn(|| server.stop_accepting());
            until("it was told to stop", || {
                let offered = hand_over::offer(server, other, Duration::ZERO);
                matches!(offered, Err(HandOverError::NoListeners))
            });
            Ok(b"state".to_vec())
        };
        let offer = scope.spawn(move || hand_over::offer_with_state(server, door, LONG, state));
        let mut taken = hand_over::take(door, LONG).unwrap();
        assert_eq!(taken.state(), b"state");
        let listeners = taken.listeners();
        assert_eq!(listeners.len(), 1);
        taken.ready().unwrap();
        offer.join().unwrap().unwrap();
        UnixStream::connect(&file).expect("the new process has it");
        drop(listeners);
        assert!(!file.exists(), "the file was its own");
    });
    assert_eq!(server.stats().listening, 0);
}

/// Holds its worker up until it may go on.
struct HeldUp(Arc<AtomicBool>);

impl Handler for HeldUp {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        until("it may go on", || self.0.load(Ordering::Relaxed));
        Flow::Continue
    }
}

#[test]
fn an_offer_ends_when_the_last_worker_has_stopped_accepting() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let settings = Settings::default().with(|settings| settings.workers = 1);
    let goes_on = Arc::<AtomicBool>::default();
    let held_up = Arc::clone(&goes_on);
    let server = server(directory.path()).settings(settings);
    let server = server.start(move |_| HeldUp(Arc::clone(&held_up))).unwrap();
    let client = Client::new().unwrap();
    let session = client.connect(server.address(), Echo).unwrap();
    thread::scope(|scope| {
        let offer = scope.spawn(|| {
            hand_over::offer(&server, &door, LONG).unwrap();
            assert_eq!(server.stats().listening, 0);
        });
        let taken = hand_over::take(&door, LONG).unwrap();
        session.send_with(1, 0, |_| ()).unwrap();
        let ready = scope.spawn(|| taken.ready());
        // Longer than any patience for an answer.
        let began = Instant::now();
        until("it ends, or waits", || {
            offer.is_finished() || began.elapsed() > Duration::from_secs(12)
        });
        assert!(!offer.is_finished());
        goes_on.store(true, Ordering::Relaxed);
        offer.join().unwrap();
        ready.join().unwrap().unwrap();
    });
}

#[test]
fn a_worker_that_is_held_up_is_told_of() {
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings::default().with(|settings| settings.workers = 1);
    let goes_on = Arc::<AtomicBool>::default();
    let held_up = Arc::clone(&goes_on);
    let server = server(directory.path()).settings(settings);
    let server = server.start(move |_| HeldUp(Arc::clone(&held_up))).unwrap();
    let client = Client::new().unwrap();
    let session = client.connect(server.address(), Echo).unwrap();
    session.send_with(1, 0, |_| ()).unwrap();
    let door = directory.path().join("door");
    // Before the message is there, it is not: then nobody comes.
    until("it is held up", || {
        let offered = hand_over::offer(&server, &door, Duration::from_millis(20));
        match offered.unwrap_err() {
            HandOverError::HeldUp => true,
            HandOverError::TimedOut => false,
            why => panic!("{why}"),
        }
    });
    goes_on.store(true, Ordering::Relaxed);
}

/// What a new process hears of an old one that says this, and leaves.
fn taken_from(door: &Path, says: &[u8]) -> HandOverError {
    let listener = UnixListener::bind(door).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(says).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        hand_over::take(door, LONG).unwrap_err()
    })
}

#[test]
fn who_takes_without_an_offer_or_of_something_else_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| -> PathBuf { directory.path().join(name) };
    let nobody = hand_over::take(at("none"), Duration::from_millis(20));
    assert!(matches!(nobody, Err(HandOverError::TimedOut)));
    for (name, says) in [
        ("other", &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..]),
        ("word", b"EMBHAND2A"),
        ("none", b"EMBHAND2L\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        (
            "many",
            b"EMBHAND2L\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0",
        ),
        ("much", b"EMBHAND2L\x01\0\0\0\x0c\0\0\0\x01\0\0\x40\0\0\0\0"),
        (
            "less",
            b"EMBHAND2L\x01\0\0\0\x0c\0\0\0\0\0\0\0\0\0\0\x00127.0.0.1:9\0",
        ),
    ] {
        let why = taken_from(&at(name), says);
        assert!(matches!(why, HandOverError::Protocol(_)), "{name}: {why:?}");
    }
    let why = taken_from(&at("newer"), b"EMBHAND3");
    assert!(matches!(why, HandOverError::Version(b'3')), "{why:?}");
    assert!(why.to_string().contains("by version 3 and this one by 2"));
    let why = taken_from(&at("withdrawn"), b"EMBHAND2WWX");
    assert!(matches!(why, HandOverError::Withdrawn), "{why:?}");
    for (name, says) in [
        ("died", GREETING),
        ("working", b"EMBHAND2W"),
        ("head", b"EMBHAND2L\x01\0\0\0"),
        (
            "text",
            b"EMBHAND2L\x01\0\0\0\x0c\0\0\0\0\0\0\0\0\0\0\x00127",
        ),
    ] {
        let why = taken_from(&at(name), says);
        assert!(matches!(why, HandOverError::Left), "{name}: {why:?}");
    }
    let deaf = Server::builder().start(|_| Echo).unwrap();
    let nothing = hand_over::offer(&deaf, at("deaf"), LONG);
    assert!(matches!(nothing, Err(HandOverError::NoListeners)));
    let shm = Server::builder().listen(Address::Shm(at("shm")));
    let shm = shm.start(|_| Echo).unwrap();
    let refused = hand_over::offer(&shm, at("door"), LONG);
    assert!(matches!(refused, Err(HandOverError::SharedMemory(_))));
}
