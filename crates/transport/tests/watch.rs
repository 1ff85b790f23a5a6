//! A reactor that one thread watches while another drives it.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use embar_transport::{Completion, Epoll, Reactor, RecvBuf, SendBuf, Shm, ShmOptions, Watch};

const LONG: Duration = Duration::from_secs(60);
const NOW: Option<Duration> = Some(Duration::ZERO);

fn room() -> RecvBuf {
    RecvBuf::heap(vec![0; 8], 0..8)
}

/// Polls until there is nothing to do.
fn settle(epoll: &mut Epoll) -> Vec<Completion> {
    let mut out = Vec::new();
    loop {
        epoll.poll(NOW, &mut out).unwrap();
        if epoll.rest() {
            return out;
        }
    }
}

/// Whether the watch ends at once.
fn ends(watch: &Watch) -> bool {
    let began = Instant::now();
    watch.wait(Some(Duration::from_millis(20))).unwrap();
    began.elapsed() < Duration::from_millis(20)
}

#[test]
fn a_watch_ends_when_there_is_something_to_do_unless_it_is_hidden() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut epoll = Epoll::new().unwrap();
    let token = epoll.add(ours).unwrap();
    let watch = Watch::new(&epoll).unwrap();
    epoll.recv(token, room());
    assert!(settle(&mut epoll).is_empty());
    assert!(!ends(&watch));

    watch.show(false);
    theirs.write_all(&[1]).unwrap();
    assert!(!ends(&watch));
    watch.show(true);
    watch.wait(Some(LONG)).unwrap();
    epoll.rouse();
    let done = settle(&mut epoll);
    assert!(matches!(done[..], [Completion::Received { .. }]));

    // It lies there, and no other edge comes: this is to be tried before a rest.
    theirs.write_all(&[2; 16]).unwrap();
    epoll.rouse();
    for _ in 0..2 {
        epoll.recv(token, room());
        assert!(!epoll.rest(), "the receive has not been tried");
        let done = settle(&mut epoll);
        assert!(matches!(done[..], [Completion::Received { .. }]));
        epoll.rouse();
    }
}

#[test]
fn a_wake_ends_a_watch_and_forbids_a_rest() {
    let mut epoll = Epoll::new().unwrap();
    let watch = Watch::new(&epoll).unwrap();
    let waker = epoll.waker();
    assert!(settle(&mut epoll).is_empty());
    thread::scope(|scope| {
        scope.spawn(|| waker.wake());
        watch.wait(Some(LONG)).unwrap();
    });
    epoll.rouse();
    waker.wake();
    assert!(!epoll.rest());
    let done = settle(&mut epoll);
    assert!(matches!(done[..], [Completion::Woken]));
}

#[test]
fn a_watch_is_ended_from_outside_once() {
    let epoll = Epoll::new().unwrap();
    let watch = Watch::new(&epoll).unwrap();
    watch.show(false);
    assert!(!ends(&watch));
    thread::scope(|scope| {
        scope.spawn(|| watch.end());
        watch.wait(Some(LONG)).unwrap();
    });
    assert!(!ends(&watch));
}

#[test]
fn a_peer_by_shared_memory_rings_while_the_reactor_rests_and_only_then() {
    let options = ShmOptions::default();
    let (ours, theirs) = Shm::pair(&options, &options).unwrap();
    let (mut epoll, mut peer) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    let (token, other) = (epoll.add(ours).unwrap(), peer.add(theirs).unwrap());
    let watch = Watch::new(&epoll).unwrap();
    let say = |peer: &mut Epoll| {
        peer.send(other, SendBuf::heap(vec![7; 8]));
        assert!(matches!(settle(peer)[..], [Completion::Sent { .. }]));
        peer.rouse();
    };
    epoll.recv(token, room());
    assert!(settle(&mut epoll).is_empty());
    for _ in 0..3 {
        assert!(!ends(&watch));
        say(&mut peer);
        watch.wait(Some(LONG)).unwrap();
        epoll.rouse();
        let done = settle(&mut epoll);
        assert!(matches!(done[..], [Completion::Received { .. }]));

        epoll.rouse();
        epoll.recv(token, room());
        assert!(settle(&mut epoll).is_empty());
        epoll.rouse();
        // It looks by itself now.
        say(&mut peer);
        assert!(!ends(&watch));
        let mut done = Vec::new();
        epoll.poll_known(&mut done);
        assert!(matches!(done[..], [Completion::Received { .. }]));
        epoll.recv(token, room());
        assert!(settle(&mut epoll).is_empty());
    }
}
