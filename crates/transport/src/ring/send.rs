//! The sending ring: many threads write, one at a time sends.

use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::memory::RingMemory;
use super::pool::RingPool;
use super::queue::{Queue, Refused, Run};
use super::ticket::Ticket;
use crate::park;
use crate::waiters::Place;

/// Bytes of ring for each slot: messages shorter than that on average run out of slots before they
/// run out of bytes.
const BYTES_PER_SLOT: usize = 32;
const SLOTS_MIN: usize = 16;

/// Why nothing was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// Too much is waiting to be sent.
    #[error("the send ring is full; wait for room or send less")]
    Full,
    /// It would not fit into the empty ring.
    #[error("longer than the send ring, which has {max} bytes; send less at once or enlarge it")]
    TooLong {
        /// The ring's capacity, bytes.
        max: usize,
    },
    /// [`SendRing::close`] was called.
    #[error("the send ring is closed")]
    Closed,
}

/// The ring takes no further reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the send ring is closed")]
pub struct Closed;

/// Why waiting for room ended without any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The ring stayed full for the time given.
    #[error("the send ring stayed full; the peer may have stopped reading")]
    TimedOut,
    /// [`SendRing::close`] was called.
    #[error("the send ring is closed")]
    Closed,
}

/// What a commit found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "after `First` the caller has to send"]
pub enum Commit {
    /// A thread has the right to send, and sees this commit before it gives the right up. Or the ring was
    /// [detached](SendRing::detach), and nobody sends any more.
    Left,
    /// The right to send is free: call [`SendRing::span`], or have another thread do so. Further
    /// commits say the same until then.
    First,
}

pub(super) struct Shared {
    queue: Queue,
    pub(super) memory: RingMemory,
}

impl Shared {
    /// For whoever gave up a range or the right to send: the memory may wait for that.
    #[cold]
    #[inline(never)]
    fn gave_up(&self) {
        if self.queue.gave_up() {
            self.release_sealed(self.queue.touched());
        }
    }

    /// What to tell whoever committed.
    #[inline]
    fn committed(&self, is_free: bool) -> Commit {
        if is_free && self.queue.is_seal_wanted() {
            // The ring was detached before the commit: nobody sends any more.
            self.gave_up();
            return Commit::Left;
        }
        if is_free { Commit::First } else { Commit::Left }
    }

    #[cold]
    #[inline(never)]
    fn drop_ticket(&self, ticket: Ticket) {
        self.queue.drop_ticket(ticket);
        self.gave_up();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.memory.touch(self.queue.touched());
    }
}

/// A ring to send from. Clones are handles of the same ring.
#[derive(Clone)]
pub struct SendRing(Arc<Shared>);

impl SendRing {
    /// An empty ring with memory of `pool`.
    ///
    /// # Errors
    /// When the kernel has no memory, mappings or descriptors left.
    pub fn new(pool: &RingPool) -> io::Result<Self> {
        let memory = pool.lease()?;
        let slots = (pool.capacity() / BYTES_PER_SLOT).max(SLOTS_MIN);
        let queue = Queue::new(pool.capacity() as u32, slots);
        Ok(Self(Arc::new(Shared {
            queue,
            memory: RingMemory::new(memory),
        })))
    }

    /// `len` bytes, for the caller alone, to be sent after all that was reserved before. Never
    /// blocks. What they hold at first is unspecified: zeros, or what this ring sent earlier.
    ///
    /// # Errors
    /// See [`ReserveError`]. Full also when very many short messages wait.
    #[inline]
    pub fn reserve(&self, len: usize) -> Result<Reservation<'_>, ReserveError> {
        match self.0.queue.reserve(len) {
            Ok(ticket) => Ok(Reservation {
                ring: RingRef::Borrowed(self),
                ticket,
                open: true,
            }),
            Err(refused) => Err(self.refusal(refused)),
        }
    }

    /// Reserves `len` bytes, lets `fill` write them, and commits them; if `fill` fails, they were never
    /// there. The same as [`SendRing::reserve`] and [`Reservation::commit`] in fewer instructions: what
    /// passes between the two stays in registers.
    ///
    /// # Errors
    /// See [`ReserveError`], made what `fill` fails with by `refused`.
    #[inline]
    pub fn write<E>(
        &self,
        len: usize,
        refused: impl FnOnce(ReserveError) -> E,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Commit, E> {
        self.write_leaving(0, len, refused, fill)
    }

    /// As [`SendRing::write`], if `spare` bytes more stay free for a reservation of others. Where the ring could never
    /// hold both, all of it has to be free.
    ///
    /// # Errors
    /// As [`SendRing::write`].
    #[inline]
    pub fn write_leaving<E>(
        &self,
        spare: usize,
        len: usize,
        refused: impl FnOnce(ReserveError) -> E,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Commit, E> {
        let shared = &*self.0;
        let ticket = shared.queue.reserve_leaving(len, spare);
        let ticket = ticket.map_err(|error| refused(self.refusal(error)))?;
        let mut filling = Filling { shared, ticket };
        fill(&mut filling)?;
        mem::forget(filling);
        Ok(shared.committed(shared.queue.commit(ticket)))
    }

    /// Up to where the ring is free again, as what was there is sent: bytes since its beginning, modulo 2³².
    pub fn sent_position(&self) -> u32 {
        self.0.queue.sent_position()
    }

    /// Ranges that were committed by [`Reservation::commit`] and [`SendRing::write`], up to the first that is
    /// still open. Only grows.
    pub fn committed(&self) -> u64 {
        self.0.queue.committed()
    }

    #[cold]
    fn refusal(&self, refused: Refused) -> ReserveError {
        match refused {
            Refused::Full => ReserveError::Full,
            Refused::TooLong => ReserveError::TooLong {
                max: self.capacity(),
            },
            Refused::Closed => ReserveError::Closed,
        }
    }

    /// The longest contiguous run of committed bytes, with the right to send it. `None` when there
    /// is none, or when another thread has the right.
    pub fn span(&self) -> Option<SendSpan> {
        let Some(run) = self.0.queue.take() else {
            // We may have had the right to send for a moment.
            self.0.gave_up();
            return None;
        };
        Some(self.to_span(run))
    }

    fn to_span(&self, run: Run) -> SendSpan {
        SendSpan {
            ring: self.clone(),
            next: run.start,
            end: run.end,
            over: false,
            corked: false,
        }
    }

    /// Takes the right to send without bytes, so that commits gather. False: another thread has
    /// it. After true, call [`SendRing::uncork`], on any thread.
    pub fn cork(&self) -> bool {
        self.0.queue.cork()
    }

    /// Turns the right taken by [`SendRing::cork`] into a span, or gives it up when nothing is
    /// committed. `None` also without a cork.
    pub fn uncork(&self) -> Option<SendSpan> {
        self.0.queue.uncork().map(|run| self.to_span(run))
    }

    /// As [`SendRing::uncork`], but the right is not given up: once the span is dropped, or if
    /// there is none, it is corked as before, and no other thread could send in between. `None`
    /// also without a cork.
    pub fn span_in_cork(&self) -> Option<SendSpan> {
        let mut span = self.to_span(self.0.queue.run_from_cork()?);
        span.corked = true;
        Some(span)
    }

    /// Bytes reserved or committed, and not sent.
    pub fn queued(&self) -> usize {
        self.0.queue.queued()
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> usize {
        self.0.queue.capacity() as usize
    }

    /// Nothing is to be sent, and no reservation is open.
    pub fn is_empty(&self) -> bool {
        self.0.queue.is_empty()
    }

    /// The next byte to send is committed (or part of the span that is out).
    pub fn has_committed(&self) -> bool {
        self.0.queue.has_committed()
    }

    /// Refuses reservations from now on, and ends every wait for room. What is reserved or
    /// committed goes on as before.
    pub fn close(&self) {
        self.0.queue.close();
    }

    /// Closes the ring and gives its memory back to the pool, although handles of it live: at once, or as soon as the
    /// last reservation that is out is committed or dropped, and the span. What is not sent by then is lost: a
    /// commit says [`Commit::Left`]. For whoever holds a cork, or has left one behind.
    pub fn detach(&self) {
        if self.0.queue.seal() {
            self.0.release_sealed(self.0.queue.touched());
        }
    }

    /// Whether [`SendRing::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.0.queue.is_closed()
    }

    /// The oldest reservation that is neither committed nor dropped: nothing behind it can be
    /// sent. The number is that of [`Reservation::ticket`]; a later reservation may have the same
    /// one if the earlier was dropped as the newest of all.
    pub fn oldest_reservation(&self) -> Option<u32> {
        self.0.queue.oldest()
    }

    /// Wakes `waker` whenever a reservation is dropped and no thread can learn that bytes behind
    /// it are due: then call [`SendRing::span`]. Without one, the next commit says
    /// [`Commit::First`]. Replaces the waker set before.
    pub fn on_due(&self, waker: Waker) {
        self.0.queue.on_due(waker);
    }

    /// Whether `len` bytes can probably be reserved now (another thread may be faster); also true
    /// if the ring is closed.
    #[inline]
    pub fn has_room(&self, len: usize) -> bool {
        self.0.queue.room(len).is_some()
    }

    /// Whether somebody waits for room whom nobody has woken; may miss what another thread does just now.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.0.queue.is_awaited()
    }

    /// Waits for room, as one of those who do: first come, first served.
    pub fn room_wait(&self) -> RoomWait {
        RoomWait {
            ring: self.clone(),
            place: None,
        }
    }

    /// Blocks until `len` bytes can probably be reserved, at most for `timeout`.
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn wait_room(&self, len: usize, timeout: Duration) -> Result<(), WaitError> {
        self.room_wait().block(len, timeout)
    }
}

impl fmt::Debug for SendRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendRing({} of {})", self.queued(), self.capacity())
    }
}

/// Waits for room in a ring. It has a place among those who do, from the first poll that finds no room until it is
/// dropped. The room that it was woken for is its own until then, or until it is polled: after that others may have it.
#[derive(Debug)]
pub struct RoomWait {
    ring: SendRing,
    place: Option<Place>,
}

impl RoomWait {
    /// Ready once `len` bytes can probably be reserved (another thread may be faster), or at once
    /// if they never can. Otherwise the task is woken when that may have changed. It waits for the
    /// latest `len`, and wakes the latest task.
    pub fn poll(&mut self, len: usize, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        let queue = &self.ring.0.queue;
        let ready = queue.poll_room(len, &mut self.place, cx);
        ready.map(|room| room.map_err(|()| Closed))
    }

    /// Blocks until `len` bytes can probably be reserved, at most for `timeout`. It keeps its place.
    ///
    /// # Errors
    /// See [`WaitError`].
    pub fn block(&mut self, len: usize, timeout: Duration) -> Result<(), WaitError> {
        let deadline = Instant::now().checked_add(timeout);
        match park::block_on(deadline, |cx| self.poll(len, cx)) {
            Some(room) => room.map_err(|Closed| WaitError::Closed),
            None => Err(WaitError::TimedOut),
        }
    }

    /// Gives its place up, and waits no more until the next poll.
    pub fn leave(&mut self) {
        if let Some(place) = self.place.take() {
            self.ring.0.queue.leave(place);
        }
    }
}

impl Drop for RoomWait {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The ring of a reservation, which may outlive the handle that made it.
enum RingRef<'a> {
    Borrowed(&'a SendRing),
    Owned(SendRing),
}

/// Bytes to fill, which no other thread sees before they are [committed](Reservation::commit).
///
/// Dropped instead, it leaves nothing to send. Until one of both happens, nothing that was reserved
/// later can be sent.
#[must_use = "dropping a reservation gives it up"]
pub struct Reservation<'a> {
    ring: RingRef<'a>,
    ticket: Ticket,
    open: bool,
}

impl Reservation<'_> {
    #[inline]
    pub(super) fn shared(&self) -> &Shared {
        match &self.ring {
            RingRef::Borrowed(ring) => &ring.0,
            RingRef::Owned(ring) => &ring.0,
        }
    }

    #[inline]
    pub(super) fn range(&self) -> (usize, usize) {
        self.ticket.range()
    }

    /// Its number; those of one ring count up, modulo 2³².
    pub fn ticket(&self) -> u32 {
        self.ticket.number
    }

    /// The same, for keeping: it holds a handle of the ring instead of a borrow.
    pub fn into_owned(mut self) -> Reservation<'static> {
        let ring = match &self.ring {
            RingRef::Borrowed(ring) => (*ring).clone(),
            RingRef::Owned(ring) => ring.clone(),
        };
        self.open = false;
        Reservation {
            ring: RingRef::Owned(ring),
            ticket: self.ticket,
            open: true,
        }
    }

    /// Hands all of it over for sending.
    #[inline]
    pub fn commit(mut self) -> Commit {
        self.open = false;
        let shared = self.shared();
        shared.committed(shared.queue.commit(self.ticket))
    }

    /// As [`Reservation::commit`], but [`SendRing::committed`] does not count it.
    pub fn commit_uncounted(mut self) -> Commit {
        self.open = false;
        let shared = self.shared();
        shared.committed(shared.queue.commit_uncounted(self.ticket))
    }
}

impl Drop for Reservation<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.open {
            self.shared().drop_ticket(self.ticket);
        }
    }
}

impl fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation(#{}, {} bytes)", self.ticket(), self.len())
    }
}

/// A range that [`SendRing::write`] fills; dropped, it was never there. A [`Reservation`] without what that keeps for its
/// owner.
pub(super) struct Filling<'a> {
    pub(super) shared: &'a Shared,
    ticket: Ticket,
}

impl Filling<'_> {
    #[inline]
    pub(super) fn range(&self) -> (usize, usize) {
        self.ticket.range()
    }
}

impl Drop for Filling<'_> {
    #[cold]
    fn drop(&mut self) {
        self.shared.drop_ticket(self.ticket);
    }
}

/// Committed bytes and the right to send them. There is at most one of a ring.
#[must_use = "dropping a span leaves its bytes unsent"]
pub struct SendSpan {
    ring: SendRing,
    next: u32,
    end: u32,
    over: bool,
    /// The right goes back to where it came from.
    corked: bool,
}

impl SendSpan {
    #[inline]
    pub(super) fn shared(&self) -> &Shared {
        &self.ring.0
    }

    #[inline]
    pub(super) fn range(&self) -> (usize, usize) {
        let len = self.end.wrapping_sub(self.next);
        (self.next as usize, len as usize)
    }

    /// The ticket after the last one whose bytes it has; see [`Reservation::ticket`].
    pub fn end_ticket(&self) -> u32 {
        self.ring.0.queue.end_ticket()
    }

    /// Counts `count` more bytes as sent; their room is free once it is worth it.
    ///
    /// # Panics
    /// If fewer are left.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        let (_, left) = self.range();
        assert!(count <= left, "sent more than there is");
        self.next = self.next.wrapping_add(count as u32);
        // What ends a span frees its room with the right to send, in one go.
        if self.next != self.end && count > 0 {
            self.ring.0.queue.progress(self.next);
        }
    }

    /// Gives the right to send up; what is unsent stays queued. True: bytes are committed, so call
    /// [`SendRing::span`] again.
    pub fn finish(mut self) -> bool {
        self.end_it()
    }

    /// Frees the room of what was sent, for a holder that keeps the right to send for longer.
    pub(crate) fn free_sent(&self) {
        self.ring.0.queue.progress(self.next);
    }

    /// The ring it belongs to.
    pub fn ring(&self) -> &SendRing {
        &self.ring
    }

    fn end_it(&mut self) -> bool {
        self.over = true;
        if self.corked {
            self.ring.0.queue.back_to_cork(self.next);
            self.ring.0.gave_up();
            return self.next != self.end;
        }
        let more = self.ring.0.queue.finish(self.next);
        self.ring.0.gave_up();
        more
    }
}

impl Drop for SendSpan {
    fn drop(&mut self) {
        if !self.over {
            self.end_it();
        }
    }
}

impl fmt::Debug for SendSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendSpan({} bytes left)", self.range().1)
    }
}
