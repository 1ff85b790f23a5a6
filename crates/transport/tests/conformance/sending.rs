use std::io::Read;
use std::sync::Arc;
use std::thread;

use embar_memory::Buffer;
use embar_transport::ring::{Commit, RingPool, SendRing};
use embar_transport::{Body, Head, Reactor, SendBuf, Stream};
use rustix::net::sockopt;

use crate::Kind;
use crate::driver::{driver, pattern, room};
use crate::log::Log;

fn read_exactly(peer: &mut Stream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    peer.read_exact(&mut bytes).unwrap();
    bytes
}

pub fn a_small_send_arrives<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    driver.reactor.send(token, SendBuf::heap(b"hello".to_vec()));
    let (buf, result, ticks) = driver.sent(token);
    result.unwrap();
    assert_eq!((buf.sent(), buf.remaining()), (5, 0));
    assert_eq!(
        buf.into_parts().0.into_heap(),
        b"hello",
        "the Vec comes back for reuse"
    );
    assert!(ticks > 0, "a system call takes time");
    assert_eq!(read_exactly(&mut peer, 5), b"hello");
    assert_eq!(driver.reactor.counters().send_bytes, 5);
}

pub fn an_empty_send_completes<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, _peer) = driver.pair();
    driver.send_all(token, SendBuf::heap(Vec::new()));
    driver.send_all(token, SendBuf::shared(Arc::new(Buffer::default())));
    assert_eq!(driver.reactor.counters().send_bytes, 0);
}

pub fn a_send_larger_than_the_socket_waits_for_the_reader<K: Kind>() {
    // More than both kernel buffers can be tuned up to.
    const LEN: usize = 48 << 20;
    let mut driver = driver::<K>();
    let (ours, mut peer) = K::pair();
    sockopt::set_socket_send_buffer_size(&ours, 64 << 10).unwrap();
    let token = driver.reactor.add(ours).unwrap();
    let bytes = Arc::new(Buffer::from(pattern(LEN)));
    driver
        .reactor
        .send(token, SendBuf::shared(Arc::clone(&bytes)));
    driver.nothing_happens();
    assert_eq!(driver.reactor.outstanding(), 1);
    assert!(driver.reactor.counters().send_partial > 0);

    let reader = thread::spawn(move || read_exactly(&mut peer, LEN));
    let (buf, result, _) = driver.sent(token);
    result.unwrap();
    assert_eq!(buf.sent(), LEN);
    assert!(reader.join().unwrap() == *bytes, "bytes differ");
    assert_eq!(driver.reactor.counters().send_bytes, LEN as u64);
}

pub fn two_parts_arrive_in_order_wherever_the_kernel_cuts_them<K: Kind>() {
    const HEAD: usize = 300_000;
    const BODY: usize = 700_000;
    let mut driver = driver::<K>();
    let (ours, mut peer) = K::pair();
    sockopt::set_socket_send_buffer_size(&ours, 8 << 10).unwrap();
    let token = driver.reactor.add(ours).unwrap();
    let all = pattern(HEAD + BODY);
    let body = Body::Shared(Arc::new(Buffer::from(all[HEAD..].to_vec())));
    let reader = thread::spawn(move || read_exactly(&mut peer, HEAD + BODY));
    driver.send_all(token, SendBuf::new(all[..HEAD].to_vec(), body));
    assert!(reader.join().unwrap() == all, "bytes differ");
    assert!(
        driver.reactor.counters().send_partial > 0,
        "nothing was cut"
    );
}

pub fn spans_of_the_log_are_sent_in_place<K: Kind>() {
    const LEN: usize = 256 << 10;
    let log = Log::new();
    let mut reservation = log.reserve(LEN);
    reservation.write(0, &pattern(LEN));
    let span = reservation.commit();
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    let reader = thread::spawn(move || read_exactly(&mut peer, 3 + LEN + LEN));
    let head = b"hi!".to_vec();
    driver.send_all(token, SendBuf::new(head, Body::Span(span.clone())));
    let buf = driver.send_all(token, SendBuf::span(span));
    let expected = [&b"hi!"[..], &pattern(LEN), &pattern(LEN)].concat();
    assert!(reader.join().unwrap() == expected, "bytes differ");

    assert_eq!(
        log.pins(),
        1,
        "a sent buffer pins its bytes until it is dropped"
    );
    drop(buf);
    assert_eq!(log.pins(), 0);
}

pub fn both_directions_work_at_once<K: Kind>() {
    const LEN: usize = 4 << 20;
    let mut driver = driver::<K>();
    let (ours, theirs) = K::pair();
    let (left, right) = (
        driver.reactor.add(ours).unwrap(),
        driver.reactor.add(theirs).unwrap(),
    );
    let bytes = Arc::new(Buffer::from(pattern(LEN)));
    for token in [left, right] {
        driver
            .reactor
            .send(token, SendBuf::shared(Arc::clone(&bytes)));
        driver.reactor.recv(token, room(LEN));
    }
    // Neither send can end before the other side received, so both must go on together.
    let mut full = 0;
    while full < 2 {
        let (token, buf) = driver.wait_for("receive", |completion| match completion {
            embar_transport::Completion::Received { token, buf, .. } => Ok((token, buf)),
            other => Err(other),
        });
        if buf.remaining() > 0 {
            driver.reactor.recv(token, buf);
            continue;
        }
        buf.with_filled(0..LEN, |got| assert!(got == &bytes[..], "bytes differ"));
        full += 1;
    }
    for token in [left, right] {
        driver.sent(token).1.unwrap();
    }
}

pub fn what_a_ring_has_ready_goes_out_before_its_body_and_frees_its_room<K: Kind>() {
    // More than both kernel buffers can be tuned up to.
    const LEN: usize = 48 << 20;
    let ring = SendRing::new(&RingPool::new(64 << 10, 0).unwrap()).unwrap();
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    let head = pattern(40_000);
    let large = Arc::new(Buffer::from(vec![7; LEN]));
    // The second of them wraps.
    for _ in 0..2 {
        let mut message = ring.reserve(head.len()).unwrap();
        message.copy_from_slice(&head);
        assert_eq!(message.commit(), Commit::First);
        let span = ring.span().unwrap();
        let body = Body::Shared(Arc::clone(&large));
        driver.reactor.send(token, SendBuf::ring(span, body));
        driver.nothing_happens();
        assert_eq!(ring.queued(), 0, "the head has gone");
        assert!(ring.span().is_none() && !ring.cork(), "still sending");

        let (all, buf) = thread::scope(|scope| {
            let reader = scope.spawn(|| read_exactly(&mut peer, head.len() + LEN));
            let (buf, result, _) = driver.sent(token);
            result.unwrap();
            (reader.join().unwrap(), buf)
        });
        let (Head::Ring(span), _) = buf.into_parts() else {
            panic!("the head changed its kind");
        };
        assert!(!span.finish(), "nothing came meanwhile");
        let (first, rest) = all.split_at(head.len());
        assert!(first == head && rest == &large[..], "bytes differ");
    }
}

pub fn an_aborted_span_stays_queued<K: Kind>() {
    let ring = SendRing::new(&RingPool::new(64 << 10, 0).unwrap()).unwrap();
    let mut driver = driver::<K>();
    let (token, _peer) = driver.pair();
    driver.reactor.close(token);
    let mut message = ring.reserve(5).unwrap();
    message.copy_from_slice(b"again");
    let _ = message.commit();
    let span = ring.span().unwrap();
    driver.reactor.send(token, SendBuf::ring(span, Body::Empty));
    let (buf, result, _) = driver.sent(token);
    result.unwrap_err();
    drop(buf);
    assert_eq!(ring.span().unwrap().bytes(), b"again");
}

pub fn a_peer_that_never_reads_stops_nobody_else<K: Kind>() {
    // More than the kernel takes from a sender whose peer does not read.
    const LEN: usize = 48 << 20;
    let mut driver = driver::<K>();
    let (deaf, deaf_peer) = driver.pair();
    let (other, mut peer) = driver.pair();
    let large = Arc::new(Buffer::from(vec![1; LEN]));
    driver
        .reactor
        .send(deaf, SendBuf::shared(Arc::clone(&large)));
    for round in 0..100_u32 {
        driver.send_all(other, SendBuf::heap(round.to_le_bytes().to_vec()));
        assert_eq!(read_exactly(&mut peer, 4), round.to_le_bytes());
    }
    assert_eq!(driver.reactor.outstanding(), 1);
    driver.reactor.close(deaf);
    let (buf, result, _) = driver.sent(deaf);
    result.unwrap_err();
    assert!(buf.sent() < LEN);
    drop((buf, deaf_peer));
    assert_eq!(Arc::strong_count(&large), 1);
}
