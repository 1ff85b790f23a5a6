//! What is different about Unix sockets.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use embar_transport::{Completion, Epoll, Reactor, RecvBuf};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

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
