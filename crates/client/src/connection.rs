//! One connection of a core: a session that speaks the log's protocol, from connecting to its end.
//!
//! No socket and no clock is in here. The owner of a [`Connection`] calls [`Connection::connect`]; [`Connection::connected`] once the
//! driver says so; then [`Connection::received`], [`Connection::sent`] and [`Connection::tick`] for what happens, and after each of these
//! [`Connection::next`] until there is nothing more. [`Connection::poll`] says what the driver shall do, in order. However a connection
//! ends, its last call is [`Connection::disconnected`], which the driver makes when it holds no buffer of the connection any more;
//! before that the connection cannot be connected again.
//!
//! Invariants:
//! - At most one receive and one send are with the driver, the payload that an owner receives by itself included.
//! - Batches are handed over only while no send is with the driver, so the next send that ends carries them.

mod error;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use embar_frame::{CHECKSUM_BYTES, FRAME_HEADER_BYTES, Now};
use embar_memory::Buffer;
use embar_session::{CloseReason, Closed, MIN_IDLE_TIMEOUT, RingPools, SessionConfig, Step};
use embar_transport::ring::RecvSpace;
use embar_transport::{Address, Body, RecvBuf, SendBuf};
use embar_wire::ack::Ack;
use embar_wire::batch::BatchHeader;
use embar_wire::control::{self, Control, Hello, Role, Welcome};
use embar_wire::error::DecodeError;
use embar_wire::frame::{FrameId, LogProtocol};
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_ACK_BYTES, MAX_BATCH_BYTES, MAX_CONTROL_BYTES};

pub(crate) use self::error::refusal_of;
pub use self::error::{ConnectionError, Violation};

/// How long a broker has to answer before its connection counts as dead.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest name of a client: it travels in the handshake.
pub(crate) const MAX_NAME_BYTES: usize = 1024;
/// A connection that is idle says so this often within the time after which its peer would be given up.
const HEARTBEATS_PER_IDLE_TIMEOUT: u32 = 3;
/// Rings whose memory a client keeps for connections to come.
const IDLE_RINGS: usize = 2;

/// Answers on a control connection: lists of topics are the longest.
const CONTROL_RECV_BYTES: usize = 256 << 10;
/// Acks.
const PUBLISH_RECV_BYTES: usize = 64 << 10;
/// Headers of batches, and runs of small batches.
const SUBSCRIBE_RECV_BYTES: usize = 512 << 10;
/// Requests. Batches do not go through the ring.
const SEND_BYTES: usize = 16 << 10;

/// What a frame has beside its content.
const FRAME_BYTES: usize = FRAME_HEADER_BYTES + CHECKSUM_BYTES;

const _: () = {
    assert!(MAX_CONTROL_BYTES as usize + FRAME_BYTES <= CONTROL_RECV_BYTES);
    assert!(MAX_ACK_BYTES as usize + FRAME_BYTES <= PUBLISH_RECV_BYTES);
    assert!(MAX_NAME_BYTES + 64 <= embar_session::MAX_GREETING_BYTES);
};

/// Names one channel of a core: number 0 to whichever broker answers requests, each other one to one data broker for
/// good. A channel has one connection at a time, and gets a new one when that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u32);

impl ChannelId {
    /// The channel for metadata and topics.
    pub const CONTROL: Self = Self(0);

    /// The channel to a data broker with this index among those of a core.
    pub(crate) fn of_data(index: usize) -> Self {
        Self(index as u32 + 1)
    }

    /// Its index among the channels to data brokers; `None` for the control channel.
    pub(crate) fn data_index(self) -> Option<usize> {
        self.index().checked_sub(1)
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// What the driver shall do for a connection.
#[derive(Debug)]
pub enum ConnectionAction {
    /// Connect to the address, then call `connected` or `disconnected`.
    Connect(Address),
    /// Receive into the buffer, then hand it to `received`.
    Receive(RecvBuf),
    /// Send the buffer, then hand it to `sent`.
    Send(SendBuf),
    /// Nothing more will be sent. Receiving goes on.
    ShutdownWrite,
    /// Close, drop the buffers that come back, then call `disconnected`.
    Close,
}

/// What came in.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// The handshake is over; comes first, and once.
    Welcome(Welcome),
    /// Batches were acknowledged.
    Ack(Ack<'a>),
    /// A batch begins. Its owner receives what is missing of the payload.
    Batch {
        /// Its header, checked.
        header: BatchHeader,
        /// The start of the payload.
        early: &'a [u8],
    },
    /// Anything else that is not a batch.
    Control(Control),
    /// The broker ends soon and wants nothing new.
    Goodbye,
    /// Something that means nothing to a client.
    Nothing,
    /// The session is over. Comes last, and once.
    Closed(Closed),
}

/// What several connections of a client have in common. Cheap to clone.
#[derive(Clone)]
pub struct ConnectionSettings {
    hello: Arc<[u8]>,
    config: SessionConfig,
    rings: RingPools,
}

impl ConnectionSettings {
    /// For requests and their answers. `name` goes into the broker's log.
    pub fn control(name: &str) -> Self {
        Self::new(name, CONTROL_RECV_BYTES, usize::MAX, Duration::ZERO)
    }

    /// For batches out and acks in.
    pub fn publishing(name: &str, idle_timeout: Duration) -> Self {
        Self::new(name, PUBLISH_RECV_BYTES, usize::MAX, idle_timeout)
    }

    /// For batches in. No byte of a payload is asked for before its header is known, unless
    /// [`Connection::read_ahead`] says otherwise.
    pub fn subscribing(name: &str, idle_timeout: Duration) -> Self {
        Self::new(name, SUBSCRIBE_RECV_BYTES, BATCH_HEADER_BYTES, idle_timeout)
    }

    /// With an `idle_timeout` of zero there is no limit, and there are no heartbeats. No other is shorter than
    /// [`MIN_IDLE_TIMEOUT`].
    fn new(name: &str, recv_bytes: usize, read_ahead: usize, idle_timeout: Duration) -> Self {
        let hello = Hello {
            role: Role::Client,
            name: name.to_string(),
        };
        Self {
            hello: hello.to_greeting().into(),
            config: SessionConfig::default().with(|config| {
                // As much as the rings hold.
                config.max_frame_bytes = u32::MAX;
                config.max_body_bytes = MAX_BATCH_BYTES;
                // Batches of a broker that sends so slowly come sooner by another connection.
                config.min_body_rate = 0;
                limit_silence(config, idle_timeout);
                // Owners have a limit for all of what opening takes.
                config.hello_timeout = Duration::ZERO;
                // Nothing here holds a reservation.
                config.reservation_timeout = Duration::ZERO;
                config.read_ahead = read_ahead;
            }),
            rings: RingPools::new(SEND_BYTES, recv_bytes, IDLE_RINGS)
                .expect("the sizes are powers of two of several pages"),
        }
    }
}

fn limit_silence(config: &mut SessionConfig, idle_timeout: Duration) {
    let idle_timeout = match idle_timeout.is_zero() {
        true => Duration::ZERO,
        false => idle_timeout.max(MIN_IDLE_TIMEOUT),
    };
    config.keep_alive = idle_timeout / HEARTBEATS_PER_IDLE_TIMEOUT;
    config.idle_timeout = idle_timeout;
}

impl fmt::Debug for ConnectionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionSettings")
            .field("rings", &self.rings)
            .finish_non_exhaustive()
    }
}

type Session = embar_session::SessionCore<LogProtocol>;

#[derive(Debug)]
enum State {
    /// Not connected, and nothing with the driver.
    Down,
    Connecting,
    /// From the handshake on, until the driver says that nothing of it is left.
    Session(Box<Session>),
    /// Told to close before there was a session.
    Closing,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Connection {
    settings: ConnectionSettings,
    state: State,
    /// Welcome was seen.
    welcomed: bool,
    /// A send is with the driver.
    sending: bool,
    /// Asked of the session already, and not yet taken by the driver.
    next: Option<ConnectionAction>,
}

impl Connection {
    /// A connection that is down.
    pub fn new(settings: ConnectionSettings) -> Self {
        Self {
            settings,
            state: State::Down,
            welcomed: false,
            sending: false,
            next: None,
        }
    }

    /// From the next session on, the broker may be silent for so long. Zero: for ever.
    pub fn set_idle_timeout(&mut self, idle_timeout: Duration) {
        limit_silence(&mut self.settings.config, idle_timeout);
    }

    /// True if [`Connection::connect`] may be called.
    pub fn is_down(&self) -> bool {
        matches!(self.state, State::Down)
    }

    /// True once the handshake is over and until the connection ends.
    #[cfg(test)]
    pub fn is_up(&self) -> bool {
        self.welcomed && self.session().is_some_and(Session::is_open)
    }

    /// True if the connection ends and is not down yet.
    pub fn is_closing(&self) -> bool {
        match &self.state {
            State::Session(session) => session.is_ending(),
            state => matches!(state, State::Closing),
        }
    }

    fn session(&self) -> Option<&Session> {
        match &self.state {
            State::Session(session) => Some(session),
            _ => None,
        }
    }

    fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.state {
            State::Session(session) => Some(session),
            _ => None,
        }
    }

    /// Starts to connect.
    ///
    /// # Panics
    /// If the connection is not down.
    pub fn connect(&mut self, address: Address) {
        assert!(
            self.is_down(),
            "a connection is connected again only after it is down"
        );
        self.state = State::Connecting;
        self.next = Some(ConnectionAction::Connect(address));
    }

    /// The connection stands: begins the handshake.
    ///
    /// # Errors
    /// [`ConnectionError::Memory`] if there is none for a session; the connection closes.
    pub fn connected(&mut self, now: Now) -> Result<(), ConnectionError> {
        if !matches!(self.state, State::Connecting) {
            return Ok(());
        }
        let ConnectionSettings {
            hello,
            config,
            rings,
        } = &self.settings;
        match Session::connecting(LogProtocol::default(), config, rings, hello, now) {
            Ok(session) => {
                self.state = State::Session(Box::new(session));
                Ok(())
            }
            Err(error) => {
                self.cut();
                Err(ConnectionError::Memory(error.into()))
            }
        }
    }

    /// Sends a request. Nothing happens if the connection is not up: its owner hears of that anyway.
    ///
    /// # Errors
    /// If the peer takes no frame of that size.
    pub fn send(&mut self, request: &Control) -> Result<(), Violation> {
        let Some(session) = self.session_mut().filter(|session| session.is_open()) else {
            return Ok(());
        };
        // Names are bounded before they get here.
        let len = control::body_len(request).expect("requests are small");
        let sent = session.send_with(request.id() as u16, len, |out| {
            control::encode_body(request, out).expect("its length was computed just now");
        });
        sent.map_err(|error| error.to_string().into())
    }

    /// Whether [`Connection::send_batches`] may be called.
    pub fn may_send_batch(&self) -> bool {
        !self.sending && self.welcomed && self.session().is_some_and(Session::may_send_body)
    }

    /// Sends whole batch frames, at most [`PIECES_MAX`](embar_transport::buffer::PIECES_MAX), one behind the other. The next
    /// [`Connection::sent`] that reports no error says that they were handed over, and that no reference to them is left.
    ///
    /// # Panics
    /// Unless [`Connection::may_send_batch`].
    pub fn send_batches(&mut self, mut frames: impl ExactSizeIterator<Item = Arc<Buffer>>) {
        assert!(self.may_send_batch(), "one send at a time");
        let Some(session) = self.session_mut() else {
            return;
        };
        let body = match frames.len() {
            1 => Body::Shared(frames.next().expect("there is one")),
            _ => {
                let mut pieces = session.pieces();
                frames.for_each(|frame| pieces.push_frame(frame));
                Body::Pieces(pieces)
            }
        };
        session.send_body(Vec::new(), body);
    }

    /// A receive of [`Connection::poll`] is over; 0 bytes mean that the peer sends no more.
    pub fn received(&mut self, buf: RecvBuf, result: &io::Result<usize>, now: Now) {
        if let Some(session) = self.session_mut() {
            session.received(buf, result, now);
        }
    }

    /// A send of [`Connection::poll`] is over.
    pub fn sent(&mut self, buf: SendBuf, result: &io::Result<()>, now: Now) {
        self.sending = false;
        if let Some(session) = self.session_mut() {
            session.sent(buf, result, now);
        }
    }

    /// The peer has all of its time anew.
    pub fn renew_time(&mut self, now: Now) {
        if let Some(session) = self.session_mut() {
            session.renew_time(now);
        }
    }

    /// Stops or resumes receiving, so that the owner may leave frames unread. Time in which a connection is held counts
    /// against nobody.
    pub fn hold(&mut self, on: bool, now: Now) {
        if let Some(session) = self.session_mut() {
            session.hold(on, now);
        }
    }

    /// Whether a receive into the ring takes as much as there is room for, or no more than the next header: then no byte of a
    /// payload goes through the ring.
    pub fn read_ahead(&mut self, much: bool) {
        let bytes = if much { usize::MAX } else { BATCH_HEADER_BYTES };
        if let Some(session) = self.session_mut() {
            session.set_read_ahead(bytes);
        }
    }

    /// Most bytes behind the payload at hand that the owner may receive with it, into memory of its own.
    pub fn ahead_room(&mut self) -> usize {
        self.session_mut().map_or(0, Session::ahead_room)
    }

    /// The header of the batch that `bytes` begin with, if it is there as a whole. `bytes` came behind the payload that was
    /// reported last, and behind the batches that this call returned since. The rest is for [`Connection::keep_ahead`].
    ///
    /// # Errors
    /// What the peer did wrong; [`Connection::fail`] then.
    pub fn next_ahead(&mut self, bytes: &[u8], now: Now) -> Result<Option<BatchHeader>, Violation> {
        let Some(session) = self.session_mut() else {
            return Ok(None);
        };
        let head = session.next_ahead(bytes, now);
        Ok(head.map(|head| batch_header(&head)).transpose()?)
    }

    /// What came behind a payload and was not taken there comes by [`Connection::next`].
    pub fn keep_ahead(&mut self, bytes: &[u8], now: Now) {
        if let Some(session) = self.session_mut() {
            session.keep_ahead(bytes, now);
        }
    }

    /// Room for the beginning of what follows the payload at hand, so that one receive takes both; it goes back by
    /// [`Connection::ahead_received`].
    pub fn lend_ahead(&mut self) -> Option<RecvSpace> {
        self.session_mut()?.lend_ahead(BATCH_HEADER_BYTES)
    }

    /// Takes back the batch that [`Connection::next`] returned last, before anything else is asked: it comes again.
    pub fn put_back(&mut self) {
        if let Some(session) = self.session_mut() {
            session.put_back();
        }
    }

    /// The owner received `bytes` bytes of the payload at hand.
    pub fn payload_received(&mut self, bytes: usize, now: Now) {
        if let Some(session) = self.session_mut() {
            session.body_received(bytes, now);
        }
    }

    /// Takes the room of [`Connection::lend_ahead`] back, `bytes` of it filled.
    pub fn ahead_received(&mut self, space: RecvSpace, bytes: usize, now: Now) {
        if let Some(session) = self.session_mut() {
            session.ahead_received(space, bytes, now);
        }
    }

    /// A receive for the payload is over; what came is reported.
    pub fn payload_ended(&mut self, result: &io::Result<usize>, now: Now) {
        if let Some(session) = self.session_mut() {
            session.end_of_stream(result, now);
        }
    }

    /// The owner does not want the rest of the payload at hand, and receives nothing of it any more.
    pub fn discard_payload(&mut self, now: Now) {
        if let Some(session) = self.session_mut() {
            session.discard_body(now);
        }
    }

    /// What happened next. Call it until there is nothing.
    ///
    /// # Errors
    /// What the peer did wrong; [`Connection::fail`] then.
    pub fn next(&mut self, now: Now) -> Result<Option<Incoming<'_>>, Violation> {
        let State::Session(session) = &mut self.state else {
            return Ok(None);
        };
        let Some(incoming) = session.next(now) else {
            return Ok(None);
        };
        let read = match incoming {
            embar_session::Incoming::Opened { greeting } => {
                self.welcomed = true;
                let welcome = Welcome::from_greeting(greeting);
                welcome.map(Incoming::Welcome).map_err(DecodeError::from)
            }
            embar_session::Incoming::Message(message) => read_message(message),
            embar_session::Incoming::Head(head) => read_head(head),
            embar_session::Incoming::Goodbye { .. } => Ok(Incoming::Goodbye),
            // The log's frames have checksums, so its bodies come in one piece.
            embar_session::Incoming::Status
            | embar_session::Incoming::StatusReply { .. }
            | embar_session::Incoming::Lane(_) => Ok(Incoming::Nothing),
            embar_session::Incoming::Closed(closed) => Ok(Incoming::Closed(closed)),
        };
        Ok(Some(read?))
    }

    /// Ends the connection in good order: what was handed over is sent, the peer is told, and has a second to close.
    pub fn finish(&mut self, now: Now) {
        self.end(|session| session.finish(now));
    }

    /// As [`Connection::finish`], because of what the peer did wrong, which it is told.
    pub fn fail(&mut self, violation: &Violation, now: Now) {
        let text = violation.to_string();
        self.end(|session| session.fail(CloseReason::BadMessage, &text, now));
    }

    /// Ends the connection at once: nothing more is sent.
    pub fn cut(&mut self) {
        self.end(|session| session.close(CloseReason::Finished, ""));
    }

    /// Nothing happens if the connection is down or ends already.
    fn end(&mut self, end: impl FnOnce(&mut Session)) {
        match &mut self.state {
            State::Down | State::Closing => {}
            State::Connecting if matches!(self.next, Some(ConnectionAction::Connect(_))) => {
                // The driver never heard of it.
                self.disconnected();
            }
            State::Connecting => {
                self.state = State::Closing;
                self.next = Some(ConnectionAction::Close);
            }
            State::Session(session) => end(session),
        }
    }

    /// The connection is gone, or never came to be, and the driver holds nothing of it.
    pub fn disconnected(&mut self) {
        self.state = State::Down;
        self.welcomed = false;
        self.sending = false;
        self.next = None;
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now) {
        if let Some(session) = self.session_mut() {
            session.tick(now);
        }
    }

    /// When [`Connection::tick`] wants to be called.
    pub fn next_tick(&self) -> Option<Now> {
        self.session()?.next_tick()
    }

    /// Whether [`Connection::poll`] would return something.
    pub fn has_action(&mut self) -> bool {
        if self.next.is_none() {
            self.next = self.poll_session();
        }
        self.next.is_some()
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<ConnectionAction> {
        self.next.take().or_else(|| self.poll_session())
    }

    /// The send that is to be made next, out of turn: a receive that comes before it is left to [`Connection::poll`].
    pub fn poll_send(&mut self) -> Option<SendBuf> {
        let is_open = self.session().is_some_and(Session::is_open);
        if !is_open || !self.has_action() {
            return None;
        }
        let send = |it: &mut ConnectionAction| matches!(it, ConnectionAction::Send(_));
        match self.next.take_if(send).or_else(|| self.poll_session())? {
            ConnectionAction::Send(buf) => Some(buf),
            other => unreachable!("an open session asks for one receive, and {other:?}"),
        }
    }

    fn poll_session(&mut self) -> Option<ConnectionAction> {
        Some(match self.session_mut()?.poll()? {
            Step::Recv(buf) => ConnectionAction::Receive(buf),
            Step::Send(buf) => {
                self.sending = true;
                ConnectionAction::Send(buf)
            }
            Step::ShutdownWrite => ConnectionAction::ShutdownWrite,
            Step::Close => ConnectionAction::Close,
        })
    }
}

fn read_message(message: embar_session::Message<'_>) -> Result<Incoming<'_>, DecodeError> {
    Ok(match FrameId::try_from(message.id())? {
        FrameId::Ack => Incoming::Ack(Ack::parse(message.payload())?),
        id => Incoming::Control(control::decode(id, message.payload())?),
    })
}

fn read_head(head: embar_session::Head<'_>) -> Result<Incoming<'_>, DecodeError> {
    Ok(Incoming::Batch {
        header: batch_header(&head)?,
        early: head.early(),
    })
}

fn batch_header(head: &embar_session::Head<'_>) -> Result<BatchHeader, DecodeError> {
    let mut bytes = [0; BATCH_HEADER_BYTES];
    let (frame, rest) = bytes.split_at_mut(FRAME_HEADER_BYTES);
    frame.copy_from_slice(&head.header().to_bytes());
    rest.copy_from_slice(head.head());
    Ok(BatchHeader::parse(&bytes, MAX_BATCH_BYTES)?)
}

#[cfg(test)]
mod tests;
