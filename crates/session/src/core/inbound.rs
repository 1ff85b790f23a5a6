//! The receiving half of a session's core: says how many bytes to receive next and where, cuts what
//! came into frames, and shows them to the owner.
//!
//! Invariants
//! - `shown` bytes at the front of the ring are what the owner sees, and are released by the next
//!   call; while they are there, nothing else of the ring is released.
//! - `need` is what the frame at hand takes to be shown, counted from its start; as long as that
//!   many bytes are there, nothing is asked for.
//! - `body_due` and `skip` are bytes of the frame shown last; while any are due, the ring holds none
//!   of them (`body_due`) or nothing else is looked at (`skip`).

use std::io;
use std::mem;

use embar_frame::{FIRST_RESERVED_ID, FRAME_HEADER_BYTES, FrameHeader, Now, Protocol, Shape};
use embar_transport::{Memory, RecvBuf};

use super::checks::{Fault, checksum_bytes, content_of};
use super::frames::{CHUNK_AT, OwnId, read, read_close};
use super::{SessionCore, State};
use crate::incoming::{Head, Incoming, LaneEvent, Message};
use crate::proto::{GreetingView, PingView};
use crate::reason::{CloseReason, Side};
use crate::redirect::Goodbye;

/// Size of the buffer for what is discarded when kept messages block the ring.
const DISCARD_BUFFER_BYTES: usize = 16 << 10;

/// Where the framer is.
#[derive(Debug)]
pub(super) struct Input {
    /// A receive of the core is out.
    pub receiving: bool,
    pub held: bool,
    /// No more is to be received while the session is open.
    pub stopped: bool,
    /// It is held, or it was stopped.
    pub idle: bool,
    /// [`SessionConfig::read_ahead`](crate::SessionConfig::read_ahead), or less while chunks come.
    pub read_ahead: usize,
    /// The send ring had no room for a reply.
    pub lacks_room: bool,
    /// Kept messages leave no room to receive into.
    pub blocked: bool,
    /// Since when it is held, lacks room, or is blocked.
    pub paused_at: Option<Now>,
    pub shown: usize,
    /// Bytes at the end of what is shown that belong to a body.
    early: usize,
    /// Of the body shown last, to be taken back by `put_back`.
    shown_body: usize,
    shown_message: bool,
    pub need: usize,
    pub body_due: usize,
    /// Bytes of that body that have come since its head.
    pub body_got: usize,
    pub skip: usize,
    /// When the first byte of the frame at hand came.
    pub frame_began: Option<Now>,
    /// When bytes came last, or receiving began again.
    pub heard_at: Now,
    /// The peer's greeting had no checksum.
    pub greeted_unchecked: bool,
    /// The stream is over, and how.
    pub end: Option<CloseReason>,
    pub messages: u64,
    pub bytes: u64,
}

impl Input {
    pub fn new(read_ahead: usize, now: Now) -> Self {
        Self {
            receiving: false,
            held: false,
            stopped: false,
            idle: false,
            read_ahead,
            lacks_room: false,
            blocked: false,
            paused_at: None,
            shown: 0,
            early: 0,
            shown_body: 0,
            shown_message: false,
            need: FRAME_HEADER_BYTES,
            body_due: 0,
            body_got: 0,
            skip: 0,
            frame_began: None,
            heard_at: now,
            greeted_unchecked: false,
            end: None,
            messages: 0,
            bytes: 0,
        }
    }
}

/// What the ring begins with; ranges are offsets into what is readable. Headers are those of frames
/// without a checksum; one that had one was verified.
pub(super) enum Found {
    Nothing,
    Message {
        header: FrameHeader,
    },
    Head {
        header: FrameHeader,
        at: usize,
        head_end: usize,
        early_end: usize,
    },
    Own {
        id: OwnId,
        end: usize,
    },
    Chunk {
        lane: u8,
        len: usize,
        early_end: usize,
    },
    /// What the owner does not get; look again.
    Skipped,
    Closed,
}

impl<P: Protocol, M: Memory> SessionCore<P, M> {
    /// What happened next. Call it until there is nothing, after every report to the core.
    ///
    /// What it shows is released by the next call of the core, whichever it is.
    #[inline]
    pub fn next(&mut self, now: Now) -> Option<Incoming<'_>> {
        self.at(now);
        self.release();
        match self.find() {
            Found::Message { header } => {
                let end = FRAME_HEADER_BYTES + header.length as usize;
                self.input.shown = end + checksum_bytes::<P>();
                self.input.shown_message = true;
                self.input.need = FRAME_HEADER_BYTES;
                self.input.frame_began = None;
                self.input.messages += 1;
                Some(Incoming::Message(Message {
                    header,
                    payload: &self.recv.readable()[FRAME_HEADER_BYTES..end],
                    ring: &self.recv,
                    start: FRAME_HEADER_BYTES,
                    max_kept_bytes: self.config.max_kept_bytes,
                }))
            }
            Found::Nothing => None,
            other => self.show(other),
        }
    }

    /// The rare kinds.
    #[cold]
    fn show(&mut self, found: Found) -> Option<Incoming<'_>> {
        match found {
            Found::Nothing | Found::Message { .. } | Found::Skipped => None,
            Found::Chunk {
                lane,
                len,
                early_end,
            } => {
                self.shown_of_body(CHUNK_AT, len, early_end);
                Some(Incoming::Lane(LaneEvent::Chunk {
                    lane,
                    len,
                    early: &self.recv.readable()[CHUNK_AT..early_end],
                }))
            }
            Found::Head {
                header,
                at,
                head_end,
                early_end,
            } => {
                let body = FRAME_HEADER_BYTES + header.length as usize - head_end;
                self.input.shown_message = true;
                self.input.messages += 1;
                if let Some(lanes) = &mut self.lanes {
                    lanes.in_chunk = false;
                }
                self.shown_of_body(head_end, body, early_end);
                self.input.shown_body = self.input.body_due;
                let bytes = self.recv.readable();
                Some(Incoming::Head(Head {
                    header,
                    head: &bytes[at..head_end],
                    body,
                    early: &bytes[head_end..early_end],
                }))
            }
            Found::Own { id, end } => {
                self.input.shown = end + checksum_bytes::<P>();
                self.input.need = FRAME_HEADER_BYTES;
                self.input.frame_began = None;
                let body = &self.recv.readable()[FRAME_HEADER_BYTES..end];
                match id {
                    OwnId::Hello | OwnId::Welcome => {
                        let view: GreetingView<'_> = read(body).ok()?;
                        let greeting = view.greeting;
                        Some(Incoming::Opened { greeting })
                    }
                    OwnId::Goodbye => Some(Incoming::Goodbye(Goodbye::of(&read(body).ok()?))),
                    OwnId::Status => Some(Incoming::Status),
                    OwnId::StatusReply => Some(Incoming::StatusReply { body }),
                    OwnId::Ping | OwnId::Pong | OwnId::Close => None,
                    other => {
                        self.input.messages += u64::from(other == OwnId::BodyBegin);
                        Self::lane_event(other, body).map(Incoming::Lane)
                    }
                }
            }
            Found::Closed => {
                self.closed_shown = true;
                self.closed.clone().map(Incoming::Closed)
            }
        }
    }

    /// Of a body, or a chunk of one, `len` bytes begin at `at`, of which the ring has those below
    /// `early_end`. The owner sees them, and the time for the others begins now.
    fn shown_of_body(&mut self, at: usize, len: usize, early_end: usize) {
        let early = early_end - at;
        self.input.shown = early_end;
        self.input.early = early;
        self.input.need = FRAME_HEADER_BYTES;
        self.input.body_due = len - early;
        self.input.body_got = 0;
        self.input.frame_began = (self.input.body_due > 0).then_some(self.clock);
        self.input.heard_at = self.clock;
    }

    /// Takes back what [`SessionCore::next`] returned last, if that was a message or a head: it
    /// returns that again. To be called before any other call of the core.
    pub fn put_back(&mut self) {
        if !mem::take(&mut self.input.shown_message) {
            return;
        }
        debug_assert_eq!(self.input.body_due, self.input.shown_body);
        self.input.shown = 0;
        self.input.early = 0;
        self.input.body_due = 0;
        self.input.shown_body = 0;
        self.input.messages -= 1;
    }

    /// The bytes that came with the [`Head`] that [`SessionCore::next`] returned last, as
    /// [`Head::early`] has them; none after the next call of the core that changes it.
    #[must_use]
    pub fn early(&self) -> &[u8] {
        let end = self.input.shown;
        &self.recv.readable()[end - self.input.early..end]
    }

    /// Whether [`SessionCore::next`] would return a [`Head`]. It shows nothing, and gives what was
    /// shown back to the ring.
    pub fn has_head(&mut self) -> bool {
        self.release();
        let input = &self.input;
        if !self.is_open() || input.held || input.skip > 0 || input.body_due > 0 {
            return false;
        }
        let bytes = self.recv.readable();
        let Some(header) = bytes.first_chunk().map(FrameHeader::parse) else {
            return false;
        };
        header.id < FIRST_RESERVED_ID
            && matches!(self.layout(header, bytes), Ok(Some((at, Some(head)))) if at + head <= bytes.len())
            && self.has_reply_room()
    }

    /// Whether [`SessionCore::next`] returned nothing because the send ring lacks room for a reply,
    /// and for how many bytes. Call it again after [`SessionCore::sent`], or when another thread
    /// made room.
    #[must_use]
    pub fn waits_for_room(&self) -> Option<usize> {
        let waits = self.input.lacks_room && self.is_open();
        waits.then_some(self.reply_room)
    }

    /// Gives the ring back what the owner has seen.
    #[inline]
    pub(super) fn release(&mut self) {
        let shown = mem::take(&mut self.input.shown);
        if shown > 0 {
            self.input.early = 0;
            self.recv.consume(shown);
            self.input.shown_message = false;
            self.input.shown_body = 0;
        }
    }

    #[inline]
    fn find(&mut self) -> Found {
        if !matches!(self.state, State::Open) || self.input.skip > 0 {
            return self.find_outside();
        }
        if self.input.held {
            return self.end_alone();
        }
        if self.input.body_due > 0 {
            return self.nothing();
        }
        if !self.has_reply_room() {
            return self.no_room();
        }
        let bytes = self.recv.readable();
        if let Some(header) = bytes.first_chunk() {
            let header = FrameHeader::parse(header);
            if header.id < FIRST_RESERVED_ID
                && bytes.len() - FRAME_HEADER_BYTES >= header.length as usize
                && let Some(plain) = content_of::<P>(header)
                && plain.length <= self.config.max_frame_bytes
                && matches!(self.protocol.shape(plain), Ok(Shape::Whole))
                && self.verify(header.frame_bytes()).is_ok()
            {
                return Found::Message { header: plain };
            }
        }
        self.find_slowly()
    }

    #[inline]
    pub(super) fn has_room_for_reply(&self) -> bool {
        // A full ring has no room for nothing either.
        self.reply_room == 0 || self.ring().has_room(self.reply_room)
    }

    #[inline]
    fn has_reply_room(&mut self) -> bool {
        let room = self.has_room_for_reply();
        if room && self.input.lacks_room {
            self.input.lacks_room = false;
            self.note_pause();
        }
        room
    }

    #[cold]
    fn no_room(&mut self) -> Found {
        if !mem::replace(&mut self.input.lacks_room, true) {
            self.timers.stalled(self.clock, self.has_sent(), true);
            self.note_pause();
        }
        self.end_alone()
    }

    /// All that is left to report is that the connection is gone, which the core notices in any
    /// case.
    #[cold]
    fn end_alone(&mut self) -> Found {
        match self.input.end {
            Some(_) => self.nothing(),
            None => Found::Nothing,
        }
    }

    /// All but a whole message of an open session.
    #[cold]
    fn find_slowly(&mut self) -> Found {
        loop {
            let readable = self.recv.readable();
            let Some(header) = readable.first_chunk() else {
                return self.incomplete(FRAME_HEADER_BYTES);
            };
            let header = FrameHeader::parse(header);
            let have = readable.len();
            let frame_end = header.frame_bytes();
            if header.id >= FIRST_RESERVED_ID {
                let id = match self.check_own(header) {
                    Ok(id) => id,
                    Err(fault) => return self.fault(fault),
                };
                if id == OwnId::BodyChunk {
                    match self.find_chunk(header) {
                        Ok(Found::Skipped) if self.input.skip > 0 => return self.find_outside(),
                        Ok(Found::Skipped) => continue,
                        Ok(found) => return found,
                        Err(fault) => return self.fault(fault),
                    }
                }
                if have < frame_end {
                    return self.incomplete(frame_end);
                }
                let end = frame_end - checksum_bytes::<P>();
                let verified = self.verify(frame_end);
                match verified.and_then(|()| self.own_frame(id, end)) {
                    Ok(true) => return Found::Own { id, end },
                    Ok(false) => {
                        self.recv.consume(frame_end);
                        self.input.frame_began = None;
                        if !matches!(self.state, State::Open) {
                            return self.nothing();
                        }
                    }
                    Err(fault) => return self.fault(fault),
                }
                continue;
            }
            let (head_at, head) = match self.layout(header, readable) {
                Ok(Some(layout)) => layout,
                Ok(None) => {
                    if have < frame_end {
                        return self.incomplete(frame_end);
                    }
                    return match self.verify(frame_end) {
                        Ok(()) => Found::Message {
                            header: content_of::<P>(header).unwrap_or(header),
                        },
                        Err(fault) => self.fault(fault),
                    };
                }
                Err(fault) => return self.fault(fault),
            };
            let Some(head) = head else {
                return self.incomplete(head_at);
            };
            let head_end = head_at + head;
            if have < head_end {
                return self.incomplete(head_end);
            }
            return Found::Head {
                header,
                at: head_at,
                head_end,
                early_end: have.min(frame_end),
            };
        }
    }

    /// One frame of the session layer on an open session; true if the owner is to get it.
    fn own_frame(&mut self, id: OwnId, end: usize) -> Result<bool, Fault> {
        let body = &self.recv.readable()[FRAME_HEADER_BYTES..end];
        let malformed = |error| (CloseReason::BadFrame, format!("{id:?}: {error}"));
        match id {
            OwnId::Hello | OwnId::Welcome => {
                let text = format!("a second {id:?}");
                Err((CloseReason::BadFrame, text))
            }
            OwnId::Ping => {
                let ping: PingView<'_> = read(body).map_err(malformed)?;
                self.timers.count_ping(self.clock)?;
                // Only the latest is answered: however many come, one answer is owed.
                self.output.owed.pong = Some(ping.token);
                Ok(false)
            }
            OwnId::Pong => {
                let pong: PingView<'_> = read(body).map_err(malformed)?;
                self.timers.count_ping(self.clock)?;
                self.timers.pong(pong.token, self.clock);
                Ok(false)
            }
            OwnId::Goodbye => {
                Goodbye::check(&read(body).map_err(malformed)?)?;
                Ok(true)
            }
            OwnId::Close => {
                let closed = read_close(body).map_err(malformed)?;
                self.over(closed);
                Ok(false)
            }
            OwnId::Status | OwnId::StatusReply => Ok(true),
            other => self.lane_frame(other, end),
        }
    }

    /// Before the session is open, after its end has begun, and while a body is skipped.
    #[cold]
    fn find_outside(&mut self) -> Found {
        match self.state {
            State::Greeting { connecting } => self.find_greeting(connecting),
            State::Deciding => Found::Nothing,
            State::Open => {
                let bytes = self.input.skip.min(self.recv.readable().len());
                self.recv.consume(bytes);
                self.input.skip -= bytes;
                self.input.body_got += bytes;
                if self.input.skip > 0 {
                    self.input.need = self.input.skip.min(FRAME_HEADER_BYTES);
                    return self.nothing();
                }
                self.input.frame_began = None;
                self.find()
            }
            State::Ending(_) | State::Over => self.nothing(),
        }
    }

    pub(super) fn fault(&mut self, (reason, text): Fault) -> Found {
        self.end_with(reason, 0, &text);
        self.nothing()
    }

    /// The frame at hand takes `need` bytes, which are not there.
    pub(super) fn incomplete(&mut self, need: usize) -> Found {
        self.input.need = need;
        if !self.recv.readable().is_empty() {
            self.input.frame_began.get_or_insert(self.clock);
        }
        self.nothing()
    }

    /// Nothing to report but, at last, the end.
    pub(super) fn nothing(&mut self) -> Found {
        if self.closed.is_none()
            && let Some(end) = self.input.end
        {
            let inside =
                !self.recv.readable().is_empty() || self.input.body_due > 0 || self.input.skip > 0;
            let reason = match end {
                CloseReason::Disconnected if inside => CloseReason::CutFrame,
                other => other,
            };
            self.lost(reason);
        }
        if self.closed.is_some() && !self.closed_shown {
            return Found::Closed;
        }
        Found::Nothing
    }

    /// `bytes` more bytes lie in the ring.
    pub(super) fn arrived(&mut self, bytes: usize) {
        self.input.bytes += bytes as u64;
        if bytes > 0 {
            self.input.heard_at = self.clock;
        }
        self.discarded(bytes);
    }

    /// Counts what came in after the end began.
    pub(super) fn discarded(&mut self, bytes: usize) {
        if let State::Ending(ending) = &mut self.state {
            ending.discard_left = ending.discard_left.saturating_sub(bytes);
            if ending.discard_left == 0 {
                self.cut();
            }
        }
    }

    pub(super) fn ended_if(&mut self, result: &io::Result<usize>) {
        let end = match result {
            Ok(0) => CloseReason::Disconnected,
            Ok(_) => return,
            Err(error) => error.into(),
        };
        self.input.end.get_or_insert(end);
        if matches!(self.state, State::Ending(_)) {
            self.peer_ended();
        }
    }

    /// An owner that is leaving wants no more, but a body of its own cannot go on without the peer's answer.
    fn hears_answers(&self) -> bool {
        !self.input.held && self.waits_for_answers().is_some()
    }

    /// The receive to ask for, if there is one to ask for.
    pub(super) fn poll_recv(&mut self) -> Option<RecvBuf<M>> {
        let input = &self.input;
        if input.receiving || input.end.is_some() || input.body_due > 0 {
            return None;
        }
        let buf = match self.state {
            State::Greeting { .. } | State::Open => {
                if input.lacks_room || (input.idle && !self.hears_answers()) {
                    return None;
                }
                let have = self.recv.readable().len();
                if have >= input.need {
                    return None;
                }
                let wanted = input.need.max(input.read_ahead).max(input.skip);
                let space = self.recv.lend(wanted - have);
                self.input.blocked = space.is_none();
                self.note_pause();
                RecvBuf::ring(space?)
            }
            State::Ending(_) => {
                let unread = self.recv.readable().len();
                self.recv.consume(unread);
                match self.recv.lend(usize::MAX) {
                    Some(space) => RecvBuf::ring(space),
                    None => RecvBuf::heap(vec![0; DISCARD_BUFFER_BYTES], 0..DISCARD_BUFFER_BYTES),
                }
            }
            State::Deciding | State::Over => return None,
        };
        self.input.receiving = true;
        // Time in which nothing was asked for is not the peer's.
        self.input.heard_at = self.clock;
        Some(buf)
    }
}

/// Who ended a session that ended without a word of either side.
pub(super) const NOBODY: Side = Side::Network;
