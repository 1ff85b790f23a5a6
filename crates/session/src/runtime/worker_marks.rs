//! Which sessions a worker is to look at, marked by any thread, how that thread wakes it, and whether a handler holds it up.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use embar_frame::Now;
use embar_transport::{Marks, Waker};

/// A worker whose round takes longer is held up: other workers have new connections sooner.
const LONG_ROUND: Duration = Duration::from_millis(100);
/// Stands for "in no round".
const RESTS: u64 = u64::MAX;

/// The marks of one worker's sessions.
pub(super) struct WorkerMarks {
    marks: Marks,
    waker: Waker,
    /// When the worker's round began.
    round: AtomicU64,
}

thread_local! {
    /// The address of the marks of the worker that this thread is; 0 for all other threads.
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// Whether the calling thread is a worker of any server or client, and so must not block: other sessions wait for it.
#[must_use]
pub fn is_worker() -> bool {
    WORKER.get() != 0
}

impl WorkerMarks {
    pub(super) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self {
            marks: Marks::new(),
            waker,
            round: AtomicU64::new(RESTS),
        })
    }

    /// The calling thread is this worker from now on.
    pub(super) fn become_current(self: &Arc<Self>) {
        WORKER.set(Arc::as_ptr(self).addr());
    }

    /// Whether the calling thread is this worker.
    pub(super) fn is_current(self: &Arc<Self>) -> bool {
        WORKER.get() == Arc::as_ptr(self).addr()
    }

    /// For the worker: a round begins.
    pub(super) fn begin_round(&self, now: Now) {
        self.round.store(now.0, Ordering::Relaxed);
    }

    /// For the worker: it waits for what comes.
    pub(super) fn end_round(&self) {
        self.round.store(RESTS, Ordering::Relaxed);
    }

    /// Whether the worker's round takes long, mostly because a handler waits for something.
    pub(super) fn is_held_up(&self, now: Now) -> bool {
        now.since(Now(self.round.load(Ordering::Relaxed))) > LONG_ROUND
    }

    /// Makes the memory for marks of the session in `slot`: who marks it later allocates nothing.
    pub(super) fn make_room(&self, slot: usize) {
        self.marks.make_room(slot);
    }

    /// Has the worker look at the session in `slot`. Takes no lock, and makes no system call unless
    /// the worker sleeps; a worker marks its own sessions without waking itself.
    pub(super) fn mark(self: &Arc<Self>, slot: usize) {
        if self.marks.mark(slot) && !self.is_current() {
            self.waker.wake();
        }
    }

    /// As [`WorkerMarks::mark`], but leaves it to `wakes` to wake the worker.
    #[inline]
    pub(super) fn mark_later(self: &Arc<Self>, slot: usize, wakes: &mut Wakes) {
        if self.marks.mark(slot) && !self.is_current() {
            wakes.0.push(Arc::clone(self));
        }
    }

    /// Whether the session in `slot` is marked; may miss what another thread does just now.
    pub(super) fn is_marked(&self, slot: usize) -> bool {
        self.marks.is_marked(slot)
    }

    /// For the worker, after each round: the sessions to look at.
    pub(super) fn take(&self, out: &mut Vec<usize>) {
        self.marks.take(out);
    }

    /// Whether marks are left; threads that make some just now wake the worker.
    pub(super) fn any(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Wakes the worker.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }
}

/// Workers that are to be woken, each once for many marks. Dropped, it wakes them.
#[derive(Default)]
pub(super) struct Wakes(Vec<Arc<WorkerMarks>>);

impl Wakes {
    /// Wakes them.
    pub(super) fn wake(&mut self) {
        for worker in self.0.drain(..) {
            worker.wake();
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.wake();
    }
}
