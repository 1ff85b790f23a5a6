//! Servers are replaced while everybody talks: each line comes to each member once, in one order.

mod program;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{ChildStdin, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use embar_session::hand_over;
use program::{LONG, Program, client, server, server_with};
use rustix::process::Signal;

const MEMBERS: usize = 20;
const RESTARTS: usize = 3;
/// Between two lines, of whomever. So a machine can be busy for long before somebody is closed who is late.
const PAUSE: Duration = Duration::from_millis(5);

/// Takes the place of the server at `address`.
fn successor(address: &str, door: &str) -> Program {
    let server = Program::start(&["server", "--listen", address, "--hand-over", door]);
    assert_eq!(server.next(), "took the place of another server");
    assert_eq!(
        server.next(),
        format!("listening on {address}; Ctrl-C stops")
    );
    server
}

const DOOR: &str = "CHAT_TEST_DOOR";
const HAS_IT: &str = "it has the room";

/// The program of a process that is killed when it has the room.
#[test]
fn as_a_server_that_is_never_ready() {
    let Some(door) = std::env::var_os(DOOR) else {
        return;
    };
    let taken = hand_over::take(door, LONG).unwrap();
    writeln!(std::io::stdout(), "{HAS_IT}").unwrap();
    thread::sleep(LONG);
    drop(taken);
}

fn killed_before_it_is_ready(door: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["as_a_server_that_is_never_ready", "--exact", "--nocapture"]);
    let mut killed = Program::of(command.env(DOOR, door));
    while !killed.next().contains(HAS_IT) {}
    killed.signal(Signal::KILL);
    killed.ended();
}

/// Has each member say numbered lines. Returns how many each said.
fn talk(mut inputs: Vec<ChildStdin>, is_over: &AtomicBool) -> usize {
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return number;
        }
        for (member, input) in inputs.iter_mut().enumerate() {
            writeln!(input, "{member} says {number}").unwrap();
            thread::sleep(PAUSE);
        }
    }
    unreachable!("there is always a next number")
}

/// What a member reads.
struct Ear {
    member: Program,
    lines: Vec<String>,
    notices: Vec<String>,
}

impl Ear {
    fn new(member: Program) -> Self {
        Self {
            member,
            lines: Vec::new(),
            notices: Vec::new(),
        }
    }

    fn hear(&mut self, lines: usize) {
        while self.lines.len() < lines {
            let line = self.member.next();
            match line.starts_with('*') {
                true => self.notices.push(line),
                false => self.lines.push(line),
            }
        }
    }

    /// Without those about the connection.
    fn news(&self) -> Vec<&str> {
        let notices = self.notices.iter().map(String::as_str);
        let is_own = |it: &&str| it.starts_with("* here:") || it.starts_with("* the connection");
        notices.filter(|it| !is_own(it)).collect()
    }
}

#[test]
fn members_notice_nothing_of_restarts_but_a_pause() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let door = door.to_str().unwrap();
    let (mut server, address) = server_with(&["--hand-over", door]);
    let mut watcher = Ear::new(client(&address, "watcher"));
    assert_eq!(watcher.member.next(), "* nobody else is here yet");
    let mut members = Vec::new();
    for member in 0..MEMBERS {
        members.push(Ear::new(client(&address, &format!("m{member}"))));
        assert_eq!(watcher.member.next(), format!("* m{member} joined"));
    }
    let inputs = members.iter_mut().map(|it| it.member.input.take().unwrap());
    let inputs: Vec<_> = inputs.collect();
    let mut guests = Vec::new();
    let is_over = AtomicBool::new(false);
    let said = thread::scope(|scope| {
        let talking = scope.spawn(|| talk(inputs, &is_over));
        let connecting = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                TcpStream::connect(&address).expect("no connect is refused");
                thread::sleep(Duration::from_millis(10));
            }
        });
        let more = |watcher: &mut Ear| watcher.hear(watcher.lines.len() + 10 * MEMBERS);
        more(&mut watcher);
        for restart in 0..RESTARTS {
            if restart == 1 {
                killed_before_it_is_ready(door);
                let told = server.next();
                assert!(
                    told.starts_with("not replaced: the new process was not ready"),
                    "{told}"
                );
                more(&mut watcher);
            }
            // Also who comes just now comes in.
            guests.push(client(&address, &format!("guest{restart}")));
            let next = successor(&address, door);
            assert_eq!(server.next(), "another server took the place of this one");
            assert!(server.ended().success());
            server = next;
            more(&mut watcher);
        }
        is_over.store(true, Ordering::Relaxed);
        connecting.join().unwrap();
        talking.join().unwrap()
    });

    watcher.hear(MEMBERS * said);
    for (number, member) in members.iter_mut().enumerate() {
        let name = format!("m{number}: ");
        let own: Vec<_> = watcher
            .lines
            .iter()
            .filter(|it| it.starts_with(&name))
            .collect();
        let all: Vec<_> = (0..said)
            .map(|it| format!("{name}{number} says {it}"))
            .collect();
        assert!(own.iter().copied().eq(&all), "{own:?}");
        member.hear((MEMBERS - 1) * said);
        let others = watcher.lines.iter().filter(|it| !it.starts_with(&name));
        assert!(others.eq(&member.lines), "one order for all");
        // Each of its own was said, so it leaves content.
        assert!(member.member.ended().success());
    }
    for guest in &guests {
        let first = guest.next();
        assert!(first.starts_with("* here:"), "{first}");
    }
    // Nobody is gone or new who was there all the time. A guest that came in a pause was here before the watcher.
    let mut came = watcher.news();
    came.sort_unstable();
    assert!(came.iter().is_sorted_by(|a, b| a < b), "twice: {came:?}");
    let guests = (0..RESTARTS).map(|it| format!("* guest{it} joined"));
    let guests: Vec<_> = guests.collect();
    assert!(
        came.iter().all(|it| guests.iter().any(|guest| guest == it)),
        "{came:?}"
    );
    server.signal(Signal::INT);
    assert!(server.ended().success());
    assert!(!fs::exists(door).unwrap(), "nothing is offered any more");
}

#[test]
fn who_does_not_come_back_to_the_new_server_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let door = door.to_str().unwrap();
    let (mut old, address) = server_with(&["--hand-over", door]);
    let anna = client(&address, "anna");
    assert_eq!(anna.next(), "* nobody else is here yet");
    let ben = client(&address, "ben");
    assert_eq!(ben.next(), "* here: anna");
    assert_eq!(anna.next(), "* ben joined");
    ben.signal(Signal::STOP);
    let _new = successor(&address, door);
    assert!(old.ended().success());
    let lost = anna.next();
    assert!(lost.starts_with("* the connection is lost"), "{lost}");
    assert_eq!(anna.next(), "* here: ben");
    assert_eq!(anna.next(), "* ben is gone: it did not come back");
    // It is in time for its next life.
    ben.signal(Signal::CONT);
    assert_eq!(anna.next(), "* ben joined");
}

/// Who has come for the room does not say that it is ready, so a stop waits for it. Who asks twice does not.
#[test]
fn a_server_that_is_asked_twice_to_stop_waits_for_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let (mut server, _) = server_with(&["--hand-over", door.to_str().unwrap()]);
    let _taken = hand_over::take(&door, LONG).unwrap();
    // Signals that come together are one.
    let status = loop {
        server.signal(Signal::INT);
        thread::sleep(PAUSE);
        if let Some(status) = server.has_ended() {
            break status;
        }
    };
    assert_eq!(status.code(), Some(1), "it did not wait");
}

#[test]
fn where_the_old_server_dies_before_it_hands_over_the_new_one_listens_itself() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let door = door.to_str().unwrap();
    let (mut old, address) = server_with(&["--hand-over", door]);
    // It hangs: the new one stands before the door, or before the one after that.
    old.signal(Signal::STOP);
    let new = Program::start(&["server", "--listen", &address, "--hand-over", door]);
    thread::sleep(PAUSE);
    old.signal(Signal::KILL);
    old.ended();
    assert_eq!(new.next(), format!("listening on {address}; Ctrl-C stops"));
}

#[test]
fn where_the_old_server_dies_on_the_way_the_new_one_listens_itself() {
    let directory = tempfile::tempdir().unwrap();
    let door = directory.path().join("door");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let offer = UnixListener::bind(&door).unwrap();
    let door = door.to_str().unwrap();
    let new = Program::start(&["server", "--listen", &address, "--hand-over", door]);
    let (mut taker, _) = offer.accept().unwrap();
    let mut greeting = [0; 8];
    taker.read_exact(&mut greeting).unwrap();
    taker.write_all(&greeting).unwrap();
    drop((listener, offer, taker));
    let told = new.next();
    assert!(told.starts_with("the old process left"), "{told}");
    assert_eq!(new.next(), format!("listening on {address}; Ctrl-C stops"));
}

#[test]
fn after_a_crash_the_members_meet_in_a_new_room() {
    let (mut killed, address) = server();
    let mut anna = client(&address, "anna");
    assert_eq!(anna.next(), "* nobody else is here yet");
    let mut ben = client(&address, "ben");
    assert_eq!(ben.next(), "* here: anna");
    assert_eq!(anna.next(), "* ben joined");
    killed.signal(Signal::KILL);
    killed.ended();
    for member in [&anna, &ben] {
        let told = member.next();
        assert!(told.starts_with("* the connection is lost"), "{told}");
    }
    // What is typed meanwhile waits for the new room.
    anna.says("is anybody here?");
    let _new = Program::start(&["server", "--listen", &address]);
    for member in [&anna, &ben] {
        let told = member.next();
        assert!(told.starts_with("* the room is a new one"), "{told}");
        while !member.next().starts_with("* ") {}
    }
    ben.says("here I am");
    while anna.next() != "ben: here I am" {}
    anna.input = None;
    assert!(anna.ended().success(), "all that she typed is said");
}
