//! Runs a reactor for a test: waits for particular completions, with a deadline.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use embar_transport::{
    Completion, Mapped, Reactor, RecvBuf, SendBuf, Shm, ShmOptions, Store, Stream, Token,
};

use crate::Kind;

const DEADLINE: Duration = Duration::from_secs(60);

pub struct Driver<R> {
    pub reactor: R,
    waiting: VecDeque<Completion<Mapped>>,
    out: Vec<Completion<Mapped>>,
    make_pair: fn() -> (Stream, Stream),
}

pub fn driver<K: Kind>() -> Driver<K::Reactor> {
    Driver {
        reactor: K::make(),
        waiting: VecDeque::new(),
        out: Vec::new(),
        make_pair: K::pair,
    }
}

impl<R: Reactor<Mapped>> Driver<R> {
    /// A connection of the reactor, and its other end as a blocking stream.
    pub fn pair(&mut self) -> (Token, Stream) {
        let (ours, theirs) = (self.make_pair)();
        theirs.set_timeout(Some(DEADLINE)).unwrap();
        (self.reactor.add(ours).unwrap(), theirs)
    }

    /// One poll; its completions are kept for later.
    pub fn poll(&mut self, timeout: Duration) -> usize {
        self.reactor.poll(Some(timeout), &mut self.out).unwrap();
        let count = self.out.len();
        self.waiting.extend(self.out.drain(..));
        count
    }

    /// The next completion that `wanted` picks, whatever comes before it stays.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(Completion<Mapped>) -> Result<T, Completion<Mapped>>,
    ) -> T {
        let deadline = Instant::now() + DEADLINE;
        loop {
            for _ in 0..self.waiting.len() {
                let Some(completion) = self.waiting.pop_front() else {
                    break;
                };
                match wanted(completion) {
                    Ok(found) => return found,
                    Err(other) => self.waiting.push_back(other),
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {what} in time, but {:?}", self.waiting);
            self.poll(left);
        }
    }

    pub fn received(&mut self, wanted: Token) -> (RecvBuf, io::Result<usize>, u64) {
        self.wait_for("receive", |completion| match completion {
            Completion::Received {
                token,
                buf,
                result,
                ticks,
            } if token == wanted => Ok((buf, result, ticks)),
            other => Err(other),
        })
    }

    /// The buffer of a receive that is over and went well, if one is among what polls found.
    pub fn take_received(&mut self, wanted: Token) -> Option<RecvBuf> {
        let found = self
            .waiting
            .iter()
            .position(|it| matches!(it, Completion::Received { token, .. } if *token == wanted))?;
        match self.waiting.remove(found) {
            Some(Completion::Received { buf, result, .. }) => {
                result.unwrap();
                Some(buf)
            }
            _ => None,
        }
    }

    pub fn sent(&mut self, wanted: Token) -> (SendBuf, io::Result<()>, u64) {
        self.wait_for("send", |completion| match completion {
            Completion::Sent {
                token,
                buf,
                result,
                ticks,
            } if token == wanted => Ok((buf, result, ticks)),
            other => Err(other),
        })
    }

    pub fn connected(&mut self, wanted: Token) -> io::Result<()> {
        self.wait_for("connect", |completion| match completion {
            Completion::Connected { token, result } if token == wanted => Ok(result),
            other => Err(other),
        })
    }

    pub fn accepted(&mut self, wanted: Token) -> Stream {
        self.wait_for("accept", |completion| match completion {
            Completion::Accepted {
                listener,
                stream,
                peer,
            } if listener == wanted => {
                assert_eq!(stream.peer().unwrap(), peer);
                Ok(stream)
            }
            other => Err(other),
        })
    }

    pub fn woken(&mut self) {
        self.wait_for("wake", |completion| match completion {
            Completion::Woken => Ok(()),
            other => Err(other),
        });
    }

    /// Receives into one private buffer until it holds `count` bytes.
    pub fn receive_exactly(&mut self, token: Token, count: usize) -> Vec<u8> {
        let buf = self.fill(token, RecvBuf::heap(vec![0; count], 0..count));
        heap(buf)
    }

    /// Receives until `buf` is full.
    pub fn fill(&mut self, token: Token, mut buf: RecvBuf) -> RecvBuf {
        while buf.remaining() > 0 {
            let before = buf.filled().end;
            self.reactor.recv(token, buf);
            let (back, result, _) = self.received(token);
            let count = result.unwrap();
            assert!(count > 0, "the stream ended early");
            assert_eq!(back.filled().end, before + count);
            buf = back;
        }
        buf
    }

    pub fn send_all(&mut self, token: Token, buf: SendBuf) -> SendBuf {
        self.reactor.send(token, buf);
        let (buf, result, _) = self.sent(token);
        result.unwrap();
        assert_eq!(buf.remaining(), 0);
        buf
    }

    /// Asserts that polling for a while yields nothing.
    pub fn nothing_happens(&mut self) {
        for _ in 0..3 {
            self.poll(Duration::from_millis(5));
        }
        assert!(self.waiting.is_empty(), "unexpected {:?}", self.waiting);
    }
}

pub fn heap(buf: RecvBuf) -> Vec<u8> {
    match buf.into_store() {
        Store::Heap(bytes) => bytes,
        _ => panic!("the store changed its kind"),
    }
}

pub fn room(count: usize) -> RecvBuf {
    RecvBuf::heap(vec![0; count], 0..count)
}

pub fn local_listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// Both ends of a connection by TCP.
pub fn tcp_pair() -> (Stream, Stream) {
    let listener = local_listener();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    theirs.set_nodelay(true).unwrap();
    (ours.into(), theirs.into())
}

/// Both ends of a connection by Unix sockets.
pub fn unix_pair() -> (Stream, Stream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (ours.into(), theirs.into())
}

/// Both ends of a connection by shared memory, which holds no more than a socket does.
pub fn shm_pair() -> (Stream, Stream) {
    let options = ShmOptions {
        ring_bytes: 256 << 10,
        ..ShmOptions::default()
    };
    let (ours, theirs) = Shm::pair(&options, &options).unwrap();
    (ours.into(), theirs.into())
}

/// The same, with small rings, and the other end ours.
pub fn narrow_shm_pair() -> (Stream, Stream) {
    let options = ShmOptions {
        ring_bytes: 64 << 10,
        ring_records: 16,
        ..ShmOptions::default()
    };
    let (theirs, ours) = Shm::pair(&options, &options).unwrap();
    (ours.into(), theirs.into())
}

/// Bytes of which each window of a few is different, so that a shift or a repeat shows.
pub fn pattern(count: usize) -> Vec<u8> {
    (0..count)
        .map(|at| (at as u32).wrapping_mul(0x9E37_79B1).to_le_bytes()[3])
        .collect()
}
