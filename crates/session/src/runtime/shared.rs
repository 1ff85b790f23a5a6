//! What the handles of a session and its worker share, and who writes to the socket when.
//!
//! One thread at a time has the right to send, and the send ring knows which. It passes like this:
//! - While the worker has it (a span is out, or a handler runs), callers only append.
//! - Otherwise a caller's commit comes back as the first. If the session was quiet, the caller
//!   writes right away, so a lone message need not wait for the worker. If a thread wrote just now,
//!   sends follow each other closely, and it pays to leave the writing to the worker and to append
//!   meanwhile.
//! - A thread that gives the right back, and learns that more is there or that the core waited for
//!   the right, marks the session. The worker looks at marked sessions, so no wake-up is lost.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use embar_frame::Now;
use embar_transport::ring::Commit;
use embar_transport::{DirectSend, Peer, Token};

use super::clock;
use super::datagrams::DatagramLink;
use super::group::Group;
use super::latest::Latest;
use super::memberships::Memberships;
use super::priority::Priority;
use super::session_id::SessionId;
use super::settings::OnFull;
use super::stall::Stall;
use super::stats::{Counter, SessionStats};
use super::wake_time::WakeTime;
use super::worker_marks::{Wakes, WorkerMarks, is_worker};
use crate::{Closed, Redirect, SendError, Sender};
use bodies::Bodies;

mod bodies;

/// About what a hand-over to the worker costs: callers that commit in quicker succession leave the
/// writing to it.
pub(super) const HANDOVER_NS: u64 = 20_000;

/// How long a thread that waits for room lets more of it gather than it needs.
const GATHER: Duration = Duration::from_millis(1);

/// What may be asked of the worker, as bits.
pub(super) mod request {
    pub(in super::super) const RESUME: u32 = 1;
    pub(in super::super) const GOODBYE: u32 = 2;
    pub(in super::super) const CLOSE: u32 = 4;
    pub(in super::super) const ABORT: u32 = 8;
    pub(in super::super) const FULL: u32 = 16;
    pub(in super::super) const STATUS: u32 = 32;
    pub(in super::super) const REFUSE: u32 = 64;
    pub(in super::super) const DATAGRAMS: u32 = 128;
    pub(in super::super) const CANCEL_BODY: u32 = 256;
    pub(in super::super) const LATEST: u32 = 512;
}

/// What the handles of a session share with its worker.
pub(super) struct Shared {
    pub(super) id: SessionId,
    pub(super) peer: Peer,
    pub(super) priority: Priority,
    pub(super) token: Token,
    pub(super) sender: Sender,
    pub(super) group: Arc<Group>,
    marks: Arc<WorkerMarks>,
    /// Set once connected.
    pub(super) direct: OnceLock<DirectSend>,
    asked: AtomicU32,
    /// The code and the text of [`request::REFUSE`].
    pub(super) refusal: OnceLock<(u32, String)>,
    /// The worker holds the right to send so that messages gather, those of the session's own
    /// handler or others, and for nothing else. Used by the worker's thread alone.
    pub(super) merely_corked: AtomicBool,
    on_full: AtomicU8,
    full_wait_ns: AtomicU64,
    stall: Stall,
    /// Async code has its handle, so no send may block.
    pub(super) is_async: AtomicBool,
    /// When its handler is to be woken.
    pub(super) wake: WakeTime,
    /// How datagrams come and go; set before the session is seen, if they do at all.
    pub(super) link: OnceLock<DatagramLink>,
    pub(super) memberships: Memberships,
    pub(super) latest: Latest,
    /// When a thread wrote to the socket last.
    pub(super) last_flush: AtomicU64,
    /// It ends as soon as its handler has sent all that it had to.
    leaves: AtomicBool,
    bodies: Bodies,
    pub(super) ended: OnceLock<Closed>,
    redirect: Mutex<Option<Box<Redirect>>>,
    born: Now,
    pub(super) counters: SessionCounters,
}

/// Counts of one session that its worker publishes.
#[derive(Default)]
pub(super) struct SessionCounters {
    pub(super) messages_received: Counter,
    pub(super) bodies_sent: Counter,
    pub(super) bytes_received: Counter,
    pub(super) kept_bytes: Counter,
    pub(super) reads: Counter,
    pub(super) times_full: Counter,
    pub(super) missed_broadcasts: Counter,
    /// Nanoseconds.
    waited_for_room: Counter,
    /// Nanoseconds; 0 = none yet.
    pub(super) round_trip: Counter,
}

impl Shared {
    pub(super) fn new(
        peer: Peer,
        priority: Priority,
        token: Token,
        sender: Sender,
        group: Arc<Group>,
        marks: Arc<WorkerMarks>,
    ) -> Self {
        let on_full = group.settings.on_full;
        let shared = Self {
            id: SessionId::next(),
            peer,
            priority,
            token,
            sender,
            group,
            marks,
            direct: OnceLock::new(),
            asked: AtomicU32::new(0),
            refusal: OnceLock::new(),
            merely_corked: AtomicBool::new(false),
            on_full: AtomicU8::new(0),
            full_wait_ns: AtomicU64::new(0),
            stall: Stall::default(),
            is_async: AtomicBool::new(false),
            wake: WakeTime::default(),
            link: OnceLock::new(),
            memberships: Memberships::default(),
            latest: Latest::default(),
            last_flush: AtomicU64::new(0),
            leaves: AtomicBool::new(false),
            bodies: Bodies::default(),
            ended: OnceLock::new(),
            redirect: Mutex::default(),
            born: clock::now(),
            counters: SessionCounters::default(),
        };
        shared.set_on_full(on_full);
        shared
    }

    pub(super) fn set_on_full(&self, policy: OnFull) {
        let kind = match policy {
            OnFull::Wait { timeout } => {
                let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
                self.full_wait_ns.store(nanos, Ordering::Relaxed);
                0
            }
            OnFull::Fail => 1,
            OnFull::Close => 2,
        };
        self.on_full.store(kind, Ordering::Relaxed);
    }

    fn on_full(&self) -> OnFull {
        match self.on_full.load(Ordering::Relaxed) {
            0 => OnFull::Wait {
                timeout: Duration::from_nanos(self.full_wait_ns.load(Ordering::Relaxed)),
            },
            1 => OnFull::Fail,
            _ => OnFull::Close,
        }
    }

    /// After every commit.
    #[inline]
    pub(super) fn committed(&self, commit: Commit) {
        if commit == Commit::First {
            self.write_or_mark();
        }
    }

    /// For the caller whose commit found the right to send free.
    fn write_or_mark(&self) {
        let Some(direct) = self.direct.get() else {
            return self.mark();
        };
        // Who is marked already needs no look at the clock: the worker is on its way. Marking again
        // is what makes sure of that.
        if self.marks.is_marked(self.token.index()) || self.marks.is_current() {
            return self.mark();
        }
        let last = self.last_flush.load(Ordering::Relaxed);
        if clock::now().0.saturating_sub(last) < HANDOVER_NS {
            return self.mark();
        }
        self.write(direct);
    }

    /// Writes what the ring holds, if the right to send is free.
    pub(super) fn write(&self, direct: &DirectSend) {
        // None: another thread has it by now, and sends all there is.
        let Some(mut span) = self.sender.ring().span() else {
            return;
        };
        let asked = span.bytes().len();
        let written = direct.try_send(&mut span);
        if let Ok(count) = written {
            self.sender.wrote(count);
        }
        self.last_flush.store(clock::now().0, Ordering::Relaxed);
        let more = span.finish();
        fence(Ordering::SeqCst);
        let body_waits = self.bodies.are_some(Ordering::Relaxed);
        // Perhaps that was the last of what the handler had to send.
        let leaves = self.leaves.load(Ordering::Relaxed);
        // A socket that is full, or broken, is the worker's business: it waits, or finds out.
        if more || written.ok() != Some(asked) || self.sender.wants_right() || body_waits || leaves
        {
            self.mark();
        }
    }

    /// From now on the worker looks at the session after each write, whosever it is. To be called before the handler is asked
    /// whether it has sent all.
    pub(super) fn leave(&self) {
        self.leaves.store(true, Ordering::Relaxed);
        // Partner: the one in `write`. What the handler is not told of when it is asked is written after this.
        fence(Ordering::SeqCst);
    }

    /// For handlers, which cannot wait: tries to write what the ring holds, right now.
    pub(super) fn flush_here(&self) {
        let Some(direct) = self.direct.get().filter(|_| self.marks.is_current()) else {
            return;
        };
        let ring = self.sender.ring();
        // The worker may hold the right for a body as well, and nothing may come inside of that.
        let span = if self.merely_corked.load(Ordering::Relaxed) {
            ring.span_in_cork()
        } else {
            ring.span()
        };
        if let Some(mut span) = span {
            if let Ok(count) = direct.try_send(&mut span) {
                self.sender.wrote(count);
            }
            drop(span);
            // For what is left, and for the core if it waited for the right.
            self.mark();
        }
    }

    /// Has the worker look at this session.
    pub(super) fn mark(&self) {
        self.marks.mark(self.token.index());
    }

    /// As [`Shared::mark`], but a worker that sleeps is woken later.
    #[inline]
    pub(super) fn mark_later(&self, wakes: &mut Wakes) {
        self.marks.mark_later(self.token.index(), wakes);
    }

    /// Whether the calling thread is the session's worker.
    pub(super) fn is_on_worker(&self) -> bool {
        self.marks.is_current()
    }

    pub(super) fn request(&self, bits: u32) {
        self.asked.fetch_or(bits, Ordering::AcqRel);
        self.mark();
    }

    pub(super) fn redirect(&self) -> MutexGuard<'_, Option<Box<Redirect>>> {
        self.redirect.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_requests(&self) -> bool {
        self.asked.load(Ordering::Relaxed) != 0
    }

    pub(super) fn take_requests(&self) -> u32 {
        if self.asked.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.asked.swap(0, Ordering::AcqRel)
    }

    /// The slow path of a send that found the ring full: `retry` is the fast one.
    #[cold]
    pub(super) fn when_full<T>(
        &self,
        len: usize,
        mut retry: impl FnMut() -> Result<T, SendError>,
    ) -> Result<T, SendError> {
        self.counters.times_full.add(1);
        if is_worker() {
            self.flush_here();
            match retry() {
                Err(SendError::Full) => {}
                other => return other,
            }
        }
        let Some(timeout) = self.may_wait() else {
            return Err(SendError::Full);
        };
        // The worker may be letting messages gather.
        self.mark();
        let ring = self.sender.ring();
        let began = Instant::now();
        let deadline = self.wait_deadline(began, timeout);
        if deadline <= began {
            return Err(SendError::Full);
        }
        let left = || deadline.saturating_duration_since(Instant::now());
        // A thread that wakes up for every few bytes of room is slower than one that lets some
        // gather; but it must not depend on more than what it needs.
        let bytes = self.bytes_for(len);
        let plenty = bytes.max(ring.capacity() / 2);
        let mut room = ring.room_wait();
        let _ = room.block(plenty, left().min(GATHER));
        loop {
            let left = left();
            let waited = room.block(bytes, left);
            match retry() {
                Err(SendError::Full) if waited.is_ok() && !left.is_zero() => {}
                other => {
                    let waited = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    self.counters.waited_for_room.add(waited);
                    return other;
                }
            }
        }
    }

    /// How long the caller, who found no room, may wait in one stall, if it may at all. Closes the session where the
    /// policy says so.
    fn may_wait(&self) -> Option<Duration> {
        match self.on_full() {
            // A worker that waited would hold up every other session, and perhaps the one that could
            // make room; an executor's thread, its other tasks.
            OnFull::Wait { timeout } => {
                let never = is_worker() || self.is_async.load(Ordering::Relaxed);
                (!never).then_some(timeout)
            }
            OnFull::Fail => None,
            OnFull::Close => {
                self.request(request::FULL);
                None
            }
        }
    }

    fn wait_deadline(&self, now: Instant, budget: Duration) -> Instant {
        // Of a body that waits, only its head is in the ring.
        let queued = self.sender.ring().queued();
        let queued = queued.saturating_add(self.bodies.bytes());
        self.stall
            .deadline(now, budget, self.sender.bytes(), queued)
    }

    /// What a frame with `len` bytes of content takes of the ring.
    pub(super) fn bytes_for(&self, len: usize) -> usize {
        let most = self.sender.ring().capacity();
        self.sender.frame_bytes(len).min(most)
    }

    /// The session is over: wakes all who wait for it, and keeps none of its bodies.
    pub(super) fn end(&self, why: Closed) {
        let _ = self.ended.set(why);
        self.sender.ring().close();
        self.end_link();
        self.latest.end();
        for membership in self.memberships.end() {
            membership.forget(self.id);
        }
        self.drop_bodies();
    }

    /// A waker that marks this session.
    pub(super) fn marker(&self) -> Waker {
        let marks = Arc::clone(&self.marks);
        let slot = self.token.index();
        Arc::new(Marker { marks, slot }).into()
    }

    pub(super) fn messages_sent(&self) -> u64 {
        self.sender.messages() + self.counters.bodies_sent.get()
    }

    pub(super) fn stats(&self) -> SessionStats {
        let counters = &self.counters;
        let round_trip = counters.round_trip.get();
        SessionStats {
            messages_received: counters.messages_received.get(),
            messages_sent: self.messages_sent(),
            bytes_received: counters.bytes_received.get(),
            bytes_sent: self.sender.bytes(),
            reads: counters.reads.get(),
            writes: self.sender.writes(),
            times_full: counters.times_full.get(),
            missed_broadcasts: counters.missed_broadcasts.get(),
            waited_for_room: Duration::from_nanos(counters.waited_for_room.get()),
            queued_bytes: self.sender.ring().queued(),
            kept_bytes: usize::try_from(counters.kept_bytes.get()).unwrap_or(usize::MAX),
            round_trip: (round_trip > 0).then(|| Duration::from_nanos(round_trip)),
            age: clock::now().since(self.born),
        }
    }
}

/// Marks one session. Apart from [`Shared`], which owns the ring that holds this as a waker.
struct Marker {
    marks: Arc<WorkerMarks>,
    slot: usize,
}

impl Wake for Marker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.marks.mark(self.slot);
    }
}
