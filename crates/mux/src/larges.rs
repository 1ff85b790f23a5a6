//! The commands of one connection that are too large for its ring: they wait beside it, up to a limit of bytes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use embar_transport::ring::{Reservation, SendRing};
use embar_transport::waiters::{Outworn, Place, Waiters, WakeBatch};

/// A command that does not fit into the ring. Its reservation is empty and holds its place among the
/// others.
pub(crate) struct LargeCommand {
    pub place: Reservation<'static>,
    pub bytes: Vec<u8>,
}

/// The large commands that wait to be sent, and the callers that wait for room for theirs.
pub(crate) struct Larges {
    limit: usize,
    queue: Mutex<Vec<LargeCommand>>,
    queued: AtomicUsize,
    bytes: AtomicUsize,
    waiting: Mutex<Waiters>,
    is_over: AtomicBool,
}

impl Larges {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            waiting: Mutex::default(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Whether none waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.queued.load(Ordering::Relaxed) == 0
    }

    /// Counts the bytes of one more, if the limit allows them.
    pub fn add(&self, len: usize) -> bool {
        let add = |queued| self.fits(queued, len).then_some(queued + len);
        let order = Ordering::SeqCst;
        self.bytes.fetch_update(order, order, add).is_ok()
    }

    /// Whether one of `len` bytes may wait beside `queued` bytes of others: one may always.
    fn fits(&self, queued: usize, len: usize) -> bool {
        queued == 0 || queued.saturating_add(len) <= self.limit
    }

    /// Queues one whose bytes are counted.
    pub fn push(&self, large: LargeCommand) {
        lock(&self.queue).push(large);
        self.queued.fetch_add(1, Ordering::AcqRel);
    }

    /// The one whose turn it is: the driver has sent everything before it in `ring`.
    pub fn next(&self, ring: &SendRing) -> Option<LargeCommand> {
        if self.queued.load(Ordering::Acquire) == 0 {
            return None;
        }
        // Pairs with the fence at the end of a caller's own write.
        fence(Ordering::SeqCst);
        let oldest = ring.oldest_reservation()?;
        let mut queue = lock(&self.queue);
        let at = queue
            .iter()
            .position(|large| large.place.ticket() == oldest)?;
        // Only now: what lies before it can neither be committed nor dropped any more.
        if ring.has_committed() {
            return None;
        }
        let large = queue.swap_remove(at);
        self.queued.fetch_sub(1, Ordering::AcqRel);
        Some(large)
    }

    /// One of so many bytes was sent, or never will be.
    pub fn over(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.wake_waiting();
    }

    /// Drops those that wait, and takes no more: all callers that wait for room learn of it.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        let left = std::mem::take(&mut *lock(&self.queue));
        for large in left {
            self.bytes.fetch_sub(large.bytes.len(), Ordering::SeqCst);
        }
        self.wake_waiting();
    }

    /// Ready when one of `len` bytes probably fits, or never will. The caller gives its place up by
    /// [`Larges::stop_waiting`].
    pub fn poll_room(
        &self,
        len: usize,
        place: &mut Option<Place>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut outworn = Outworn::default();
        let waker = cx.waker().clone();
        let mut waiting = lock(&self.waiting);
        let place = waiting.wait(place, len, waker, &mut outworn);
        let room = waiting.is_first(place) && self.fits(self.bytes.load(Ordering::SeqCst), len);
        if !room && !self.is_over.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        waiting.leave(place, &mut outworn);
        Poll::Ready(())
    }

    /// The caller that had this place waits no more, or its command is queued.
    pub fn stop_waiting(&self, place: Place) {
        let mut outworn = Outworn::default();
        lock(&self.waiting).leave(place, &mut outworn);
        drop(outworn);
        self.wake_waiting();
    }

    fn wake_waiting(&self) {
        let mut batch = WakeBatch::default();
        loop {
            let mut waiting = lock(&self.waiting);
            let is_over = self.is_over.load(Ordering::SeqCst);
            let queued = self.bytes.load(Ordering::SeqCst);
            waiting.wake(&mut batch, |need, promised| {
                is_over || self.fits(queued + promised.need, need)
            });
            drop(waiting);
            if !batch.wake() {
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
