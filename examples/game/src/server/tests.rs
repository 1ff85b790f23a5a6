//! A server in this process, with players who are slow, and players who do not keep to the rules.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::Receiver;

use buffa::Message as _;
use embar_resume::{Connector, End, Handler, Resumable, Target};
use embar_session::{Flow, Message};

use super::*;
use crate::pilot::{Eyes, Pilot, Tally, connector};
use crate::protocol::{Direction, Join, Move, SnapshotView, UNREAD_MAX, id};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// One that ticks quickly.
struct Running {
    server: Server,
    keeper: Keeper,
    arena: Arena,
    _ticks: Sender<()>,
}

impl Running {
    fn new() -> Self {
        let keeper = Keeper::new(KeeperSettings::default()).unwrap();
        let arena = Arena::new(World::new(1));
        let any: Address = "127.0.0.1:0".parse().unwrap();
        let server = start(Server::builder().listen(any), &keeper, arena.clone()).unwrap();
        arena.thaw();
        let ticks = tick(&arena, Duration::from_millis(2));
        Self {
            server,
            keeper,
            arena,
            _ticks: ticks,
        }
    }

    /// Somebody who plays, and the ticks that it sees. It looks at a next one when it gets a word by the sender.
    fn player(&self, name: &str) -> Player {
        let (looked, ticks) = channel();
        let (look, allowed) = channel();
        let eyes = Watch {
            looked: Mutex::new(looked),
            allowed: Mutex::new(allowed),
        };
        // A thread of its own, which others' eyes do not hold up.
        let connector = connector().unwrap();
        let pilot = Pilot::join(&connector, &self.server.address(), name, eyes).unwrap();
        Player {
            pilot,
            ticks,
            look: Some(look),
            _connector: connector,
        }
    }
}

struct Player {
    pilot: Pilot,
    ticks: Receiver<u64>,
    look: Option<Sender<()>>,
    _connector: Connector,
}

impl Player {
    /// Looks at all that comes from now on.
    fn watch(mut self) -> Self {
        self.look = None;
        self
    }

    fn tick(&self) -> u64 {
        self.ticks.recv_timeout(LONG).expect("a snapshot in time")
    }
}

struct Watch {
    looked: Mutex<Sender<u64>>,
    allowed: Mutex<Receiver<()>>,
}

impl Eyes for Watch {
    fn see(&mut self, _: &Tally, snapshot: &SnapshotView<'_>) {
        let _ = self.looked.get_mut().unwrap().send(snapshot.tick);
        // At the latest when the player watches all, or is gone.
        let _ = self.allowed.get_mut().unwrap().recv();
    }
}

#[test]
fn who_is_slow_gets_the_newest_later_and_holds_up_nobody() {
    let running = Running::new();
    let slow = running.player("slow");
    let first = slow.tick();
    let mut quick = running.player("quick").watch();
    // The slow one acknowledges nothing: it has what it may have, and no more.
    let most_unread = || {
        let sessions = running.keeper.sessions();
        sessions.iter().map(Resumable::unacknowledged).max()
    };
    until("the slow one is skipped", || {
        most_unread() == Some(UNREAD_MAX)
    });
    let from = quick.tick();
    while quick.tick() < from + 500 {
        quick.pilot.go(Direction::DIRECTION_UP).unwrap();
    }
    until("its moves are made", || {
        quick.pilot.session().unacknowledged() == 0
    });
    assert_eq!(most_unread(), Some(UNREAD_MAX));
    let now = running.arena.figures().0;
    let slow = slow.watch();
    let mut old = 0;
    while slow.tick() < now {
        old += 1;
    }
    assert!(old < UNREAD_MAX, "{old} after {first}");
}

/// Tells how its session ended.
struct Ends(Sender<End>);

impl Handler for Ends {
    fn message(&mut self, _: &Resumable, _: Message<'_>) -> Flow {
        Flow::Continue
    }

    fn closed(&mut self, _: &Resumable, ended: &embar_resume::Ended) {
        let _ = self.0.send(ended.why.clone());
    }
}

fn refusal(ends: &Receiver<End>) -> String {
    match ends.recv_timeout(LONG).unwrap() {
        End::Refused { text, .. } => text,
        end => panic!("{end}"),
    }
}

fn join(name: &str, secret: usize) -> Vec<u8> {
    Join {
        name: name.to_owned(),
        secret: vec![7; secret],
    }
    .encode_to_vec()
}

fn number(number: u64) -> Vec<u8> {
    Move {
        number,
        direction: Direction::DIRECTION_UP.into(),
        heard: 0,
    }
    .encode_to_vec()
}

#[test]
fn who_breaks_the_rules_ends_only_itself() {
    let running = Running::new();
    let mut honest = running.player("honest").watch();
    honest.tick();
    let connector = connector().unwrap();
    let open = |greeting: &[u8]| {
        let (told, ends) = channel();
        let target = Target::new(running.server.address()).greeting(greeting);
        (connector.open(target, Ends(told)), ends)
    };
    for greeting in [
        join("", 16),
        join("two words", 16),
        join("anna", 3),
        join("honest", 16),
        b"GET / HTTP/1.1".to_vec(),
    ] {
        let (_, ends) = open(&greeting);
        assert_ne!(refusal(&ends), "");
    }
    let nowhere = Move {
        number: 2,
        direction: buffa::EnumValue::Unknown(9),
        heard: 0,
    };
    for (kind, bad) in [
        (id::MOVE, number(0)),
        (id::MOVE, number(3)),
        (id::MOVE, number(u64::MAX)),
        (id::MOVE, nowhere.encode_to_vec()),
        (id::MOVE, b"\xff\xff\xff".to_vec()),
        (id::SNAPSHOT, Vec::new()),
        (77, number(2)),
    ] {
        let (session, ends) = open(&join("mallory", 16));
        for (kind, bytes) in [(id::MOVE, number(1)), (kind, bad)] {
            let sent = session.send_with(kind, bytes.len(), |to| to.copy_from_slice(&bytes));
            sent.unwrap();
        }
        let why = refusal(&ends);
        assert!(why.contains("one by one"), "{why}");
        // Its player is gone with it, so that the next one may have the name.
        until("it is gone", || running.arena.figures().1 == 1);
    }
    let mut stranger = TcpStream::connect(running.server.address().to_string()).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    stranger.set_read_timeout(Some(LONG)).unwrap();
    stranger.read_to_end(&mut Vec::new()).unwrap();

    for _ in 0..100 {
        honest.pilot.go(Direction::DIRECTION_LEFT).unwrap();
    }
    until("its moves are made", || {
        honest.pilot.session().unacknowledged() == 0
    });
    let tally = honest.pilot.tally();
    assert_eq!((tally.restarts, tally.finds_lost), (0, 0));
    let seen = honest.tick();
    assert!((0..).any(|_| honest.tick() > seen));
}

#[test]
fn who_shows_the_secret_plays_on_and_the_one_before_ends() {
    let running = Running::new();
    let connector = connector().unwrap();
    let open = || {
        let (told, ends) = channel();
        let target = Target::new(running.server.address()).greeting(join("anna", 16));
        (connector.open(target, Ends(told)), ends)
    };
    let (first, ends) = open();
    let opened = first.wait_until(LONG, embar_resume::State::is_open);
    assert!(opened.is_open());
    let (second, _ends) = open();
    assert_eq!(refusal(&ends), "you play from elsewhere now");
    let bytes = number(1);
    let fill = |to: &mut [u8]| to.copy_from_slice(&bytes);
    second.send_with(id::MOVE, bytes.len(), fill).unwrap();
    until("it is taken", || second.unacknowledged() == 0);
    assert_eq!(running.arena.figures().1, 1);
}

/// A way to a server for one connection, and what cuts it.
fn way(to: Address) -> (Address, impl FnOnce()) {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap();
    let (goes, went) = channel();
    thread::spawn(move || {
        let (near, _) = door.accept().unwrap();
        let far = TcpStream::connect(to.to_string()).unwrap();
        goes.send((near.try_clone().unwrap(), far.try_clone().unwrap()))
            .unwrap();
        thread::scope(|scope| {
            scope.spawn(|| std::io::copy(&mut &near, &mut &far));
            let _ = std::io::copy(&mut &far, &mut &near);
        });
    });
    let cut = move || {
        let (near, far) = went.recv().unwrap();
        for end in [near, far] {
            let _ = end.shutdown(Shutdown::Both);
        }
    };
    (address.into(), cut)
}

#[test]
fn nobody_waits_for_players_who_are_away_when_the_others_are_sent_on() {
    let running = Running::new();
    let there = running.player("there").watch();
    there.tick();
    let is_sent_on = running.keeper.sessions()[0].clone();
    let (address, cut) = way(running.server.address());
    let connector = connector().unwrap();
    let (told, _ends) = channel();
    let target = Target::new(address).greeting(join("away", 16));
    let away = connector.open(target, Ends(told));
    assert!(
        away.wait_until(LONG, embar_resume::State::is_open)
            .is_open()
    );
    cut();
    until("one is away", || running.keeper.suspended() == 1);
    let began = Instant::now();
    assert_eq!(send_on(&running.keeper, LONG), 1);
    assert!(began.elapsed() < LONG, "it waited for who is away");
    assert!(is_sent_on.state().ended().is_some());
}

#[test]
fn more_moves_than_may_wait_are_made_one_after_the_other() {
    let running = Running::new();
    let mut player = running.player("anna").watch();
    player.tick();
    for _ in 0..1000 {
        player.pilot.go(Direction::DIRECTION_DOWN).unwrap();
    }
    until("all are taken", || {
        player.pilot.session().unacknowledged() == 0
    });
    until("all are made", || {
        let world = World::read(&running.arena.freeze()).unwrap();
        running.arena.thaw();
        world.snapshot().players[0].moves == 1000
    });
}

#[test]
fn skipped_ticks_are_said_once_a_second_and_all_of_them() {
    let start = Instant::now();
    let mut skipped = Skipped::default();
    assert_eq!(skipped.add(0, start), None);
    assert_eq!(skipped.add(3, start), Some(3));
    let soon = start + COMPLAINTS / 2;
    assert_eq!(skipped.add(2, soon), None);
    assert_eq!(skipped.add(1, soon), None);
    assert_eq!(skipped.add(0, start + COMPLAINTS), Some(3));
    assert_eq!(skipped.add(0, start + COMPLAINTS * 9), None);
}
