//! The lanes of the sending side: which chunk goes next.
//!
//! Invariants
//! - Of each lane, one body is under way at a time: the next begins when all of it was handed out
//!   and the peer answered, or when its CANCELLED goes before.
//! - Before the peer says that it has a place for a body, no more of it goes than its window.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use embar_frame::{FRAME_HEADER_BYTES, FrameHeader, Now};
use embar_memory::Buffer;

use super::LaneBody;
use super::schedule::Schedule;
use crate::config::{MAX_CHUNK_BYTES, MIN_CHUNK_BYTES};
use crate::core::frames::{CHUNK_FIXED_BYTES, OwnId, plain_frame};
use crate::proto::BodyCancelledView;

/// A body of which all, or a part, is to go.
#[derive(Debug)]
struct Current {
    number: u64,
    /// Until all of it was sent.
    bytes: Option<Arc<Buffer>>,
    len: usize,
    sent: usize,
    /// The peer has a place for it.
    taken: bool,
}

impl Current {
    fn left(&self) -> usize {
        self.len - self.sent
    }

    /// Bytes of the chunk that may go next; 0: none.
    fn next_chunk(&self, chunk: usize, window: usize) -> usize {
        let left = self.left();
        let allowed = match self.taken {
            true => left,
            false => window.saturating_sub(self.sent).min(left),
        };
        let next = chunk.min(allowed);
        // The peer takes no shorter one but the last.
        if next < MIN_CHUNK_BYTES && next < left {
            0
        } else {
            next
        }
    }
}

#[derive(Debug, Default)]
struct Lane {
    current: Option<Current>,
    /// The body before it in this lane was given up: the peer is to be told.
    cancelled: Option<u64>,
    queue: VecDeque<(LaneBody, Arc<Buffer>)>,
}

impl Lane {
    fn may_begin(&self) -> bool {
        let free = |current: &Current| current.left() == 0 && current.taken;
        self.current.as_ref().is_none_or(free) && !self.queue.is_empty()
    }

    fn is_ready(&self, chunk: usize, window: usize) -> bool {
        let goes_on = |current: &Current| current.next_chunk(chunk, window) > 0;
        self.cancelled.is_some() || self.current.as_ref().is_some_and(goes_on) || self.may_begin()
    }

    fn is_empty(&self) -> bool {
        let sent = |current: &Current| current.left() == 0;
        self.cancelled.is_none() && self.queue.is_empty() && self.current.as_ref().is_none_or(sent)
    }
}

/// What goes next: bytes, and behind them a part of a body, which may be empty.
pub(super) struct Chunk {
    pub(super) head: Vec<u8>,
    pub(super) bytes: Option<(Arc<Buffer>, Range<usize>)>,
}

/// The lanes of the sending side.
#[derive(Debug)]
pub(super) struct Outgoing {
    chunk: usize,
    /// The peer's.
    window: usize,
    lanes: Vec<Lane>,
    schedule: Schedule,
    /// The highest number of a body that was begun.
    begun: u64,
    /// Of the bodies that were begun: those of which the peer has not said whether it takes them. It says so once, so
    /// that its answers are no work without an end.
    unanswered: u64,
    /// What was handed out last is on its way to the connection.
    is_out: bool,
    /// The body whose last bytes are out.
    ending: Option<u64>,
    /// Bodies of which nothing is to be handed out any more, until the owner is told.
    over: VecDeque<u64>,
    /// When a chunk was handed to the connection last.
    pub(super) moved_at: Now,
}

impl Outgoing {
    pub(super) fn new(lanes: u8, chunk: usize, window: u32) -> Self {
        Self {
            chunk: chunk.clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES),
            window: window as usize,
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            schedule: Schedule::default(),
            begun: 0,
            unanswered: 0,
            is_out: false,
            ending: None,
            over: VecDeque::new(),
            moved_at: Now(0),
        }
    }

    pub(super) fn queue(&mut self, body: LaneBody, bytes: Arc<Buffer>) {
        let lane = usize::from(body.lane) - 1;
        self.lanes[lane].queue.push_back((body, bytes));
    }

    /// What is to go now, if anything is.
    pub(super) fn next(&mut self) -> Option<Chunk> {
        let (chunk, window) = (self.chunk, self.window);
        let ready = |lane: usize| self.lanes[lane].is_ready(chunk, window);
        let index = self.schedule.next(self.lanes.len(), ready)?;
        let lane = &mut self.lanes[index];
        let number = index as u32 + 1;
        self.is_out = true;
        let mut head = Vec::new();
        if let Some(cancelled) = lane.cancelled.take() {
            self.over.push_back(cancelled);
            let view = BodyCancelledView {
                lane: number,
                ..Default::default()
            };
            head = plain_frame(OwnId::BodyCancelled, &view);
        }
        if lane.may_begin()
            && let Some((body, bytes)) = lane.queue.pop_front()
        {
            self.begun = self.begun.max(body.number);
            self.unanswered += 1;
            if bytes.is_empty() {
                self.ending = Some(body.number);
            }
            head.extend_from_slice(&body.frame);
            lane.current = Some(Current {
                number: body.number,
                len: bytes.len(),
                bytes: Some(bytes),
                sent: 0,
                taken: false,
            });
        }
        let Some(current) = &mut lane.current else {
            return Some(Chunk { head, bytes: None });
        };
        let bytes = current.next_chunk(chunk, window);
        if bytes == 0 {
            return Some(Chunk { head, bytes: None });
        }
        let header = FrameHeader {
            length: (CHUNK_FIXED_BYTES + bytes) as u32,
            id: OwnId::BodyChunk.number(),
            flags: 0,
        };
        head.reserve_exact(FRAME_HEADER_BYTES + CHUNK_FIXED_BYTES);
        head.extend_from_slice(&header.to_bytes());
        head.extend_from_slice(&number.to_le_bytes());
        let range = current.sent..current.sent + bytes;
        current.sent = range.end;
        if current.left() == 0 {
            self.ending = Some(current.number);
        }
        Some(Chunk {
            head,
            bytes: current.bytes.clone().map(|whole| (whole, range)),
        })
    }

    /// What [`Outgoing::next`] gave was handed to the connection.
    pub(super) fn sent(&mut self, now: Now) {
        if mem::take(&mut self.is_out) {
            self.moved_at = now;
        }
        self.over.extend(self.ending.take());
        for lane in &mut self.lanes {
            if let Some(current) = &mut lane.current
                && current.left() == 0
            {
                current.bytes = None;
            }
        }
    }

    /// A body of which the owner need not hold anything any more.
    pub(super) fn pop_over(&mut self) -> Option<u64> {
        self.over.pop_front()
    }

    fn lane_of(&mut self, number: u64) -> Option<&mut Lane> {
        let mut lanes = self.lanes.iter_mut();
        lanes.find(|lane| lane.current.as_ref().is_some_and(|it| it.number == number))
    }

    /// The peer has a place for a body. False: there never was such a body, or it has its answer.
    pub(super) fn taken(&mut self, number: u64) -> bool {
        if !self.may_be_answered(number) {
            return false;
        }
        if let Some(Lane {
            current: Some(current),
            ..
        }) = self.lane_of(number)
        {
            current.taken = true;
        }
        true
    }

    /// The peer does not want a body: whether that is news. It is none of a body that it took, or that was cancelled
    /// meanwhile. `None`: there never was such a body, or it has its answer.
    pub(super) fn refused(&mut self, number: u64) -> Option<bool> {
        if !self.may_be_answered(number) {
            return None;
        }
        let waits = |lane: &mut Lane| lane.current.as_ref().is_some_and(|it| !it.taken);
        let is_news = self.lane_of(number).is_some_and(waits);
        if is_news {
            self.give_up(number);
        }
        Some(is_news)
    }

    /// Counts an answer. One to a body that was cancelled may come although that is forgotten here, so only the number of
    /// all is known.
    fn may_be_answered(&mut self, number: u64) -> bool {
        let known = number > 0 && number <= self.begun && self.unanswered > 0;
        self.unanswered -= u64::from(known);
        known
    }

    fn give_up(&mut self, number: u64) {
        let Some(lane) = self.lane_of(number) else {
            return;
        };
        if let Some(current) = lane.current.take()
            && current.left() > 0
        {
            lane.cancelled = Some(number);
        }
    }

    /// The owner does not want to send the rest of a body.
    pub(super) fn cancel(&mut self, number: u64) {
        for lane in &mut self.lanes {
            let at = lane
                .queue
                .iter()
                .position(|(body, _)| body.number == number);
            if let Some(at) = at {
                lane.queue.remove(at);
                self.over.push_back(number);
                return;
            }
        }
        let left = |lane: &mut Lane| lane.current.as_ref().is_some_and(|it| it.left() > 0);
        if self.lane_of(number).is_some_and(left) {
            self.give_up(number);
        }
    }

    /// Whether nothing is left to send.
    pub(super) fn is_empty(&self) -> bool {
        self.ending.is_none() && self.lanes.iter().all(Lane::is_empty)
    }

    /// Whether all that is left to send waits for an answer of the peer.
    pub(super) fn waits_for_peer(&self) -> bool {
        let (chunk, window) = (self.chunk, self.window);
        !self.is_out
            && !self.is_empty()
            && !self.lanes.iter().any(|lane| lane.is_ready(chunk, window))
    }

    pub(super) fn clear(&mut self) {
        self.lanes.clear();
    }
}
