//! Which of many connections the reactor on epoll tries first.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use embar_transport::{Completion, Epoll, Reactor, RecvBuf, SendBuf, Token};

const NOW: Option<Duration> = Some(Duration::ZERO);
const MIB: usize = 1 << 20;

/// Two ends, of which the reactor has one.
fn connected(epoll: &mut Epoll) -> (Token, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ours = listener.accept().unwrap().0;
    (epoll.add(ours).unwrap(), theirs)
}

fn room(bytes: usize) -> RecvBuf {
    RecvBuf::heap(vec![0; bytes], 0..bytes)
}

/// Polls until nothing more comes of it.
fn settle(epoll: &mut Epoll) -> Vec<Completion> {
    let mut out = Vec::new();
    loop {
        let before = out.len();
        epoll.poll(NOW, &mut out).unwrap();
        if out.len() == before {
            return out;
        }
    }
}

fn received(done: &[Completion]) -> Vec<Token> {
    let tokens = done.iter().map(|it| match it {
        Completion::Received { token, .. } => *token,
        other => panic!("{other:?}"),
    });
    tokens.collect()
}

#[test]
fn what_the_kernel_just_told_of_comes_before_those_that_flood_which_have_a_round_in_turn() {
    const FLOODS: usize = 8;
    let mut epoll = Epoll::new().unwrap();
    let (quiet, mut its_peer) = connected(&mut epoll);
    epoll.recv(quiet, room(8));
    let mut floods: Vec<_> = (0..FLOODS).map(|_| connected(&mut epoll)).collect();
    for (_, peer) in &mut floods {
        // So much that each has more than it is asked for.
        peer.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while sent < 4 * MIB
            && let Ok(count) = peer.write(&[7; MIB])
        {
            sent += count;
        }
        assert!(sent > MIB / 2, "the kernel takes {sent} bytes");
    }
    // The kernel tells of all of them, and a small receive of each leaves them ready.
    for (token, _) in &floods {
        epoll.recv(*token, room(1));
    }
    assert_eq!(received(&settle(&mut epoll)).len(), FLOODS);

    for (token, _) in &floods {
        epoll.recv(*token, room(MIB / 4));
    }
    its_peer.write_all(&[1]).unwrap();
    epoll.look_first();
    let mut done = Vec::new();
    epoll.poll(NOW, &mut done).unwrap();
    let mut order = received(&done);
    assert_eq!(order[0], quiet);
    assert!(order.len() < FLOODS, "all in one round: {}", order.len());
    order.extend(received(&settle(&mut epoll)));
    // Each once, in the order in which they were asked.
    let asked: Vec<_> = floods.iter().map(|(token, _)| *token).collect();
    assert_eq!(order[1..], asked);
}

#[test]
fn a_round_of_which_nothing_comes_tries_all() {
    let mut epoll = Epoll::new().unwrap();
    let (sender, mut reader) = connected(&mut epoll);
    let (other, _others_peer) = connected(&mut epoll);
    assert!(settle(&mut epoll).is_empty());
    // More than the kernel takes: it moves much, and is not over.
    epoll.send(sender, SendBuf::heap(vec![3; 64 * MIB]));
    epoll.send(other, SendBuf::heap(vec![4; 8]));
    let mut done = Vec::new();
    epoll.poll_known(&mut done);
    let [Completion::Sent { token, .. }] = &done[..] else {
        panic!("{done:?}");
    };
    assert_eq!(*token, other);
    epoll.close(sender);
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert!(rest.len() > MIB / 2, "the kernel took {} bytes", rest.len());
}
