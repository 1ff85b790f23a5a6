//! A member of the room that is written in another language.

mod program;

use std::path::Path;
use std::process::Command;

use program::{LONG, Program, server};
use rustix::process::Signal;

fn python(name: &str, address: &str) -> Program {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python");
    Program::of(
        Command::new("python3")
            .arg(folder.join("chat.py"))
            .args(["--name", name, address])
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    )
}

#[test]
fn python_and_rust_talk_in_one_room() {
    let (server, address) = server();
    let mut anna = Program::start(&["client", "--connect", &address, "--name", "anna"]);
    assert_eq!(anna.next(), "* nobody else is here yet");
    let mut bob = python("bob", &address);
    assert_eq!(bob.next(), "* here: anna");
    assert_eq!(anna.next(), "* bob joined");

    for number in 0..200 {
        anna.says(&format!("anna says {number}"));
        bob.says(&format!("bob says {number}"));
    }
    for number in 0..200 {
        assert_eq!(bob.next(), format!("anna: anna says {number}"));
        assert_eq!(anna.next(), format!("bob: bob says {number}"));
    }
    // Letters beyond ASCII, and a line that both ends cut at the same place.
    bob.says("čau, Jörg");
    assert_eq!(anna.next(), "bob: čau, Jörg");
    bob.says(&"é".repeat(3000));
    assert_eq!(anna.next(), format!("bob: {}", "é".repeat(1000)));

    // A refusal has its reason and its text.
    let mut other = python("anna", &address);
    assert!(!other.ended().success());
    let said = other.errors.recv_timeout(LONG).unwrap();
    assert!(said.contains("REFUSED"), "{said}");
    assert!(said.contains("take another name"), "{said}");

    // What was said before the end of the input arrives, and the end is a goodbye.
    bob.says("bye");
    bob.input = None;
    assert_eq!(anna.next(), "bob: bye");
    assert_eq!(anna.next(), "* bob left");
    assert!(bob.ended().success());

    // The server's end is told to who is there.
    let mut carl = python("carl", &address);
    assert_eq!(carl.next(), "* here: anna");
    server.signal(Signal::INT);
    assert!(!carl.ended().success());
    let why = carl.errors.recv_timeout(LONG).unwrap();
    assert!(why.contains("FINISHED"), "{why}");
}
