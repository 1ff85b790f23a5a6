//! What is particular to streams by shared memory.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

use embar_transport::socket::{self, SocketOptions};
use embar_transport::{Address, Peer, Reactor, SendBuf};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::Kind;
use crate::driver::{driver, pattern, room};

const PATIENCE: Duration = Duration::from_secs(60);

fn options() -> SocketOptions {
    SocketOptions {
        same_user: true,
        ..SocketOptions::default()
    }
}

pub fn a_socket_file_joins_both_sides_by_memory<K: Kind>() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shm");
    let address = Address::Shm(path.clone());
    let mut driver = driver::<K>();
    let listener = socket::listen(&address, &options()).unwrap();
    assert_eq!(listener.local_address().unwrap(), address);
    let listener = driver.reactor.listen(listener).unwrap();
    let client = driver.reactor.connect(&address).unwrap();
    driver
        .reactor
        .send(client, SendBuf::heap(b"early".to_vec()));
    let stream = driver.accepted(listener);
    assert_eq!(stream.peer().unwrap(), Peer::Shm);
    assert!(stream.is_trusted().unwrap());
    let server = driver.reactor.add(stream).unwrap();
    driver.reactor.recv(server, room(5));
    driver.connected(client).unwrap();
    driver.sent(client).1.unwrap();
    let (buf, result, _) = driver.received(server);
    assert_eq!(result.unwrap(), 5);
    buf.with_filled(0..5, |bytes| assert_eq!(bytes, b"early"));

    let blocking = {
        let address = address.clone();
        thread::spawn(move || {
            let mut stream = socket::connect(&address, PATIENCE, &options()).unwrap();
            stream.write_all(b"ping").unwrap();
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"pong");
            stream
        })
    };
    let stream = driver.accepted(listener);
    let served = driver.reactor.add(stream).unwrap();
    assert_eq!(driver.receive_exactly(served, 4), b"ping");
    driver.send_all(served, SendBuf::heap(b"pong".to_vec()));
    drop(blocking.join().unwrap());
    driver.reactor.recv(served, room(1));
    assert_eq!(driver.received(served).1.unwrap(), 0);

    driver.reactor.close(listener);
    assert!(!path.exists(), "the file goes with its listener");
}

pub fn a_connect_to_a_missing_file_tells_so<K: Kind>() {
    let directory = tempfile::tempdir().unwrap();
    let mut driver = driver::<K>();
    let path = directory.path().join("missing");
    let token = driver.reactor.connect(Address::Shm(path)).unwrap();
    driver.reactor.recv(token, room(5));
    let error = driver.connected(token).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    driver.received(token).1.unwrap_err();
    assert_eq!(driver.reactor.outstanding(), 0);
}

/// A plain Unix socket at the place of one for memory.
fn plain_listener() -> (tempfile::TempDir, UnixListener, Address) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plain");
    let listener = UnixListener::bind(&path).unwrap();
    (directory, listener, Address::Shm(path))
}

pub fn a_listener_that_never_says_hello_keeps_a_connect_waiting<K: Kind>() {
    let (_directory, listener, address) = plain_listener();
    let mut driver = driver::<K>();
    let token = driver.reactor.connect(&address).unwrap();
    driver.reactor.recv(token, room(5));
    let _silent = listener.accept().unwrap();
    driver.nothing_happens();
    driver.reactor.close(token);
    let (_, result, _) = driver.received(token);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    let waited = socket::connect(&address, Duration::from_millis(50), &options());
    let text = waited.unwrap_err().to_string();
    assert!(text.contains("timed out"), "{text}");
}

pub fn a_connect_ends_with_a_listener_that_leaves<K: Kind>() {
    let (_directory, listener, address) = plain_listener();
    for said in [&b""[..], b"embarshm", &[7; 72], &[7; 200]] {
        let mut driver = driver::<K>();
        let token = driver.reactor.connect(&address).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(said).unwrap();
        drop(stream);
        driver.reactor.send(token, SendBuf::heap(b"x".to_vec()));
        let error = driver.connected(token).unwrap_err();
        let expected = match said.len() {
            72.. => ErrorKind::InvalidData,
            _ => ErrorKind::ConnectionReset,
        };
        assert_eq!(error.kind(), expected, "{error}");
        driver.sent(token).1.unwrap_err();
        assert_eq!(driver.reactor.outstanding(), 0);
    }
}

/// Descriptors of this process that lead to the file which strangers hand over.
fn handed_over(file: &std::path::Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter_map(|it| std::fs::read_link(it.ok()?.path()).ok())
        .filter(|it| it == file)
        .count()
}

pub fn a_stranger_on_the_socket_is_refused<K: Kind>() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shm");
    let mut driver = driver::<K>();
    let listener = socket::listen(Address::Shm(path.clone()), &options()).unwrap();
    let listener = driver.reactor.listen(listener).unwrap();
    // As a hello says that nothing but an outbox is handed over, and what comes instead of it.
    let mut hello = [0; 64];
    hello[..8].copy_from_slice(b"embarshm");
    for (at, number) in [(8, 3_u32), (12, 256), (16, 4096)] {
        hello[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    let mut large = hello;
    large[20] = 1;
    large[24..32].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    let zeros = [0; 64];
    let cases: [(&[u8], usize, &str); 6] = [
        (&hello, 0, "0 descriptors"),
        (&hello, 2, "2 descriptors"),
        (&hello, 5, "5 descriptors"),
        (&hello, 40, "too many descriptors"),
        (&zeros, 1, "begins with other bytes"),
        (&large, 2, "the limit is"),
    ];
    let handed = directory.path().join("handed");
    for (bytes, count, text) in cases {
        let mut stranger = UnixStream::connect(&path).unwrap();
        let token = {
            let stream = driver.accepted(listener);
            driver.reactor.add(stream).unwrap()
        };
        driver.reactor.recv(token, room(5));
        driver.nothing_happens();
        let file = std::fs::File::create(&handed).unwrap();
        let files = vec![std::os::fd::AsFd::as_fd(&file); count];
        let mut space =
            vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(count))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if count > 0 {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
        }
        // A byte by itself, with the descriptors, then the rest.
        let first = &[std::io::IoSlice::new(&bytes[..1])];
        rustix::net::sendmsg(&stranger, first, &mut ancillary, SendFlags::empty()).unwrap();
        if count <= 5 {
            driver.nothing_happens();
            stranger.write_all(&bytes[1..]).unwrap();
        }
        let (_, result, _) = driver.received(token);
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        assert!(error.to_string().contains(text), "{error}");
        // It stays so.
        driver.reactor.send(token, SendBuf::heap(b"x".to_vec()));
        let error = driver.sent(token).1.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        driver.reactor.close(token);
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while handed_over(&handed) > 1 {
            assert!(std::time::Instant::now() < deadline, "it stays open");
            thread::yield_now();
        }
    }
}

pub fn a_peer_that_says_nothing_and_leaves_ended<K: Kind>() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shm");
    let mut driver = driver::<K>();
    let listener = socket::listen(Address::Shm(path.clone()), &options()).unwrap();
    let listener = driver.reactor.listen(listener).unwrap();
    for submitted_first in [true, false] {
        let silent = UnixStream::connect(&path).unwrap();
        let stream = driver.accepted(listener);
        let token = driver.reactor.add(stream).unwrap();
        if submitted_first {
            driver.reactor.recv(token, room(5));
            driver.nothing_happens();
            drop(silent);
        } else {
            drop(silent);
            driver.nothing_happens();
            driver.reactor.recv(token, room(5));
        }
        assert_eq!(driver.received(token).1.unwrap(), 0);
        driver.reactor.send(token, SendBuf::heap(b"x".to_vec()));
        let error = driver.sent(token).1.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        driver.reactor.close(token);
    }
}

pub fn what_was_published_before_the_end_is_received<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    let bytes = pattern(100_000);
    peer.write_all(&bytes).unwrap();
    drop(peer);
    driver.nothing_happens();
    assert_eq!(driver.receive_exactly(token, 100_000), bytes);
    for _ in 0..2 {
        driver.reactor.recv(token, room(8));
        assert_eq!(driver.received(token).1.unwrap(), 0);
    }
    driver.reactor.send(token, SendBuf::heap(b"lost".to_vec()));
    let error = driver.sent(token).1.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    driver.reactor.shutdown_write(token).unwrap_err();
}

pub fn an_end_without_what_was_sent_being_taken_is_a_reset<K: Kind>() {
    let mut driver = driver::<K>();
    let (token, peer) = driver.pair();
    driver.send_all(token, SendBuf::heap(b"never read".to_vec()));
    driver.reactor.recv(token, room(8));
    driver.nothing_happens();
    drop(peer);
    let error = driver.received(token).1.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    driver.reactor.recv(token, room(8));
    assert_eq!(driver.received(token).1.unwrap(), 0);
}

/// Each answer comes to a side that sleeps.
pub fn a_sleeping_pair_talks<K: Kind>() {
    const ROUNDS: usize = 300;
    let mut driver = driver::<K>();
    let (token, mut peer) = driver.pair();
    let echo = thread::spawn(move || {
        let mut byte = [0];
        for _ in 0..ROUNDS {
            peer.read_exact(&mut byte).unwrap();
            peer.write_all(&byte).unwrap();
        }
    });
    for round in 0..ROUNDS {
        driver.send_all(token, SendBuf::heap(vec![round as u8]));
        assert_eq!(driver.receive_exactly(token, 1), [round as u8]);
    }
    echo.join().unwrap();
}
