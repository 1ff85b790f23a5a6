//! The handshake: the end that connected sends HELLO, and the other one answers with WELCOME, or
//! refuses.
//!
//! A peer announces numbers in it. Whatever they are, they do little to this end: the peer's limits
//! only lower what this end sends, and its idle timeout draws at most three PINGs in
//! [`MIN_IDLE_TIMEOUT`](crate::MIN_IDLE_TIMEOUT). This end allocates nothing because of them.

use std::time::Duration;

use embar_frame::{FRAME_HEADER_BYTES, FrameHeader, Now, Protocol};
use embar_transport::Memory;

use super::checks::Fault;
use super::frames::{MAGIC, OwnId, put, read, read_close};
use super::inbound::Found;
use super::lanes::Lanes;
use super::{SESSION_VERSION, SessionCore, State};
use crate::config::{MAX_GREETING_BYTES, SendLimits, longest_frame};
use crate::proto::GreetingView;
use crate::reason::CloseReason;
use crate::sender::SendError;

impl<P: Protocol, M: Memory> SessionCore<P, M> {
    fn greet(&mut self, id: OwnId, greeting: &[u8]) -> bool {
        let idle = self.config.idle_timeout.as_millis();
        let view = GreetingView {
            magic: MAGIC,
            session_version: SESSION_VERSION,
            protocol: P::NAME,
            protocol_version: P::VERSION,
            max_frame_bytes: self.config.max_frame_bytes,
            max_body_bytes: self.config.max_body_bytes,
            idle_timeout_ms: u32::try_from(idle).unwrap_or(u32::MAX),
            greeting,
            body_lanes: self.config.body_lanes.into(),
            lane_window_bytes: match self.config.body_lanes {
                0 => 0,
                _ => self.config.lane_window_bytes,
            },
        };
        put(&self.sender, id, &view)
    }

    pub(super) fn say_hello(&mut self, greeting: &[u8]) {
        let said = self.greet(OwnId::Hello, greeting);
        assert!(said, "an empty ring holds a greeting");
    }

    /// Takes the peer in, after [`Incoming::Opened`](crate::Incoming::Opened) on an accepting core;
    /// `greeting` is the protocol's own part of the answer. The session is open then.
    ///
    /// # Errors
    /// [`SendError::TooLong`] for a greeting above [`MAX_GREETING_BYTES`]; [`SendError::Closed`] if
    /// the session has ended meanwhile, or is not waiting for this.
    pub fn welcome(&mut self, greeting: &[u8], now: Now) -> Result<(), SendError> {
        self.at(now);
        if !matches!(self.state, State::Deciding) {
            return Err(SendError::Closed);
        }
        if greeting.len() > MAX_GREETING_BYTES {
            return Err(SendError::TooLong {
                bytes: greeting.len(),
                max: MAX_GREETING_BYTES as u32,
            });
        }
        let said = self.greet(OwnId::Welcome, greeting);
        assert!(said, "nothing else is sent before the welcome");
        self.open();
        Ok(())
    }

    /// Does not take the peer in, or ends a session that is open: the peer gets the protocol's
    /// own `code` and a text, and the connection closes politely.
    pub fn refuse(&mut self, code: u32, text: &str, now: Now) {
        self.at(now);
        self.end_with(CloseReason::Refused, code, text);
    }

    /// Reads the peer's HELLO or WELCOME, whose content is that part of what is readable.
    pub(super) fn greeted(&mut self, body_at: usize, body_end: usize) -> Result<(), Fault> {
        let body = &self.recv.readable()[body_at..body_end];
        let view = read_greeting::<P>(body)?;
        let ours = longest_frame(self.ring().capacity());
        let lanes = view.body_lanes.min(self.config.body_lanes.into()) as u8;
        self.lanes = Lanes::new(lanes, &self.config, view.lane_window_bytes);
        self.output.limits = SendLimits {
            max_frame_bytes: view.max_frame_bytes.min(ours),
            max_body_bytes: view.max_body_bytes,
            body_lanes: lanes,
        };
        let idle = Duration::from_millis(view.idle_timeout_ms.into());
        self.timers.peer_is_patient_for(idle);
        Ok(())
    }

    /// The peer's HELLO or WELCOME at the front of the ring.
    pub(super) fn find_greeting(&mut self, connecting: bool) -> Found {
        let readable = self.recv.readable();
        let Some(header) = readable.first_chunk() else {
            return self.incomplete(FRAME_HEADER_BYTES);
        };
        let header = FrameHeader::parse(header);
        let end = header.frame_bytes();
        let have = readable.len();
        let expected = if connecting {
            OwnId::Welcome
        } else {
            OwnId::Hello
        };
        // Whether there are checksums is known when it is known what the peer speaks.
        let plain = header.without_checksum();
        let id = match self.check_greeting(plain.unwrap_or(header)) {
            Ok(id) if id == expected || (connecting && id == OwnId::Close) => id,
            _ => return self.fault((CloseReason::NotSession, String::new())),
        };
        if have < end {
            return self.incomplete(end);
        }
        if plain.is_some()
            && let Err(fault) = self.verify_checksum(end)
        {
            return self.fault(fault);
        }
        self.input.greeted_unchecked = plain.is_none();
        let end = FRAME_HEADER_BYTES + plain.unwrap_or(header).length as usize;
        if id == OwnId::Close {
            let closed = read_close(&self.recv.readable()[FRAME_HEADER_BYTES..end]);
            return match closed {
                Ok(closed) => {
                    self.over(closed);
                    self.nothing()
                }
                Err(_) => self.fault((CloseReason::NotSession, String::new())),
            };
        }
        if let Err(fault) = self.greeted(FRAME_HEADER_BYTES, end) {
            return self.fault(fault);
        }
        if let Err(fault) = check_sums::<P>(plain.is_some()) {
            return self.fault(fault);
        }
        if connecting {
            self.open();
        } else {
            self.state = State::Deciding;
        }
        Found::Own { id, end }
    }

    pub(super) fn open(&mut self) {
        let limits = self.output.limits;
        let ring = self.ring().capacity();
        self.reply_room = self.config.reply_room_in(ring, &limits);
        self.state = State::Open;
        self.pass_over(Now(0));
        self.sender.open(limits, self.reply_room);
    }
}

/// Reads the content of a HELLO or WELCOME whose sender can have a session of this protocol.
pub(super) fn read_greeting<P: Protocol>(content: &[u8]) -> Result<GreetingView<'_>, Fault> {
    let bad = |_| (CloseReason::NotSession, String::new());
    let view: GreetingView<'_> = read(content).map_err(bad)?;
    if view.magic != MAGIC {
        return Err((CloseReason::NotSession, String::new()));
    }
    if view.session_version != SESSION_VERSION {
        let text = format!(
            "this end has version {SESSION_VERSION} of the session layer, the peer {}",
            view.session_version
        );
        return Err((CloseReason::SessionVersion, text));
    }
    if view.protocol != P::NAME || view.protocol_version != P::VERSION {
        let (theirs, version) = (view.protocol, view.protocol_version);
        let text = format!(
            "this end speaks {} version {}, the peer {:?} version {version}",
            P::NAME,
            P::VERSION,
            super::frames::cut(theirs),
        );
        return Err((CloseReason::Protocol, text));
    }
    if view.greeting.len() > MAX_GREETING_BYTES {
        return Err((CloseReason::BadFrame, "the greeting is too long".into()));
    }
    Ok(view)
}

/// Whether a greeting has a checksum where its protocol wants one, and none where it does not.
pub(super) fn check_sums<P: Protocol>(has_checksum: bool) -> Result<(), Fault> {
    if P::CHECKED == has_checksum {
        return Ok(());
    }
    let text = "a greeting with a checksum where there is none, or without one";
    Err((CloseReason::Damaged, text.into()))
}
