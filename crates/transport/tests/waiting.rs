//! Waits of less than a millisecond, which is the unit of the kernel's own wait for edges.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use embar_transport::{Completion, Epoll, Mapped, Reactor, RecvBuf, Token, Uring};

const SHORT: Duration = Duration::from_micros(50);

/// Nothing takes so long, on no machine: what does hangs.
const LONG: Duration = Duration::from_secs(60);

fn pair(reactor: &mut impl Reactor<Mapped>) -> (Token, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    (reactor.add(ours).unwrap(), theirs)
}

#[test]
fn a_short_wait_is_not_rounded_up() {
    short_wait(Epoll::new().unwrap());
    short_wait(Uring::new().unwrap());
}

fn short_wait(mut reactor: impl Reactor<Mapped>) {
    let (token, _theirs) = pair(&mut reactor);
    reactor.recv(token, RecvBuf::heap(vec![0; 8], 0..8));
    let mut out = Vec::new();
    let mut wait = || {
        let begun = Instant::now();
        reactor.poll(Some(SHORT), &mut out).unwrap();
        assert!(out.is_empty());
        begun.elapsed()
    };
    // The first may find edges of the beginning, and not wait.
    for _ in 0..3 {
        wait();
    }
    // Every single one may be interrupted, for however long; of those that are rounded up none is
    // shorter than a millisecond.
    let deadline = Instant::now() + LONG;
    loop {
        let took = wait();
        assert!(took >= SHORT, "{took:?}");
        if took < Duration::from_millis(1) {
            break;
        }
        assert!(Instant::now() < deadline, "all are rounded up");
    }
}

/// Short waits see what comes while they wait: bytes, and wakes.
#[test]
fn what_comes_during_short_waits_is_told() {
    during_short_waits(Epoll::new().unwrap());
    during_short_waits(Uring::new().unwrap());
}

fn during_short_waits(mut reactor: impl Reactor<Mapped>) {
    const ROUNDS: u32 = 500;
    let (token, mut theirs) = pair(&mut reactor);
    let waker = reactor.waker();
    let told = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                while told.load(Ordering::Acquire) < round {
                    thread::yield_now();
                }
                // Sometimes before the wait, sometimes inside.
                for _ in 0..round * 7 {
                    std::hint::spin_loop();
                }
                match round % 2 {
                    0 => theirs.write_all(&[1]).unwrap(),
                    _ => waker.wake(),
                }
            }
        });
        let deadline = Instant::now() + LONG;
        let mut out = Vec::new();
        for round in 0..ROUNDS {
            if round % 2 == 0 {
                reactor.recv(token, RecvBuf::heap(vec![0; 1], 0..1));
            }
            while out.is_empty() {
                assert!(Instant::now() < deadline, "round {round} is never told");
                reactor
                    .poll(Some(Duration::from_micros(900)), &mut out)
                    .unwrap();
            }
            match (round % 2, out.pop()) {
                (0, Some(Completion::Received { result, .. })) => assert_eq!(result.unwrap(), 1),
                (1, Some(Completion::Woken)) => {}
                (_, other) => panic!("{other:?} in round {round}"),
            }
            assert!(out.is_empty());
            told.store(round + 1, Ordering::Release);
        }
    });
}
