//! Descriptors whose closing waits, handed over in all places in which a peer may hand them over: nobody waits for them but who
//! closes them aside.

use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

use rustix::net::sockopt;

use super::*;

/// How long closing waits for the peer, far longer than all else takes here.
const LINGERS: Duration = Duration::from_secs(30);

/// What closing the last descriptor of a TCP socket waits for: a peer that reads nothing.
struct Deaf {
    _listener: TcpListener,
    _peer: TcpStream,
}

/// A socket that lingers with bytes that its peer does not take.
fn lingering() -> (Deaf, OwnedFd) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 64 << 10]).is_ok() {}
    socket.shutdown(Shutdown::Read).unwrap();
    sockopt::set_socket_linger(&socket, Some(LINGERS)).unwrap();
    let deaf = Deaf {
        _listener: listener,
        _peer: peer,
    };
    (deaf, socket.into())
}

/// Says `bytes`, and hands over the only descriptor of a socket that lingers.
fn hand_over(stream: &UnixStream, bytes: &[u8]) -> rustix::io::Result<Deaf> {
    let (deaf, socket) = lingering();
    let handed = [socket.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&handed)));
    let part = &[std::io::IoSlice::new(bytes)];
    let said = rustix::net::sendmsg(stream, part, &mut ancillary, SendFlags::empty());
    if said.is_err() {
        sockopt::set_socket_linger(&socket, None).unwrap();
    }
    said.map(|_| deaf)
}

fn hello_bytes() -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(b"embarshm");
    for (at, number) in [(8, 3_u32), (12, 256), (16, 4096)] {
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Runs this, and asserts that it waited for nobody's linger.
fn without_waiting<T>(what: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = what();
    let took = begun.elapsed();
    assert!(took < LINGERS / 2, "it waited for a descriptor: {took:?}");
    done
}

/// The peer that comes next breaks a rule, and its connection ends for that without a wait.
fn assert_refused(server: &mut Server) {
    let error = without_waiting(|| {
        let token = server.accept();
        let error = receive(&mut server.epoll, token, 8).unwrap_err();
        server.epoll.close(token);
        error
    });
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
}

#[test]
fn a_hello_with_it_ends_its_own_connection_at_once() {
    let mut server = Server::new();
    let stream = UnixStream::connect(server.path()).unwrap();
    let _deaf = hand_over(&stream, &hello_bytes()).unwrap();
    assert_refused(&mut server);
}

#[test]
fn a_doorbell_with_it_ends_its_own_connection_at_once() {
    let mut server = Server::new();
    let (_outbox, stream) = hostile::greeting(&server);
    // Before the hello is heard: later the kernel may refuse it.
    let _deaf = hand_over(&stream, &[1]).unwrap();
    assert_refused(&mut server);
    let mut all = Vec::new();
    (&stream).read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 64, "a hello, then the end");
}

#[test]
fn a_connection_that_is_closed_unread_does_not_wait_for_what_lies_in_it() {
    let mut server = Server::new();
    let mut all = Vec::new();
    for at in 0..3 {
        let stream = UnixStream::connect(server.path()).unwrap();
        for byte in &hello_bytes()[..3] {
            all.push(hand_over(&stream, &[*byte]).unwrap());
        }
        without_waiting(|| match at {
            0 => {
                let token = server.accept();
                server.epoll.close(token);
            }
            1 => drop(wait(&mut server.epoll, |completion| match completion {
                Completion::Accepted { stream, .. } => Some(stream),
                _ => None,
            })),
            // With those that nobody has accepted.
            _ => server.epoll.close(server.listener),
        });
        // The peer learns of it.
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        match (&stream).read(&mut [0]) {
            Ok(count) => assert_eq!(count, 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

/// A listener's peers cannot hand anything over, if the kernel knows how to refuse it.
#[test]
fn a_unix_listener_takes_no_descriptors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("unix");
    let address = Address::Unix(path.clone());
    let _listener = socket::listen(address, &SocketOptions::default()).unwrap();
    let stream = UnixStream::connect(&path).unwrap();
    let bound = directory.path().join("bound");
    let _bound = Listener::from(std::os::unix::net::UnixListener::bind(&bound).unwrap());
    let other = UnixStream::connect(&bound).unwrap();
    if !kernel_refuses_descriptors() {
        return;
    }
    for stream in [stream, other] {
        let refused = hand_over(&stream, &[1]).map(drop).unwrap_err();
        assert_eq!(refused, Errno::PERM);
        rustix::net::send(&stream, &[1], SendFlags::empty()).unwrap();
    }
}

/// Linux 6.16 and later.
fn kernel_refuses_descriptors() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|it| it.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next()) >= (6, 16)
}
