//! Lanes: bodies in chunks, so that messages have their turn after each of them.
//!
//! The owner queues a body ([`SessionCore::queue_body`]) and calls [`SessionCore::send_chunk`] after
//! each report: as a body in one piece, a chunk goes where a frame ends, and what is committed goes
//! before it. The peer's owner learns that a body begins, and says where it goes, or not:
//! [`LaneEvent`].

mod incoming;
mod outgoing;
mod schedule;

use std::sync::Arc;

use embar_frame::{FRAME_HEADER_BYTES, FrameHeader, Now, Protocol, Shape};
use embar_memory::Buffer;
use embar_transport::{Body, Memory};

use self::incoming::{Answer, Incoming};
use self::outgoing::Outgoing;
use super::checks::{Fault, frame_fault};
use super::frames::{CHUNK_AT, CHUNK_FIXED_BYTES, OwnId, cut, plain_frame, put, read, read_within};
use super::inbound::Found;
use super::{SessionCore, State};
use crate::config::{MAX_BODY_LANES, SessionConfig};
use crate::incoming::LaneEvent;
use crate::proto::{BodyBeginView, BodyCancelledView, BodyRefusedView, BodyTakenView};
use crate::reason::CloseReason;
use crate::sender::{SendError, Sender};

/// While chunks come, no more is received beyond what a frame needs: what lies in the ring of a
/// chunk has to be copied to its body.
pub(crate) const LANE_READ_AHEAD: usize = 4 << 10;

/// The lanes of a session, in both directions.
#[derive(Debug)]
pub(super) struct Lanes {
    incoming: Incoming,
    outgoing: Outgoing,
    /// The body at hand is of a chunk.
    pub in_chunk: bool,
}

impl Lanes {
    /// `None` without lanes; `window` is the peer's.
    pub fn new(lanes: u8, config: &SessionConfig, window: u32) -> Option<Box<Self>> {
        (lanes > 0).then(|| {
            Box::new(Self {
                incoming: Incoming::new(lanes, config.lane_window_bytes),
                outgoing: Outgoing::new(lanes, config.chunk_bytes, window),
                in_chunk: false,
            })
        })
    }

    /// When a peer has had its time to go on with a body.
    pub fn deadline(&self, config: &SessionConfig) -> Option<Now> {
        self.incoming.deadline(config)
    }

    /// The time from `since` to `now` does not count against the peer.
    pub fn pass_over(&mut self, since: Now, now: Now) {
        self.incoming.pass_over(since, now);
    }

    /// How many a configuration allows.
    pub fn allowed<P: Protocol>(config: &SessionConfig) -> u8 {
        match P::CHECKED {
            true => 0,
            false => config.body_lanes.min(MAX_BODY_LANES),
        }
    }
}

/// A body that is to go in a lane; made by [`Sender::begin_body`].
#[derive(Debug)]
pub struct LaneBody {
    pub(crate) lane: u8,
    pub(crate) number: u64,
    /// BODY_BEGIN.
    frame: Vec<u8>,
}

impl LaneBody {
    /// What it weighs while it waits, without its bytes.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + self.frame.len()
    }
}

impl Sender {
    /// The beginning of a body of `len` bytes that is to go in `lane`, as a frame with this id, and
    /// these flags, would carry it. A lane that the session does not have stands for its last one.
    /// `number` names the body, and no other that this end sends.
    ///
    /// # Errors
    /// [`SendError::TooLong`]; [`SendError::Closed`] and [`SendError::NotOpen`];
    /// [`SendError::Encoding`] if the session has no lanes.
    pub fn begin_body(
        &self,
        (lane, number): (u8, u64),
        header: FrameHeader,
        head: &[u8],
        len: usize,
    ) -> Result<LaneBody, SendError> {
        let limits = self.limits().ok_or_else(|| self.not_open())?;
        let lane = lane.clamp(1, limits.body_lanes.max(1));
        if limits.body_lanes == 0 {
            return Err(SendError::Encoding);
        }
        let too_long = |bytes: usize, max: u32| SendError::TooLong { bytes, max };
        let max = limits.max_body_bytes;
        let bytes = len.saturating_add(head.len());
        let length = u32::try_from(len).ok().filter(|_| bytes <= max as usize);
        let view = BodyBeginView {
            lane: lane.into(),
            number,
            id: header.id.into(),
            flags: header.flags.into(),
            length: length.ok_or_else(|| too_long(bytes, max))?,
            head,
        };
        let frame = plain_frame(OwnId::BodyBegin, &view);
        let (content, max) = (frame.len() - FRAME_HEADER_BYTES, limits.max_frame_bytes);
        if content > max as usize {
            return Err(too_long(content, max));
        }
        Ok(LaneBody {
            lane,
            number,
            frame,
        })
    }
}

impl<P: Protocol, M: Memory> SessionCore<P, M> {
    /// Has a body sent in chunks; see [`SessionCore::send_chunk`]. An owner that is to end in good
    /// order waits until [`SessionCore::has_lane_bodies`] is false.
    ///
    /// # Panics
    /// If the body was begun by the sender of another session, which has more lanes.
    pub fn queue_body(&mut self, body: LaneBody, bytes: Arc<Buffer>) {
        let is_open = self.is_open();
        if let Some(lanes) = self.lanes.as_mut().filter(|_| is_open) {
            lanes.outgoing.queue(body, bytes);
            self.output.bodies += 1;
        }
    }

    /// If [`SessionCore::may_send_body`], the next chunk goes with the next [`SessionCore::poll`],
    /// behind what is committed. To be called again when it was [sent](SessionCore::sent), and when
    /// a body was queued or cancelled, or [`SessionCore::next`] returned something.
    pub fn send_chunk(&mut self) {
        if self.lanes.is_none() || !self.may_send_body() {
            return;
        }
        let now = self.clock;
        let Some(lanes) = &mut self.lanes else {
            return;
        };
        // The one before is out.
        lanes.outgoing.sent(now);
        if let Some(chunk) = lanes.outgoing.next() {
            let part = |(bytes, range)| Body::Part(bytes, range);
            let body = chunk.bytes.map_or(Body::Empty, part);
            self.output.body = Some((chunk.head, body));
        }
    }

    /// Gives up a body that was queued, if its last bytes are not out. What the peer has of it is of
    /// no use then, and it learns that.
    pub fn cancel_body(&mut self, number: u64) {
        if let Some(lanes) = &mut self.lanes {
            lanes.outgoing.cancel(number);
        }
    }

    /// The number of a body of which nothing is to be sent any more: all of it was handed to the
    /// connection, or it was cancelled, or refused. Of each body once.
    pub fn next_body_over(&mut self) -> Option<u64> {
        self.lanes.as_mut()?.outgoing.pop_over()
    }

    /// Whether something of a body in a lane is to be sent.
    #[must_use]
    pub fn has_lane_bodies(&self) -> bool {
        let lanes = self.lanes.as_ref();
        self.is_open() && lanes.is_some_and(|lanes| !lanes.outgoing.is_empty())
    }

    /// The owner has a place for the body that [began](LaneEvent::Begun) in `lane`.
    pub fn take_body(&mut self, lane: u8, now: Now) {
        self.at(now);
        let clock = self.clock;
        if let Some(lanes) = &mut self.lanes {
            lanes.incoming.take(lane, clock);
            self.output.owed.rare = true;
            self.look_at_lanes();
        }
    }

    /// The owner does not want the body that [began](LaneEvent::Begun) in `lane`. The session goes
    /// on, and what comes of the body is thrown away.
    pub fn refuse_body(&mut self, lane: u8, text: &str) {
        if let Some(lanes) = &mut self.lanes {
            lanes.incoming.refuse(lane, cut(text).to_owned());
            self.output.owed.rare = true;
            self.look_at_lanes();
        }
    }

    /// Whether chunks may come has changed.
    pub(super) fn look_at_lanes(&mut self) {
        let active = |lanes: &Lanes| lanes.incoming.is_active();
        let most = match self.lanes.as_deref().is_some_and(active) {
            true => LANE_READ_AHEAD,
            false => usize::MAX,
        };
        self.input.read_ahead = self.config.read_ahead.min(most);
    }

    /// Puts answers into the ring, as far as there is room; true if none is left.
    pub(super) fn answer_bodies(&mut self) -> bool {
        let Some(lanes) = &mut self.lanes else {
            return true;
        };
        let sender = &self.sender;
        lanes.incoming.answer(|answer| match answer {
            &Answer::Taken(number) => {
                let view = BodyTakenView {
                    number,
                    ..Default::default()
                };
                put(sender, OwnId::BodyTaken, &view)
            }
            Answer::Refused(number, text) => {
                let view = BodyRefusedView {
                    number: *number,
                    text,
                };
                put(sender, OwnId::BodyRefused, &view)
            }
        })
    }

    /// A chunk at the front of the ring, of which the header is good.
    pub(super) fn find_chunk(&mut self, header: FrameHeader) -> Result<Found, Fault> {
        let bytes = self.recv.readable();
        let short = || (CloseReason::BadFrame, "a chunk without a lane".to_owned());
        let len = (header.length as usize).checked_sub(CHUNK_FIXED_BYTES);
        let len = len.ok_or_else(short)?;
        let have = bytes.len();
        let Some(lane) = bytes.get(FRAME_HEADER_BYTES..CHUNK_AT) else {
            return Ok(self.incomplete(CHUNK_AT));
        };
        let lane = lane.first_chunk().copied().map_or(0, u32::from_le_bytes);
        let Some(lanes) = &mut self.lanes else {
            return Ok(Found::Nothing);
        };
        let is_wanted = lanes.incoming.chunk(lane, len)?;
        lanes.in_chunk = true;
        self.look_at_lanes();
        let early_end = have.min(CHUNK_AT + len);
        self.heard_of_body(early_end - CHUNK_AT);
        if is_wanted {
            return Ok(Found::Chunk {
                lane: lane as u8,
                len,
                early_end,
            });
        }
        self.recv.consume(early_end);
        self.input.skip = CHUNK_AT + len - early_end;
        self.input.frame_began = (self.input.skip > 0).then_some(self.clock);
        self.input.body_got = 0;
        Ok(Found::Skipped)
    }

    /// So many bytes more of the body at hand.
    #[inline]
    pub(super) fn heard_of_body(&mut self, bytes: usize) {
        let clock = self.clock;
        if let Some(lanes) = self.lanes.as_mut().filter(|lanes| lanes.in_chunk) {
            lanes.incoming.heard(bytes, clock);
        }
    }

    /// A frame about lanes, other than a chunk, with that content; true if the owner is to get it.
    pub(super) fn lane_frame(&mut self, id: OwnId, end: usize) -> Result<bool, Fault> {
        let content = &self.recv.readable()[FRAME_HEADER_BYTES..end];
        let malformed = |error| (CloseReason::BadFrame, format!("{id:?}: {error}"));
        let unknown = || {
            let text = format!("{id:?} of a body that was never sent, or has its answer");
            Err((CloseReason::BadFrame, text))
        };
        let Some(lanes) = &mut self.lanes else {
            return Ok(false);
        };
        let is_for_owner = match id {
            OwnId::BodyBegin => {
                let most = self.config.max_frame_bytes as usize;
                let view: BodyBeginView<'_> = read_within(most, content).map_err(malformed)?;
                check_begin(&self.protocol, &view, self.config.max_body_bytes)?;
                let (number, length) = (view.number, view.length as usize);
                lanes
                    .incoming
                    .begin(view.lane, number, length, self.clock)?;
                true
            }
            OwnId::BodyTaken => {
                let view: BodyTakenView<'_> = read(content).map_err(malformed)?;
                if !lanes.outgoing.taken(view.number) {
                    return unknown();
                }
                false
            }
            OwnId::BodyRefused => {
                let view: BodyRefusedView<'_> = read(content).map_err(malformed)?;
                match lanes.outgoing.refused(view.number) {
                    None => return unknown(),
                    Some(is_news) => is_news,
                }
            }
            OwnId::BodyCancelled => {
                let view: BodyCancelledView<'_> = read(content).map_err(malformed)?;
                lanes.incoming.cancelled(view.lane)?
            }
            _ => false,
        };
        self.look_at_lanes();
        Ok(is_for_owner)
    }

    /// What a frame about lanes tells the owner.
    pub(super) fn lane_event(id: OwnId, content: &[u8]) -> Option<LaneEvent<'_>> {
        Some(match id {
            OwnId::BodyBegin => {
                // It was read before.
                let view: BodyBeginView<'_> = read_within(content.len(), content).ok()?;
                LaneEvent::Begun {
                    lane: view.lane as u8,
                    id: view.id as u16,
                    head: view.head,
                    len: view.length as usize,
                }
            }
            OwnId::BodyRefused => {
                let view: BodyRefusedView<'_> = read(content).ok()?;
                LaneEvent::Refused {
                    number: view.number,
                    text: cut(view.text),
                }
            }
            OwnId::BodyCancelled => {
                let view: BodyCancelledView<'_> = read(content).ok()?;
                LaneEvent::Cancelled {
                    lane: view.lane as u8,
                }
            }
            _ => return None,
        })
    }

    /// Since when nothing but the peer's answers to bodies is waited for, if so.
    pub(super) fn waits_for_answers(&self) -> Option<Now> {
        let outgoing = &self.lanes.as_ref()?.outgoing;
        outgoing.waits_for_peer().then_some(outgoing.moved_at)
    }

    /// What was queued is forgotten.
    pub(super) fn drop_lanes(&mut self) {
        if !matches!(self.state, State::Open)
            && let Some(lanes) = &mut self.lanes
        {
            lanes.outgoing.clear();
        }
    }
}

/// Whether a frame as this one says may come with a body.
fn check_begin<P: Protocol>(
    protocol: &P,
    view: &BodyBeginView<'_>,
    max_body_bytes: u32,
) -> Result<(), Fault> {
    let bad = |what: &str| Err((CloseReason::BadFrame, format!("BodyBegin: {what}")));
    let (Ok(id), Ok(flags)) = (u16::try_from(view.id), u16::try_from(view.flags)) else {
        return bad("an id or flags of more than 16 bits");
    };
    if id >= embar_frame::FIRST_RESERVED_ID {
        return bad("a reserved id");
    }
    let head = view.head.len();
    let length = u64::from(view.length) + head as u64;
    if length > u64::from(max_body_bytes) {
        let text = format!("a body with id {id} has {length} bytes, the limit is {max_body_bytes}");
        return Err((CloseReason::TooLarge, text));
    }
    let header = FrameHeader {
        length: length as u32,
        id,
        flags,
    };
    match protocol.shape(header).map_err(frame_fault)? {
        Shape::Body { head: known } if known as usize == head => Ok(()),
        Shape::HeadThenBody => Ok(()),
        _ => bad("its protocol gives such frames no body, or another head"),
    }
}
