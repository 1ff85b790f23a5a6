//! Streams by shared memory: what is named instead of copied, peers that keep to no rule, and processes that end.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use embar_memory::{Buffer, Memory, Sealed};
use embar_transport::shm::{WINDOW_BYTES, WINDOW_REFERENCES};
use embar_transport::socket::{self, Listener, SocketOptions};
use embar_transport::{
    Address, Body, Completion, Epoll, Pieces, Reactor, RecvBuf, SendBuf, Shm, ShmOptions, Stream,
    Token, Uring,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until `wanted` picks a completion.
fn wait<T>(epoll: &mut Epoll, mut wanted: impl FnMut(Completion) -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    let mut out = Vec::new();
    loop {
        epoll.poll(Some(Duration::from_secs(1)), &mut out).unwrap();
        if let Some(found) = out.drain(..).find_map(&mut wanted) {
            return found;
        }
        assert!(Instant::now() < deadline, "nothing comes");
    }
}

fn receive(epoll: &mut Epoll, token: Token, most: usize) -> std::io::Result<Vec<u8>> {
    epoll.recv(token, RecvBuf::heap(vec![0; most], 0..most));
    wait(epoll, |completion| match completion {
        Completion::Received {
            token: it,
            buf,
            result,
            ..
        } if it == token => Some(result.map(|_| buf.with_filled(buf.filled(), <[u8]>::to_vec))),
        _ => None,
    })
}

fn receive_exactly(epoll: &mut Epoll, token: Token, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        let part = receive(epoll, token, count - all.len()).unwrap();
        assert!(!part.is_empty(), "the stream ended at {}", all.len());
        all.extend(part);
    }
    all
}

fn send(epoll: &mut Epoll, token: Token, buf: SendBuf) -> std::io::Result<()> {
    epoll.send(token, buf);
    wait(epoll, |completion| match completion {
        Completion::Sent {
            token: it, result, ..
        } if it == token => Some(result),
        _ => None,
    })
}

/// Both ends in one reactor, of which the first hands over the memory of `buffers`.
fn pair(epoll: &mut Epoll, buffers: &[Buffer]) -> (Token, Token) {
    let options = handing_over(&buffers[..1]);
    let (ours, theirs) = Shm::pair(&options, &ShmOptions::default()).unwrap();
    (epoll.add(ours).unwrap(), epoll.add(theirs).unwrap())
}

/// Ranges of sealed memory, each full of other bytes.
fn buffers(count: usize, bytes: usize) -> Vec<Buffer> {
    let sealed = Sealed::new((count * bytes).next_multiple_of(4096) as u64).unwrap();
    let mut ranges = sealed.into_ranges(bytes);
    ranges.truncate(count);
    let fill = |(number, mut range): (usize, embar_memory::SealedRange)| {
        range.set_len(bytes);
        for (at, byte) in range.iter_mut().enumerate() {
            *byte = (at * 31 + number * 7 + at / 251) as u8;
        }
        Buffer::from(range)
    };
    ranges.into_iter().enumerate().map(fill).collect()
}

#[test]
fn a_body_in_memory_that_was_handed_over_is_kept_until_it_was_taken() {
    let mut epoll = Epoll::new().unwrap();
    // More than the ring holds, so that copying it would wait for the reader.
    let all = buffers(2, 1 << 20);
    let (from, to) = pair(&mut epoll, &all[..1]);
    for buffer in all {
        let bytes = Arc::new(buffer);
        let body = Body::Shared(Arc::clone(&bytes));
        send(&mut epoll, from, SendBuf::new(b"head".to_vec(), body)).unwrap();
        assert_eq!(Arc::strong_count(&bytes), 2, "the peer may read it");
        let got = receive_exactly(&mut epoll, to, 4 + bytes.len());
        assert_eq!(&got[..4], b"head");
        assert!(got[4..] == **bytes, "bytes differ");
        // Whoever is told of it finds that it is not kept any more.
        send(&mut epoll, to, SendBuf::heap(b"taken".to_vec())).unwrap();
        assert_eq!(receive_exactly(&mut epoll, from, 5), b"taken");
        assert_eq!(Arc::strong_count(&bytes), 1);
    }
}

#[test]
fn frames_among_pieces_are_named_too_and_small_ones_copied() {
    let mut epoll = Epoll::new().unwrap();
    let large = buffers(3, 400 << 10);
    let small = buffers(3, 4096);
    let options = handing_over([&large[0], &small[0]]);
    let (ours, theirs) = Shm::pair(&options, &ShmOptions::default()).unwrap();
    let (from, to) = (epoll.add(ours).unwrap(), epoll.add(theirs).unwrap());
    let frames: Vec<Arc<Buffer>> =
        large
            .into_iter()
            .zip(small)
            .fold(Vec::new(), |mut all, (large, small)| {
                all.extend([Arc::new(large), Arc::new(small)]);
                all
            });
    for cut in [0, 1, 63, 64, 65, 5000, 400 << 10] {
        let mut pieces = Pieces::new();
        for frame in &frames {
            pieces.push_frame(Arc::clone(frame));
        }
        let mut buf = SendBuf::new(Vec::new(), Body::Pieces(Box::new(pieces)));
        let expected: Vec<u8> = frames.iter().flat_map(|it| it.to_vec()).collect();
        buf.advance(cut);
        send(&mut epoll, from, buf).unwrap();
        let got = receive_exactly(&mut epoll, to, expected.len() - cut);
        assert!(got == expected[cut..], "cut at {cut}");
        send(&mut epoll, to, SendBuf::heap(b"!".to_vec())).unwrap();
        receive_exactly(&mut epoll, from, 1);
        let counts = frames.iter().map(Arc::strong_count);
        assert!(counts.max() == Some(1), "something is kept");
    }
}

/// Options that hand over the memories of buffers.
fn handing_over<'a>(buffers: impl IntoIterator<Item = &'a Buffer>) -> ShmOptions {
    let files = buffers.into_iter().filter_map(|buffer| match buffer {
        Buffer::Sealed(range) => Some(range.file().clone()),
        Buffer::Heap(_) => None,
    });
    ShmOptions {
        memories: files.collect(),
        ..ShmOptions::default()
    }
}

#[test]
fn only_a_window_is_named_while_the_peer_takes_nothing() {
    for (count, bytes) in [(2 * WINDOW_REFERENCES, 8192), (40, 1 << 20)] {
        let mut epoll = Epoll::new().unwrap();
        let all = buffers(count, bytes);
        let (from, to) = pair(&mut epoll, &all[..1]);
        let all: Vec<Arc<Buffer>> = all.into_iter().map(Arc::new).collect();
        let direct = epoll.direct(from).unwrap();
        let mut sent = 0;
        for buffer in &all {
            let mut buf = SendBuf::shared(Arc::clone(buffer));
            match direct.try_send_buf(&mut buf) {
                Ok(_) if buf.remaining() == 0 => sent += 1,
                Ok(_) => break,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        let most = WINDOW_REFERENCES.min(WINDOW_BYTES / (bytes - 64) + 1);
        assert_eq!(sent, most, "of {bytes} bytes each");
        let kept = all.iter().filter(|it| Arc::strong_count(it) > 1).count();
        assert_eq!(kept, most);
        // The reader makes room.
        let got = receive_exactly(&mut epoll, to, sent * bytes);
        assert!(got[..bytes] == **all[0] && got.ends_with(&all[sent - 1]));
    }
}

#[test]
fn what_a_closed_connection_had_named_is_not_taken() {
    let mut epoll = Epoll::new().unwrap();
    let mut all = buffers(1, 1 << 20);
    let (from, to) = pair(&mut epoll, &all);
    let bytes = Arc::new(all.remove(0));
    send(&mut epoll, from, SendBuf::shared(Arc::clone(&bytes))).unwrap();
    epoll.close(from);
    let mut bytes = Arc::into_inner(bytes).expect("nothing is kept any more");
    bytes.fill(0xEE);
    // The header was copied.
    let header = receive(&mut epoll, to, 64).unwrap();
    assert_ne!(header, [0xEE; 64]);
    let error = receive(&mut epoll, to, 1 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
}

#[test]
fn what_was_taken_before_the_connection_was_closed_is_no_loss() {
    let mut epoll = Epoll::new().unwrap();
    let mut all = buffers(1, 1 << 20);
    let (from, to) = pair(&mut epoll, &all);
    let bytes = Arc::new(all.remove(0));
    send(&mut epoll, from, SendBuf::shared(Arc::clone(&bytes))).unwrap();
    assert!(receive_exactly(&mut epoll, to, 1 << 20) == **bytes);
    send(&mut epoll, from, SendBuf::heap(b"later".to_vec())).unwrap();
    epoll.close(from);
    assert_eq!(receive_exactly(&mut epoll, to, 5), b"later");
    assert_eq!(receive(&mut epoll, to, 5).unwrap(), b"");
}

/// A listener in a reactor, and where it listens.
struct Server {
    epoll: Epoll,
    listener: Token,
    directory: tempfile::TempDir,
}

impl Server {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::Shm(directory.path().join("shm"));
        let listener: Listener = socket::listen(address, &SocketOptions::default()).unwrap();
        let mut epoll = Epoll::new().unwrap();
        let listener = epoll.listen(listener).unwrap();
        Self {
            epoll,
            listener,
            directory,
        }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("shm")
    }

    fn accept(&mut self) -> Token {
        let listener = self.listener;
        let stream = wait(&mut self.epoll, |completion| match completion {
            Completion::Accepted {
                listener: it,
                stream,
                ..
            } if it == listener => Some(stream),
            _ => None,
        });
        self.epoll.add(stream).unwrap()
    }
}

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
    for (at, number) in [(8, 1), (12, records), (16, 4096)] {
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

/// A connection whose other side is a memory that the test stores into.
fn scribbler(server: &mut Server) -> (Sealed, UnixStream, Token) {
    let outbox = Sealed::new(OUTBOX_BYTES).unwrap();
    let mut stream = hello(&server.path(), outbox.handle().as_fd(), 256);
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

/// What a process does that another test started.
#[test]
fn as_a_process_of_another_test() {
    let Ok(path) = std::env::var("EMBAR_TEST_SHM") else {
        return;
    };
    let mut all = buffers(4, 1 << 20);
    let options = SocketOptions {
        shm: handing_over(&all[..1]),
        ..SocketOptions::default()
    };
    let stream = socket::connect(Address::Shm(path.into()), PATIENCE, &options).unwrap();
    let mut epoll = Epoll::new().unwrap();
    let token = epoll.add(stream).unwrap();
    for buffer in all.drain(..) {
        send(&mut epoll, token, SendBuf::shared(Arc::new(buffer))).unwrap();
    }
    // Until it is killed, or its peer leaves.
    while let Ok(word) = receive(&mut epoll, token, 8)
        && !word.is_empty()
    {
        send(&mut epoll, token, SendBuf::heap(word)).unwrap();
    }
}

fn process(path: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_a_process_of_another_test", "--nocapture"])
        .env("EMBAR_TEST_SHM", path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = child.stdout.take().unwrap();
    // The lines end when it ends.
    std::thread::spawn(move || for _ in BufReader::new(out).lines() {});
    child
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn what_a_process_published_before_it_was_killed_arrives_and_then_the_end() {
    let expected = buffers(4, 1 << 20)
        .iter()
        .flat_map(|it| it.to_vec())
        .collect::<Vec<_>>();
    for unread in [false, true] {
        let mut server = Server::new();
        let mut child = process(&server.path());
        let token = server.accept();
        // It has published all, as it goes on only then.
        let first = receive_exactly(&mut server.epoll, token, expected.len() - 100);
        if unread {
            signal(&child, Signal::STOP);
            let status = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(Pid::from_child(&child)), status).unwrap();
            send(&mut server.epoll, token, SendBuf::heap(vec![7; 1000])).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let rest = receive_exactly(&mut server.epoll, token, 100);
        assert!([first, rest].concat() == expected, "bytes differ");
        let end = receive(&mut server.epoll, token, 8);
        if unread {
            assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        assert_eq!(receive(&mut server.epoll, token, 8).unwrap(), b"");
        let error = send(&mut server.epoll, token, SendBuf::heap(b"x".to_vec())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn a_process_that_is_stopped_stalls_only_its_own() {
    let mut server = Server::new();
    let mut stopped = process(&server.path());
    let first = server.accept();
    receive_exactly(&mut server.epoll, first, 4 << 20);
    signal(&stopped, Signal::STOP);
    server.epoll.recv(first, RecvBuf::heap(vec![0; 8], 0..8));
    // More than there is room for.
    server.epoll.send(first, SendBuf::heap(vec![7; 4 << 20]));

    let mut other = process(&server.path());
    let second = server.accept();
    receive_exactly(&mut server.epoll, second, 4 << 20);
    send(&mut server.epoll, second, SendBuf::heap(b"echo".to_vec())).unwrap();
    assert_eq!(receive_exactly(&mut server.epoll, second, 4), b"echo");
    assert_eq!(
        server.epoll.outstanding(),
        2,
        "those of the one that is stopped"
    );

    signal(&stopped, Signal::CONT);
    let got = wait(&mut server.epoll, |completion| match completion {
        Completion::Received { token, result, .. } if token == first => Some(result.unwrap()),
        _ => None,
    });
    assert!(got > 0, "it goes on where it was");
    for child in [&mut stopped, &mut other] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn io_uring_refuses_what_needs_no_kernel() {
    let mut uring = Uring::new().unwrap();
    let (ours, _theirs) = Shm::pair(&ShmOptions::default(), &ShmOptions::default()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Shm(directory.path().join("shm"));
    let listener = socket::listen(&address, &SocketOptions::default()).unwrap();
    for error in [
        uring.add(ours).unwrap_err(),
        uring.connect(&address).unwrap_err(),
        uring.listen(listener).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("epoll"), "{error}");
    }
}

/// Streams that nobody drives end with the listener's process, as others do.
#[test]
fn a_stream_can_be_read_and_written_without_a_reactor() {
    let (ours, theirs) = Shm::pair(&ShmOptions::default(), &ShmOptions::default()).unwrap();
    let (mut ours, mut theirs) = (Stream::from(ours), Stream::from(theirs));
    ours.set_timeout(Some(Duration::from_millis(1))).unwrap();
    let error = ours.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    ours.set_nonblocking(true).unwrap();
    assert_eq!(
        ours.read(&mut [0; 8]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    while ours.write(&[1; 64 << 10]).is_ok() {}
    ours.set_nonblocking(false).unwrap();
    let error = ours.write(&[1; 64 << 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "its time is over");
    ours.set_timeout(None).unwrap();
    let writer = std::thread::spawn(move || {
        ours.write_all(&[2; 1 << 20]).unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        ours.read_to_end(&mut answer).unwrap();
        answer
    });
    let mut all = Vec::new();
    theirs.read_to_end(&mut all).unwrap();
    assert!(all.ends_with(&[2; 1 << 20]));
    theirs.write_all(b"thanks").unwrap();
    drop(theirs);
    assert_eq!(writer.join().unwrap(), b"thanks");
}
