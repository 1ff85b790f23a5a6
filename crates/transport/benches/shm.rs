//! Streams by shared memory beside Unix sockets, in alternating runs: how many bytes a second pass, and how long a round trip
//! takes.
//!
//! `cargo bench -p embar-transport --bench shm`

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use embar_memory::{Buffer, Sealed};
use embar_transport::{
    Completion, Epoll, Reactor, RecvBuf, SendBuf, Shm, ShmOptions, Store, Stream,
};

const RUNS: usize = 7;
const ROUNDS: usize = 50_000;
const MESSAGE: usize = 64;
/// Bytes of a run, and of each of its sends.
const RUN_BYTES: usize = 4 << 30;
const PART_BYTES: usize = 256 << 10;
/// Parts that go round, so that what is sent is not in the nearest cache.
const PARTS: usize = 64;

/// How the bytes pass.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Unix,
    /// By the ring: copied twice.
    Copied,
    /// In memory that was handed over: copied once.
    Named,
}

fn main() {
    for (name, spin) in [("spinning", true), ("sleeping", false)] {
        let rounds = compared([Way::Unix, Way::Copied], |way| {
            round_trips(pair(way, &parts(way)), spin)
        });
        println!("round trip of {MESSAGE} B, {name}, us: {rounds}");
        let rates = compared([Way::Unix, Way::Copied, Way::Named], |way| rate(way, spin));
        println!("parts of 256 KiB, one way, {name}, GB/s: {rates}");
    }
}

/// Medians of all ways, of runs that alternate.
fn compared<const WAYS: usize>(ways: [Way; WAYS], run: impl Fn(Way) -> f64) -> String {
    let mut runs = ways.map(|_| Vec::new());
    for _ in 0..RUNS {
        for (runs, way) in runs.iter_mut().zip(ways) {
            runs.push(run(way));
        }
    }
    let medians = runs.iter_mut().zip(ways).map(|(runs, way)| {
        runs.sort_by(f64::total_cmp);
        let (low, median, high) = (runs[1], runs[RUNS / 2], runs[RUNS - 2]);
        format!("{way:?} {median:.2} [{low:.2}, {high:.2}]")
    });
    medians.collect::<Vec<_>>().join(", ")
}

fn parts(way: Way) -> Vec<Arc<Buffer>> {
    let fresh: Vec<Buffer> = match way {
        Way::Named => {
            let sealed = Sealed::new((PARTS * PART_BYTES) as u64).expect("memory");
            let ranges = sealed.into_ranges(PART_BYTES).into_iter();
            ranges.map(Buffer::from).collect()
        }
        _ => (0..PARTS).map(|_| Buffer::from(Vec::new())).collect(),
    };
    let full = fresh.into_iter().map(|mut buffer| {
        buffer.resize(PART_BYTES, 7);
        Arc::new(buffer)
    });
    full.collect()
}

fn pair(way: Way, parts: &[Arc<Buffer>]) -> (Stream, Stream) {
    if way == Way::Unix {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        return (ours.into(), theirs.into());
    }
    let memories = match &*parts[0] {
        Buffer::Sealed(range) => vec![range.file().clone()],
        Buffer::Heap(_) => Vec::new(),
    };
    let options = ShmOptions {
        memories,
        ..ShmOptions::default()
    };
    let (ours, theirs) = Shm::pair(&options, &ShmOptions::default()).expect("memory");
    (ours.into(), theirs.into())
}

fn reactor(spin: bool) -> Epoll {
    let mut epoll = Epoll::new().expect("a reactor");
    if spin {
        epoll.set_spin(Duration::from_secs(10));
    }
    epoll
}

/// Gigabytes a second from one thread to another.
fn rate(way: Way, spin: bool) -> f64 {
    let parts = parts(way);
    let (ours, theirs) = pair(way, &parts);
    let started = Instant::now();
    let reader = thread::spawn(move || read_all(theirs, spin));
    let mut epoll = reactor(spin);
    let token = epoll.add(ours).expect("a stream");
    let mut out = Vec::new();
    for part in 0..RUN_BYTES / PART_BYTES {
        epoll.send(token, SendBuf::shared(Arc::clone(&parts[part % PARTS])));
        while epoll.outstanding() > 0 {
            let patience = Some(Duration::from_secs(10));
            epoll.poll(patience, &mut out).expect("a reactor");
        }
        for completion in out.drain(..) {
            if let Completion::Sent { result, .. } = completion {
                result.expect("the reader lives");
            }
        }
    }
    // What is named is read as long as the connection is open.
    reader.join().expect("the reader");
    RUN_BYTES as f64 / started.elapsed().as_secs_f64() / 1e9
}

fn read_all(stream: Stream, spin: bool) {
    let mut epoll = reactor(spin);
    let token = epoll.add(stream).expect("a stream");
    let mut into: Vec<Vec<u8>> = (0..PARTS).map(|_| vec![1; PART_BYTES]).collect();
    let mut out = Vec::new();
    let mut left = RUN_BYTES;
    while left > 0 {
        let part = into.remove(0);
        epoll.recv(token, RecvBuf::heap(part, 0..PART_BYTES.min(left)));
        while epoll.outstanding() > 0 {
            let patience = Some(Duration::from_secs(10));
            epoll.poll(patience, &mut out).expect("a reactor");
        }
        for completion in out.drain(..) {
            if let Completion::Received { buf, result, .. } = completion {
                left -= result.expect("the writer lives");
                if let Store::Heap(bytes) = buf.into_store() {
                    into.push(bytes);
                }
            }
        }
    }
}

/// Microseconds for a message there and one back.
fn round_trips((ours, theirs): (Stream, Stream), spin: bool) -> f64 {
    let other = thread::spawn(move || echo(theirs, spin, false));
    let started = Instant::now();
    echo(ours, spin, true);
    let time = started.elapsed();
    other.join().expect("the other end");
    time.as_secs_f64() * 1e6 / ROUNDS as f64
}

fn echo(stream: Stream, spin: bool, first: bool) {
    let mut epoll = reactor(spin);
    let token = epoll.add(stream).expect("a stream");
    let mut out = Vec::new();
    epoll.recv(token, RecvBuf::heap(vec![0; MESSAGE], 0..MESSAGE));
    let mut idle = Some(vec![7; MESSAGE]);
    let mut due = first;
    let mut round = 0;
    while round < ROUNDS || epoll.outstanding() > 0 {
        if due && let Some(bytes) = idle.take() {
            epoll.send(token, SendBuf::heap(bytes));
            due = false;
        }
        let patience = Some(Duration::from_secs(10));
        epoll.poll(patience, &mut out).expect("a reactor");
        for completion in out.drain(..) {
            match completion {
                Completion::Received { buf, result, .. } => {
                    result.expect("the other end lives");
                    assert_eq!(buf.remaining(), 0, "64 bytes come at once");
                    round += 1;
                    due = !first || round < ROUNDS;
                    if round < ROUNDS
                        && let Store::Heap(bytes) = buf.into_store()
                    {
                        epoll.recv(token, RecvBuf::heap(bytes, 0..MESSAGE));
                    }
                }
                Completion::Sent { buf, .. } => idle = Some(buf.into_parts().0.into_heap()),
                _ => {}
            }
        }
        if due
            && round == ROUNDS
            && !first
            && let Some(bytes) = idle.take()
        {
            epoll.send(token, SendBuf::heap(bytes));
            due = false;
        }
    }
}
