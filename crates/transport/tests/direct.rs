//! Whole buffers that another thread than the reactor's begins to send.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use embar_transport::{Body, Completion, Epoll, Reactor, SendBuf, Stream, Token};

const LONG: Duration = Duration::from_secs(60);

fn tcp_pair() -> (Stream, Stream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours.into(), listener.accept().unwrap().0.into())
}

fn unix_pair() -> (Stream, Stream) {
    let (ours, peer) = UnixStream::pair().unwrap();
    (ours.into(), peer.into())
}

/// More than any socket takes at once, no two parts of it alike.
fn large() -> Vec<u8> {
    (0..6_000_000u32).flat_map(u32::to_le_bytes).collect()
}

fn sent(epoll: &mut Epoll, token: Token) -> SendBuf {
    let mut done = Vec::new();
    loop {
        epoll.poll(Some(LONG), &mut done).unwrap();
        for completion in done.drain(..) {
            if let Completion::Sent {
                token: of,
                buf,
                result,
                ..
            } = completion
            {
                assert_eq!(of, token);
                result.unwrap();
                return buf;
            }
        }
    }
}

#[test]
fn what_is_left_of_a_buffer_goes_on_in_the_reactor() {
    for (ours, mut peer) in [tcp_pair(), unix_pair()] {
        let mut epoll = Epoll::new().unwrap();
        let token = epoll.add(ours).unwrap();
        let direct = epoll.direct(token).unwrap();
        let bytes = large();
        let (head, body) = bytes.split_at(1000);
        let body = Body::Shared(Arc::new(body.to_vec().into()));
        let mut buf = SendBuf::new(head.to_vec(), body);
        let buf = thread::spawn(move || {
            let count = direct.try_send_buf(&mut buf).unwrap();
            assert!(count > 0 && count == buf.sent());
            while buf.remaining() > 0 {
                match direct.try_send_buf(&mut buf) {
                    Ok(count) => assert!(count > 0),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        break;
                    }
                }
            }
            buf
        });
        let buf = buf.join().unwrap();
        assert!(buf.remaining() > 0, "nobody reads");
        epoll.send(token, buf);
        let reader = thread::spawn(move || {
            let mut read = Vec::new();
            peer.read_to_end(&mut read).unwrap();
            read
        });
        assert_eq!(sent(&mut epoll, token).remaining(), 0);
        epoll.close(token);
        assert!(reader.join().unwrap() == bytes, "bytes differ");
    }
}

#[test]
fn a_buffer_of_a_closed_connection_stays_whole() {
    let mut epoll = Epoll::new().unwrap();
    let (ours, _peer) = unix_pair();
    let token = epoll.add(ours).unwrap();
    let direct = epoll.direct(token).unwrap();
    let mut nothing = SendBuf::heap(Vec::new());
    assert_eq!(direct.try_send_buf(&mut nothing).unwrap(), 0);
    epoll.close(token);
    let mut buf = SendBuf::heap(b"hello".to_vec());
    let error = direct.try_send_buf(&mut buf).unwrap_err();
    assert_eq!((error.kind(), buf.sent()), (ErrorKind::NotConnected, 0));
}
