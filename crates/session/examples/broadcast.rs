//! Measures a broadcast of 200 bytes beside a loop of sends to the same sessions.
//!
//! `cargo run --release -p embar-session --example broadcast -- 1000 200`: to 1,000 sessions, 200 times each way. For 10,000
//! sessions, raise the limit of open files (`ulimit -n 32768`).

#![allow(
    clippy::print_stdout,
    reason = "a program that prints what it measured"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use embar_session::{
    Broadcast, Client, Flow, Handler, Lag, Message, Plain, SendError, Server, Session, Settings,
};

/// Counts what comes.
struct Count(Arc<AtomicU64>);

impl Handler for Count {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        self.0.fetch_add(1, Ordering::Relaxed);
        Flow::Continue
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let sessions = numbers.next().transpose()?.unwrap_or(1000);
    let rounds = numbers.next().transpose()?.unwrap_or(200);
    let settings = Settings::default().with(|settings| {
        settings.max_sessions = sessions;
        settings.send_ring_bytes = 64 << 10;
        settings.recv_ring_bytes = 16 << 10;
        settings.idle_rings = 0;
    });
    let server = Server::builder()
        .settings(settings.clone())
        .listen("127.0.0.1:0".parse::<embar_session::Address>()?)
        .start(|_| Count(Arc::default()))?;
    let client = Client::with(Plain, settings)?;
    let got = Arc::new(AtomicU64::new(0));
    for _ in 0..sessions {
        client.connect(server.address(), Count(Arc::clone(&got)))?;
    }
    let members = server.sessions();
    let broadcast = Broadcast::new();
    for member in &members {
        broadcast.join(member, Lag::Skip);
    }
    let content = [7; 200];
    println!("200 bytes to {sessions} sessions, {rounds} times; per message and session:");
    for _ in 0..3 {
        measure("a loop of sends", &got, sessions * rounds, || {
            for _ in 0..rounds {
                for member in &members {
                    send_surely(member, &content);
                }
            }
        });
        measure("a broadcast", &got, sessions * rounds, || {
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

/// The time that the caller took, and until all was received.
fn measure(name: &str, got: &AtomicU64, messages: usize, send: impl FnOnce()) {
    let until = got.load(Ordering::Relaxed) + messages as u64;
    let began = Instant::now();
    send();
    let sent = began.elapsed();
    while got.load(Ordering::Relaxed) < until {
        std::thread::sleep(Duration::from_micros(100));
    }
    let each = |time: Duration| time.as_nanos() / messages as u128;
    println!(
        "{name:>16}: sender {:>6} ns, until received {:>6} ns",
        each(sent),
        each(began.elapsed())
    );
}
