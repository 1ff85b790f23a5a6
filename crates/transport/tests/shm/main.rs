//! Streams by shared memory: what is named instead of copied, peers that keep to no rule, and processes that end.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use embar_memory::{Buffer, Memory, Sealed};
use embar_transport::shm::{WINDOW_BYTES, WINDOW_REFERENCES};
use embar_transport::socket::{self, Listener, SocketOptions};
use embar_transport::{
    Address, Body, Completion, Epoll, Pieces, Reactor, RecvBuf, SendBuf, Shm, ShmOptions, Stream,
    Token, Uring,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, apply_filter};

mod hostile;
mod lingering;
mod named;
mod processes;
mod sleeping;
mod unmapping;
mod witnessed;

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

/// From now on the calling thread alone gets `errno` from calls that keep to all of these rules, or from all, if there are none.
fn forbid(call: libc::c_long, rules: Vec<SeccompRule>, errno: Errno) {
    let refused = SeccompAction::Errno(errno.raw_os_error() as u32);
    let rules = [(call, rules)].into();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    apply_filter(&program).unwrap();
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

/// A ring that announces nothing, as soon as the one before was heard, neither keeps a read from ending in time, nor ends it.
#[test]
fn a_read_ends_in_time_however_often_the_peer_rings() {
    let (ours, theirs) = Shm::pair(&ShmOptions::default(), &ShmOptions::default()).unwrap();
    let mut ours = Stream::from(ours);
    ours.set_timeout(Some(Duration::from_millis(300))).unwrap();
    let unheard = ours.as_fd().try_clone_to_owned().unwrap();
    let (done, rings) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + PATIENCE;
            while !done.load(Ordering::Relaxed) {
                if rustix::io::ioctl_fionread(&unheard).unwrap() == 0 {
                    rustix::net::send(&theirs, &[1], SendFlags::empty()).unwrap();
                    rings.fetch_add(1, Ordering::Relaxed);
                }
                assert!(Instant::now() < deadline, "the read does not end");
            }
        });
        while rings.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let error = ours.read(&mut [0; 8]).unwrap_err();
        done.store(true, Ordering::Relaxed);
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
        assert!(rings.load(Ordering::Relaxed) > 1, "it heard none");
    });
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
