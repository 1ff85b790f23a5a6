//! The reactor on Linux's io_uring.
//!
//! What is submitted waits in a ring, and one system call hands all of it to the kernel, lets the kernel
//! do what it can, and waits for the rest. The kernel tries an operation at once, and again whenever the
//! socket becomes ready; so readiness is its matter.
//!
//! `operations` owns each buffer from its submission to the kernel's last word on it. Whatever becomes of
//! the connection meanwhile, nobody else gets the memory. A closed connection's operations are cancelled,
//! and its buffers come back when the kernel has let go of them.
//!
//! Streams by shared memory are refused: the kernel has no part in them, so [`Epoll`](crate::Epoll) has all that they need.
//!
//! Listeners are watched, and accepted from as by [`Epoll`](crate::Epoll): so are connects, the waker and
//! the user's wake-up.
//!
//! Once as many connections as ever were open and as many completions as ever came at once, no
//! operation allocates.

mod call_time;
mod error;
mod listeners;
#[allow(
    unsafe_code,
    reason = "the kernel works on memory after a call has returned"
)]
mod operations;
#[allow(unsafe_code, reason = "a list of addresses for the kernel")]
mod parts;

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use embar_memory::Mapped;
use rustix::event::PollFlags;
use rustix::net::sockopt;

use crate::listener_driver::{ListenerDriver, Rests};
use crate::socket::{self, SocketOptions};
use crate::token::Slab;
use crate::waker::Sleeper;
use crate::wakeup::Wakeup;
use crate::{Address, Completion, IoCounters, Reactor, RecvBuf, SendBuf, Stream, Token, Waker};
pub use error::UringError;
use operations::{Event, OperationId, Operations};

/// Operations that are handed to the kernel by one call; more are handed over in between.
const SUBMISSIONS: u32 = 256;

/// Completions that the kernel keeps without memory of its own. It keeps more elsewhere, and adds them
/// when there is room.
const COMPLETIONS: u32 = 4096;

/// The waker among the things watched; no token has this value before 2³² sockets are open.
const WAKER: Token = Token::from_bits(u64::MAX);
/// The user's wake-up among them.
const WAKEUP: Token = Token::from_bits(u64::MAX - 1);

enum Entry {
    Listener {
        driver: ListenerDriver,
        watch: Option<OperationId>,
    },
    Stream(Connection),
}

/// A connection, and what it has in flight.
struct Connection {
    /// Operations keep it open, too, until the kernel has them.
    stream: Rc<Stream>,
    /// The watch that reports the end of connecting.
    connecting: Option<OperationId>,
    recv: Option<OperationId>,
    send: Option<OperationId>,
    /// Submitted before the connection was made.
    early_recv: Option<RecvBuf>,
    early_send: Option<SendBuf>,
}

impl Connection {
    fn new(stream: Stream) -> Self {
        Self {
            stream: Rc::new(stream),
            connecting: None,
            recv: None,
            send: None,
            early_recv: None,
            early_send: None,
        }
    }
}

/// The io_uring reactor. See [`Reactor`] for how to use it. It stays in the thread that made it, because
/// the kernel completes operations in that thread.
///
/// Dropping it cancels what is in flight and waits for the kernel to let go of it.
pub struct Uring {
    operations: Operations,
    options: SocketOptions,
    sleeper: Sleeper,
    wakeup: Option<(Wakeup, OperationId)>,
    entries: Slab<Entry>,
    /// Completions that need no kernel any more.
    done: Vec<Completion<Mapped>>,
    /// Listeners that may have a peer waiting.
    ready: Vec<Token>,
    /// Listeners that rest after a failure.
    rests: Rests,
    counters: IoCounters,
    outstanding: usize,
}

impl Uring {
    /// A reactor whose own connects use the default [`SocketOptions`].
    ///
    /// # Errors
    /// [`UringError`] says what keeps this process from using io_uring.
    pub fn new() -> Result<Self, UringError> {
        Self::with_options(SocketOptions::default())
    }

    /// A reactor whose own connects use `options`.
    ///
    /// # Errors
    /// As [`Uring::new`].
    pub fn with_options(options: SocketOptions) -> Result<Self, UringError> {
        Self::with_sizes(options, SUBMISSIONS, COMPLETIONS)
    }

    /// As [`Uring::with_options`], with rings for so many submissions and completions, each rounded up to
    /// a power of two. Small rings cost more calls, and lose nothing.
    ///
    /// # Errors
    /// As [`Uring::new`].
    pub fn with_sizes(
        options: SocketOptions,
        submissions: u32,
        completions: u32,
    ) -> Result<Self, UringError> {
        // Otherwise the first receive pays for the calibration.
        embar_meter::clock::warm_up();
        let mut operations = Operations::new(submissions, completions)?;
        let sleeper = Sleeper::new().map_err(UringError::Other)?;
        operations
            .watch(&sleeper, WAKER, PollFlags::IN, true)
            .map_err(UringError::Other)?;
        Ok(Self {
            operations,
            options,
            sleeper,
            wakeup: None,
            entries: Slab::new(),
            done: Vec::new(),
            ready: Vec::new(),
            rests: Rests::default(),
            counters: IoCounters::default(),
            outstanding: 0,
        })
    }

    fn connection(&mut self, token: Token) -> Option<&mut Connection> {
        connection(&mut self.entries, token)
    }

    /// Tells the owner of a buffer that its connection is over, without the kernel's help.
    fn abort_early(&mut self, token: Token, connection: &mut Connection) {
        let aborted = || ErrorKind::ConnectionAborted.into();
        if let Some(buf) = connection.early_recv.take() {
            self.done.push(received(token, buf, Err(aborted()), 0));
        }
        if let Some(buf) = connection.early_send.take() {
            self.done.push(sent(token, buf, Err(aborted()), 0));
        }
    }

    fn deliver_done(&mut self, out: &mut Vec<Completion<Mapped>>) {
        self.outstanding -= self.done.iter().filter(|it| it.carries_buffer()).count();
        out.append(&mut self.done);
    }

    /// Hands over what the kernel is done with.
    fn reap(&mut self, out: &mut Vec<Completion<Mapped>>) -> io::Result<()> {
        while let Some(event) = self.operations.next(&mut self.counters)? {
            match event {
                Event::Received {
                    token,
                    id,
                    buf,
                    verdict,
                    ticks,
                } => {
                    if let Some(connection) = self.connection(token)
                        && connection.recv == Some(id)
                    {
                        connection.recv = None;
                    }
                    self.outstanding -= 1;
                    out.push(received(token, buf, verdict.of_receive(), ticks));
                }
                Event::Sent {
                    token,
                    id,
                    buf,
                    verdict,
                    ticks,
                } => {
                    if let Some(connection) = self.connection(token)
                        && connection.send == Some(id)
                    {
                        connection.send = None;
                    }
                    self.outstanding -= 1;
                    out.push(sent(token, buf, verdict.of_send(), ticks));
                }
                Event::Ready { of, over } => self.became_ready(of, over, out)?,
            }
        }
        Ok(())
    }

    /// Something that is watched became ready. If the kernel watches it no longer, it is watched anew.
    fn became_ready(
        &mut self,
        of: Token,
        over: bool,
        out: &mut Vec<Completion<Mapped>>,
    ) -> io::Result<()> {
        match of {
            // It has done its work by ending the wait.
            WAKER if over => {
                let sleeper = &self.sleeper;
                self.operations.watch(sleeper, WAKER, PollFlags::IN, true)?;
                return Ok(());
            }
            WAKER => return Ok(()),
            WAKEUP => {
                if let Some((wakeup, watch)) = &mut self.wakeup {
                    wakeup.drain();
                    if over {
                        *watch = self.operations.watch(wakeup, WAKEUP, PollFlags::IN, true)?;
                    }
                    out.push(Completion::Woken);
                }
                return Ok(());
            }
            _ => {}
        }
        match self.entries.get_mut(of) {
            // Closed since.
            None => {}
            Some(Entry::Listener { driver, watch }) => {
                if over {
                    let listener = &driver.listener;
                    let again = self.operations.watch(listener, of, PollFlags::IN, true)?;
                    *watch = Some(again);
                }
                driver.note_edge();
                self.queue(of);
            }
            Some(Entry::Stream(_)) => self.finish_connect(of, out),
        }
        Ok(())
    }

    fn finish_connect(&mut self, token: Token, out: &mut Vec<Completion<Mapped>>) {
        let Some(connection) = self.connection(token) else {
            return;
        };
        connection.connecting = None;
        let outcome = match sockopt::socket_error(&*connection.stream) {
            Ok(outcome) => outcome,
            Err(error) => Err(error),
        };
        let failed = outcome.is_err();
        let (recv, send) = (connection.early_recv.take(), connection.early_send.take());
        out.push(Completion::Connected {
            token,
            result: outcome.map_err(io::Error::from),
        });
        if failed {
            self.entries.remove(token);
            let aborted = || ErrorKind::ConnectionAborted.into();
            let recv = recv.map(|buf| received(token, buf, Err(aborted()), 0));
            let send = send.map(|buf| sent(token, buf, Err(aborted()), 0));
            self.done.extend(recv.into_iter().chain(send));
            return;
        }
        // They count as outstanding already.
        self.outstanding -= usize::from(recv.is_some()) + usize::from(send.is_some());
        if let Some(buf) = recv {
            self.recv(token, buf);
        }
        if let Some(buf) = send {
            self.send(token, buf);
        }
    }

    /// Hands over what was submitted, and waits for something to be over, at most `timeout`.
    fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<Completion<Mapped>>,
    ) -> io::Result<()> {
        let timeout = match (timeout, self.rests.until_next()) {
            (Some(timeout), Some(rest)) => Some(timeout.min(rest)),
            (timeout, rest) => timeout.or(rest),
        };
        let asleep = timeout != Some(Duration::ZERO) && self.sleeper.try_sleep();
        let entered = if asleep {
            self.operations.enter_and_wait(timeout)
        } else {
            self.operations.enter()
        };
        self.counters.polls += 1;
        let woken = if asleep {
            self.sleeper.take()
        } else {
            self.sleeper.take_awake()
        };
        if woken {
            out.push(Completion::Woken);
        }
        entered
    }
}

impl Reactor<Mapped> for Uring {
    fn listen(&mut self, listener: impl Into<socket::Listener>) -> io::Result<Token> {
        let listener = listener.into();
        if let socket::Listener::Shm(..) = listener {
            return Err(UringError::no_shared_memory());
        }
        listener.set_nonblocking(true)?;
        let token = self.entries.next_token();
        let watch = self
            .operations
            .watch(&listener, token, PollFlags::IN, true)?;
        let driver = ListenerDriver::new(listener);
        let watch = Some(watch);
        Ok(self.entries.insert(Entry::Listener { driver, watch }))
    }

    fn add(&mut self, stream: impl Into<Stream>) -> io::Result<Token> {
        let stream = stream.into();
        if let Stream::Shm(_) = stream {
            return Err(UringError::no_shared_memory());
        }
        let connection = Connection::new(stream);
        Ok(self.entries.insert(Entry::Stream(connection)))
    }

    fn connect(&mut self, address: impl Into<Address>) -> io::Result<Token> {
        let address = address.into();
        if let Address::Shm(_) = address {
            return Err(UringError::no_shared_memory());
        }
        let stream = socket::open_stream(&address, &self.options)?;
        let started = socket::start_connect(&stream, &address, &self.options);
        let token = self.entries.next_token();
        let mut connection = Connection::new(stream);
        if matches!(started, Ok(false)) {
            let stream = &*connection.stream;
            let watch = self
                .operations
                .watch(stream, token, PollFlags::OUT, false)?;
            connection.connecting = Some(watch);
            self.entries.insert(Entry::Stream(connection));
            return Ok(token);
        }
        self.entries.insert(Entry::Stream(connection));
        if started.is_err() {
            self.entries.remove(token);
        }
        let result = started.map(drop);
        self.done.push(Completion::Connected { token, result });
        Ok(token)
    }

    fn recv(&mut self, token: Token, buf: RecvBuf<Mapped>) {
        assert!(buf.remaining() > 0, "a full buffer receives nothing");
        self.outstanding += 1;
        match connection(&mut self.entries, token) {
            Some(connection) => {
                let receives = connection.recv.is_some() || connection.early_recv.is_some();
                assert!(!receives, "{token:?} is receiving already");
                if connection.connecting.is_some() {
                    connection.early_recv = Some(buf);
                } else {
                    let stream = &connection.stream;
                    let id = self.operations.recv(stream, token, buf, &mut self.counters);
                    connection.recv = Some(id);
                }
            }
            None => {
                let result = Err(ErrorKind::NotConnected.into());
                self.done.push(received(token, buf, result, 0));
            }
        }
    }

    fn recall(&mut self, token: Token) {
        let Some(connection) = connection(&mut self.entries, token) else {
            return;
        };
        if let Some(buf) = connection.early_recv.take() {
            let result = Err(ErrorKind::Interrupted.into());
            self.done.push(received(token, buf, result, 0));
        } else if let Some(id) = connection.recv {
            self.operations.cancel(id, ErrorKind::Interrupted);
        }
    }

    fn send(&mut self, token: Token, buf: SendBuf<Mapped>) {
        self.outstanding += 1;
        match connection(&mut self.entries, token) {
            Some(connection) => {
                let sends = connection.send.is_some() || connection.early_send.is_some();
                assert!(!sends, "{token:?} is sending already");
                if connection.connecting.is_some() {
                    connection.early_send = Some(buf);
                } else if buf.remaining() == 0 {
                    // Nothing to send is done without a call.
                    self.counters.send_calls += 1;
                    self.done.push(sent(token, buf, Ok(()), 0));
                } else {
                    let stream = &connection.stream;
                    let id = self.operations.send(stream, token, buf, &mut self.counters);
                    connection.send = Some(id);
                }
            }
            None => {
                let result = Err(ErrorKind::NotConnected.into());
                self.done.push(sent(token, buf, result, 0));
            }
        }
    }

    fn shutdown_write(&mut self, token: Token) -> io::Result<()> {
        match self.connection(token) {
            None => Err(ErrorKind::NotConnected.into()),
            Some(connection) => {
                assert!(connection.send.is_none(), "{token:?} is still sending");
                connection.stream.shutdown(std::net::Shutdown::Write)
            }
        }
    }

    fn close(&mut self, token: Token) {
        match self.entries.remove(token) {
            None => {}
            Some(Entry::Listener { driver, watch }) => {
                if let Some(watch) = watch {
                    self.operations.cancel(watch, ErrorKind::ConnectionAborted);
                }
                drop(driver);
                // The kernel's watch keeps the socket open: peers would still find a listener. What
                // fails here fails again in the next poll, which reports it.
                let _ = self.operations.enter();
            }
            Some(Entry::Stream(mut connection)) => {
                self.abort_early(token, &mut connection);
                let Connection {
                    connecting,
                    recv,
                    send,
                    ..
                } = connection;
                for id in [connecting, recv, send].into_iter().flatten() {
                    self.operations.cancel(id, ErrorKind::ConnectionAborted);
                }
                self.end_rests(true);
            }
        }
    }

    fn poll(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<Completion<Mapped>>,
    ) -> io::Result<()> {
        let before = out.len();
        if self.sleeper.take_awake() {
            out.push(Completion::Woken);
        }
        self.deliver_done(out);
        self.end_rests(false);
        self.run_listeners(out);
        self.reap(out)?;
        let idle = out.len() == before && self.ready.is_empty();
        let timeout = if idle { timeout } else { Some(Duration::ZERO) };
        self.wait(timeout, out)?;
        self.reap(out)?;
        self.run_listeners(out);
        self.deliver_done(out);
        Ok(())
    }

    fn set_wakeup(&mut self, descriptor: impl Into<OwnedFd>) -> io::Result<()> {
        let wakeup = Wakeup::new(descriptor.into())?;
        if let Some((_, watch)) = self.wakeup.take() {
            self.operations.cancel(watch, ErrorKind::ConnectionAborted);
            self.operations.enter()?;
        }
        let watch = self
            .operations
            .watch(&wakeup, WAKEUP, PollFlags::IN, true)?;
        self.wakeup = Some((wakeup, watch));
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.sleeper.waker()
    }

    fn counters(&self) -> IoCounters {
        self.counters
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }
}

fn connection(entries: &mut Slab<Entry>, token: Token) -> Option<&mut Connection> {
    match entries.get_mut(token)? {
        Entry::Stream(connection) => Some(connection),
        Entry::Listener { .. } => panic!("{token:?} is a listener, not a connection"),
    }
}

fn received(
    token: Token,
    buf: RecvBuf<Mapped>,
    result: io::Result<usize>,
    ticks: u64,
) -> Completion<Mapped> {
    Completion::Received {
        token,
        buf,
        result,
        ticks,
    }
}

fn sent(
    token: Token,
    buf: SendBuf<Mapped>,
    result: io::Result<()>,
    ticks: u64,
) -> Completion<Mapped> {
    Completion::Sent {
        token,
        buf,
        result,
        ticks,
    }
}
