//! Round trips of small messages on a session on which bodies of 16 MiB follow each other towards
//! the one that asks: without bodies, with bodies in one piece, and in a lane. Directly, and by way
//! of a link of 50 MB/s.
//!
//! `cargo bench -p embar-session --bench lanes`

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use embar_memory::Buffer;
use embar_session::{
    Address, BodyTarget, Client, Flow, Handler, Message, Plain, Server, Session, Settings,
    SocketOptions,
};
use embar_transport::socket;

const BODY: usize = 16 << 20;
const LINK_BYTES_PER_SECOND: f64 = 50e6;
const PIECE: usize = 16 << 10;
const RUN: Duration = Duration::from_secs(4);
const ASK: u16 = 1;
const BEGIN: u16 = 2;

fn main() {
    println!("| link | bodies | bodies, MB/s | round trips | P50, us | P99, us | most, us |");
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
    for slow in [false, true] {
        for (what, lane) in [
            ("none", None),
            ("in one piece", Some(0)),
            ("in a lane", Some(1)),
        ] {
            run(slow, what, lane);
        }
    }
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.session.max_body_bytes = BODY as u32 + 64;
    settings.session.body_lanes = 1;
    settings
}

fn run(slow: bool, what: &str, lane: Option<u8>) {
    let server = Server::builder()
        .settings(settings())
        .listen("127.0.0.1:0".parse::<Address>().unwrap())
        .start(move |_| Giver {
            lane: lane.unwrap_or(0),
            body: Arc::new(vec![7; BODY].into()),
        })
        .unwrap();
    let address = match slow {
        false => server.address(),
        true => link_to(&server.address()),
    };
    let bytes = Arc::new(AtomicUsize::new(0));
    let (answers, answered) = channel();
    let handler = Asker {
        answers,
        bytes: Arc::clone(&bytes),
    };
    let client = Client::with(Plain, settings()).unwrap();
    let session = client.connect(address, handler).unwrap();
    if lane.is_some() {
        // The next one waits when one is over.
        for _ in 0..2 {
            session.send_with(BEGIN, 0, |_| ()).unwrap();
        }
    }
    let mut trips = Vec::new();
    let began = Instant::now();
    while began.elapsed() < RUN {
        let asked = Instant::now();
        session.send_with(ASK, 64, |to| to.fill(1)).unwrap();
        answered.recv().unwrap();
        trips.push(asked.elapsed());
        thread::sleep(Duration::from_micros(200));
    }
    trips.sort_unstable();
    let micros = |at: usize| trips[at].as_secs_f64() * 1e6;
    let rate = bytes.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64() / 1e6;
    println!(
        "| {} | {what} | {rate:.0} | {} | {:.0} | {:.0} | {:.0} |",
        if slow { "50 MB/s" } else { "loopback" },
        trips.len(),
        micros(trips.len() / 2),
        micros(trips.len() * 99 / 100),
        micros(trips.len() - 1),
    );
    session.abort();
}

/// Answers, and sends a body for each that is asked for.
struct Giver {
    lane: u8,
    body: Arc<Buffer>,
}

impl Handler for Giver {
    fn message(&mut self, session: &Session, message: Message<'_>) -> Flow {
        // Both fail when the session ends.
        let _ = match message.id() {
            ASK => session.send_with(ASK, 64, |to| to.fill(2)),
            _ => session
                .send_body_on(self.lane, BEGIN, &[], Arc::clone(&self.body))
                .map(drop),
        };
        Flow::Continue
    }
}

/// Asks for the next body when one is there.
struct Asker {
    answers: Sender<()>,
    bytes: Arc<AtomicUsize>,
}

impl Handler for Asker {
    fn message(&mut self, _: &Session, _: Message<'_>) -> Flow {
        let _ = self.answers.send(());
        Flow::Continue
    }

    fn body(&mut self, _: &Session, _: u16, _: &[u8], len: usize) -> BodyTarget {
        BodyTarget::heap(len)
    }

    fn body_done(
        &mut self,
        session: &Session,
        _: u16,
        _: embar_session::BodyStore,
        range: std::ops::Range<usize>,
    ) {
        self.bytes.fetch_add(range.len(), Ordering::Relaxed);
        let _ = session.send_with(BEGIN, 0, |_| ());
    }
}

/// A link to `address` that passes so many bytes a second towards who connects to it, and has no
/// more of them than a router would.
fn link_to(address: &Address) -> Address {
    let Address::Tcp(server) = *address else {
        panic!("not TCP");
    };
    let options = SocketOptions {
        recv_buffer_bytes: Some(128 << 10),
        send_buffer_bytes: Some(128 << 10),
        ..SocketOptions::default()
    };
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let listener = socket::listen_tcp(any, &options).unwrap();
    listener.set_nonblocking(false).unwrap();
    let link = listener.local_addr().unwrap();
    thread::spawn(move || {
        let client = listener.accept().unwrap().0;
        let server = socket::connect_tcp(server, Duration::from_secs(1), &options).unwrap();
        let (to_server, to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || pass(client, to_server, f64::INFINITY));
        pass(server, to_client, LINK_BYTES_PER_SECOND);
    });
    Address::Tcp(link)
}

fn pass(mut from: TcpStream, mut to: TcpStream, rate: f64) {
    let mut bytes = [0; PIECE];
    let mut free = Instant::now();
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        free = free.max(Instant::now()) + Duration::from_secs_f64(count as f64 / rate);
        thread::sleep(free.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}
