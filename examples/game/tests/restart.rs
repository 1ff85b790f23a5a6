//! Servers that are replaced while they are played: real processes, and what becomes of each move.

mod program;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use embar_session::hand_over;
use program::{LONG, Program, server};
use rustix::process::Signal;

const DOOR: &str = "EMBAR_TEST_DOOR";
/// Longer than any test.
const SECONDS: &str = "3600";

fn bots(address: &str, count: &str) -> Program {
    let bots = Program::start(&[
        "bots", address, "--count", count, "--for", SECONDS, "--rate", "20",
    ]);
    assert_eq!(bots.next(), format!("{count} bots are in"));
    bots
}

/// The process that follows, and the tick at which it goes on.
fn successor(address: &str, door: &Path, players: usize) -> (Program, u64) {
    let next = Program::start(&["server", address, "--hand-over", door.to_str().unwrap()]);
    let said = next.next();
    let about = format!("took over {address} at tick ");
    let about = said.strip_prefix(&about);
    let (tick, players_said) = about.expect(&said).split_once(' ').unwrap();
    let players = format!("with {players} players; ");
    assert!(players_said.starts_with(&players), "{said}");
    (next, tick.parse().unwrap())
}

fn are_back(bots: &Program, times: usize) {
    let said = bots.next();
    let expected = format!("restart {times}: all bots are back, ");
    assert!(said.starts_with(&expected), "{said}");
}

/// Ends the load: each move was made once, and each find was told once.
fn each_counted_once(bots: &mut Program) -> u64 {
    bots.signal(Signal::INT);
    let moves = bots.next();
    let moves = moves.strip_prefix("moves").expect(&moves).trim_start();
    let (made, rest) = moves.split_once(' ').unwrap();
    assert_eq!(rest, "made, 0 lost, 0 doubled");
    let finds = bots.next();
    assert!(finds.ends_with(" told, 0 lost"), "{finds}");
    assert!(bots.ended().success());
    made.parse().unwrap()
}

/// A thread that connects over and over, and is never refused.
struct Visitors {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Visitors {
    fn start(address: &str) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let told = Arc::clone(&stop);
        let address: SocketAddr = address.parse().unwrap();
        let thread = thread::spawn(move || {
            let mut count = 0;
            while !told.load(Ordering::Relaxed) {
                TcpStream::connect(address).expect("nobody is refused");
                count += 1;
                thread::sleep(Duration::from_millis(1));
            }
            count
        });
        Self { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.thread.join().unwrap() > 0);
    }
}

#[test]
fn restarts_under_load_lose_and_double_nothing() {
    const RESTARTS: usize = 5;
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let (mut server, address) = server("127.0.0.1:0", &door);
    let mut bots = bots(&address, "20");
    let visitors = Visitors::start(&address);
    let mut tick = 0;
    for times in 1..=RESTARTS {
        let (next, now) = successor(&address, &door, 20);
        assert!(now > tick, "{now} after {tick}");
        tick = now;
        assert!(server.ended().success());
        server = next;
        are_back(&bots, times);
    }
    visitors.end();
    let made = each_counted_once(&mut bots);
    assert!(made >= 20 * RESTARTS as u64, "{made}");
    server.signal(Signal::TERM);
    assert!(server.ended().success());
    assert!(!door.exists(), "nothing is offered any more");
}

/// The program of a process that takes the world, and does nothing with it.
#[test]
fn as_one_that_never_gets_ready() {
    let Some(door) = std::env::var_os(DOOR) else {
        return;
    };
    let mut taken = hand_over::take(door, LONG).unwrap();
    assert!(!taken.state().is_empty());
    writeln!(std::io::stderr(), "has taken it").unwrap();
    thread::sleep(LONG);
}

#[test]
fn where_the_successor_is_killed_before_it_is_ready_the_game_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let (mut server, address) = server("127.0.0.1:0", &door);
    let mut bots = bots(&address, "10");
    let visitors = Visitors::start(&address);
    for times in 1..=2 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let arguments = ["as_one_that_never_gets_ready", "--exact", "--nocapture"];
        let mut successor = Program::of(command.args(arguments).env(DOOR, &door));
        successor.complains("has taken it");
        successor.signal(Signal::KILL);
        assert!(!successor.ended().success());
        server.complains("not replaced: ");
        are_back(&bots, times);
    }
    // The next one is better.
    let (_next, _) = successor(&address, &door, 10);
    assert!(server.ended().success());
    are_back(&bots, 3);
    visitors.end();
    each_counted_once(&mut bots);
}

#[test]
fn where_the_old_process_dies_on_the_way_the_new_one_listens_itself() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let offer = UnixListener::bind(&door).unwrap();
    let new = Program::start(&["server", &address, "--hand-over", door.to_str().unwrap()]);
    let (mut taker, _) = offer.accept().unwrap();
    let mut greeting = [0; 8];
    taker.read_exact(&mut greeting).unwrap();
    taker.write_all(&greeting).unwrap();
    drop((listener, offer, taker));
    new.complains("the old process left");
    assert_eq!(new.next(), format!("listening on {address}; Ctrl-C stops"));
}

#[test]
fn what_is_in_doubt_when_the_server_is_replaced_counts_once() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let (mut server, address) = server("127.0.0.1:0", &door);
    let mut quick = bots(&address, "5");
    let way = OneWay::start(&address);
    let mut deaf = bots(&way.address, "5");
    // The server makes their moves, and they do not hear of it; nor of the restart.
    way.close_down();
    way.carries(5000);
    let (_next, _) = successor(&address, &door, 10);
    way.open_down();
    let said = server.next();
    // On a slow machine others are late, too.
    let left = said.strip_prefix("handing over; ").expect(&said);
    let (left, _) = left.split_once(' ').unwrap();
    assert!(left.parse::<usize>().unwrap() >= 5, "{said}");
    assert!(server.ended().success());
    are_back(&quick, 1);
    are_back(&deaf, 1);
    each_counted_once(&mut quick);
    each_counted_once(&mut deaf);
}

/// A way to a server by which at times nothing comes back.
struct OneWay {
    address: String,
    closed: Arc<AtomicBool>,
    carried: Arc<AtomicU64>,
}

impl OneWay {
    fn start(to: &str) -> Self {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Self {
            address: door.local_addr().unwrap().to_string(),
            closed: Arc::default(),
            carried: Arc::default(),
        };
        let (closed, carried) = (Arc::clone(&way.closed), Arc::clone(&way.carried));
        let to = to.to_owned();
        thread::spawn(move || {
            for near in door.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(&to).unwrap();
                let ends = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (closed, carried) = (Arc::clone(&closed), Arc::clone(&carried));
                thread::spawn(move || {
                    carry(&near, &far, |bytes| {
                        carried.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                        true
                    });
                });
                thread::spawn(move || {
                    // A connection of which a part is missing stays closed.
                    let mut is_open = true;
                    carry(&ends.1, &ends.0, |_| {
                        is_open &= !closed.load(Ordering::Relaxed);
                        is_open
                    });
                });
            }
        });
        way
    }

    /// Lets nothing come back on the connections that there are.
    fn close_down(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.carried.store(0, Ordering::Relaxed);
    }

    fn open_down(&self) {
        self.closed.store(false, Ordering::Relaxed);
    }

    /// Waits until so many bytes more went to the server.
    fn carries(&self, bytes: u64) {
        let deadline = Instant::now() + LONG;
        while self.carried.load(Ordering::Relaxed) < bytes {
            assert!(Instant::now() < deadline, "the bots say nothing");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Until one end is over; then both are. `goes_on` says of all that comes whether it goes on.
fn carry(mut from: &TcpStream, mut to: &TcpStream, mut goes_on: impl FnMut(&[u8]) -> bool) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let bytes = &buffer[..read];
        if goes_on(bytes) && to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn the_loss_of_a_world_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let (mut first, address) = server("127.0.0.1:0", &door);
    let mut bots = bots(&address, "5");
    // Once it has been replaced, the moves before that are acknowledged: nobody sends them again.
    let (mut second, _) = successor(&address, &door, 5);
    assert!(first.ended().success());
    are_back(&bots, 1);
    second.signal(Signal::KILL);
    second.ended();
    // What is left of the second one is in nobody's way.
    let (_third, _) = server(&address, &door);
    are_back(&bots, 2);
    bots.signal(Signal::INT);
    let moves = bots.next();
    assert!(!moves.contains(" 0 lost,"), "{moves}");
    assert!(!bots.ended().success());
}
