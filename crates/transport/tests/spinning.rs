//! Spinning, and sending past the reactor.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use embar_transport::ring::{Commit, RingPool, SendRing, SendSpan};
use embar_transport::{Completion, Epoll, Reactor, RecvBuf, Token};

const LONG: Duration = Duration::from_secs(3600);

fn pair(epoll: &mut Epoll) -> (Token, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    theirs
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let (ours, _) = listener.accept().unwrap();
    (epoll.add(ours).unwrap(), theirs)
}

fn room() -> RecvBuf {
    RecvBuf::heap(vec![0; 8], 0..8)
}

/// Polls until something is over; spinning or not, that takes few calls.
fn next(epoll: &mut Epoll) -> Completion {
    let mut out = Vec::new();
    while out.is_empty() {
        epoll.poll(Some(Duration::from_secs(60)), &mut out).unwrap();
    }
    out.remove(0)
}

#[test]
fn few_receives_are_tried_directly_and_many_by_asking_the_kernel() {
    for (receives, directly) in [(1, true), (4, true), (5, false)] {
        let mut epoll = Epoll::new().unwrap();
        epoll.set_spin(LONG);
        let mut pairs: Vec<_> = (0..receives).map(|_| pair(&mut epoll)).collect();
        for (token, _) in &pairs {
            epoll.recv(*token, room());
        }
        let waker = epoll.waker();
        let polling = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !polling.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                waker.wake();
            });
            polling.store(true, Ordering::Release);
            assert!(matches!(next(&mut epoll), Completion::Woken));
        });
        // Enough tries to distinguish one from the other: nothing comes.
        let mut out = Vec::new();
        let before = epoll.counters();
        epoll.set_spin(Duration::from_millis(20));
        let (mut tries, mut polls) = (0, 0);
        while tries + polls < 4 {
            let limit = Some(Duration::from_millis(20));
            epoll.poll(limit, &mut out).unwrap();
            assert!(out.is_empty());
            let now = epoll.counters();
            tries = now.recv_calls - before.recv_calls;
            polls = now.polls - before.polls;
        }
        if directly {
            assert!(tries > polls, "{tries} tries, {polls} polls");
            assert_eq!(tries, epoll.counters().recv_eagain - before.recv_eagain);
        } else {
            assert_eq!(tries, 0);
        }
        // It hears what comes on any of them.
        let (token, peer) = pairs.last_mut().unwrap();
        peer.write_all(b"x").unwrap();
        let Completion::Received {
            token: got, result, ..
        } = next(&mut epoll)
        else {
            panic!("not received");
        };
        assert_eq!((got, result.unwrap()), (*token, 1));
        assert_eq!(epoll.outstanding(), receives - 1);
    }
}

#[test]
fn nothing_spins_unless_asked_to() {
    let mut epoll = Epoll::new().unwrap();
    let (token, _peer) = pair(&mut epoll);
    epoll.recv(token, room());
    let mut out = Vec::new();
    for _ in 0..3 {
        epoll
            .poll(Some(Duration::from_millis(5)), &mut out)
            .unwrap();
    }
    let counters = epoll.counters();
    assert!(
        counters.polls <= 4 && counters.recv_calls <= 1,
        "{counters:?}"
    );
}

#[test]
fn a_spinning_reactor_also_accepts_and_sees_closed_receivers_off() {
    let mut epoll = Epoll::new().unwrap();
    epoll.set_spin(LONG);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    epoll.listen(listener).unwrap();
    for _ in 0..20 {
        let (token, _peer) = pair(&mut epoll);
        epoll.recv(token, room());
        epoll.close(token);
        assert!(matches!(next(&mut epoll), Completion::Received { .. }));
    }
    let _peer = TcpStream::connect(address).unwrap();
    assert!(matches!(next(&mut epoll), Completion::Accepted { .. }));
}

/// A span of `bytes`.
fn span(ring: &SendRing, bytes: &[u8]) -> SendSpan {
    let mut message = ring.reserve(bytes.len()).unwrap();
    message.copy_from_slice(bytes);
    assert_eq!(message.commit(), Commit::First);
    ring.span().unwrap()
}

#[test]
fn any_thread_sends_directly_until_the_token_is_closed() {
    let ring = SendRing::new(&RingPool::new(64 << 10, 0).unwrap()).unwrap();
    let mut epoll = Epoll::new().unwrap();
    let (token, mut peer) = pair(&mut epoll);
    let direct = epoll.direct(token).unwrap();
    let mut first = span(&ring, b"direct");
    let other = direct.clone();
    let first = thread::spawn(move || {
        assert_eq!(other.try_send(&mut first).unwrap(), 6);
        first
    });
    assert!(!first.join().unwrap().finish());
    let mut bytes = [0; 6];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"direct");

    // Until there is no room, which is said at once.
    let full = vec![7; 64 << 10];
    let mut sent = 0;
    let mut left = loop {
        let mut span = span(&ring, &full);
        match direct.try_send(&mut span) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                break span;
            }
        }
        while !span.bytes().is_empty() {
            match direct.try_send(&mut span) {
                Ok(count) => sent += count,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        if !span.bytes().is_empty() {
            break span;
        }
        assert!(!span.finish());
    };

    epoll.close(token);
    let error = direct.try_send(&mut left).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    assert!(epoll.direct(token).is_none());
    // The handles keep nothing open: the peer gets what was sent, then the end.
    let mut rest = Vec::new();
    peer.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), sent);
}
