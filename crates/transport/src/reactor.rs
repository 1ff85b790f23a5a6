//! The trait of every reactor: what a user may ask of it, and the completions that it reports.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use embar_memory::{Mapped, Memory};

use crate::{Address, Listener, Peer, RecvBuf, SendBuf, Stream, Token, Waker};

/// Something that was asked for and is now over, or something that happened.
pub enum Completion<M: Memory = Mapped> {
    /// A peer connected to a listener. The stream belongs to no reactor yet: any thread may
    /// [`Reactor::add`] it to its own.
    Accepted {
        /// The listener.
        listener: Token,
        /// The new connection.
        stream: Stream,
        /// Its other end.
        peer: Peer,
    },
    /// Accepting failed, most often because no file descriptor is free (`EMFILE`). The peers wait
    /// in the backlog; the reactor tries again when it closes a connection, or after
    /// [`ACCEPT_RETRY`]. Reported once per attempt.
    AcceptFailed {
        /// The listener, which stays usable.
        listener: Token,
        /// What the kernel said.
        error: io::Error,
    },
    /// A [`Reactor::connect`] is over. After an error the token is closed already, and buffers
    /// submitted early follow with an error.
    Connected {
        /// The connection.
        token: Token,
        /// What the kernel said.
        result: io::Result<()>,
    },
    /// A [`Reactor::recv`] is over.
    Received {
        /// The connection.
        token: Token,
        /// The buffer; filled bytes stay valid after an error too.
        buf: RecvBuf<M>,
        /// Bytes added to it by this receive; 0 = the peer sends no more.
        result: io::Result<usize>,
        /// Time spent in system calls for it, in `embar_meter::clock::ticks`.
        ticks: u64,
    },
    /// A [`Reactor::send`] is over.
    Sent {
        /// The connection.
        token: Token,
        /// The buffer; [`SendBuf::sent`] says how far it got.
        buf: SendBuf<M>,
        /// Ok: all bytes were handed to the kernel, which is not to say that the peer has them; or
        /// some of a buffer that [goes in steps](SendBuf::goes_in_steps).
        result: io::Result<()>,
        /// Time spent in system calls for it, in `embar_meter::clock::ticks`.
        ticks: u64,
    },
    /// [`Waker::wake`] was called, or the descriptor of [`Reactor::set_wakeup`] became readable.
    Woken,
}

impl<M: Memory> Completion<M> {
    /// Whether it returns a buffer that was submitted.
    pub(crate) fn carries_buffer(&self) -> bool {
        matches!(self, Self::Received { .. } | Self::Sent { .. })
    }
}

// By hand, because a derive would ask for `M: Debug`, which says nothing about a completion.
impl<M: Memory> fmt::Debug for Completion<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted { listener, peer, .. } => {
                write!(f, "Accepted {{ {listener:?}, {peer} }}")
            }
            Self::AcceptFailed { listener, error } => {
                write!(f, "AcceptFailed {{ {listener:?}, {error} }}")
            }
            Self::Connected { token, result } => write!(f, "Connected {{ {token:?}, {result:?} }}"),
            Self::Received {
                token, buf, result, ..
            } => write!(f, "Received {{ {token:?}, {buf:?}, {result:?} }}"),
            Self::Sent {
                token, buf, result, ..
            } => write!(f, "Sent {{ {token:?}, {buf:?}, {result:?} }}"),
            Self::Woken => f.write_str("Woken"),
        }
    }
}

/// How long a listener rests after accepting failed, unless a connection is closed before.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What a reactor did since it was made. Bytes and calls; all only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoCounters {
    /// Receive calls (io_uring: receives submitted), those that found nothing included.
    pub recv_calls: u64,
    /// Bytes received.
    pub recv_bytes: u64,
    /// Among these: bytes that are read where the peer lends them ([`RecvBuf::or_lent`]).
    pub lent_bytes: u64,
    /// Receive calls that found nothing (`EAGAIN`).
    pub recv_eagain: u64,
    /// Send calls (io_uring: sends submitted), those that found no room included.
    pub send_calls: u64,
    /// Bytes handed to the kernel.
    pub send_bytes: u64,
    /// Send calls that found no room at all (`EAGAIN`).
    pub send_eagain: u64,
    /// Send calls that found room for a part only.
    pub send_partial: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Failed attempts to accept.
    pub accept_failures: u64,
    /// Waits for readiness or completions (`epoll_wait`, `io_uring_enter`).
    pub polls: u64,
}

impl IoCounters {
    pub(crate) fn bytes_moved(&self) -> u64 {
        self.recv_bytes + self.send_bytes
    }
}

/// Drives listeners and connections of one thread.
///
/// The call order is: submit (`listen`, `add`, `connect`, `recv`, `send`, `close`), then [`poll`],
/// handle all completions, and so on. Submitting never blocks and never completes in place: even
/// what fails at once comes back from the next poll.
///
/// Errors do not close a connection: its token stays valid until [`close`], except after a failed
/// connect. Every buffer comes back exactly once, unless the reactor is dropped.
///
/// To end, `close` every token and poll until [`outstanding`] is 0, then drop: a reactor may have
/// to wait for the kernel before buffers can be freed. Dropping it earlier is safe, but buffers in
/// flight are lost (and may wait for the kernel inside the drop).
///
/// [`poll`]: Reactor::poll
/// [`close`]: Reactor::close
/// [`outstanding`]: Reactor::outstanding
pub trait Reactor<M: Memory> {
    /// Accepts connections of `listener` from now on, until its token is closed.
    ///
    /// # Errors
    /// When the kernel refuses to watch it.
    fn listen(&mut self, listener: impl Into<Listener>) -> io::Result<Token>;

    /// Takes a connected stream.
    ///
    /// # Errors
    /// When the kernel refuses to watch it; the stream is closed then.
    fn add(&mut self, stream: impl Into<Stream>) -> io::Result<Token>;

    /// Connects; [`Completion::Connected`] says how it went. Buffers may be submitted before.
    /// There is no time limit but the kernel's (about two minutes): close the token to give up.
    /// A socket file whose backlog is full fails with `WouldBlock`; try again later.
    ///
    /// # Errors
    /// When no socket can be made. A peer that refuses is not such an error.
    fn connect(&mut self, address: impl Into<Address>) -> io::Result<Token>;

    /// Receives into `buf`, completes with at least one byte, with 0 at the end of the stream, or
    /// with an error (`NotConnected` for a closed or stale token).
    ///
    /// # Panics
    /// If a receive of this connection is still outstanding, if `buf` is full, or on a listener.
    fn recv(&mut self, token: Token, buf: RecvBuf<M>);

    /// Takes back the buffer of an outstanding receive: it completes with `Interrupted`, unless it
    /// is over already. Bytes that it has stay in it. Does nothing when no receive is outstanding, and
    /// with a closed or stale token.
    ///
    /// # Panics
    /// On a listener.
    fn recall(&mut self, token: Token);

    /// Sends all of `buf`; completes when the kernel took all of it, or with an error
    /// (`NotConnected` for a closed or stale token). A buffer that
    /// [goes in steps](SendBuf::goes_in_steps) completes when the kernel took some of it: submit it
    /// again until [`SendBuf::remaining`] is 0, before anything else.
    ///
    /// # Panics
    /// If a send of this connection is still outstanding, or on a listener.
    fn send(&mut self, token: Token, buf: SendBuf<M>);

    /// Says to the peer that nothing more will be sent (it receives 0), while receiving goes on.
    /// Closing with unread bytes resets the connection, which may destroy what was just sent: a
    /// polite end is this, then receiving until 0, then [`Reactor::close`].
    ///
    /// # Errors
    /// `NotConnected` for a closed or stale token or when the peer is gone already.
    ///
    /// # Panics
    /// If a send of this connection is still outstanding, or on a listener.
    fn shutdown_write(&mut self, token: Token) -> io::Result<()>;

    /// Closes a connection or listener; its token is stale at once. Outstanding buffers come back
    /// with `ConnectionAborted`; an outstanding connect is forgotten. Closing a stale token does
    /// nothing.
    fn close(&mut self, token: Token);

    /// Appends what is over to `out`, waits at most `timeout` (`None`: without limit) if nothing
    /// is. It may return early with nothing.
    ///
    /// Each connection completes at most one receive and one send per call, so no connection can
    /// starve the others.
    ///
    /// # Errors
    /// Only when the reactor itself is broken.
    fn poll(&mut self, timeout: Option<Duration>, out: &mut Vec<Completion<M>>) -> io::Result<()>;

    /// From now on this descriptor ends a wait whenever it becomes readable, as a waker does, and the
    /// reactor reports [`Completion::Woken`]. It replaces one that was set before.
    ///
    /// Any descriptor will do that the kernel can watch: a pipe, an eventfd, a timer. The reactor makes it
    /// non-blocking, reads what is in it, and throws that away.
    ///
    /// # Errors
    /// When the kernel cannot watch it.
    fn set_wakeup(&mut self, descriptor: impl Into<OwnedFd>) -> io::Result<()>;

    /// A handle by which other threads end a wait.
    fn waker(&self) -> Waker;

    /// What was done so far.
    fn counters(&self) -> IoCounters;

    /// Buffers submitted and not yet returned.
    fn outstanding(&self) -> usize;
}
