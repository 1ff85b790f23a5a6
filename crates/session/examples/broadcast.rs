//! Measures a broadcast of 200 bytes beside a loop of sends to the same sessions, whose other ends are in a process of their own.
//!
//! `cargo run --release -p embar-session --example broadcast -- 1000 200`: to 1,000 sessions, 200 times each way. For 10,000
//! sessions each of the two processes needs that many open files (`ulimit -n 10100`).

#![allow(
    clippy::print_stdout,
    reason = "a program that prints what it measured"
)]

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use embar_session::{
    Address, Broadcast, Client, Flow, Handler, Lag, Message, Plain, SendError, Server, Session,
    Settings,
};

/// Reads, and that is all.
struct Reader;

impl Handler for Reader {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        Flow::Continue
    }
}

fn settings(sessions: usize) -> Settings {
    Settings::default().with(|settings| {
        settings.max_sessions = sessions;
        settings.send_ring_bytes = 64 << 10;
        settings.recv_ring_bytes = 16 << 10;
        settings.idle_rings = 0;
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["members", address, sessions] => be_members(&address.parse()?, sessions.parse()?),
        [] => compare(1000, 200),
        [sessions, rounds] => compare(sessions.parse()?, rounds.parse()?),
        _ => Err("usage: broadcast [SESSIONS ROUNDS]".into()),
    }
}

/// The other ends, until the process that measures ends.
fn be_members(address: &Address, sessions: usize) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::with(Plain, settings(sessions))?;
    for _ in 0..sessions {
        client.connect(address.clone(), Reader)?;
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn compare(sessions: usize, rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .settings(settings(sessions))
        .listen("127.0.0.1:0".parse::<Address>()?)
        .start(|_| Reader)?;
    let mut others = Command::new(std::env::current_exe()?)
        .args([
            "members",
            &server.address().to_string(),
            &sessions.to_string(),
        ])
        .stdin(Stdio::piped())
        .spawn()?;
    while server.stats().opened < sessions as u64 {
        if let Some(status) = others.try_wait()? {
            return Err(format!("the members did not come: {status}").into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let members = server.sessions();
    let broadcast = Broadcast::new();
    for member in &members {
        broadcast.join(member, Lag::Skip);
    }
    let content = [7; 200];
    println!("200 bytes to {sessions} sessions, {rounds} times; per message and session:");
    for _ in 0..3 {
        measure("a loop of sends", &members, rounds, || {
            for _ in 0..rounds {
                for member in &members {
                    send_surely(member, &content);
                }
            }
        });
        measure("a broadcast", &members, rounds, || {
            for round in 0..rounds {
                // As many as surely fit into the rings; then the peers catch up.
                if round % 100 == 99 {
                    wait_for(&members);
                }
                let delivery = broadcast.send_bytes(1, &content);
                assert!(delivery.is_ok_and(|it| it.sent == sessions));
            }
        });
    }
    drop(others.stdin.take());
    others.wait()?;
    Ok(())
}

fn send_surely(member: &Session, content: &[u8]) {
    loop {
        match member.send_with(1, content.len(), |to| to.copy_from_slice(content)) {
            Err(SendError::Full) => std::thread::yield_now(),
            other => return assert_eq!(other, Ok(())),
        }
    }
}

/// Until nothing waits in the rings.
fn wait_for(members: &[Session]) {
    while members.iter().any(|it| it.stats().queued_bytes > 0) {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The time that the caller took, and until the kernel had all.
fn measure(name: &str, members: &[Session], rounds: usize, send: impl FnOnce()) {
    let began = Instant::now();
    send();
    let sent = began.elapsed();
    wait_for(members);
    let each = |time: Duration| time.as_nanos() / (members.len() * rounds) as u128;
    println!(
        "{name:>16}: sender {:>6} ns, until written {:>6} ns",
        each(sent),
        each(began.elapsed())
    );
}
