//! Bodies of pieces without a kernel: every way to copy them gives the same bytes, wherever they are cut.

use std::sync::Arc;

use embar_memory::{Buffer, Coherence, Device, Foreign, PayloadFile, Simulated};
use embar_transport::{Body, Mapped, Memory, Payload, Pieces, SendBuf};

const FILE_BYTES: u64 = 64 << 10;

/// This process's payload, and another's: how that one sees it, and how this one does.
struct Hosts<M: Memory> {
    own: PayloadFile<M>,
    there: Arc<M>,
    here: Arc<M>,
}

fn mapped() -> Hosts<Mapped> {
    let there = Arc::new(Mapped::anonymous(FILE_BYTES, Coherence::Coherent).unwrap());
    Hosts {
        own: PayloadFile::anonymous(FILE_BYTES, Coherence::Coherent).unwrap(),
        here: Arc::clone(&there),
        there,
    }
}

fn incoherent(seed: u64) -> Hosts<Simulated> {
    let other = Device::blank(FILE_BYTES);
    let own = Arc::new(Device::blank(FILE_BYTES).host(seed));
    Hosts {
        own: PayloadFile::over_copies(&own),
        there: Arc::new(other.host(seed + 9)),
        here: Arc::new(other.host(seed)),
    }
}

impl<M: Memory> Hosts<M> {
    /// The other stores bytes and writes them back.
    fn store(&self, at: u64, bytes: &[u8]) {
        self.there.write(at, bytes);
        self.there.write_back(at, bytes.len() as u64);
        self.there.fence();
    }

    fn foreign(&self, at: u64, len: usize) -> Foreign<M> {
        Foreign::over(&self.here, at, len).unwrap()
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (seed + at * 31) as u8).collect()
}

/// Pieces of all kinds, and what they are.
fn run<M: Memory>(hosts: &Hosts<M>) -> (Box<Pieces<M>>, Vec<u8>) {
    let mut extent = hosts.own.allocate(1).unwrap();
    let mut other_end = 0;
    let mut pieces: Box<Pieces<M>> = Box::default();
    let mut all = Vec::new();
    for (number, (foreign, len)) in [(false, 64), (true, 5), (true, 33_000), (false, 1)]
        .into_iter()
        .enumerate()
    {
        let content = bytes(len, number);
        let payload = if foreign {
            let at = other_end;
            hosts.store(at, &content);
            other_end = (at + len as u64).next_multiple_of(64);
            Payload::Foreign(hosts.foreign(at, len))
        } else {
            let mut reservation = extent.reserve(len as u32).unwrap();
            reservation.write(0, &content);
            Payload::Own(reservation.commit())
        };
        let header = [number as u8; 64];
        pieces.push(header, payload);
        all.extend(header);
        all.extend(content);
    }
    let frame = Arc::new(Buffer::from(bytes(64 + 700, 9)));
    all.extend_from_slice(&frame);
    pieces.push_frame(frame);
    (pieces, all)
}

fn every_cut_shows_what_follows<M: Memory>((pieces, mut all): (Box<Pieces<M>>, Vec<u8>)) {
    assert_eq!((pieces.count(), pieces.len()), (5, all.len()));
    let mut buf = SendBuf::new(b"hi!".to_vec(), Body::Pieces(pieces));
    all.splice(..0, *b"hi!");
    assert_eq!(buf.total(), all.len());
    assert!(buf.goes_in_steps());
    // All of the small pieces, and some of the large one.
    while buf.remaining() > 0 {
        let rest = &all[buf.sent()..];
        buf.with_unsent(|head, body| assert!([head, body].concat() == rest));
        for most in [1, 70, usize::MAX] {
            buf.with_next(most, |next| {
                assert!(!next.is_empty() && next.len() <= most && rest.starts_with(next));
            });
        }
        let dense = rest.len() < 100 || buf.sent() < 500;
        buf.advance(if dense { 1 } else { rest.len().min(997) });
    }
    buf.with_next(usize::MAX, |next| assert!(next.is_empty()));
    buf.with_unsent(|head, body| assert!(head.is_empty() && body.is_empty()));
}

#[test]
fn every_cut_shows_what_follows_in_mapped_memory() {
    every_cut_shows_what_follows(run(&mapped()));
}

#[test]
fn every_cut_shows_what_follows_in_memory_without_coherence() {
    for seed in 0..3 {
        every_cut_shows_what_follows(run(&incoherent(seed)));
    }
}

#[test]
fn a_piece_shows_what_its_owner_wrote_back_before_it_was_added() {
    let hosts = incoherent(5);
    let foreign = hosts.foreign(0, 4096);
    let mut stale = vec![0; 4096];
    foreign.copy_to(0, &mut stale);
    hosts.store(0, &[7; 4096]);
    let mut pieces = Box::new(Pieces::new());
    pieces.push([0; 64], Payload::Foreign(foreign));
    let buf = SendBuf::new(Vec::new(), Body::Pieces(pieces));
    buf.with_unsent(|_, body| assert_eq!(body[64..], [7; 4096]));
}

#[test]
fn pieces_are_used_again_without_what_was_in_them() {
    let hosts = mapped();
    let (mut pieces, all) = run(&hosts);
    assert!(pieces.has_foreign());
    pieces.clear();
    assert!(pieces.is_empty() && !pieces.has_foreign());
    assert_eq!(pieces.len(), 0);
    let foreign = || Payload::Foreign(hosts.foreign(0, 8));
    while !pieces.is_full() {
        pieces.push([1; 64], foreign());
    }
    assert_ne!(pieces.len(), all.len());
    let more = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pieces.push([1; 64], foreign());
    }));
    assert!(more.is_err(), "there is no room for it");
}
