//! What is different about Unix sockets.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use embar_transport::{Completion, Epoll, Reactor, RecvBuf, SendBuf, Token};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};

/// Sends eight bytes along with a descriptor: no receive goes beyond them.
fn send_with_descriptor(stream: &UnixStream) {
    let descriptors = [stream.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let bytes = [IoSlice::new(&[7; 8])];
    let sent = rustix::net::sendmsg(stream, &bytes, &mut ancillary, SendFlags::empty());
    assert_eq!(sent, Ok(8));
}

#[test]
fn a_short_receive_is_not_the_last() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    for _ in 0..3 {
        send_with_descriptor(&theirs);
    }
    let mut epoll = Epoll::new().unwrap();
    let token = epoll.add(ours).unwrap();
    for _ in 0..3 {
        epoll.recv(token, RecvBuf::heap(vec![0; 64], 0..64));
        let mut out = Vec::new();
        epoll.poll(Some(Duration::from_secs(60)), &mut out).unwrap();
        let Some(Completion::Received { result, .. }) = out.pop() else {
            panic!("nothing received, although it lies there");
        };
        assert_eq!(result.unwrap(), 8);
    }
}

/// Sends so many bytes, to the end.
fn send(epoll: &mut Epoll, token: Token, bytes: usize) {
    epoll.send(token, SendBuf::heap(vec![7; bytes]));
    let mut out = Vec::new();
    while out.is_empty() {
        epoll.poll(Some(Duration::from_secs(60)), &mut out).unwrap();
    }
    let Some(Completion::Sent { result, .. }) = out.pop() else {
        panic!("nothing else happens");
    };
    result.unwrap();
}

/// Whether the kernel has something to tell the reactor.
fn is_readable(epoll: &Epoll) -> bool {
    let mut edges = [PollFd::new(epoll, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut edges, Some(&now)).unwrap() > 0
}

#[test]
fn that_the_peer_receives_wakes_nobody() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut epoll = Epoll::new().unwrap();
    let token = epoll.add(ours).unwrap();
    for _ in 0..3 {
        send(&mut epoll, token, 8);
        epoll.poll(Some(Duration::ZERO), &mut Vec::new()).unwrap();
        assert!(!is_readable(&epoll));
        theirs.read_exact(&mut [0; 8]).unwrap();
        assert!(!is_readable(&epoll), "nobody asked for room");
    }
}

#[test]
fn room_is_told_whenever_it_was_missing() {
    const SENDS: usize = 50;
    const BYTES: usize = 100_000;
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    sockopt::set_socket_send_buffer_size(&ours, 8 << 10).unwrap();
    let mut epoll = Epoll::new().unwrap();
    let token = epoll.add(ours).unwrap();
    let reader = thread::spawn(move || {
        // What is there between two of them is less than a send.
        let mut bytes = vec![0; BYTES];
        for _ in 0..SENDS {
            theirs.read_exact(&mut bytes[..8]).unwrap();
            theirs.read_exact(&mut bytes).unwrap();
        }
    });
    for _ in 0..SENDS {
        send(&mut epoll, token, 8);
        send(&mut epoll, token, BYTES);
    }
    reader.join().unwrap();
    assert!(epoll.counters().send_partial > 0);
}
