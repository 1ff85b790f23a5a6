//! How many commands a connection has in flight, and who waits until there are fewer.
//!
//! One word counts the commands in flight and the turns: the places that are kept for callers that waited, were
//! woken, and have not submitted yet. Both together never exceed the limit for longer than a refused caller takes to
//! count itself out. Who makes room gives it to those who wait, first come, first served, and as many as there is
//! room for. So a newcomer overtakes nobody, and nobody is woken in vain.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use embar_transport::waiters::{Outworn, Place, Waiters, WakeBatch};

/// One command in flight.
const COMMAND: u64 = 1;
/// One turn.
const TURN: u64 = 1 << 32;

/// What is in the word.
#[derive(Clone, Copy)]
struct Counts(u64);

impl Counts {
    fn commands(self) -> usize {
        self.0 as u32 as usize
    }

    fn all(self) -> usize {
        self.commands() + (self.0 >> 32) as usize
    }
}

/// The commands in flight of one connection, up to a limit.
pub(crate) struct InFlight {
    limit: usize,
    counts: AtomicU64,
    waiting: Mutex<Waiters>,
    has_waiting: AtomicBool,
    is_over: AtomicBool,
}

/// A place for a command, kept for the caller whose turn it is. It must be used or given back.
#[derive(Debug)]
#[must_use]
pub(crate) struct TurnTaken(());

impl InFlight {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            counts: AtomicU64::new(0),
            waiting: Mutex::default(),
            has_waiting: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }
    }

    /// Commands in flight.
    pub fn count(&self) -> usize {
        Counts(self.counts.load(Ordering::SeqCst)).commands()
    }

    /// Whether somebody waits who was not given a turn; may miss what another thread does just now. Between the moment
    /// in which there is room and that in which turns are given, newcomers look here and get in line.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.has_waiting.load(Ordering::Relaxed)
    }

    /// Counts one more command, and returns how many there were before. `None` when the limit is reached.
    pub fn enter(&self) -> Option<usize> {
        // Pairs with `leave`, so that a caller refused here hears of room.
        let before = Counts(self.counts.fetch_add(COMMAND, Ordering::SeqCst));
        if before.all() < self.limit {
            return Some(before.commands());
        }
        self.undo_enter();
        None
    }

    /// Takes back what [`InFlight::enter`] counted for a command that is not submitted after all.
    pub fn undo_enter(&self) {
        let before = Counts(self.counts.fetch_sub(COMMAND, Ordering::SeqCst));
        // It kept others out only if it was the one that reached the limit.
        if before.all() == self.limit {
            self.wake_for_room();
        }
    }

    /// `count` commands are not in flight any more.
    pub fn leave(&self, count: usize) {
        // A read-modify-write on both sides: either this sees the callers that wait, or they see that
        // there is room.
        self.counts
            .fetch_sub(count as u64 * COMMAND, Ordering::SeqCst);
        self.wake_for_room();
    }

    /// Counts the command of the caller whose turn it is, and returns how many others there are.
    pub fn use_turn(&self, turn: TurnTaken) -> usize {
        let TurnTaken(()) = turn;
        let change = COMMAND.wrapping_sub(TURN);
        Counts(self.counts.fetch_add(change, Ordering::SeqCst)).commands()
    }

    /// Takes back what [`InFlight::use_turn`] counted, for a command that could not be submitted: the caller still has
    /// its turn.
    pub fn keep_turn(&self) -> TurnTaken {
        self.counts
            .fetch_add(TURN.wrapping_sub(COMMAND), Ordering::SeqCst);
        TurnTaken(())
    }

    /// The caller whose turn it was submits nothing: another one may.
    pub fn give_back(&self, turn: TurnTaken) {
        let TurnTaken(()) = turn;
        self.counts.fetch_sub(TURN, Ordering::SeqCst);
        self.wake_for_room();
    }

    /// Ready when it is the caller's turn, and at once, without one, when the connection is over. The caller gives
    /// its place up by [`InFlight::stop_waiting`].
    #[cold]
    pub fn poll_turn(
        &self,
        place: &mut Option<Place>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<TurnTaken>> {
        let mut outworn = Outworn::default();
        let waker = cx.waker().clone();
        let mut waiting = self.waiting();
        if place.is_some_and(|place| waiting.come_back(place)) {
            return Poll::Ready((!self.is_over()).then_some(TurnTaken(())));
        }
        let place = waiting.wait(place, 1, waker, &mut outworn);
        self.has_waiting.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let turn = match self.is_over() {
            true => None,
            false if waiting.is_first(place) && self.take_turn() => Some(TurnTaken(())),
            false => return Poll::Pending,
        };
        waiting.leave(place, &mut outworn);
        self.note_waiting(&waiting);
        Poll::Ready(turn)
    }

    /// The caller that had this place waits no more.
    pub fn stop_waiting(&self, place: Place) {
        let mut outworn = Outworn::default();
        let mut waiting = self.waiting();
        let was_woken = waiting.leave(place, &mut outworn);
        self.note_waiting(&waiting);
        drop(waiting);
        if was_woken && !self.is_over() {
            self.give_back(TurnTaken(()));
        }
    }

    /// The connection takes no command any more: all that wait learn of it.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.wake_for_room();
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn wake_for_room(&self) {
        fence(Ordering::SeqCst);
        if self.has_waiting.load(Ordering::SeqCst) {
            self.wake_waiting();
        }
    }

    /// Gives turns to those who wait, as many as there is room for.
    #[cold]
    fn wake_waiting(&self) {
        let mut batch = WakeBatch::default();
        loop {
            let mut waiting = self.waiting();
            waiting.wake(&mut batch, |_, _| self.is_over() || self.take_turn());
            self.note_waiting(&waiting);
            drop(waiting);
            if !batch.wake() {
                return;
            }
        }
    }

    /// Keeps a place for a caller that waits, if there is one.
    fn take_turn(&self) -> bool {
        let take = |counts| (Counts(counts).all() < self.limit).then_some(counts + TURN);
        let order = Ordering::SeqCst;
        self.counts.fetch_update(order, order, take).is_ok()
    }

    fn note_waiting(&self, waiting: &Waiters) {
        if waiting.is_empty() {
            self.has_waiting.store(false, Ordering::SeqCst);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiters> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
