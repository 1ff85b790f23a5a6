//! Peers that keep to no rule.

use super::*;

/// Where things lie in an outbox of 256 records and 4 KiB: see `docs/architecture/shm.md`.
const CONSUMED_AT: u64 = 0;
const RECORD_AT: u64 = 256;
const OUTBOX_BYTES: u64 = (RECORD_AT + 256 * 64 + 4096).next_multiple_of(4096);

/// Says hello as a program does that keeps to no rule.
fn hello(path: &Path, outbox: BorrowedFd<'_>, records: u32) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(b"embarshm");
    for (at, number) in [(8, 3), (12, records), (16, 4096)] {
        bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(number));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let outbox = [outbox];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&outbox)));
    let part = &[std::io::IoSlice::new(&bytes)];
    rustix::net::sendmsg(&stream, part, &mut ancillary, SendFlags::empty()).unwrap();
    stream
}

fn refused(server: &mut Server, outbox: BorrowedFd<'_>, records: u32) -> String {
    let _stream = hello(&server.path(), outbox, records);
    let token = server.accept();
    let error = receive(&mut server.epoll, token, 8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    server.epoll.close(token);
    error.to_string()
}

/// A memfd of this size, sealed so.
fn memfd(bytes: u64, seals: SealFlags, flags: MemfdFlags) -> OwnedFd {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create(c"test", flags).unwrap();
    rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn memory_that_is_not_what_it_should_be_is_refused() {
    let mut server = Server::new();
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::FUTURE_WRITE;
    let none = MemfdFlags::empty();
    for (fd, text) in [
        (memfd(OUTBOX_BYTES, SealFlags::empty(), none), "seals"),
        (memfd(OUTBOX_BYTES, SealFlags::SHRINK, none), "seals"),
        (
            memfd(OUTBOX_BYTES - 4096, sealed, none),
            "and its owner said",
        ),
        (
            memfd(OUTBOX_BYTES + 4096, sealed, none),
            "and its owner said",
        ),
    ] {
        let error = refused(&mut server, fd.as_fd(), 256);
        assert!(error.contains(text), "{error}");
    }
    let honest = Sealed::new(OUTBOX_BYTES).unwrap().handle();
    for records in [0, 3, 255, 512, u32::MAX] {
        refused(&mut server, honest.as_fd(), records);
    }
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    refused(&mut server, file.as_fd(), 256);
    let _client = hello(&server.path(), honest.as_fd(), 256);
    let token = server.accept();
    server.epoll.recv(token, RecvBuf::heap(vec![0; 8], 0..8));
    let mut out = Vec::new();
    server
        .epoll
        .poll(Some(Duration::from_millis(20)), &mut out)
        .unwrap();
    assert!(out.is_empty(), "an honest one is not refused: {out:?}");
}

/// What a peer says that will keep to the rules for now: its outbox, and its end of the socket.
pub fn greeting(server: &Server) -> (Sealed, UnixStream) {
    let outbox = Sealed::new(OUTBOX_BYTES).unwrap();
    let stream = hello(&server.path(), outbox.handle().as_fd(), 256);
    (outbox, stream)
}

/// A connection whose other side is a memory that the test stores into.
fn scribbler(server: &mut Server) -> (Sealed, UnixStream, Token) {
    let (outbox, mut stream) = greeting(server);
    let token = server.accept();
    send(&mut server.epoll, token, SendBuf::heap(b"welcome".to_vec())).unwrap();
    let mut answer = [0; 64];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[..8], b"embarshm");
    (outbox, stream, token)
}

/// Stores a record as its number `number`: kind, memory, length, and the first word.
fn publish(outbox: &Sealed, number: u64, kind: u8, memory: u8, len: u32, word: u64) {
    let at = RECORD_AT + number % 256 * 64;
    outbox.store(at, word);
    let said = u64::from(kind) | u64::from(memory) << 8 | u64::from(len) << 32;
    outbox.store(at + 48, said);
    outbox.store(at + 56, number + 1);
}

#[test]
fn records_and_counters_that_lie_end_their_connection_only() {
    let mut server = Server::new();
    let (honest, _honest_stream, honest_token) = scribbler(&mut server);
    for (kind, memory, len, word) in [
        (0, 0, 1, 0),
        (9, 0, 1, 0),
        (1, 0, 49, 0),
        (1, 0, 0, 0),
        (2, 0, 1, 4096),
        (2, 0, 4097, 0),
        (2, 0, u32::MAX, u64::MAX),
        (2, 0, 8, 8),
        (3, 0, 1, 0),
        (3, 255, 1, 0),
        (4, 0, 1, 0),
    ] {
        let (outbox, stream, token) = scribbler(&mut server);
        publish(&outbox, 0, kind, memory, len, word);
        (&stream).write_all(&[1]).unwrap();
        let error = receive(&mut server.epoll, token, 8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        assert!(error.to_string().contains("protocol"), "{error}");
        server.epoll.close(token);
    }
    for commit in [2, 257, u64::MAX] {
        let (outbox, _stream, token) = scribbler(&mut server);
        outbox.store(RECORD_AT + 56, commit);
        let error = receive(&mut server.epoll, token, 8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    }
    for consumed in [1000, u64::MAX] {
        let (outbox, _stream, token) = scribbler(&mut server);
        outbox.store(CONSUMED_AT, consumed);
        // What it consumed matters when there is no room any more.
        let large = SendBuf::heap(vec![0; 4 << 20]);
        let error = send(&mut server.epoll, token, large).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    }
    // Nobody else noticed.
    publish(&honest, 0, 1, 0, 8, u64::from_le_bytes(*b"honestly"));
    let got = receive_exactly(&mut server.epoll, honest_token, 8);
    assert_eq!(got, b"honestly");
}

/// Thousands of rings that nobody slept for would cost a round of the reactor for each few of them.
#[test]
fn rings_without_end_end_their_connection() {
    let mut server = Server::new();
    for receives in [true, false] {
        let (_outbox, mut stream, token) = scribbler(&mut server);
        if receives {
            server.epoll.recv(token, RecvBuf::heap(vec![0; 8], 0..8));
        }
        rustix::net::send(&stream, &[1; 100_000], SendFlags::empty()).unwrap();
        if !receives {
            // Nothing is outstanding: the next operation tells.
            let mut out = Vec::new();
            server.epoll.poll(Some(PATIENCE), &mut out).unwrap();
            server.epoll.recv(token, RecvBuf::heap(vec![0; 8], 0..8));
        }
        let error = wait(&mut server.epoll, |completion| match completion {
            Completion::Received { result, .. } => Some(result.unwrap_err()),
            _ => None,
        });
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        // The peer learns at once, and rings for nothing more.
        assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0);
        let more = rustix::net::send(&stream, &[1], SendFlags::NOSIGNAL);
        assert_eq!(more, Err(Errno::PIPE));
        server.epoll.close(token);
    }
}

/// The bytes of a record change while they are taken: something comes, and nothing breaks.
#[test]
fn scribbling_while_bytes_are_taken_harms_nobody() {
    let mut server = Server::new();
    let (outbox, stream, token) = scribbler(&mut server);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0_u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                value = value.wrapping_add(0x0101_0101_0101_0101);
                for at in (RECORD_AT + 256 * 64..OUTBOX_BYTES).step_by(8) {
                    outbox.store(at, value);
                }
                // Its sleep and what it wants are as wrong.
                outbox.store(64, value);
                outbox.store(72, value);
            }
        });
        for number in 0..2000 {
            publish(&outbox, number, 2, 0, 4096, 0);
            let got = receive_exactly(&mut server.epoll, token, 4096);
            assert_eq!(got.len(), 4096);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    drop(stream);
    // It never took its welcome.
    let error = receive(&mut server.epoll, token, 8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn bytes_that_come_one_by_one_arrive() {
    let mut server = Server::new();
    let (outbox, stream, token) = scribbler(&mut server);
    server.epoll.recv(token, RecvBuf::heap(vec![0; 1], 0..1));
    for number in 0..600_u64 {
        let byte = (number % 251) as u8;
        publish(&outbox, number, 1, 0, 1, u64::from(byte));
        (&stream).write_all(&[1]).unwrap();
        let got = wait(&mut server.epoll, |completion| match completion {
            Completion::Received { buf, result, .. } => {
                assert_eq!(result.unwrap(), 1);
                Some(buf.with_filled(0..1, |bytes| bytes[0]))
            }
            _ => None,
        });
        assert_eq!(got, byte);
        server.epoll.recv(token, RecvBuf::heap(vec![0; 1], 0..1));
    }
}
