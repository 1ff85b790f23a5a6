//! Who may write and who may send which part of a send ring; the bytes themselves are elsewhere.
//!
//! Positions and tickets are counted for ever, modulo 2³². A producer takes the next ticket and the
//! next range in one compare-and-swap of `head`. What became of a ticket is written into its slot,
//! tagged with the ticket's lap over the slots, so that an old note is never taken for a new one.
//!
//! `state` says who sends. The thread that sets `SENDING` owns the fields of the sender until it
//! clears it.
//! A commit adds one to the count of news above the flags and learns by the same instruction
//! whether a thread sends. The sender clears `SENDING` only while the count is zero, and otherwise
//! looks again. So each commit either is seen by the sender, or learns that there is none.

use std::task::Waker;

use super::sender_fields::SenderFields;
use super::sync::{AtomicU32, AtomicU64, CacheLine, Mutex, Ordering, zeros};
use super::ticket::Ticket;
use crate::waiters::Waiters;

mod room;
mod seal;

use room::SPARE_TICKETS;

/// A thread has the right to send.
const SENDING: u64 = 1;
/// The right is held without a span.
const CORKED: u64 = 2;
/// A task or thread waits for room, and nobody has woken it.
const ROOM: u64 = 4;
/// No further reservations.
const CLOSED: u64 = 8;
/// One piece of news; the count of them lies above the flags.
const NEWS: u64 = 16;
const FLAGS: u64 = NEWS - 1;

/// What is in a slot besides the lap and the end of the range.
const COMMITTED: u64 = 1 << 32;
const SKIPPED: u64 = 2 << 32;
/// Committed, and counted by the sender.
const COUNTED: u64 = 3 << 32;
const KINDS: u64 = COUNTED;
const LAP_SHIFT: u32 = 34;

/// Committed bytes that one sender sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub start: u32,
    pub end: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    TooLong,
    Closed,
}

/// A ticket (or a count of them) and a position in one word.
const fn pack(ticket: u32, position: u32) -> u64 {
    ((ticket as u64) << 32) | position as u64
}

const fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

pub(super) struct Queue {
    capacity: u32,
    /// log2 of the number of slots.
    slots_shift: u32,
    slots: Box<[AtomicU64]>,
    /// Next ticket and position, moved by producers.
    head: CacheLine<AtomicU64>,
    /// Who sends, and what it has not seen yet: flags, and above them the count of news.
    state: CacheLine<AtomicU64>,
    /// The first ticket whose slot is in use, and the first position that is: moved by the sender.
    tail: CacheLine<AtomicU64>,
    sender: SenderFields,
    /// The highest end of ranges that were given back as if they had never been.
    abandoned: AtomicU32,
    /// How often somebody wanted it sealed; 0: it may go on.
    seal_wanted: AtomicU32,
    waiting: Mutex<Waiters>,
    due: Mutex<Option<Waker>>,
}

impl Queue {
    /// Both are powers of two; the capacity at most 2³⁰, the slots at least 2.
    pub(super) fn new(capacity: u32, slots: usize) -> Self {
        assert!(capacity.is_power_of_two() && capacity <= 1 << 30);
        assert!(slots.is_power_of_two() && (2..=1 << 30).contains(&slots));
        Self {
            capacity,
            slots_shift: slots.trailing_zeros(),
            slots: zeros(slots),
            head: CacheLine(AtomicU64::new(0)),
            state: CacheLine(AtomicU64::new(0)),
            tail: CacheLine(AtomicU64::new(0)),
            sender: SenderFields::new(),
            abandoned: AtomicU32::new(0),
            seal_wanted: AtomicU32::new(0),
            waiting: Mutex::new(Waiters::default()),
            due: Mutex::new(None),
        }
    }

    /// One whose next ticket and position are these, for tests of what happens when they wrap.
    #[cfg(all(test, not(loom)))]
    fn starting_at(capacity: u32, slots: usize, ticket: u32, position: u32) -> Self {
        let queue = Self::new(capacity, slots);
        let order = Ordering::Relaxed;
        queue.head.0.store(pack(ticket, position), order);
        queue.tail.0.store(pack(ticket, position), order);
        queue.sender.ticket.store(ticket, order);
        queue.sender.end.store(position, order);
        queue
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    #[inline]
    fn slot(&self, ticket: u32) -> &AtomicU64 {
        // The mask is the length less one, so the check for bounds costs nothing.
        &self.slots[ticket as usize & (self.slots.len() - 1)]
    }

    /// The lap's part of a slot. Thirty bits of it: an equal one comes back after 2³⁰ laps.
    #[inline]
    fn lap(&self, ticket: u32) -> u64 {
        u64::from(ticket >> self.slots_shift) << LAP_SHIFT
    }

    /// Kind and end of a ticket that is over, if it is.
    #[inline]
    fn outcome(&self, ticket: u32) -> Option<(u64, u32)> {
        // Acquire: partner of `settle_ticket`; the bytes of the range are visible with it.
        let slot = self.slot(ticket).load(Ordering::Acquire);
        let same_lap = slot >> LAP_SHIFT == self.lap(ticket) >> LAP_SHIFT;
        let kind = slot & KINDS;
        (kind != 0 && same_lap).then_some((kind, slot as u32))
    }

    /// Gives `len` bytes to the caller alone.
    #[inline]
    pub(super) fn reserve(&self, len: usize) -> Result<Ticket, Refused> {
        self.reserve_leaving(len, 0)
    }

    /// As [`Queue::reserve`], if `spare` bytes more stay free, and a ticket for them: of an empty queue, as many bytes
    /// as there are.
    #[inline]
    pub(super) fn reserve_leaving(&self, len: usize, spare: usize) -> Result<Ticket, Refused> {
        if len > self.capacity as usize {
            return Err(Refused::TooLong);
        }
        let spare = spare.min(self.capacity as usize - len) as u32;
        let len = len as u32;
        let tickets = self.slots.len() - if spare > 0 { SPARE_TICKETS } else { 0 };
        if self.state.0.load(Ordering::Relaxed) & CLOSED != 0 {
            return Err(Refused::Closed);
        }
        let mut head = self.head.0.load(Ordering::Relaxed);
        loop {
            // Acquire: partner of `publish`; the sender is done with what lies before the tail.
            let tail = self.tail.0.load(Ordering::Acquire);
            let ((ticket, start), (done, freed)) = (unpack(head), unpack(tail));
            let (used, open) = (start.wrapping_sub(freed), ticket.wrapping_sub(done));
            if used > self.capacity || open as usize > self.slots.len() {
                // The tail passed our old head; the load above made a newer head visible.
                head = self.head.0.load(Ordering::Relaxed);
                continue;
            }
            if len + spare > self.capacity - used || open as usize >= tickets {
                return Err(Refused::Full);
            }
            let end = start.wrapping_add(len);
            // Acquire: partner of the release in `abandon`, whose range may be ours now. If `head`
            // went forth and back to the same value meanwhile, it means the same as before.
            match self.head.0.compare_exchange_weak(
                head,
                pack(ticket.wrapping_add(1), end),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    return Ok(Ticket {
                        number: ticket,
                        start,
                        end,
                    });
                }
                Err(now) => head = now,
            }
        }
    }

    /// Hands a range over for sending. True: no thread has the right to send.
    #[inline]
    pub(super) fn commit(&self, ticket: Ticket) -> bool {
        // An empty range is nothing to send.
        let empty = ticket.start == ticket.end;
        self.settle_ticket(ticket, if empty { SKIPPED } else { COUNTED })
    }

    /// As [`Queue::commit`], of a range that [`Queue::counted`] leaves out.
    pub(super) fn commit_uncounted(&self, ticket: Ticket) -> bool {
        let empty = ticket.start == ticket.end;
        self.settle_ticket(ticket, if empty { SKIPPED } else { COMMITTED })
    }

    /// Ranges that were handed over by [`Queue::commit`], up to the first that is open. Only grows.
    pub(super) fn committed(&self) -> u64 {
        self.sender.committed(|mut ticket| {
            let mut unseen = 0;
            while let Some((kind, _)) = self.outcome(ticket) {
                unseen += u64::from(kind == COUNTED);
                ticket = ticket.wrapping_add(1);
            }
            unseen
        })
    }

    /// Gives a range back: as if it had never been, or else as one to step over. True: no
    /// thread has the right to send, and there may be something to send now.
    pub(super) fn abandon(&self, ticket: Ticket) -> bool {
        let newest = pack(ticket.number.wrapping_add(1), ticket.end);
        let before = pack(ticket.number, ticket.start);
        // Before the undo: whoever finds nothing reserved after it may give the memory back, and has to know that this was written.
        self.abandoned.fetch_max(ticket.end, Ordering::Relaxed);
        // Release: partner of the acquire in `reserve`; our writes end before the next begin.
        let undone =
            self.head
                .0
                .compare_exchange(newest, before, Ordering::Release, Ordering::Relaxed);
        if undone.is_err() {
            return self.settle_ticket(ticket, SKIPPED);
        }
        self.wake_if_waiting();
        false
    }

    /// As [`Queue::abandon`], and wakes who is to send then.
    pub(super) fn drop_ticket(&self, ticket: Ticket) {
        if self.abandon(ticket) {
            self.wake_due();
        }
    }

    #[inline]
    fn settle_ticket(&self, ticket: Ticket, kind: u64) -> bool {
        let slot = self.lap(ticket.number) | kind | u64::from(ticket.end);
        // Release: partner of `outcome`.
        self.slot(ticket.number).store(slot, Ordering::Release);
        // Release: a sender that reads this count sees the slot. An addition, because it is one
        // instruction that also returns the flags.
        self.state.0.fetch_add(NEWS, Ordering::AcqRel) & SENDING == 0
    }

    /// Takes the right to send, if it is free.
    fn acquire(&self, flags: u64, keep: u64) -> bool {
        let mut state = self.state.0.load(Ordering::Relaxed);
        while state & SENDING == 0 {
            // Acquire: partner of the release in `release_right`, by which the sender's fields
            // come, and of the news.
            match self.state.0.compare_exchange_weak(
                state,
                (state & keep) | flags,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// The longest run that can be sent, for its only sender.
    pub(super) fn take(&self) -> Option<Run> {
        if self.acquire(SENDING, FLAGS) {
            self.run_or_release()
        } else {
            None
        }
    }

    /// Takes the right to send without a run.
    pub(super) fn cork(&self) -> bool {
        self.acquire(SENDING | CORKED, u64::MAX)
    }

    /// Turns the right taken by `cork` into a run, or gives it up.
    pub(super) fn uncork(&self) -> Option<Run> {
        let mut state = self.state.0.load(Ordering::Relaxed);
        while state & CORKED != 0 {
            match self.state.0.compare_exchange_weak(
                state,
                state & FLAGS & !CORKED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return self.run_or_release(),
                Err(now) => state = now,
            }
        }
        None
    }

    /// The longest run, out of the right taken by `cork`, which is not given up: also without a run
    /// it stays as it is, and with one it is back by `back_to_cork`.
    pub(super) fn run_from_cork(&self) -> Option<Run> {
        let mut state = self.state.0.load(Ordering::Relaxed);
        while state & CORKED != 0 {
            match self.state.0.compare_exchange_weak(
                state,
                state & !CORKED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    let (_, tail) = unpack(self.tail.0.load(Ordering::Relaxed));
                    let run = self.look(tail);
                    if run.is_none() {
                        self.state.0.fetch_or(CORKED, Ordering::Release);
                    }
                    return run;
                }
                Err(now) => state = now,
            }
        }
        None
    }

    /// Frees what was sent, up to `sent`, and keeps the right to send as a cork.
    pub(super) fn back_to_cork(&self, sent: u32) {
        self.progress(sent);
        // Release: the thread that takes it from here sees the sender's fields.
        self.state.0.fetch_or(CORKED, Ordering::Release);
    }

    /// Frees what was sent, up to `sent`, while the run goes on.
    pub(super) fn progress(&self, sent: u32) {
        self.publish(sent);
        self.wake_if_waiting();
    }

    /// Frees what was sent, up to `sent`, and gives the right to send up. True: there is more.
    pub(super) fn finish(&self, sent: u32) -> bool {
        self.publish(sent);
        if sent != self.end_known() {
            self.give_up();
            return true;
        }
        // Also without news: a skipped range may have ended the run.
        let more = self.run_or_release().is_some();
        if more {
            self.give_up();
        }
        more
    }

    /// The end of the run, as far as it was known to the sender.
    fn end_known(&self) -> u32 {
        self.sender.end.load(Ordering::Relaxed)
    }

    /// For the sender: the first ticket behind the run.
    pub(super) fn end_ticket(&self) -> u32 {
        self.sender.ticket.load(Ordering::Relaxed)
    }

    /// For the sender: a run if there is one; otherwise gives the right up.
    fn run_or_release(&self) -> Option<Run> {
        loop {
            let (_, tail) = unpack(self.tail.0.load(Ordering::Relaxed));
            let run = self.look(tail);
            if run.is_some() || self.release_right() {
                return run;
            }
        }
    }

    /// For the sender: walks over the tickets that are over. Skipped ranges are stepped over when
    /// nothing unsent lies before them.
    fn look(&self, tail: u32) -> Option<Run> {
        let sender = &self.sender;
        let mut ticket = sender.ticket.load(Ordering::Relaxed);
        let mut end = sender.end.load(Ordering::Relaxed);
        let (first, mut start) = (ticket, tail);
        let mut counted = 0;
        while let Some((kind, position)) = self.outcome(ticket) {
            counted += u64::from(kind == COUNTED);
            if kind == SKIPPED {
                if start != end {
                    break;
                }
                start = position;
            }
            end = position;
            ticket = ticket.wrapping_add(1);
        }
        if ticket != first {
            sender.end.store(end, Ordering::Relaxed);
            sender.looked(ticket, counted);
        }
        if start != tail {
            self.progress(start);
        }
        (start != end).then_some(Run { start, end })
    }

    /// For the sender: frees all before `position`, and the slots of all tickets looked at.
    #[inline]
    fn publish(&self, position: u32) {
        if position >= self.capacity {
            self.sender.wrapped.store(1, Ordering::Relaxed);
        }
        let ticket = self.sender.ticket.load(Ordering::Relaxed);
        // Release: partner of `reserve`.
        self.tail.0.store(pack(ticket, position), Ordering::Release);
    }

    /// For the sender: gives the right up, unless there is news, which is taken then. Wakes who
    /// waits for room.
    fn release_right(&self) -> bool {
        let mut state = self.state.0.load(Ordering::Relaxed);
        loop {
            let (news, room) = (state >= NEWS, state & ROOM != 0);
            let next = state & FLAGS & if news { !0 } else { !SENDING };
            // Acquire: partner of the news, to see their slots. Release: partner of `acquire`.
            match self.state.0.compare_exchange_weak(
                state,
                next,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    if room {
                        self.wake_waiting();
                    }
                    return !news;
                }
                Err(now) => state = now,
            }
        }
    }

    /// For the sender: gives the right up, whatever there is.
    fn give_up(&self) {
        if self.state.0.fetch_and(!SENDING, Ordering::AcqRel) & ROOM != 0 {
            self.wake_waiting();
        }
    }

    /// Refuses reservations from now on. Those that exist go on as before.
    pub(super) fn close(&self) {
        if self.state.0.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED == 0 {
            self.wake_waiting();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// What to wake when an abandoned range leaves something to send and no thread sends.
    pub(super) fn on_due(&self, waker: Waker) {
        *lock(&self.due) = Some(waker);
    }

    fn wake_due(&self) {
        let waker = lock(&self.due).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Bytes reserved or committed and not sent.
    pub(super) fn queued(&self) -> usize {
        let (_, freed) = unpack(self.tail.0.load(Ordering::Acquire));
        let (_, end) = unpack(self.head.0.load(Ordering::Acquire));
        // While others go on, head and tail are not of one moment.
        end.wrapping_sub(freed).min(self.capacity) as usize
    }

    /// All before it was sent, or given back.
    pub(super) fn sent_position(&self) -> u32 {
        // Relaxed: it is compared with itself, and guards nothing.
        let (_, freed) = unpack(self.tail.0.load(Ordering::Relaxed));
        freed
    }

    /// Walks from the tail over the tickets that are over; `f` says with what kind to stop.
    /// Returns the ticket it stopped at and its outcome, or `None` at the head.
    fn walk(&self, stop_at: u64) -> Option<(u32, Option<u64>)> {
        let (mut ticket, _) = unpack(self.tail.0.load(Ordering::Acquire));
        loop {
            let (head, _) = unpack(self.head.0.load(Ordering::Acquire));
            if head.wrapping_sub(ticket) as i32 <= 0 {
                return None;
            }
            match self.outcome(ticket) {
                Some((kind, _)) if kind & stop_at == 0 => ticket = ticket.wrapping_add(1),
                outcome => {
                    // Its slot may have gone to a later lap since: then the tail is beyond it.
                    let (tail, _) = unpack(self.tail.0.load(Ordering::Acquire));
                    if tail.wrapping_sub(ticket) as i32 <= 0 {
                        return Some((ticket, outcome.map(|(kind, _)| kind)));
                    }
                    ticket = tail;
                }
            }
        }
    }

    /// The part of the sender's run that is not freed.
    fn in_run(&self) -> bool {
        let (_, freed) = unpack(self.tail.0.load(Ordering::Acquire));
        freed != self.end_known()
    }

    /// Nothing is left to send, to commit or to drop.
    pub(super) fn is_empty(&self) -> bool {
        // In this order: what the sender took over from the slots since then is in its run.
        self.walk(COMMITTED).is_none() && !self.in_run()
    }

    /// The next byte to send is committed.
    pub(super) fn has_committed(&self) -> bool {
        self.in_run() || matches!(self.walk(COMMITTED), Some((_, Some(_))))
    }

    /// The first ticket neither committed nor abandoned.
    pub(super) fn oldest(&self) -> Option<u32> {
        self.walk(0).map(|(ticket, _)| ticket)
    }

    /// Positions below which every byte ever written lies.
    pub(super) fn touched(&self) -> usize {
        let (_, end) = unpack(self.head.0.load(Ordering::Relaxed));
        let wrapped = self.sender.wrapped.load(Ordering::Relaxed) != 0;
        let abandoned = self.abandoned.load(Ordering::Relaxed);
        if wrapped {
            self.capacity as usize
        } else {
            end.max(abandoned) as usize
        }
    }
}

/// What the locks guard is whole after a panic, too.
fn lock<T>(mutex: &Mutex<T>) -> impl std::ops::DerefMut<Target = T> + '_ {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(all(test, loom))]
#[path = "models.rs"]
mod models;

#[cfg(all(test, not(loom)))]
#[path = "queue_tests.rs"]
mod tests;
