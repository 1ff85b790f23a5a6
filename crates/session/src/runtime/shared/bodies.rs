//! Bodies on their way from a caller to the worker.
//!
//! Each has a place in the ring, a reservation that is never committed, so that it comes behind all
//! that was sent before it. A body in one piece goes there, and all that follows waits. One that
//! goes in a lane gives its place up as soon as that is at the front.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use embar_frame::{FRAME_HEADER_BYTES, FrameHeader, Shape};
use embar_memory::Buffer;
use embar_transport::ring::{Reservation, ReserveError};

use super::{Shared, request};
use crate::{LaneBody, Plain, SendError};

/// Bodies that wait for their turn, and their limit.
#[derive(Default)]
pub(super) struct Bodies {
    waiting: Mutex<Vec<QueuedBody>>,
    /// Those that wait, and those in lanes of which something is to be sent.
    count: AtomicUsize,
    bytes: AtomicUsize,
    room: Condvar,
    /// Numbers of bodies in lanes that are to be given up.
    cancelled: Mutex<Vec<u64>>,
    last_number: AtomicU64,
}

impl Bodies {
    /// Whether there are any.
    pub(super) fn are_some(&self, order: Ordering) -> bool {
        self.count.load(order) > 0
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<QueuedBody>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body on its way from a caller to the worker. The reservation is never committed: it holds the
/// place in the stream.
pub(in crate::runtime) struct QueuedBody {
    /// Its bytes are the frame header and the head, unless it goes in a lane.
    pub(in crate::runtime) place: Reservation<'static>,
    pub(in crate::runtime) lane: Option<LaneBody>,
    pub(in crate::runtime) bytes: Arc<Buffer>,
}

impl QueuedBody {
    /// What it counts in the limit.
    pub(in crate::runtime) fn size(&self) -> usize {
        self.bytes.len() + self.lane.as_ref().map_or(0, LaneBody::size)
    }
}

impl Shared {
    pub(in crate::runtime) fn send_body(
        &self,
        id: u16,
        head: &[u8],
        bytes: Arc<Buffer>,
    ) -> Result<(), SendError> {
        let (header, prefix) = self.frame_of_body(id, head.len(), bytes.len())?;
        let len = prefix.len() + head.len();
        self.queue(len, None, bytes, |place| {
            let (to_header, rest) = place.split_at_mut(FRAME_HEADER_BYTES);
            let (to_prefix, to_head) = rest.split_at_mut(prefix.len());
            to_header.copy_from_slice(&header.to_bytes());
            to_prefix.copy_from_slice(&prefix);
            to_head.copy_from_slice(head);
        })
    }

    /// A number for a body, if it goes in a lane; without lanes it goes in one piece.
    pub(in crate::runtime) fn send_body_on(
        &self,
        lane: u8,
        id: u16,
        head: &[u8],
        bytes: Arc<Buffer>,
    ) -> Result<u64, SendError> {
        let number = self.bodies.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let lanes = self.sender.limits().map_or(0, |limits| limits.body_lanes);
        if lane == 0 || lanes == 0 {
            self.send_body(id, head, bytes)?;
            return Ok(number);
        }
        let (header, _) = self.frame_of_body(id, head.len(), bytes.len())?;
        let lane = (lane, number);
        let lane = self.sender.begin_body(lane, header, head, bytes.len())?;
        self.queue(0, Some(lane), bytes, |_| ())?;
        Ok(number)
    }

    /// Queues a body with a place for a header and `len` bytes, which `fill` writes.
    fn queue(
        &self,
        len: usize,
        lane: Option<LaneBody>,
        bytes: Arc<Buffer>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        let size = bytes.len() + lane.as_ref().map_or(0, LaneBody::size);
        self.take_body_room(size)?;
        let place = || {
            let reserved = self.sender.ring().reserve(FRAME_HEADER_BYTES + len);
            reserved.map_err(|error| match error {
                ReserveError::Full => SendError::Full,
                ReserveError::Closed => SendError::Closed,
                ReserveError::TooLong { max } => SendError::TooLong {
                    bytes: len,
                    max: u32::try_from(max).unwrap_or(u32::MAX),
                },
            })
        };
        let placed = match place() {
            Err(SendError::Full) => self.when_full(len, place),
            other => other,
        };
        let mut place = match placed {
            Ok(place) => place,
            Err(error) => {
                self.give_body_room(size);
                return Err(error);
            }
        };
        fill(&mut place);
        let place = place.into_owned();
        let mut waiting = self.bodies.waiting();
        // Set before the end takes what waits: it would not find this one.
        if self.ended.get().is_some() {
            drop(waiting);
            self.give_body_room(size);
            return Err(SendError::Closed);
        }
        self.bodies.count.fetch_add(1, Ordering::AcqRel);
        waiting.push(QueuedBody { place, lane, bytes });
        drop(waiting);
        self.mark();
        Ok(())
    }

    /// The body with this number is to be given up, if it goes in a lane.
    pub(in crate::runtime) fn cancel_body(&self, number: u64) {
        let mut waiting = self.bodies.waiting();
        let is_it = |body: &QueuedBody| body.lane.as_ref().is_some_and(|it| it.number == number);
        if let Some(at) = waiting.iter().position(is_it) {
            let body = waiting.swap_remove(at);
            drop(waiting);
            return self.lane_body_over(body.size());
        }
        drop(waiting);
        // Only the worker knows whether it is over.
        self.cancelled().push(number);
        self.request(request::CANCEL_BODY);
    }

    fn cancelled(&self) -> MutexGuard<'_, Vec<u64>> {
        let cancelled = self.bodies.cancelled.lock();
        cancelled.unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::runtime) fn take_cancelled(&self) -> Vec<u64> {
        std::mem::take(&mut *self.cancelled())
    }

    /// Of a body in a lane nothing is to be sent any more.
    pub(in crate::runtime) fn lane_body_over(&self, size: usize) {
        self.bodies.count.fetch_sub(1, Ordering::AcqRel);
        self.give_body_room(size);
    }

    /// The session is over: none of its bodies is kept.
    pub(in crate::runtime) fn drop_bodies(&self) {
        let waiting = std::mem::take(&mut *self.bodies.waiting());
        for body in waiting {
            self.give_body_room(body.size());
        }
        self.bodies.room.notify_all();
    }

    /// The header and what comes before the head, as the session's protocol wants it.
    fn frame_of_body(
        &self,
        id: u16,
        head: usize,
        body: usize,
    ) -> Result<(FrameHeader, Prefix), SendError> {
        let limits = self.sender.limits();
        let limits = limits.ok_or_else(|| self.sender.not_open())?;
        let max = limits.max_body_bytes;
        for flags in [0, Plain::BODY] {
            let bytes = head + body;
            let header = |length: usize| FrameHeader {
                length: u32::try_from(length).unwrap_or(u32::MAX),
                id,
                flags,
            };
            let (length, prefix) = match (self.group.shape)(header(bytes)) {
                Ok(Shape::Body { head: known }) if known as usize == head => {
                    (bytes, Prefix::default())
                }
                Ok(Shape::HeadThenBody) => (bytes + 4, Prefix::length(head)),
                _ => continue,
            };
            if length > max as usize {
                return Err(SendError::TooLong { bytes: length, max });
            }
            return Ok((header(length), prefix));
        }
        Err(SendError::Encoding)
    }

    /// Counts a body in, if the limit allows: one may always wait.
    fn take_body_room(&self, bytes: usize) -> Result<(), SendError> {
        let limit = self.group.settings.max_queued_body_bytes;
        let fits = |queued: usize| {
            let sum = queued.saturating_add(bytes);
            (queued == 0 || sum <= limit).then_some(sum)
        };
        let count = &self.bodies.bytes;
        let take = || count.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        if take().is_ok() {
            return Ok(());
        }
        let Some(timeout) = self.may_wait() else {
            return Err(SendError::Full);
        };
        let now = Instant::now();
        let timeout = self
            .wait_deadline(now, timeout)
            .saturating_duration_since(now);
        let closed = || self.sender.ring().is_closed();
        let no_room = |_: &mut Vec<QueuedBody>| !closed() && take().is_err();
        let waited = self
            .bodies
            .room
            .wait_timeout_while(self.bodies.waiting(), timeout, no_room);
        let timed_out = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        if timed_out {
            Err(SendError::Full)
        } else if closed() {
            Err(SendError::Closed)
        } else {
            Ok(())
        }
    }

    /// Whether bodies wait for their turn.
    pub(in crate::runtime) fn has_bodies(&self) -> bool {
        self.bodies.are_some(Ordering::Acquire)
    }

    /// A body was handed over in full, or never will be.
    pub(in crate::runtime) fn give_body_room(&self, bytes: usize) {
        self.bodies.bytes.fetch_sub(bytes, Ordering::AcqRel);
        // Under the lock, so that no sender is between looking and waiting.
        let _waiting = self.bodies.waiting();
        self.bodies.room.notify_all();
    }

    /// The queued body whose turn it is: its place is at the front of the ring. One that goes in one
    /// piece only if that `may_go` now.
    pub(in crate::runtime) fn next_body(&self, may_go: bool) -> Option<QueuedBody> {
        if !self.bodies.are_some(Ordering::Acquire) {
            return None;
        }
        // Partner of the fence in `write_or_mark`: either the sent bytes are seen here, or their
        // sender sees that a body waits.
        fence(Ordering::SeqCst);
        let ring = self.sender.ring();
        if ring.has_committed() {
            return None;
        }
        let oldest = ring.oldest_reservation()?;
        let mut waiting = self.bodies.waiting();
        let index = waiting.iter().position(|b| b.place.ticket() == oldest)?;
        if waiting[index].lane.is_none() {
            if !may_go {
                return None;
            }
            self.bodies.count.fetch_sub(1, Ordering::AcqRel);
        }
        Some(waiting.swap_remove(index))
    }
}

/// The length of a head, in front of it, for protocols that have it there.
#[derive(Default)]
struct Prefix {
    bytes: [u8; 4],
    len: usize,
}

impl Prefix {
    fn length(head: usize) -> Self {
        Self {
            bytes: u32::try_from(head).unwrap_or(u32::MAX).to_le_bytes(),
            len: 4,
        }
    }
}

impl Deref for Prefix {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
