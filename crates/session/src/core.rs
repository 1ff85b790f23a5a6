//! One session as a state machine: handshake, frames in, frames out, heartbeats, the end.
//!
//! No socket, no clock and no thread is in here. The owner of a [`SessionCore`] carries out the
//! [`Step`]s of [`SessionCore::poll`] in order, and reports: [`SessionCore::received`] and
//! [`SessionCore::sent`] for each buffer that comes back, [`SessionCore::tick`] when
//! [`SessionCore::next_tick`] is due. After each report it calls [`SessionCore::next`] until that
//! returns nothing, and then [`SessionCore::poll`] until that has nothing more to do. A core that
//! [is over](SessionCore::is_over) may be dropped.
//!
//! A body ([`Incoming::Head`](crate::Incoming::Head)) is received by the owner: after the head, it
//! submits a buffer of its own for the [`SessionCore::body_due`] bytes and reports
//! [`SessionCore::body_received`]; the core asks for nothing meanwhile. [`SessionCore::lend_ahead`]
//! gives memory for what follows the body, so that one system call takes both. Or the owner
//! receives that into its own memory, too: [`SessionCore::next_ahead`] finds frames there. A chunk of
//! a body ([`LaneEvent`](crate::LaneEvent)) is received in the same way.
//!
//! Invariants
//! - At most one receive and one send of the core are out.
//! - Bytes of a body are never asked for by the core unless the configured read-ahead reaches them.
//! - Of a protocol whose frames have checksums, the owner gets none before its checksum was verified.
//! - The length of a frame is checked against the limits before anything but its header is asked
//!   for, and no memory grows with what a length field says.
//! - What leaves is a sequence of whole frames: a body, and CLOSE, go out only while the core has
//!   the right to send and every frame begun before is sent to its end.
//! - [`Incoming::Closed`](crate::Incoming::Closed) comes once, last.

mod ahead;
mod arrival;
mod checks;
mod ending;
mod frames;
mod handshake;
mod inbound;
mod lanes;
mod outbound;
mod pause;
mod timers;

use std::fmt;
use std::io;
use std::mem;
use std::task::Waker;

use embar_frame::{Now, Protocol};
use embar_transport::ring::{Commit, RecvRing, RecvSpace, SendRing};
use embar_transport::{Mapped, Memory, RecvBuf, SendBuf, Store};

pub use self::arrival::Arrival;
use self::ending::Ending;
pub use self::frames::SESSION_VERSION;
use self::inbound::Input;
pub(crate) use self::lanes::LANE_READ_AHEAD;
pub use self::lanes::LaneBody;
use self::lanes::Lanes;
use self::outbound::Output;
pub use self::timers::Rtt;
use self::timers::Timers;
use crate::config::{
    MAX_GREETING_BYTES, MIN_IDLE_TIMEOUT, MIN_RING_BYTES, RingPools, SendLimits, SessionConfig,
    longest_frame,
};
use crate::reason::Closed;
use crate::sender::{SendError, Sender};

/// What the owner of a core is to do.
#[derive(Debug)]
pub enum Step<M: Memory = Mapped> {
    /// Receive into a buffer; then [`SessionCore::received`].
    Recv(RecvBuf<M>),
    /// Send a buffer; then [`SessionCore::sent`].
    Send(SendBuf<M>),
    /// Nothing more will be sent.
    ShutdownWrite,
    /// Close; buffers that are out come back through [`SessionCore::received`] and
    /// [`SessionCore::sent`].
    Close,
}

/// Where a session is between its first byte and its last.
#[derive(Debug)]
enum State {
    /// The peer's handshake frame is waited for.
    Greeting { connecting: bool },
    /// The peer's HELLO came; the owner has yet to welcome or refuse it.
    Deciding,
    /// Messages go both ways.
    Open,
    /// What is queued is sent, what comes is discarded.
    Ending(Ending),
    /// Closed, or to be closed by the owner.
    Over,
}

/// What a session did so far, and what it holds at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreStats {
    /// Messages and bodies that the owner got.
    pub messages_in: u64,
    /// Messages committed and bodies handed over.
    pub messages_out: u64,
    /// Bytes received, everything included.
    pub bytes_in: u64,
    /// Bytes handed to the connection, everything included.
    pub bytes_out: u64,
    /// Bytes that wait in the send ring, open reservations included.
    pub queued_bytes: usize,
    /// Bytes received that the owner has not seen yet.
    pub unread_bytes: usize,
    /// Bytes of the receive ring that kept messages block.
    pub kept_bytes: usize,
    /// Round trips of PING and PONG.
    pub rtt: Option<Rtt>,
}

/// One session as a state machine, without a socket, a clock or a thread.
///
/// Its owner carries out the [`Step`]s of [`SessionCore::poll`] in order, and reports
/// [`SessionCore::received`] and [`SessionCore::sent`] for each buffer that comes back, and
/// [`SessionCore::tick`] when [`SessionCore::next_tick`] is due. After each report it calls
/// [`SessionCore::next`] until that returns `None`, and then [`SessionCore::poll`] until that does.
pub struct SessionCore<P: Protocol, M: Memory = Mapped> {
    protocol: P,
    config: SessionConfig,
    sender: Sender,
    recv: RecvRing,
    state: State,
    /// The latest time that a call brought along.
    clock: Now,
    input: Input,
    output: Output<M>,
    timers: Timers,
    lanes: Option<Box<Lanes>>,
    /// Room in the send ring without which the owner gets no message.
    reply_room: usize,
    /// How it ended; `closed_shown` once the owner knows.
    closed: Option<Closed>,
    closed_shown: bool,
    /// [`Step::Close`] is to be given out.
    close_due: bool,
}

impl<P: Protocol, M: Memory> SessionCore<P, M> {
    /// The side that connected: says HELLO with the protocol's own `greeting`.
    ///
    /// # Errors
    /// `InvalidInput` for a configuration or greeting that cannot work; else what kept the rings
    /// from being made.
    pub fn connecting(
        protocol: P,
        config: &SessionConfig,
        rings: &RingPools,
        greeting: &[u8],
        now: Now,
    ) -> io::Result<Self> {
        let mut core = Self::new(protocol, config, rings, true, now)?;
        if greeting.len() > MAX_GREETING_BYTES {
            let text = format!(
                "a greeting of {} bytes exceeds {MAX_GREETING_BYTES}: say it in a message",
                greeting.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        core.say_hello(greeting);
        Ok(core)
    }

    /// The side that was connected to: waits for HELLO.
    ///
    /// # Errors
    /// As [`SessionCore::connecting`].
    pub fn accepting(
        protocol: P,
        config: &SessionConfig,
        rings: &RingPools,
        now: Now,
    ) -> io::Result<Self> {
        Self::new(protocol, config, rings, false, now)
    }

    fn new(
        protocol: P,
        config: &SessionConfig,
        rings: &RingPools,
        connecting: bool,
        now: Now,
    ) -> io::Result<Self> {
        let smallest = rings.send.capacity().min(rings.recv.capacity());
        if smallest < MIN_RING_BYTES {
            let text = format!("a ring of {smallest} bytes is too small: use {MIN_RING_BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut config = config.clone();
        let longest = longest_frame(rings.recv.capacity());
        config.max_frame_bytes = config.max_frame_bytes.min(longest);
        config.body_lanes = Lanes::allowed::<P>(&config);
        if !config.idle_timeout.is_zero() {
            config.idle_timeout = config.idle_timeout.max(MIN_IDLE_TIMEOUT);
        }
        Ok(Self {
            protocol,
            sender: Sender::new(SendRing::new(&rings.send)?, P::CHECKED),
            recv: RecvRing::new(&rings.recv)?,
            state: State::Greeting { connecting },
            clock: now,
            input: Input::new(config.read_ahead, now),
            output: Output::new(),
            timers: Timers::new(&config, now),
            lanes: None,
            reply_room: 0,
            closed: None,
            closed_shown: false,
            close_due: false,
            config,
        })
    }

    /// What to do next; call it until there is nothing.
    pub fn poll(&mut self) -> Option<Step<M>> {
        self.release();
        if matches!(self.state, State::Over) {
            if !mem::take(&mut self.close_due) {
                return None;
            }
            return Some(Step::Close);
        }
        if let Some(buf) = self.poll_recv() {
            return Some(Step::Recv(buf));
        }
        self.pay_owed();
        if let Some(buf) = self.poll_send() {
            self.timers.send_began(buf.remaining());
            return Some(Step::Send(buf));
        }
        self.poll_end()
    }

    /// A receive that [`Step::Recv`] asked for is over: 0 means that the peer sends no more.
    pub fn received(&mut self, buf: RecvBuf<M>, result: &io::Result<usize>, now: Now) {
        self.at(now);
        debug_assert!(self.input.receiving, "no receive is out");
        self.input.receiving = false;
        let filled = buf.filled().len();
        if let (Store::Ring(space), _) = buf.into_parts() {
            self.recv.give_back(space, filled);
        }
        self.arrived(filled);
        self.ended_if(result);
    }

    /// A send that [`Step::Send`] asked for is over, or a step of one that [goes in
    /// steps](SendBuf::goes_in_steps): the rest is asked for by the next [`SessionCore::poll`].
    pub fn sent(&mut self, buf: SendBuf<M>, result: &io::Result<()>, now: Now) {
        self.at(now);
        self.sent_buffer(buf, result);
        self.timers
            .send_ended(self.clock, self.has_sent(), self.has_to_take());
    }

    fn at(&mut self, now: Now) {
        self.clock = self.clock.max(now);
    }

    /// Stops or resumes receiving: while held, [`SessionCore::next`] returns nothing but the end,
    /// made by this side or found because the connection is gone. What arrived before that and was
    /// not taken is lost with it. Time in which a core is held does not count against its peer.
    pub fn hold(&mut self, on: bool, now: Now) {
        self.at(now);
        self.input.held = on;
        self.input.idle = on || self.input.stopped;
        self.note_pause();
    }

    /// Gives the peer all of its time anew, for an owner that knows that the peer could not go on for a reason of the owner's.
    pub fn renew_time(&mut self, now: Now) {
        self.at(now);
        self.pass_over(Now(0));
    }

    /// Receives no more but what is on its way, for an owner that is about to
    /// [finish](SessionCore::finish) and has messages left to take: however fast the peer sends, they
    /// come to an end.
    pub fn stop_receiving(&mut self) {
        self.input.stopped = true;
        self.input.idle = true;
    }

    /// Whether receiving is stopped.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.input.held
    }

    /// Whether nothing is received because kept messages block the receive ring. When some are
    /// dropped, poll again: [`SessionCore::on_release`].
    #[must_use]
    pub fn waits_for_release(&self) -> bool {
        self.input.blocked
    }

    /// Bytes of the receive ring that kept messages block.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.recv.pinned()
    }

    /// Wakes `waker` once, when a kept message is dropped. Poll after this call: a drop before it
    /// wakes no task.
    pub fn on_release(&self, waker: Waker) {
        self.recv.on_release(waker);
    }

    /// Changes [`SessionConfig::read_ahead`] for receives to come.
    pub fn set_read_ahead(&mut self, bytes: usize) {
        self.config.read_ahead = bytes;
        self.look_at_lanes();
    }

    /// Sends from this thread and others.
    #[must_use]
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// The ring that frames leave through.
    #[must_use]
    pub fn ring(&self) -> &SendRing {
        self.sender.ring()
    }

    /// As [`Sender::send`]; the next [`SessionCore::poll`] sends it.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send(&mut self, id: u16, message: &impl buffa::Message) -> Result<(), SendError> {
        let _: Commit = self.sender.send(id, message)?;
        Ok(())
    }

    /// As [`Sender::send_view`]; the next [`SessionCore::poll`] sends it.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_view<'v>(
        &mut self,
        id: u16,
        message: &impl buffa::ViewEncode<'v>,
    ) -> Result<(), SendError> {
        let _: Commit = self.sender.send_view(id, message)?;
        Ok(())
    }

    /// As [`Sender::send_with`]; the next [`SessionCore::poll`] sends it.
    ///
    /// # Errors
    /// [`SendError`]; never [`SendError::Encoding`].
    #[inline]
    pub fn send_with(
        &mut self,
        id: u16,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        let _: Commit = self.sender.send_with(id, len, fill)?;
        Ok(())
    }

    /// Bytes of the body at hand that the owner has yet to receive.
    #[must_use]
    pub fn body_due(&self) -> usize {
        self.input.body_due
    }

    /// The owner received `bytes` more bytes of the body.
    ///
    /// # Panics
    /// If fewer are due: they belong to the next frame, which is lost.
    pub fn body_received(&mut self, bytes: usize, now: Now) {
        self.at(now);
        assert!(bytes <= self.input.body_due, "received past the body");
        self.input.body_due -= bytes;
        self.input.body_got += bytes;
        self.input.bytes += bytes as u64;
        self.input.heard_at = self.clock;
        self.heard_of_body(bytes);
        if self.input.body_due == 0 {
            self.input.frame_began = None;
        }
        self.discarded(bytes);
    }

    /// The rest of the body at hand is not wanted: the core receives it itself and forgets it. The
    /// owner must not have a receive out. A core that [is ending](SessionCore::is_ending) with a
    /// body at hand needs this to see the peer's end.
    pub fn discard_body(&mut self, now: Now) {
        self.at(now);
        self.input.skip += mem::take(&mut self.input.body_due);
    }

    /// Memory for up to `max` bytes of what follows the body at hand, to be filled by the same
    /// receive; `None` if there is no room. Whatever comes of it, return it by
    /// [`SessionCore::ahead_received`].
    pub fn lend_ahead(&mut self, max: usize) -> Option<RecvSpace> {
        if self.input.receiving || self.input.body_due == 0 {
            return None;
        }
        self.release();
        self.recv.lend(max)
    }

    /// Takes memory of [`SessionCore::lend_ahead`] back, `bytes` of it filled. Report the body that
    /// came before first.
    ///
    /// # Panics
    /// If some of it is filled and the body is not.
    pub fn ahead_received(&mut self, space: RecvSpace, bytes: usize, now: Now) {
        self.at(now);
        assert!(
            bytes == 0 || self.input.body_due == 0,
            "bytes behind a body that is not there"
        );
        self.recv.give_back(space, bytes);
        self.arrived(bytes);
    }

    /// A receive of the owner's own, for a body, ended with 0 or an error. Report what came before
    /// that first.
    pub fn end_of_stream(&mut self, result: &io::Result<usize>, now: Now) {
        self.at(now);
        self.ended_if(result);
    }

    /// Whether the handshake is over and the end has not begun.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Whether the end has begun, at least.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending(_) | State::Over)
    }

    /// Whether the connection was closed and no buffer of the core is out.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let out = self.input.receiving || self.output.sending;
        matches!(self.state, State::Over) && !self.close_due && !out
    }

    /// How it ended, once that is decided.
    #[must_use]
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// What this end may send; `None` unless open.
    #[must_use]
    pub fn limits(&self) -> Option<SendLimits> {
        self.sender.limits()
    }

    /// The protocol spoken.
    #[must_use]
    pub fn protocol(&self) -> &P {
        &self.protocol
    }

    /// Round trips of PING and PONG, if there was one.
    #[must_use]
    pub fn rtt(&self) -> Option<Rtt> {
        self.timers.rtt
    }

    /// Messages and bytes that came.
    pub(crate) fn received_so_far(&self) -> (u64, u64) {
        (self.input.messages, self.input.bytes)
    }

    /// Figures of this session.
    #[must_use]
    pub fn stats(&self) -> CoreStats {
        CoreStats {
            messages_in: self.input.messages,
            messages_out: self.sender.messages() + self.output.bodies,
            bytes_in: self.input.bytes,
            bytes_out: self.sender.bytes(),
            queued_bytes: self.ring().queued(),
            unread_bytes: self.recv.readable().len() - self.input.shown,
            kept_bytes: self.recv.pinned(),
            rtt: self.timers.rtt,
        }
    }
}

impl<P: Protocol, M: Memory> fmt::Debug for SessionCore<P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionCore")
            .field("protocol", &P::NAME)
            .field("state", &self.state)
            .field("sender", &self.sender)
            .finish_non_exhaustive()
    }
}
