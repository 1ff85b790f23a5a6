use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::Duration;

use embar_transport::ring::{RecvRing, RingPool};
use embar_transport::{Reactor, RecvBuf, SendBuf, Store};
use rustix::net::SendFlags;

use crate::Kind;
use crate::driver::{driver, heap, pattern, room};
use crate::log::Log;

pub fn a_receive_waits_for_bytes_and_takes_what_is_there<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    driver.reactor.recv(token, room(100));
    assert_eq!(driver.reactor.outstanding(), 1);
    driver.nothing_happens();

    peer.write_all(b"hello").unwrap();
    let (buf, result, ticks) = driver.received(token);
    assert_eq!(result.unwrap(), 5);
    assert_eq!((buf.filled(), buf.remaining()), (0..5, 95));
    buf.with_filled(0..5, |bytes| assert_eq!(bytes, b"hello"));
    assert!(ticks > 0, "a system call takes time");
    assert_eq!(driver.reactor.outstanding(), 0);
    assert_eq!(driver.reactor.counters().recv_bytes, 5);
}

pub fn bytes_that_came_before_the_receive_are_found<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    peer.write_all(b"early").unwrap();
    // The edge is taken here, with nothing to use it for.
    driver.nothing_happens();
    assert_eq!(driver.receive_exactly(token, 2), b"ea");
    driver.nothing_happens();
    assert_eq!(driver.receive_exactly(token, 3), b"rly");
}

pub fn a_large_buffer_fills_over_many_bursts<K: Kind>() {
    const LEN: usize = 2 << 20;
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    let writer = thread::spawn(move || peer.write_all(&pattern(LEN)).map(|()| peer));
    let received = driver.receive_exactly(token, LEN);
    writer.join().unwrap().unwrap();
    assert!(received == pattern(LEN), "bytes differ");

    let counters = driver.reactor.counters();
    assert_eq!(counters.recv_bytes, LEN as u64);
    assert!(counters.recv_eagain < counters.recv_calls);
}

pub fn every_burst_after_a_short_receive_is_noticed<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    for burst in 1..=500u32 {
        // Always asks for more than there is, so each receive ends short.
        driver.reactor.recv(token, room(64));
        if burst % 3 == 0 {
            driver.poll(Duration::ZERO);
        }
        peer.write_all(&burst.to_le_bytes()).unwrap();
        let (buf, result, _) = driver.received(token);
        assert_eq!(result.unwrap(), 4);
        buf.with_filled(0..4, |bytes| assert_eq!(bytes, burst.to_le_bytes()));
    }
}

pub fn the_end_is_told_after_the_last_byte_and_again<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    peer.write_all(b"last").unwrap();
    drop(peer);
    driver.reactor.recv(token, room(100));
    let (buf, result, _) = driver.received(token);
    assert_eq!(result.unwrap(), 4);
    driver.reactor.recv(token, buf);
    for _ in 0..3 {
        let (buf, result, _) = driver.received(token);
        assert_eq!(result.unwrap(), 0);
        buf.with_filled(0..4, |bytes| assert_eq!(bytes, b"last"));
        driver.reactor.recv(token, buf);
    }
}

pub fn the_end_is_found_in_small_steps_after_its_edge_was_taken<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    peer.write_all(&pattern(100)).unwrap();
    drop(peer);
    // The only edges there will ever be are taken here.
    driver.nothing_happens();
    let mut all = Vec::new();
    loop {
        driver.reactor.recv(token, room(7));
        let (buf, result, _) = driver.received(token);
        let count = result.unwrap();
        if count == 0 {
            break;
        }
        buf.with_filled(0..count, |bytes| all.extend_from_slice(bytes));
    }
    assert_eq!(all, pattern(100));
}

pub fn an_urgent_byte_does_not_stall_what_follows<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    peer.write_all(b"before").unwrap();
    rustix::net::send(&peer, b"!", SendFlags::OOB).unwrap();
    peer.write_all(b"after").unwrap();
    driver.nothing_happens();
    // The kernel cuts a receive at the mark, and takes the urgent byte out of the stream.
    let mut all = Vec::new();
    while all.len() < 11 {
        driver.reactor.recv(token, room(100));
        let (buf, result, _) = driver.received(token);
        buf.with_filled(0..result.unwrap(), |bytes| all.extend_from_slice(bytes));
    }
    assert_eq!(all, b"beforeafter");
}

pub fn a_recalled_receive_comes_back_with_what_it_has<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    driver.reactor.recall(token);
    driver.reactor.recv(token, room(8));
    peer.write_all(b"abc").unwrap();
    let (buf, result, _) = driver.received(token);
    assert_eq!(result.unwrap(), 3);
    driver.reactor.recv(token, buf);
    driver.reactor.recall(token);
    driver.reactor.recall(token);
    let (buf, result, _) = driver.received(token);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!((buf.filled(), buf.remaining()), (0..3, 5));
    assert_eq!(driver.reactor.outstanding(), 0);
    // The connection goes on, and nothing that came meanwhile is lost.
    peer.write_all(b"defgh").unwrap();
    driver.reactor.recv(token, buf);
    let (buf, result, _) = driver.received(token);
    assert_eq!(result.unwrap(), 5);
    assert_eq!(heap(buf), b"abcdefgh");
    driver.reactor.close(token);
    driver.reactor.recall(token);
}

pub fn a_receive_into_the_log_lands_in_place<K: Kind>() {
    const LEN: usize = 256 << 10;
    let log = Log::new();
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    let mut reservation = log.reserve(LEN);
    reservation.write(0, &[7; 64]);
    let writer = thread::spawn(move || peer.write_all(&pattern(LEN - 64)).map(|()| peer));

    // The first bytes have another owner: only the range given is filled.
    let buf = driver.fill(token, RecvBuf::reserved(reservation, 64..LEN));
    writer.join().unwrap().unwrap();
    buf.with_filled(64..LEN, |bytes| {
        assert!(bytes == pattern(LEN - 64), "bytes differ")
    });
    let Store::Reserved(reservation) = buf.into_store() else {
        panic!("the store changed its kind");
    };
    let span = reservation.commit();
    span.with_bytes(|bytes| {
        assert_eq!(bytes[..64], [7; 64]);
        assert!(bytes[64..] == pattern(LEN - 64), "bytes differ");
    });
}

fn ring() -> RecvRing {
    RecvRing::new(&RingPool::new(64 << 10, 0).unwrap()).unwrap()
}

pub fn a_receive_into_a_ring_shows_what_came_and_no_more<K: Kind>() {
    let mut ring = ring();
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    let mut all = Vec::new();
    // Enough to wrap several times, with something left unread each time.
    for burst in 0..40usize {
        let bytes = pattern(5_000 + 100 * burst);
        peer.write_all(&bytes).unwrap();
        all.extend_from_slice(&bytes);
        let mut got = 0;
        while got < bytes.len() {
            let space = ring.lend(usize::MAX).unwrap();
            driver.reactor.recv(token, RecvBuf::ring(space));
            let (buf, result, _) = driver.received(token);
            let count = result.unwrap();
            buf.with_filled(0..count, |came| assert_eq!(came, &bytes[got..got + count]));
            let Store::Ring(space) = buf.into_store() else {
                panic!("the store changed its kind");
            };
            ring.give_back(space, count);
            got += count;
            assert!(ring.readable().ends_with(&bytes[..got]));
            let leave = if burst == 39 { 0 } else { 1 };
            ring.consume(ring.readable().len() - leave);
        }
    }
    assert!(ring.readable().is_empty());
}

pub fn what_follows_the_first_part_lands_in_the_second<K: Kind>() {
    let mut ring = ring();
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    peer.write_all(b"payloadnext").unwrap();
    let first = RecvBuf::heap(vec![9; 9], 1..8);
    let buf = first.then(ring.lend(100).unwrap());
    driver.reactor.recv(token, buf);
    let (buf, result, _) = driver.received(token);
    assert_eq!(result.unwrap(), 11);
    assert_eq!((buf.remaining(), buf.overflow()), (0, 4));
    assert_eq!(driver.reactor.counters().recv_bytes, 11);
    let (Store::Heap(bytes), Some(space)) = buf.into_parts() else {
        panic!("the parts changed their kind");
    };
    assert_eq!(bytes, b"\x09payload\x09");
    ring.give_back(space, 4);
    assert_eq!(ring.readable(), b"next");

    // Less than the first part completes, too, and leaves the second empty.
    let buf = RecvBuf::heap(vec![0; 8], 0..8).then(ring.lend(100).unwrap());
    driver.reactor.recv(token, buf);
    peer.write_all(b"half").unwrap();
    let (buf, result, _) = driver.received(token);
    assert_eq!(result.unwrap(), 4);
    assert_eq!((buf.remaining(), buf.overflow()), (4, 0));
    // Submitted again, it goes on where it was.
    driver.reactor.recv(token, buf);
    peer.write_all(b"halfmore").unwrap();
    let (buf, result, _) = driver.received(token);
    assert_eq!(result.unwrap(), 8);
    assert_eq!(buf.overflow(), 4);
    let (_, Some(space)) = buf.into_parts() else {
        panic!("the second part is gone");
    };
    ring.give_back(space, 4);
    assert_eq!(ring.readable(), b"nextmore");
}

pub fn a_peer_that_sends_a_byte_at_a_time_fills_what_is_wanted<K: Kind>() {
    const LEN: usize = 300;
    let mut driver = driver::<K>();
    let (slow, mut peer) = driver.pair();
    let (other, mut other_peer) = driver.pair();
    driver.reactor.recv(slow, room(LEN).wanting(LEN));
    let mut slow_buf = None;
    for byte in pattern(LEN) {
        peer.write_all(&[byte]).unwrap();
        // Others are served between any two bytes.
        other_peer.write_all(b"ping").unwrap();
        assert_eq!(driver.receive_exactly(other, 4), b"ping");
        driver.send_all(other, SendBuf::heap(b"pong".to_vec()));
        other_peer.read_exact(&mut [0; 4]).unwrap();
        driver.poll(Duration::ZERO);
        if let Some(buf) = driver.take_received(slow) {
            if buf.remaining() > 0 {
                driver.reactor.recv(slow, buf);
            } else {
                slow_buf = Some(buf);
            }
        }
    }
    let mut buf = slow_buf.unwrap_or_else(|| driver.received(slow).0);
    if buf.remaining() > 0 {
        buf = driver.fill(slow, buf);
    }
    assert_eq!(heap(buf), pattern(LEN));
}

pub fn wanted_bytes_end_with_the_stream<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    peer.write_all(b"most").unwrap();
    drop(peer);
    let mut buf = room(8).wanting(8);
    loop {
        driver.reactor.recv(token, buf);
        let (back, result, _) = driver.received(token);
        buf = back;
        if result.unwrap() == 0 {
            break;
        }
    }
    buf.with_filled(0..4, |bytes| assert_eq!(bytes, b"most"));
    assert_eq!(buf.remaining(), 4);
}

pub fn no_more_is_wanted_than_may_come<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    peer.write_all(b"abcdefgh").unwrap();
    let mut buf = room(8).wanting(8);
    while buf.remaining() > 0 {
        let before = buf.filled().end;
        driver.reactor.recv(token, buf.at_most(3));
        let (back, result, _) = driver.received(token);
        buf = back;
        let came = buf.filled().end - before;
        assert!((1..=3).contains(&came), "{came} bytes");
        assert_eq!(result.unwrap(), came);
    }
    assert_eq!(heap(buf), b"abcdefgh");
}

pub fn a_recalled_receive_that_wants_more_keeps_what_came<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    driver.reactor.recv(token, room(8).wanting(8));
    driver.poll(Duration::ZERO);
    peer.write_all(b"abc").unwrap();
    let mut buf = loop {
        driver.poll(Duration::from_millis(1));
        driver.reactor.recall(token);
        let (buf, result, _) = driver.received(token);
        match result {
            Ok(count) => assert!(count > 0, "not the end"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted),
        }
        if buf.filled().end == 3 {
            break buf;
        }
        driver.reactor.recv(token, buf);
    };
    peer.write_all(b"defgh").unwrap();
    buf = driver.fill(token, buf);
    assert_eq!(heap(buf), b"abcdefgh");
    assert_eq!(driver.reactor.outstanding(), 0);
}

/// A user without a free buffer submits none: the socket keeps what it has room for, and the peer the rest.
pub fn bytes_wait_while_there_is_no_buffer_for_them<K: Kind>() {
    // More than both kernel buffers can be tuned up to.
    const LEN: usize = 48 << 20;
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    let (other, mut other_peer) = driver.pair();
    let writer = thread::spawn(move || peer.write_all(&vec![7; LEN]).map(|()| peer));
    for _ in 0..20 {
        other_peer.write_all(b"ping").unwrap();
        assert_eq!(driver.receive_exactly(other, 4), b"ping");
        assert!(!writer.is_finished(), "where did it all go?");
    }
    assert!(
        driver.receive_exactly(token, LEN) == vec![7; LEN],
        "bytes differ"
    );
    writer.join().unwrap().unwrap();
}
