//! What the parts cost, in rough figures: a message through a ring, and a round trip through the
//! reactor beside one through bare sockets, in alternating runs.
//!
//! `cargo bench -p embar-transport` runs all; `-- ring 1000000` runs a million messages and nothing
//! else, for counting instructions.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use embar_transport::ring::{Commit, RecvRing, RingPool, SendRing};
use embar_transport::{Body, Completion, Epoll, Head, Reactor, RecvBuf, SendBuf, Store, Token};
use rustix::net::{RecvFlags, SendFlags};

const MESSAGE: usize = 64;
const ROUNDS: usize = 20_000;
const RUNS: usize = 7;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|word| word == "ring") {
        let count = arguments.get(at + 1).and_then(|count| count.parse().ok());
        messages(count.unwrap_or(1_000_000));
        return;
    }
    let mut runs: Vec<f64> = (0..RUNS).map(|_| messages(2_000_000)).collect();
    println!(
        "reserve + write {MESSAGE} bytes + commit: {:.1} ns",
        median(&mut runs)
    );
    let mut runs: Vec<f64> = (0..RUNS).map(|_| empty_messages(2_000_000)).collect();
    println!("reserve + commit alone: {:.1} ns", median(&mut runs));
    for (name, spin) in [("spinning", true), ("blocking", false)] {
        let (mut bare, mut reactor) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            bare.push(round_trips(spin, false));
            reactor.push(round_trips(spin, true));
        }
        let (bare, reactor) = (median(&mut bare), median(&mut reactor));
        println!(
            "round trip, {name}: bare {bare:.2} us, reactor {reactor:.2} us, ratio {:.3}",
            reactor / bare
        );
    }
}

fn median(runs: &mut [f64]) -> f64 {
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

fn through_ring(count: usize, len: usize, fill: impl Fn(&mut [u8])) -> f64 {
    let pool = RingPool::new(64 << 10, 1).expect("a pool");
    let ring = SendRing::new(&pool).expect("a ring");
    let started = Instant::now();
    let mut left = count;
    while left > 0 {
        assert!(ring.cork());
        let batch = left.min(512);
        for _ in 0..batch {
            let mut message = ring.reserve(len).expect("room");
            fill(&mut message);
            assert_eq!(message.commit(), Commit::Left);
        }
        let mut span = ring.uncork().expect("messages");
        let sent = span.bytes().len();
        span.advance(sent);
        assert!(!span.finish());
        left -= batch;
    }
    started.elapsed().as_nanos() as f64 / count as f64
}

fn messages(count: usize) -> f64 {
    through_ring(count, MESSAGE, |message| message.fill(7))
}

fn empty_messages(count: usize) -> f64 {
    through_ring(count, MESSAGE, |_| ())
}

/// Microseconds for a round trip of 64 bytes by TCP on this machine.
fn round_trips(spin: bool, reactor: bool) -> f64 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let ours = TcpStream::connect(listener.local_addr().expect("an address")).expect("a peer");
    let (theirs, _) = listener.accept().expect("a connection");
    for stream in [&ours, &theirs] {
        stream.set_nodelay(true).expect("an option");
    }
    let end = move |stream: TcpStream, first: bool| {
        if reactor {
            reactor_end(stream, spin, first).expect("the connection holds");
        } else {
            bare_end(&stream, spin, first).expect("the connection holds");
        }
    };
    let other = thread::spawn(move || end(theirs, false));
    let started = Instant::now();
    end(ours, true);
    let time = started.elapsed();
    other.join().expect("the other end");
    time.as_secs_f64() * 1e6 / ROUNDS as f64
}

fn bare_end(stream: &TcpStream, spin: bool, first: bool) -> io::Result<()> {
    let mut bytes = [0u8; MESSAGE];
    let flags = if spin {
        RecvFlags::DONTWAIT
    } else {
        RecvFlags::empty()
    };
    if first {
        rustix::net::send(stream, &bytes, SendFlags::NOSIGNAL)?;
    }
    for round in 0..ROUNDS {
        let mut got = 0;
        while got < MESSAGE {
            match rustix::net::recv(stream, &mut bytes[got..], flags) {
                Ok((count, _)) => got += count,
                Err(rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !first || round + 1 < ROUNDS {
            rustix::net::send(stream, &bytes, SendFlags::NOSIGNAL)?;
        }
    }
    Ok(())
}

/// The same through the reactor and rings, as a session would.
fn reactor_end(stream: TcpStream, spin: bool, first: bool) -> io::Result<()> {
    let pool = RingPool::new(64 << 10, 0)?;
    let mut epoll = Epoll::new()?;
    if spin {
        epoll.set_spin(Duration::from_secs(10));
    }
    let token = epoll.add(stream)?;
    let (ring, mut received) = (SendRing::new(&pool)?, RecvRing::new(&pool)?);
    if first {
        answer(&mut epoll, token, &ring);
    }
    let space = received.lend(usize::MAX).expect("room");
    epoll.recv(token, RecvBuf::ring(space));
    let mut out = Vec::new();
    let mut round = 0;
    while round < ROUNDS || epoll.outstanding() > 0 {
        epoll.poll(Some(Duration::from_secs(10)), &mut out)?;
        for completion in out.drain(..) {
            match completion {
                Completion::Received { buf, result, .. } => {
                    let count = result?;
                    let Store::Ring(space) = buf.into_store() else {
                        continue;
                    };
                    received.give_back(space, count);
                    if received.readable().len() >= MESSAGE {
                        received.consume(MESSAGE);
                        round += 1;
                        if !first || round < ROUNDS {
                            answer(&mut epoll, token, &ring);
                        }
                    }
                    if round < ROUNDS {
                        let space = received.lend(usize::MAX).expect("room");
                        epoll.recv(token, RecvBuf::ring(space));
                    }
                }
                Completion::Sent { buf, result, .. } => {
                    result?;
                    if let (Head::Ring(span), _) = buf.into_parts() {
                        span.finish();
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn answer(epoll: &mut Epoll, token: Token, ring: &SendRing) {
    let mut message = ring.reserve(MESSAGE).expect("room");
    message.fill(7);
    let _ = message.commit();
    if let Some(span) = ring.span() {
        epoll.send(token, SendBuf::ring(span, Body::Empty));
    }
}
