//! The chat as its users have it: real programs, real pipes, one of them killed.

mod program;

use std::thread;

use program::{LONG, Program, client, server};
use rustix::process::Signal;

/// anna, ben and carol, in the room and knowing of each other.
fn three(address: &str) -> [Program; 3] {
    let anna = client(address, "anna");
    assert_eq!(anna.next(), "* nobody else is here yet");
    let ben = client(address, "ben");
    assert_eq!(ben.next(), "* here: anna");
    let carol = client(address, "carol");
    assert_eq!(carol.next(), "* here: anna, ben");
    assert_eq!(anna.next(), "* ben joined");
    assert_eq!(anna.next(), "* carol joined");
    assert_eq!(ben.next(), "* carol joined");
    [anna, ben, carol]
}

#[test]
fn what_one_says_all_others_read_once_and_in_order() {
    const LINES: usize = 500;
    let (mut server, address) = server();
    let mut people = three(&address);
    thread::scope(|scope| {
        for (person, name) in people.iter_mut().zip(["anna", "ben", "carol"]) {
            scope.spawn(move || {
                for number in 0..LINES {
                    person.says(&format!("{name} says {number}"));
                }
            });
        }
    });
    for (person, others) in
        people
            .iter()
            .zip([["ben", "carol"], ["anna", "carol"], ["anna", "ben"]])
    {
        let mut heard = [0; 2];
        for _ in 0..2 * LINES {
            let line = person.next();
            let who = others.iter().position(|other| line.starts_with(other));
            let who = who.unwrap_or_else(|| panic!("{line:?} is from nobody else"));
            let (other, number) = (others[who], heard[who]);
            assert_eq!(line, format!("{other}: {other} says {number}"));
            heard[who] += 1;
        }
        assert_eq!(heard, [LINES; 2]);
    }
    let [mut anna, mut ben, mut carol] = people;

    // Killed, without a chance to say goodbye.
    carol.signal(Signal::KILL);
    carol.ended();
    for person in [&anna, &ben] {
        let line = person.next();
        assert!(line.starts_with("* carol is gone: "), "{line}");
    }
    // The end of the input is a goodbye; what was typed before it is still said.
    ben.says("bye");
    ben.input = None;
    assert!(ben.ended().success());
    assert_eq!(anna.next(), "ben: bye");
    assert_eq!(anna.next(), "* ben left");
    // So is Ctrl-C.
    let dora = client(&address, "dora");
    assert_eq!(dora.next(), "* here: anna");
    assert_eq!(anna.next(), "* dora joined");
    let mut dora = dora;
    dora.signal(Signal::INT);
    assert!(dora.ended().success());
    assert_eq!(anna.next(), "* dora left");
    // And the server's own end is told to those who are there.
    server.signal(Signal::INT);
    assert!(server.ended().success());
    assert!(!anna.ended().success());
    let why = anna.errors.recv_timeout(LONG).unwrap();
    assert!(why.contains("the chat is over"), "{why}");
}

#[test]
fn bad_names_and_names_in_use_do_not_come_in() {
    let (_server, address) = server();
    let anna = client(&address, "anna");
    anna.next();
    let refused = |name: &str| {
        let mut other = client(&address, name);
        assert!(!other.ended().success());
        other.errors.recv_timeout(LONG).unwrap()
    };
    let said = refused("anna");
    assert!(said.contains("take another name"), "{said}");
    let said = refused("two words");
    assert!(said.contains("letters"), "{said}");
    // Whoever was refused took nothing: the room is as it was.
    let ben = client(&address, "ben");
    assert_eq!(ben.next(), "* here: anna");
    assert_eq!(anna.next(), "* ben joined");
}

#[test]
fn who_stops_reading_is_dropped_and_the_others_go_on() {
    let (_server, address) = server();
    let [mut anna, ben, carol] = three(&address);
    carol.signal(Signal::STOP);
    let line = "x".repeat(1900);
    // Each round is small enough for somebody who reads, and ben does.
    'rounds: for _ in 0..2000 {
        for _ in 0..20 {
            anna.says(&line);
        }
        let mut heard = 0;
        while heard < 20 {
            let said = ben.next();
            match said.strip_prefix("anna: ") {
                Some(text) => {
                    assert_eq!(text, line);
                    heard += 1;
                }
                None => {
                    assert_eq!(said, "* carol is gone: the peer reads too slowly");
                    break 'rounds;
                }
            }
        }
    }
    assert_eq!(anna.next(), "* carol is gone: the peer reads too slowly");
}
