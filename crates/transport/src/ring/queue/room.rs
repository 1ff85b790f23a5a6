//! Waiting for room in a send ring.
//!
//! The flag `ROOM` says that somebody waits whom nobody has woken. It changes under the lock of the waiters alone. Who
//! makes room does that first, then accesses `state` with a write, and looks at the flag in what it finds there.
//! Who waits sets the flag, then looks for room. So one of the two sees the other.
//!
//! Room is promised to those who are woken, until they come back or leave. So making room wakes as many as it is
//! enough for, and each of them once. One ticket stays free meanwhile, as who waits may have to leave one.

use std::task::{Context, Poll};

use super::{Queue, ROOM, lock, unpack};
use crate::ring::sync::Ordering;
use crate::waiters::{Outworn, Place, WakeBatch};

/// Tickets that [`Queue::reserve_leaving`] leaves free.
pub(super) const SPARE_TICKETS: usize = 1;

/// What can be reserved.
struct Room {
    bytes: usize,
    tickets: usize,
}

impl Queue {
    /// Ready once `len` bytes can be reserved, or never could, or once the queue is closed (an
    /// error then). Whoever has waited for longer comes first. The place is given up by [`Queue::leave`].
    pub(in crate::ring) fn poll_room(
        &self,
        len: usize,
        place: &mut Option<Place>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ()>> {
        let in_line = place.is_some() || self.is_awaited();
        match self.room_in_line(len) {
            Some(Ok(())) if in_line && len <= self.capacity() as usize => {}
            Some(ready) => return Poll::Ready(ready),
            None => {}
        }
        let mut outworn = Outworn::default();
        let waker = cx.waker().clone();
        let mut waiting = lock(&self.waiting);
        let place = waiting.wait(place, len, waker, &mut outworn);
        // AcqRel: partner of the senders' accesses to `state`. If one of those came before this, the tail that it
        // published is seen below; if it comes later, it sees the flag.
        self.state.0.fetch_or(ROOM, Ordering::AcqRel);
        let room = self.room_in_line(len).filter(|_| waiting.is_first(place));
        let closed = self.is_closed().then_some(Err(()));
        let Some(ready) = closed.or(room) else {
            return Poll::Pending;
        };
        waiting.leave(place, &mut outworn);
        if waiting.is_empty() {
            self.state.0.fetch_and(!ROOM, Ordering::AcqRel);
        }
        Poll::Ready(ready)
    }

    /// Whether somebody waits whom nobody has woken.
    #[inline]
    pub(in crate::ring) fn is_awaited(&self) -> bool {
        self.state.0.load(Ordering::Relaxed) & ROOM != 0
    }

    /// Whoever had this place waits no more, or has what it waited for.
    pub(in crate::ring) fn leave(&self, place: Place) {
        let mut outworn = Outworn::default();
        lock(&self.waiting).leave(place, &mut outworn);
        drop(outworn);
        // What it did not take is for others. It may also have been the first, too large for the room there is.
        self.wake_waiting();
    }

    #[inline]
    pub(in crate::ring) fn room(&self, len: usize) -> Option<Result<(), ()>> {
        self.room_beside(len, 0)
    }

    /// As [`Queue::room`], for one who waits.
    fn room_in_line(&self, len: usize) -> Option<Result<(), ()>> {
        self.room_beside(len, SPARE_TICKETS)
    }

    #[inline]
    fn room_beside(&self, len: usize, spare_tickets: usize) -> Option<Result<(), ()>> {
        if self.is_closed() {
            return Some(Err(()));
        }
        if len > self.capacity() as usize {
            return Some(Ok(()));
        }
        let Room { bytes, tickets } = self.free();
        (len <= bytes && tickets > spare_tickets).then_some(Ok(()))
    }

    #[inline]
    fn free(&self) -> Room {
        // The tail first: a newer head then shows less room than there is, never more.
        let (done, freed) = unpack(self.tail.0.load(Ordering::Acquire));
        let (ticket, end) = unpack(self.head.0.load(Ordering::Acquire));
        let (used, open) = (end.wrapping_sub(freed), ticket.wrapping_sub(done));
        Room {
            bytes: self.capacity().saturating_sub(used) as usize,
            tickets: self.slots.len().saturating_sub(open as usize),
        }
    }

    /// After room was made.
    pub(super) fn wake_if_waiting(&self) {
        // An access that writes, see above.
        if self.state.0.fetch_add(0, Ordering::AcqRel) & ROOM != 0 {
            self.wake_waiting();
        }
    }

    /// Wakes as many as there is room for, and all of them once the queue is closed.
    #[cold]
    pub(super) fn wake_waiting(&self) {
        let mut batch = WakeBatch::default();
        loop {
            let mut waiting = lock(&self.waiting);
            let closed = self.is_closed();
            let Room { bytes, tickets } = self.free();
            waiting.wake(&mut batch, |need, promised| {
                let fits =
                    promised.need + need <= bytes && promised.waiters + SPARE_TICKETS < tickets;
                closed || fits
            });
            if waiting.is_empty() {
                self.state.0.fetch_and(!ROOM, Ordering::AcqRel);
            }
            drop(waiting);
            if !batch.wake() {
                return;
            }
        }
    }
}
