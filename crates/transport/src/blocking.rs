//! A reactor whose large receives are threads that wait inside the kernel.
//!
//! A receive that [wants many bytes](RecvBuf::wanting) goes to a thread of its connection's own, which calls
//! `recv` with `MSG_WAITALL`: the kernel returns when all of them are there. Everything else is done by an
//! [`Epoll`]. So no peer can keep others waiting, however slowly it sends.
//!
//! Threads are few: [`RECEIVERS_MAX`] connections have one, from their first such receive on until they are
//! closed. Others are received from by `Epoll`.
//!
//! Each hand-over wakes a thread, twice for each receive.

mod receiver;

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use embar_memory::Mapped;

use crate::socket::{self, SocketOptions};
use crate::waker::Sleeper;
use crate::{
    Address, Completion, Epoll, IoCounters, Reactor, RecvBuf, SendBuf, Stream, Token, Waker,
};
use receiver::{Finished, Outbox, Receiver};

/// Connections of one reactor that have a thread.
pub const RECEIVERS_MAX: usize = 64;

/// The reactor with blocking receives. See [`Reactor`] for how to use it.
pub struct Blocking {
    epoll: Epoll,
    /// By which threads end a wait of `epoll`.
    sleeper: Sleeper,
    /// By the index of the connection's token.
    receivers: Vec<Option<Receiver>>,
    /// Those of closed connections, until their last receive is back.
    ending: Vec<Receiver>,
    outbox: Arc<Outbox>,
    finished: Vec<Finished>,
    threads: usize,
    /// Of receives that threads have.
    outstanding: usize,
    counters: IoCounters,
}

impl Blocking {
    /// A reactor whose own connects use the default [`SocketOptions`].
    ///
    /// # Errors
    /// When the process or the system has no file descriptors left.
    pub fn new() -> io::Result<Self> {
        Self::with_options(SocketOptions::default())
    }

    /// A reactor whose own connects use `options`.
    ///
    /// # Errors
    /// When the process or the system has no file descriptors left.
    pub fn with_options(options: SocketOptions) -> io::Result<Self> {
        let epoll = Epoll::with_options(options)?;
        let sleeper = Sleeper::new()?;
        epoll.end_waits_by(&sleeper)?;
        let outbox = Arc::new(Outbox::new(sleeper.waker()));
        Ok(Self {
            epoll,
            sleeper,
            receivers: Vec::new(),
            ending: Vec::new(),
            outbox,
            finished: Vec::new(),
            threads: 0,
            outstanding: 0,
            counters: IoCounters::default(),
        })
    }

    fn receiver(&mut self, token: Token) -> Option<&mut Receiver> {
        let receiver = self.receivers.get_mut(token.index())?.as_mut()?;
        (receiver.token() == token).then_some(receiver)
    }

    /// The thread of a connection; a new one if it has none. `None`: there are too many.
    fn receiver_or_new(&mut self, token: Token) -> Option<&mut Receiver> {
        if self.receiver(token).is_none() {
            if self.threads == RECEIVERS_MAX {
                return None;
            }
            let stream = self.epoll.stream(token)?;
            if matches!(*stream, Stream::Shm(_)) {
                // No call of the kernel waits for its bytes.
                return None;
            }
            // A process without threads left receives by `Epoll`.
            let receiver = Receiver::start(token, stream, Arc::clone(&self.outbox)).ok()?;
            if self.receivers.len() <= token.index() {
                self.receivers.resize_with(token.index() + 1, || None);
            }
            self.receivers[token.index()] = Some(receiver);
            self.threads += 1;
        }
        self.receiver(token)
    }

    /// Hands over what threads have received.
    fn collect(&mut self, out: &mut Vec<Completion<Mapped>>) {
        self.outbox.take_all(&mut self.finished);
        for finished in self.finished.drain(..) {
            let token = finished.token;
            let receiver = self
                .receivers
                .get_mut(token.index())
                .and_then(Option::as_mut);
            if let Some(receiver) = receiver.filter(|it| it.token() == token) {
                receiver.is_over();
            } else {
                // Its connection was closed meanwhile.
                self.ending.retain(|it| it.token() != token);
            }
            self.outstanding -= 1;
            self.counters.recv_calls += finished.calls;
            self.counters.recv_eagain += finished.eagain;
            self.counters.recv_bytes += finished.bytes;
            out.push(Completion::Received {
                token,
                buf: finished.buf,
                result: finished.result,
                ticks: finished.ticks,
            });
        }
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        // All at once, because each is waited for.
        for receiver in self.receivers.iter().flatten() {
            receiver.give_up(ErrorKind::ConnectionAborted);
        }
    }
}

impl Reactor<Mapped> for Blocking {
    fn listen(&mut self, listener: impl Into<socket::Listener>) -> io::Result<Token> {
        self.epoll.listen(listener)
    }

    fn add(&mut self, stream: impl Into<Stream>) -> io::Result<Token> {
        self.epoll.add(stream)
    }

    fn connect(&mut self, address: impl Into<Address>) -> io::Result<Token> {
        self.epoll.connect(address)
    }

    fn recv(&mut self, token: Token, buf: RecvBuf<Mapped>) {
        let receives = self.receiver(token).is_some_and(|it| it.has_work());
        assert!(!receives, "{token:?} is receiving already");
        if buf.wanted() == 0 {
            return self.epoll.recv(token, buf);
        }
        match self.receiver_or_new(token) {
            Some(receiver) => {
                receiver.receive(buf);
                self.outstanding += 1;
            }
            None => self.epoll.recv(token, buf),
        }
    }

    fn recall(&mut self, token: Token) {
        match self.receiver(token) {
            Some(receiver) if receiver.has_work() => receiver.give_up(ErrorKind::Interrupted),
            _ => self.epoll.recall(token),
        }
    }

    fn send(&mut self, token: Token, buf: SendBuf<Mapped>) {
        self.epoll.send(token, buf);
    }

    fn shutdown_write(&mut self, token: Token) -> io::Result<()> {
        self.epoll.shutdown_write(token)
    }

    fn close(&mut self, token: Token) {
        if self.receiver(token).is_some()
            && let Some(receiver) = self.receivers[token.index()].take()
        {
            self.threads -= 1;
            if receiver.has_work() {
                receiver.give_up(ErrorKind::ConnectionAborted);
                self.ending.push(receiver);
            }
        }
        self.epoll.close(token);
    }

    fn poll(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<Completion<Mapped>>,
    ) -> io::Result<()> {
        let before = out.len();
        self.collect(out);
        let waits = out.len() == before && timeout != Some(Duration::ZERO);
        // Fails if a thread has put something into the outbox since it was emptied.
        let asleep = waits && self.sleeper.try_sleep();
        let timeout = if asleep {
            timeout
        } else {
            Some(Duration::ZERO)
        };
        let polled = self.epoll.poll(timeout, out);
        if asleep {
            self.sleeper.take();
        } else {
            self.sleeper.take_awake();
        }
        self.collect(out);
        polled
    }

    fn set_wakeup(&mut self, descriptor: impl Into<OwnedFd>) -> io::Result<()> {
        self.epoll.set_wakeup(descriptor)
    }

    fn waker(&self) -> Waker {
        self.epoll.waker()
    }

    fn counters(&self) -> IoCounters {
        let (by_epoll, by_threads) = (self.epoll.counters(), self.counters);
        IoCounters {
            recv_calls: by_epoll.recv_calls + by_threads.recv_calls,
            recv_bytes: by_epoll.recv_bytes + by_threads.recv_bytes,
            recv_eagain: by_epoll.recv_eagain + by_threads.recv_eagain,
            ..by_epoll
        }
    }

    fn outstanding(&self) -> usize {
        self.epoll.outstanding() + self.outstanding
    }
}
