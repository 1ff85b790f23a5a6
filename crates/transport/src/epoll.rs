//! The reactor on Linux's epoll.
//!
//! Every socket is registered once, edge-triggered, for everything. An operation on a socket that
//! is believed ready is tried by the next poll; otherwise it waits for the edge. The kernel is
//! asked for edges when nothing is ready to be tried, and now and then under load
//! (`ROUNDS_PER_LOOK`, `BYTES_PER_LOOK`) so that new edges do not wait for ever.
//!
//! Once as many connections as ever were open and as many completions as ever came at once, no
//! operation allocates.

mod connection;
mod direct;
#[allow(
    unsafe_code,
    reason = "memory that others may write is sent by its address"
)]
mod gather;
mod rounds;
mod shm;
mod spin;
mod watch;

use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use embar_memory::Mapped;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::listener_driver::{ListenerDriver, Rests};
use crate::socket::{self, SocketOptions, timespec};
use crate::token::Slab;
use crate::waker::Sleeper;
use crate::wakeup::Wakeup;
use crate::{Address, Completion, IoCounters, Reactor, RecvBuf, SendBuf, Stream, Token, Waker};
use connection::{Connection, Pending};
pub use direct::DirectSend;
use spin::Spin;
pub use watch::Watch;

/// While completions come without asking the kernel, ask it at least once in so many polls.
const ROUNDS_PER_LOOK: u32 = 8;

/// The same while spinning, which finds most of what comes by itself.
const ROUNDS_PER_LOOK_SPINNING: u32 = 32;

/// The same by bytes moved: next to copying so many, asking costs nothing.
const BYTES_PER_LOOK: u64 = 256 * 1024;

/// The kernel's wait for edges counts whole milliseconds, and `epoll_pwait2`, which does not, is
/// missing before Linux 5.11. Shorter waits than this take a call more to be as short as asked.
const COARSE_WAIT: Duration = Duration::from_millis(1);

/// Edges taken from the kernel at once.
const EVENTS_PER_LOOK: usize = 256;

/// Marks the waker among the edges; no token has this value before 2³² sockets are open.
const WAKER_BITS: u64 = u64::MAX;
/// Marks the user's wake-up among the edges.
const WAKEUP_BITS: u64 = u64::MAX - 1;

enum Entry {
    Listener(ListenerDriver),
    Stream(Connection),
}

/// The epoll reactor. See [`Reactor`] for how to use it.
pub struct Epoll {
    epoll: OwnedFd,
    options: SocketOptions,
    sleeper: Sleeper,
    wakeup: Option<Wakeup>,
    entries: Slab<Entry>,
    /// To be tried by the next round; each is here or among the told ones, once.
    ready: Vec<Token>,
    /// To be tried before those: they do not flood, or the kernel told of them since the last round.
    told: Vec<Token>,
    /// The round in work; kept for its memory.
    round: Vec<Token>,
    /// Streams by shared memory that each round looks at.
    hot: Vec<Token>,
    /// Those that the latest sleep let cool.
    cooled: Vec<Token>,
    /// Streams by shared memory whose peers are to be woken when the round is over.
    to_wake: Vec<Token>,
    /// Completions that need no socket any more.
    done: Vec<Completion<Mapped>>,
    /// Listeners that rest after a failure.
    rests: Rests,
    counters: IoCounters,
    outstanding: usize,
    rounds_since_look: u32,
    bytes_at_look: u64,
    /// The next poll asks the kernel before it tries what is known to be ready.
    looks_first: bool,
    /// Whether the latest poll took all edges that there were.
    drained: bool,
    spin: Spin,
}

impl Epoll {
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
        // Otherwise the first receive pays for the calibration.
        embar_meter::clock::warm_up();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let sleeper = Sleeper::new()?;
        // Edge-triggered, so the event's count never has to be read back.
        let data = EventData::new_u64(WAKER_BITS);
        epoll::add(&epoll, &sleeper, data, EventFlags::IN | EventFlags::ET)?;
        Ok(Self {
            epoll,
            options,
            sleeper,
            wakeup: None,
            entries: Slab::new(),
            ready: Vec::new(),
            told: Vec::new(),
            round: Vec::new(),
            hot: Vec::new(),
            cooled: Vec::new(),
            to_wake: Vec::new(),
            done: Vec::new(),
            rests: Rests::default(),
            counters: IoCounters::default(),
            outstanding: 0,
            rounds_since_look: 0,
            bytes_at_look: 0,
            looks_first: false,
            drained: false,
            spin: Spin::default(),
        })
    }

    fn watch(&self, socket: impl AsFd, interest: EventFlags) -> io::Result<()> {
        let data = EventData::new_u64(self.entries.next_token().bits());
        Ok(epoll::add(&self.epoll, socket, data, interest)?)
    }

    fn add_stream(&mut self, stream: Stream, connecting: bool) -> io::Result<Token> {
        if let Stream::Shm(shm) = &stream {
            shm.set_nonblocking(true);
        }
        let connection = Connection::new(stream, connecting);
        self.watch(&*connection.stream, connection.interest())?;
        Ok(self.enter(Entry::Stream(connection)))
    }

    /// Each is in a round at most once, so with room for all of them here no round allocates.
    fn enter(&mut self, entry: Entry) -> Token {
        let token = self.entries.insert(entry);
        let most = token.index() + 1;
        let Self {
            ready,
            told,
            round,
            hot,
            cooled,
            to_wake,
            ..
        } = self;
        for list in [ready, told, round, hot, cooled, to_wake] {
            list.reserve(most.saturating_sub(list.len()));
        }
        token
    }

    /// From now on this descriptor ends waits whenever it becomes readable, and nothing is reported.
    pub(crate) fn end_waits_by(&self, descriptor: impl AsFd) -> io::Result<()> {
        let data = EventData::new_u64(WAKER_BITS);
        Ok(epoll::add(
            &self.epoll,
            descriptor,
            data,
            EventFlags::IN | EventFlags::ET,
        )?)
    }

    /// The socket of a connection that is made, for who receives by itself.
    pub(crate) fn stream(&self, token: Token) -> Option<Arc<Stream>> {
        match self.entries.get(token)? {
            Entry::Stream(connection) if !connection.connecting => {
                Some(Arc::clone(&connection.stream))
            }
            _ => None,
        }
    }

    /// A listener that it accepts from.
    #[must_use]
    pub fn listener(&self, token: Token) -> Option<&socket::Listener> {
        match self.entries.get(token)? {
            Entry::Listener(driver) => Some(&driver.listener),
            Entry::Stream(_) => None,
        }
    }

    /// Tries again to accept where that [failed](Completion::AcceptFailed), because somebody else closed a descriptor.
    pub fn accept_again(&mut self) {
        self.end_rests(true);
    }

    fn connection(&mut self, token: Token) -> Option<&mut Connection> {
        match self.entries.get_mut(token)? {
            Entry::Stream(connection) => Some(connection),
            Entry::Listener(_) => panic!("{token:?} is a listener, not a connection"),
        }
    }

    /// Takes what is outstanding from a connection that is over.
    fn abort(&mut self, token: Token, connection: Connection) {
        if let Some(pending) = connection.recv {
            let result = Err(ErrorKind::ConnectionAborted.into());
            self.done.push(pending.received(token, result));
        }
        if let Some(pending) = connection.send {
            let result = Err(ErrorKind::ConnectionAborted.into());
            self.done.push(pending.sent(token, result));
        }
    }

    /// As [`Reactor::poll`], but without asking the kernel what else became ready: for a user that
    /// knows by [`AsFd`] that nothing did. It never waits.
    pub fn poll_known(&mut self, out: &mut Vec<Completion<Mapped>>) {
        if self.sleeper.take_awake() {
            out.push(Completion::Woken);
        }
        self.deliver_done(out);
        self.end_rests(false);
        self.run_round(out);
        self.try_hot(out);
    }

    /// The first half of [`Reactor::poll`], which does not sleep. False: nothing came for as long as it spins, and
    /// [`Epoll::sleep`] is the other half.
    ///
    /// # Errors
    /// As [`Reactor::poll`].
    pub fn poll_awake(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<Completion<Mapped>>,
    ) -> io::Result<bool> {
        let before = out.len();
        self.drained = false;
        if self.sleeper.take_awake() {
            out.push(Completion::Woken);
        }
        self.deliver_done(out);
        self.end_rests(false);
        if std::mem::take(&mut self.looks_first) {
            self.look(Some(Duration::ZERO), out)?;
        }
        self.run_round(out);
        self.try_hot(out);
        self.rounds_since_look += 1;
        let produced = out.len() > before;
        if produced && !self.look_is_due() {
            return Ok(true);
        }
        if produced || self.has_ready() {
            self.look(Some(Duration::ZERO), out)?;
            return Ok(true);
        }
        let spins = self.spin.is_on() && timeout != Some(Duration::ZERO);
        Ok(spins && self.spin(timeout, out)?)
    }

    /// The second half of [`Reactor::poll`], after [`Epoll::poll_awake`] found nothing: waits, at most for `timeout`.
    ///
    /// # Errors
    /// As [`Reactor::poll`].
    pub fn sleep(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<Completion<Mapped>>,
    ) -> io::Result<()> {
        let waits = timeout != Some(Duration::ZERO);
        // The last tries of the spinning may have found that there is more to try.
        let timeout = if self.has_ready() || (waits && !self.doze()) {
            Some(Duration::ZERO)
        } else {
            timeout
        };
        self.look(timeout, out)?;
        self.run_round(out);
        self.try_hot(out);
        Ok(())
    }

    /// The next poll begins with asking the kernel what else became ready, also if something is known to be: its user was
    /// busy for so long that others may wait.
    pub fn look_first(&mut self) {
        self.looks_first = true;
    }

    /// Whether the latest [`Reactor::poll`] asked the kernel and took all that there was: by
    /// [`AsFd`], this reactor is not readable any more until something else becomes ready.
    pub fn has_drained(&self) -> bool {
        self.drained
    }

    fn look_is_due(&self) -> bool {
        let rounds = if self.spin.is_on() {
            ROUNDS_PER_LOOK_SPINNING
        } else {
            ROUNDS_PER_LOOK
        };
        self.rounds_since_look >= rounds
            || self.counters.bytes_moved() - self.bytes_at_look >= BYTES_PER_LOOK
    }

    fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.told.is_empty()
    }

    /// Asks the kernel for edges, and waits for one at most `timeout`.
    fn look(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<Completion<Mapped>>,
    ) -> io::Result<()> {
        let timeout = match (timeout, self.rests.until_next()) {
            (Some(timeout), Some(rest)) => Some(timeout.min(rest)),
            (timeout, rest) => timeout.or(rest),
        };
        let asleep = timeout != Some(Duration::ZERO) && self.sleeper.try_sleep();
        let timeout = if asleep {
            timeout
        } else {
            Some(Duration::ZERO)
        };
        // On the stack: the kernel's events hold a pointer type, which would keep the reactor from
        // moving to another thread.
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_PER_LOOK];
        let waited = match timeout {
            Some(time) if !time.is_zero() && time < COARSE_WAIT => {
                self.wait_finely(time);
                epoll::wait(&self.epoll, &mut events, Some(&timespec(Duration::ZERO)))
            }
            _ => {
                let spec = timeout.map(timespec);
                epoll::wait(&self.epoll, &mut events, spec.as_ref())
            }
        };
        self.counters.polls += 1;
        self.rounds_since_look = 0;
        self.bytes_at_look = self.counters.bytes_moved();
        let woken = if asleep {
            self.sleeper.take()
        } else {
            self.sleeper.take_awake()
        };
        if woken {
            out.push(Completion::Woken);
        }
        let events = match waited {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.drained = events.len() < EVENTS_PER_LOOK;
        for event in events {
            if event.data.u64() == WAKEUP_BITS {
                if let Some(wakeup) = &self.wakeup {
                    wakeup.drain();
                }
                out.push(Completion::Woken);
                continue;
            }
            // The waker's edge has done its work by ending the wait: no token has its bits.
            self.note(*event);
        }
        Ok(())
    }

    /// Waits for an edge, or for `time`, by a call that counts nanoseconds. Whatever else ends it is
    /// found out by the look that follows.
    fn wait_finely(&self, time: Duration) {
        let mut edges = [PollFd::new(&self.epoll, PollFlags::IN)];
        let _ = rustix::event::poll(&mut edges, Some(&timespec(time)));
    }

    fn note(&mut self, event: Event) {
        let (flags, data) = (event.flags, event.data);
        let token = Token::from_bits(data.u64());
        match self.entries.get_mut(token) {
            // Closed after the kernel had queued the edge.
            None => return,
            Some(Entry::Listener(listener)) => listener.note_edge(),
            Some(Entry::Stream(connection)) => connection.note_edges(flags),
        }
        self.queue_told(token);
    }
}

/// Readable when something became ready: another reactor may watch it. With streams by shared memory that is so only after a
/// poll that was to wait.
impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Reactor<Mapped> for Epoll {
    fn listen(&mut self, listener: impl Into<socket::Listener>) -> io::Result<Token> {
        let listener = listener.into();
        listener.set_nonblocking(true)?;
        self.watch(&listener, EventFlags::IN | EventFlags::ET)?;
        let listener = ListenerDriver::new(listener);
        Ok(self.enter(Entry::Listener(listener)))
    }

    fn add(&mut self, stream: impl Into<Stream>) -> io::Result<Token> {
        self.add_stream(stream.into(), false)
    }

    fn connect(&mut self, address: impl Into<Address>) -> io::Result<Token> {
        let address = address.into();
        let stream = socket::open_stream(&address, &self.options)?;
        let started = socket::start_connect(&stream, &address, &self.options);
        let waiting = matches!(started, Ok(false));
        let token = self.add_stream(stream, waiting)?;
        if !waiting {
            if started.is_err() {
                self.entries.remove(token);
            }
            let result = started.map(drop);
            self.done.push(Completion::Connected { token, result });
        }
        Ok(token)
    }

    fn recv(&mut self, token: Token, buf: RecvBuf<Mapped>) {
        assert!(buf.remaining() > 0, "a full buffer receives nothing");
        self.outstanding += 1;
        let pending = Pending::new(buf);
        let spins = self.spin.is_on();
        match self.connection(token) {
            Some(connection) => {
                assert!(connection.recv.is_none(), "{token:?} is receiving already");
                connection.recv = Some(pending);
                connection.heat.idle = false;
                let spins = spins && connection.shm().is_none();
                if spins && !std::mem::replace(&mut connection.listed, true) {
                    self.spin.add(token);
                }
                self.queue_asked(token);
            }
            None => {
                let result = Err(ErrorKind::NotConnected.into());
                self.done.push(pending.received(token, result));
            }
        }
    }

    fn recall(&mut self, token: Token) {
        let recalled = self.connection(token).and_then(|it| it.recv.take());
        if let Some(pending) = recalled {
            let result = Err(ErrorKind::Interrupted.into());
            self.done.push(pending.received(token, result));
        }
    }

    fn send(&mut self, token: Token, buf: SendBuf<Mapped>) {
        self.outstanding += 1;
        let pending = Pending::new(buf);
        match self.connection(token) {
            Some(connection) => {
                assert!(connection.send.is_none(), "{token:?} is sending already");
                connection.send = Some(pending);
                connection.heat.idle = false;
                self.queue_asked(token);
            }
            None => {
                let result = Err(ErrorKind::NotConnected.into());
                self.done.push(pending.sent(token, result));
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
        // Descriptors that were cloned would keep a registration alive, so it is taken back
        // explicitly. It can only fail if it is gone already.
        match self.entries.remove(token) {
            None => {}
            Some(Entry::Listener(listener)) => {
                let _ = epoll::delete(&self.epoll, &listener.listener);
            }
            Some(Entry::Stream(connection)) => {
                let _ = epoll::delete(&self.epoll, &*connection.stream);
                if let Some(shm) = connection.shm() {
                    shm.close();
                }
                self.abort(token, connection);
                self.end_rests(true);
            }
        }
    }

    fn poll(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<Completion<Mapped>>,
    ) -> io::Result<()> {
        match self.poll_awake(timeout, out)? {
            true => Ok(()),
            false => self.sleep(timeout, out),
        }
    }

    fn set_wakeup(&mut self, descriptor: impl Into<OwnedFd>) -> io::Result<()> {
        let wakeup = Wakeup::new(descriptor.into())?;
        if let Some(old) = self.wakeup.take() {
            epoll::delete(&self.epoll, &old)?;
        }
        let data = EventData::new_u64(WAKEUP_BITS);
        epoll::add(&self.epoll, &wakeup, data, EventFlags::IN | EventFlags::ET)?;
        self.wakeup = Some(wakeup);
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
