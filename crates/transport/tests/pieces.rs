//! Bodies of pieces without a kernel: whoever copies them sees the same bytes wherever they are cut.

use std::sync::Arc;

use embar_fabric::{Claim, Coherence, Device, Geometry, Region, Simulated};
use embar_transport::{Body, Mapped, Memory, Payload, Pieces, SendBuf};

const BLOG_BYTES: u64 = 64 << 10;
const CONTROL_BYTES: u64 = 32 << 20;
const OWN: u16 = 1;
const OTHER: u16 = 2;

fn geometry() -> Geometry {
    Geometry {
        brokers: 3,
        topics: 1,
        lanes: 1,
        lane_slots: 2,
        index_pages: 1,
        blog_bytes: BLOG_BYTES,
        ..Geometry::default()
    }
}

/// A region in a directory, which goes with the result, as two hosts see it.
fn mapped() -> (tempfile::TempDir, [Region<Mapped>; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let here = Region::create(dir.path(), &geometry(), Coherence::Coherent).unwrap();
    let there = Region::open(dir.path(), Coherence::Coherent).unwrap();
    (dir, [here, there])
}

/// A region in memory without coherence, as two hosts see it.
fn incoherent(seed: u64) -> [Region<Simulated>; 2] {
    let files = [CONTROL_BYTES, BLOG_BYTES, BLOG_BYTES].map(Device::blank);
    let host = |seed| {
        let [control, own, other] = files.each_ref().map(|file| Arc::new(file.host(seed)));
        (control, vec![own, other])
    };
    let (control, blogs) = host(seed);
    let here = Region::format(control, blogs, &geometry(), 7, 0).unwrap();
    let (control, blogs) = host(seed + 9);
    [here, Region::from_parts(control, blogs).unwrap()]
}

fn locked(region: &Region<Mapped>, row: u16) -> Claim {
    region.claim(row).unwrap()
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (seed + at * 31) as u8).collect()
}

/// Four pieces of both kinds, and what they are.
fn run<M: Memory>(
    [here, there]: &[Region<M>; 2],
    claim: impl Fn(&Region<M>, u16) -> Claim,
) -> (Box<Pieces<M>>, Vec<u8>) {
    let own = here.blog(&claim(here, OWN));
    let other = there.blog(&claim(there, OTHER));
    let mut extents = [own, other].map(|blog| blog.allocate(1).unwrap());
    let mut pieces: Box<Pieces<M>> = Box::default();
    let mut all = Vec::new();
    for (number, (whose, len)) in [(0, 64), (1, 5), (1, 33_000), (0, 1)]
        .into_iter()
        .enumerate()
    {
        let content = bytes(len, number);
        let mut reservation = extents[whose].reserve(len as u32).unwrap();
        reservation.write(0, &content);
        let span = reservation.commit();
        let payload = match whose {
            0 => Payload::Own(span),
            _ => Payload::Foreign(here.foreign(OTHER, span.at(), len as u32).unwrap()),
        };
        let header = [number as u8; 64];
        pieces.push(header, payload);
        all.extend(header);
        all.extend(content);
    }
    (pieces, all)
}

fn every_cut_shows_what_follows<M: Memory>((pieces, mut all): (Box<Pieces<M>>, Vec<u8>)) {
    assert_eq!((pieces.count(), pieces.len()), (4, all.len()));
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
    let (_dir, hosts) = mapped();
    every_cut_shows_what_follows(run(&hosts, locked));
}

#[test]
fn every_cut_shows_what_follows_in_memory_without_coherence() {
    for seed in 0..3 {
        every_cut_shows_what_follows(run(&incoherent(seed), Region::claim_unlocked));
    }
}

#[test]
fn a_piece_shows_what_its_owner_wrote_back_before_it_was_added() {
    let [here, there] = incoherent(5);
    let foreign = here.foreign(OTHER, 0, 4096).unwrap();
    let mut stale = vec![0; 4096];
    foreign.copy_to(0, &mut stale);
    let blog = there.blog(&there.claim_unlocked(OTHER));
    let mut reservation = blog.allocate(1).unwrap().reserve(4096).unwrap();
    reservation.write(0, &[7; 4096]);
    drop(reservation.commit());
    let mut pieces = Box::new(Pieces::new());
    pieces.push([0; 64], Payload::Foreign(foreign));
    let buf = SendBuf::new(Vec::new(), Body::Pieces(pieces));
    buf.with_unsent(|_, body| assert_eq!(body[64..], [7; 4096]));
}

#[test]
fn pieces_are_used_again_without_what_was_in_them() {
    let (_dir, hosts) = mapped();
    let (mut pieces, all) = run(&hosts, locked);
    assert!(pieces.has_foreign());
    pieces.clear();
    assert!(pieces.is_empty() && !pieces.has_foreign());
    assert_eq!(pieces.len(), 0);
    let foreign = || Payload::Foreign(hosts[0].foreign(OTHER, 0, 8).unwrap());
    while !pieces.is_full() {
        pieces.push([1; 64], foreign());
    }
    assert_ne!(pieces.len(), all.len());
    let more = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pieces.push([1; 64], foreign());
    }));
    assert!(more.is_err(), "there is no room for it");
}
