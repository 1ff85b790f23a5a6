//! A broadcast with as many members as one process carries. Their other ends are another process's, which only reads: so each
//! member takes one descriptor of each process, and its rings are there once.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{ChildStdout, Command, Stdio};

use embar_frame::{FRAME_HEADER_BYTES, FrameHeader};
use embar_session::{Address, Broadcast, Lag};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::admission::WELCOME;
use crate::broadcast::{numbered, opened};
use crate::hello::hello;
use crate::listeners::this_program;
use crate::support::{LONG, alone, recording_server, small, until};

const MEMBERS: usize = 10_000;
/// What a process opens beside its ends of sessions.
const OTHER_DESCRIPTORS: u64 = 100;
const MESSAGES: u32 = 20;
const ID: u16 = 1;

/// Where the members connect, and how many they are, for the process that has their other ends.
const SOCKET: &str = "EMBAR_TEST_CROWD";
const COUNT: &str = "EMBAR_TEST_CROWD_COUNT";

/// As many members as this process may have descriptors for.
fn as_many_as_may_be() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let room = limit.maximum.map(|most| most - OTHER_DESCRIPTORS);
    room.map_or(MEMBERS, |room| MEMBERS.min(room as usize))
}

/// The next frame with this id; others, which ask whether it is still there, are skipped.
fn next(stream: &mut UnixStream, id: u16) -> Vec<u8> {
    loop {
        let mut header = [0; FRAME_HEADER_BYTES];
        stream.read_exact(&mut header).unwrap();
        let header = FrameHeader::parse(&header);
        let mut content = vec![0; header.length as usize];
        stream.read_exact(&mut content).unwrap();
        if header.id == id {
            return content;
        }
    }
}

/// Not a test by itself: the other ends.
#[test]
fn other_ends() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let count: usize = std::env::var(COUNT).unwrap().parse().unwrap();
    let hello = hello();
    let mut ends: Vec<_> = (0..count)
        .map(|_| {
            let mut end = UnixStream::connect(&socket).unwrap();
            end.set_read_timeout(Some(LONG)).unwrap();
            end.write_all(&hello).unwrap();
            end
        })
        .collect();
    for end in &mut ends {
        next(end, WELCOME);
    }
    for number in 0..MESSAGES {
        for end in &mut ends {
            assert!(next(end, ID).starts_with(&numbered(number)));
        }
    }
    writeln!(std::io::stdout(), "\nall have all").unwrap();
    // They stay until they are to go.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Waits until the other ends say so; what they said before, if they end without it.
fn say(ends: ChildStdout, word: &str) {
    let mut lines = Vec::new();
    for line in BufReader::new(ends).lines().map_while(Result::ok) {
        if line == word {
            return;
        }
        lines.push(line);
    }
    panic!("not {word:?}, but {lines:#?}");
}

/// Descriptors and mappings are the process's, so this has one of its own.
#[test]
fn each_of_ten_thousand_members_has_all_messages_in_order() {
    if !alone("crowd::each_of_ten_thousand_members_has_all_messages_in_order") {
        return;
    }
    let members = as_many_as_may_be();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut settings = small().with(|settings| {
        settings.max_sessions = members;
        settings.idle_rings = 0;
    });
    // The other ends say nothing, and read when all have come.
    settings.session.idle_timeout = 16 * LONG;
    let (server, seen) = recording_server(settings, Address::Unix(socket.clone()));
    let program = this_program("crowd::other_ends");
    let mut ends = Command::new(&program[0])
        .args(&program[1..])
        .env(SOCKET, &socket)
        .env(COUNT, members.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let broadcast = Broadcast::new();
    for _ in 0..members {
        assert!(broadcast.join(&opened(&seen), Lag::Close));
    }
    assert_eq!(broadcast.len(), members);
    for number in 0..MESSAGES {
        let delivery = broadcast.send_bytes(ID, &numbered(number)).unwrap();
        assert_eq!(delivery.sent, members);
    }
    say(ends.stdout.take().unwrap(), "all have all");
    assert_eq!(server.stats().sessions, members as u64);
    drop(ends.stdin.take());
    ends.wait().unwrap();
    until("all left", || broadcast.is_empty());
}
