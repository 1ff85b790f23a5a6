//! A connection that was accepted and has not greeted yet, as a state machine: it reads HELLO, and
//! says why there will be no session.
//!
//! Whoever connects gets this much for nothing, so it is little: no ring, and memory for the bytes
//! of a usual HELLO. A longer one gets what its header announces, once that header is a HELLO's.
//!
//! Invariants
//! - At most one receive and one send are out.
//! - A HELLO that this finds good is one that a [`SessionCore`] accepts.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::time::Duration;

use embar_frame::{FRAME_HEADER_BYTES, FrameHeader, Now, Protocol, verify_checksum};
use embar_transport::{Memory, RecvBuf, SendBuf, Store};

use super::checks::Fault;
use super::frames::{OwnId, close_frame, cut};
use super::handshake::{check_sums, read_greeting};
use super::{SessionCore, Step};
use crate::config::{MAX_OWN_FRAME_BYTES, RingPools, SessionConfig};
use crate::reason::{CloseReason, Closed, Side};

/// Room for a usual HELLO and a little more, so that it takes one receive.
const FIRST_BYTES: usize = 128;

/// What a peer that was refused may still send, so that it gets to read why.
const DISCARD_BYTES: usize = 64 << 10;

#[derive(Debug)]
enum State {
    /// HELLO is not there yet.
    Reading,
    /// It is, and it is good.
    Greeted,
    /// The peer learns why there is no session.
    Refusing {
        /// CLOSE, until it is out.
        frame: Vec<u8>,
        said: bool,
        peer_ended: bool,
        discard_left: usize,
    },
    /// Closed, or to be closed by the owner.
    Over,
}

/// An accepted connection until its HELLO is there.
///
/// Its owner carries out the [`Step`]s of [`Arrival::poll`] and reports [`Arrival::received`],
/// [`Arrival::sent`], and [`Arrival::tick`] at [`Arrival::next_tick`]. Once it [has
/// greeted](Arrival::has_greeted), the owner makes a session of it by [`Arrival::session`], or
/// [refuses](Arrival::refuse) it.
pub struct Arrival<P: Protocol> {
    /// What was received, and room for more; away while a receive is out.
    bytes: Vec<u8>,
    got: usize,
    receiving: bool,
    sending: bool,
    /// The peer's HELLO has no checksum.
    greeted_unchecked: bool,
    state: State,
    deadline: Option<Now>,
    linger: Duration,
    closed: Option<Closed>,
    close_due: bool,
    protocol: PhantomData<fn() -> P>,
}

impl<P: Protocol> Arrival<P> {
    /// A connection that was accepted now.
    #[must_use]
    pub fn new(config: &SessionConfig, now: Now) -> Self {
        let timeout = config.hello_timeout;
        Self {
            bytes: Vec::new(),
            got: 0,
            receiving: false,
            sending: false,
            greeted_unchecked: false,
            state: State::Reading,
            deadline: (!timeout.is_zero()).then(|| now.after(timeout)),
            linger: config.linger,
            closed: None,
            close_due: false,
            protocol: PhantomData,
        }
    }

    /// What to do next; call it until there is nothing.
    pub fn poll<M: Memory>(&mut self) -> Option<Step<M>> {
        match &mut self.state {
            State::Reading => {
                if self.receiving {
                    return None;
                }
                let need = self.need();
                Some(self.receive(need))
            }
            State::Greeted => None,
            State::Refusing {
                frame,
                said,
                peer_ended,
                ..
            } => {
                if self.sending {
                    return None;
                }
                if !frame.is_empty() {
                    self.sending = true;
                    return Some(Step::Send(SendBuf::heap(mem::take(frame))));
                }
                if !mem::replace(said, true) {
                    return Some(Step::ShutdownWrite);
                }
                if *peer_ended {
                    self.cut();
                    return self.poll();
                }
                if self.receiving {
                    return None;
                }
                self.got = 0;
                Some(self.receive(0))
            }
            State::Over => mem::take(&mut self.close_due).then_some(Step::Close),
        }
    }

    /// Receives until `need` bytes are there, or as many as take no more memory.
    fn receive<M: Memory>(&mut self, need: usize) -> Step<M> {
        self.receiving = true;
        let mut bytes = mem::take(&mut self.bytes);
        if bytes.len() < need.max(FIRST_BYTES) {
            bytes.resize(need.max(FIRST_BYTES), 0);
        }
        let range = self.got..bytes.len();
        Step::Recv(RecvBuf::heap(bytes, range))
    }

    /// Bytes that are needed to go on, from the first one.
    fn need(&self) -> usize {
        match self.bytes[..self.got].first_chunk() {
            Some(header) => FrameHeader::parse(header).frame_bytes(),
            None => FRAME_HEADER_BYTES,
        }
    }

    /// A receive is over: 0 means that the peer sends no more.
    pub fn received<M: Memory>(&mut self, buf: RecvBuf<M>, result: &io::Result<usize>, now: Now) {
        self.receiving = false;
        let before = self.got;
        self.got = buf.filled().end;
        if let Store::Heap(bytes) = buf.into_store() {
            self.bytes = bytes;
        }
        let ended = !matches!(result, Ok(1..));
        match &mut self.state {
            State::Reading if ended => self.lost(result),
            State::Reading => match self.examine() {
                Ok(true) => self.state = State::Greeted,
                Ok(false) => {}
                Err((reason, text)) => self.refuse(reason, 0, &text, now),
            },
            State::Refusing {
                peer_ended,
                discard_left,
                ..
            } => {
                *peer_ended |= ended;
                *discard_left = discard_left.saturating_sub(self.got - before);
                if *discard_left == 0 {
                    self.cut();
                }
            }
            State::Greeted | State::Over => {}
        }
    }

    /// Whether HELLO is there, and good.
    fn examine(&mut self) -> Result<bool, Fault> {
        let bytes = &self.bytes[..self.got];
        let Some(header) = bytes.first_chunk() else {
            return Ok(false);
        };
        let header = FrameHeader::parse(header);
        let plain = header.without_checksum();
        let content = plain.unwrap_or(header);
        let is_hello = OwnId::of(content.id) == Some(OwnId::Hello) && content.flags == 0;
        if !is_hello || content.length > MAX_OWN_FRAME_BYTES {
            return Err((CloseReason::NotSession, String::new()));
        }
        let end = header.frame_bytes();
        if bytes.len() < end {
            return Ok(false);
        }
        if plain.is_some() {
            let verified = verify_checksum(&bytes[..end]);
            verified.map_err(|error| (CloseReason::Damaged, error.to_string()))?;
        }
        self.greeted_unchecked = plain.is_none();
        let end = FRAME_HEADER_BYTES + content.length as usize;
        read_greeting::<P>(&bytes[FRAME_HEADER_BYTES..end])?;
        check_sums::<P>(plain.is_some())?;
        Ok(true)
    }

    /// A send is over.
    pub fn sent<M: Memory>(&mut self, _: SendBuf<M>, result: &io::Result<()>) {
        self.sending = false;
        if result.is_err() {
            self.cut();
        }
    }

    /// Whether HELLO is still waited for.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        matches!(self.state, State::Reading)
    }

    /// Whether HELLO is there, and the owner has to decide.
    #[must_use]
    pub fn has_greeted(&self) -> bool {
        matches!(self.state, State::Greeted)
    }

    /// The greeting of the peer's own protocol, once its HELLO is there; empty before.
    #[must_use]
    pub fn greeting(&self) -> &[u8] {
        let bytes = &self.bytes[..self.got];
        let Some(header) = bytes.first_chunk().filter(|_| self.has_greeted()) else {
            return &[];
        };
        let header = FrameHeader::parse(header);
        let content = header.without_checksum().unwrap_or(header);
        let end = FRAME_HEADER_BYTES + content.length as usize;
        let greeting = read_greeting::<P>(&bytes[FRAME_HEADER_BYTES..end]);
        greeting.map_or(&[], |view| view.greeting)
    }

    /// Why there is no session, once that is decided.
    #[must_use]
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// When [`Arrival::tick`] wants to be called; ask again after every other call.
    #[must_use]
    pub fn next_tick(&self) -> Option<Now> {
        self.deadline
    }

    /// Acts on what is due.
    pub fn tick(&mut self, now: Now) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.state {
            State::Reading => self.refuse(CloseReason::HelloTimeout, 0, "", now),
            State::Refusing { .. } => self.cut(),
            State::Greeted | State::Over => {}
        }
    }

    /// There will be no session: the peer learns why, and has
    /// [`SessionConfig::linger`](crate::SessionConfig::linger) to read it.
    pub fn refuse(&mut self, reason: CloseReason, code: u32, text: &str, now: Now) {
        if !matches!(self.state, State::Reading | State::Greeted) {
            return;
        }
        let closed = Closed {
            by: Side::Local,
            reason,
            code,
            text: cut(text).to_owned(),
        };
        // Who greets without a checksum is of another version, and would not understand one.
        let frame = close_frame(&closed, P::CHECKED && !self.greeted_unchecked);
        self.closed = Some(closed);
        if self.linger.is_zero() {
            return self.cut();
        }
        self.deadline = Some(now.after(self.linger));
        self.state = State::Refusing {
            frame,
            said: false,
            peer_ended: false,
            discard_left: DISCARD_BYTES,
        };
    }

    /// Closes the connection without a word: the next poll says so.
    pub fn cut(&mut self) {
        if !matches!(self.state, State::Over) {
            self.state = State::Over;
            self.close_due = true;
            self.deadline = None;
        }
    }

    fn lost(&mut self, result: &io::Result<usize>) {
        let reason = match result {
            Ok(_) if self.got == 0 => CloseReason::Disconnected,
            Ok(_) => CloseReason::CutFrame,
            Err(error) => error.into(),
        };
        self.closed = Some(Closed {
            by: Side::Network,
            reason,
            code: 0,
            text: String::new(),
        });
        self.cut();
    }

    /// The session of a connection that [has greeted](Arrival::has_greeted): its core gives out
    /// [`Incoming::Opened`](crate::Incoming::Opened) next.
    ///
    /// # Errors
    /// As [`SessionCore::connecting`]; the connection can still be refused.
    ///
    /// # Panics
    /// If it has not greeted.
    pub fn session<M: Memory>(
        &self,
        protocol: P,
        config: &SessionConfig,
        rings: &RingPools,
        now: Now,
    ) -> io::Result<SessionCore<P, M>> {
        assert!(self.has_greeted(), "no session before HELLO");
        let mut core = SessionCore::accepting(protocol, config, rings, now)?;
        core.keep_ahead(&self.bytes[..self.got], now);
        Ok(core)
    }
}

impl<P: Protocol> fmt::Debug for Arrival<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrival")
            .field("state", &self.state)
            .field("got", &self.got)
            .finish_non_exhaustive()
    }
}
