//! A person's side, in a terminal that writes down what it is shown, and where there is none.

mod program;

use std::io::Write;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use program::{LONG, Program, server};

#[test]
fn a_person_plays_and_the_terminal_is_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let (_server, address) = server("127.0.0.1:0", &directory.path().join("door"));
    let screen = directory.path().join("screen");
    let line = format!(
        "stty rows 24 cols 80; {} play {address} anna; echo ended $?; stty -a",
        env!("CARGO_BIN_EXE_game")
    );
    // script(1) is such a terminal.
    let mut command = Command::new("script");
    let mut terminal = Program::of(command.args(["-q", "-f", "-c", &line]).arg(&screen));
    let shows = |what: &str| {
        let deadline = Instant::now() + LONG;
        loop {
            let shown = std::fs::read(&screen).unwrap_or_default();
            let shown = String::from_utf8_lossy(&shown).into_owned();
            if shown.contains(what) {
                return;
            }
            assert!(Instant::now() < deadline, "no {what:?} in {shown}");
            thread::sleep(Duration::from_millis(5));
        }
    };
    shows("@");
    shows("connected");
    let keys = terminal.input.as_mut().unwrap();
    keys.write_all(b"llll\x1b[Aq").unwrap();
    shows("ended 0");
    shows(" icanon");
    terminal.input = None;
    terminal.ended();
}

#[test]
fn without_a_terminal_nobody_can_play() {
    let mut piped = Program::start(&["play", "127.0.0.1:1", "anna"]);
    assert!(!piped.ended().success());
    let why = piped.errors.recv_timeout(LONG).unwrap();
    assert!(why.contains("plays in a terminal"), "{why}");
}

#[test]
fn what_bots_cannot_do_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let (_server, address) = server("127.0.0.1:0", &directory.path().join("door"));
    let mut first = Program::start(&["bots", &address, "--count", "1", "--for", "0"]);
    assert_eq!(first.next(), "1 bots are in");
    assert!(first.ended().success());
    let mut nobody = Program::start(&["bots", &address, "--count", "0"]);
    assert!(!nobody.ended().success());
    let why = nobody.errors.recv_timeout(LONG).unwrap();
    assert!(why.contains("--count"), "{why}");
}
