//! One connection, as its callers see it.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use embar_transport::DirectSend;
use embar_transport::ring::{Commit, Reservation, ReserveError, SendRing};

use crate::call::Call;
use crate::clock;
use crate::direct::Tally;
use crate::error::{Reason, SubmitError};
use crate::hub::Alarm;
use crate::profile::{Laps, Stage};
use crate::slots::{Command, Slots};
use crate::stats::{Meters, Stats};

/// How a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// It is being made, or the peer is being greeted. Commands are taken, and wait.
    Connecting = 0,
    /// Commands go out.
    Open = 1,
    /// It is over.
    Closed = 2,
}

/// Bounds of one connection.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most commands that wait for a reply or to be sent; rounded up to a power of two.
    pub in_flight: usize,
    /// How long a command may take that has no limit of its own.
    pub timeout: Duration,
    /// How long the peer may say nothing while it owes a reply.
    pub dead_after: Duration,
    /// How long connecting and greeting may take.
    pub connect_timeout: Duration,
    /// Longest reply that is kept for a caller, bytes.
    pub max_reply_bytes: usize,
    /// Most bytes of commands that are too large for the send ring and wait to be sent; one may
    /// always wait.
    pub max_large_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight: 4096,
            timeout: Duration::from_secs(5),
            dead_after: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            max_reply_bytes: 512 << 20,
            max_large_bytes: 1 << 30,
        }
    }
}

/// A command that does not fit into the ring. Its reservation is empty and only holds its place.
pub(crate) struct Large {
    pub place: Reservation<'static>,
    pub bytes: Vec<u8>,
}

/// See the module.
pub(crate) struct Shared {
    pub ring: SendRing,
    pub slots: Slots,
    pub limits: Limits,
    pub number: usize,
    pub alarm: Arc<Alarm>,
    in_flight: AtomicUsize,
    /// Those who wait until fewer commands are in flight.
    waiting: Mutex<Vec<Waker>>,
    somebody_waits: AtomicU8,
    larges: Mutex<Vec<Large>>,
    pub larges_queued: AtomicUsize,
    larges_bytes: AtomicUsize,
    /// Commands in flight that may not take as long as the others.
    pub hasty: AtomicU32,
    /// For writing at once, while the connection is open and nothing is in the way of that.
    pub direct: OnceLock<DirectSend>,
    /// What callers wrote so.
    pub by_callers: Tally,
    standing: AtomicU8,
    asked_to_close: AtomicU8,
    pub ended: OnceLock<Reason>,
    pub counters: Arc<Meters>,
}

impl Shared {
    pub fn new(
        ring: SendRing,
        limits: Limits,
        number: usize,
        alarm: Arc<Alarm>,
        counters: Arc<Meters>,
    ) -> Self {
        let in_flight = limits.in_flight.max(1).next_power_of_two();
        Self {
            ring,
            slots: Slots::new(in_flight),
            limits: Limits {
                in_flight,
                ..limits
            },
            number,
            alarm,
            in_flight: AtomicUsize::new(0),
            waiting: Mutex::default(),
            somebody_waits: AtomicU8::new(0),
            larges: Mutex::default(),
            larges_queued: AtomicUsize::new(0),
            larges_bytes: AtomicUsize::new(0),
            hasty: AtomicU32::new(0),
            direct: OnceLock::new(),
            by_callers: Tally::default(),
            standing: AtomicU8::new(Standing::Connecting as u8),
            asked_to_close: AtomicU8::new(0),
            ended: OnceLock::new(),
            counters,
        }
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Acquire) {
            0 => Standing::Connecting,
            1 => Standing::Open,
            _ => Standing::Closed,
        }
    }

    pub fn set_standing(&self, standing: Standing) {
        self.standing.store(standing as u8, Ordering::Release);
    }

    pub fn mark(&self) {
        self.alarm.mark(self.number);
    }

    /// Counts one more command in flight, if that is allowed: how many there were before.
    fn enter(&self) -> Option<usize> {
        // Pairs with `leave`, so that what is refused here hears of room.
        let others = self.in_flight.fetch_add(1, Ordering::SeqCst);
        if others < self.limits.in_flight {
            return Some(others);
        }
        self.take_back();
        None
    }

    /// Takes back what [`Shared::enter`] counted for a command that is not submitted after all.
    fn take_back(&self) {
        // Only if it was the one that filled up all there is did it keep anybody out; whoever waits
        // for other things would be woken for nothing, and come back here.
        if self.in_flight.fetch_sub(1, Ordering::SeqCst) == self.limits.in_flight {
            self.room_again();
        }
    }

    /// `count` commands are not in flight any more.
    pub fn leave(&self, count: usize) {
        // A read-modify-write on both sides, so that either this sees who waits, or they see that
        // there is room.
        self.in_flight.fetch_sub(count, Ordering::SeqCst);
        self.room_again();
    }

    fn room_again(&self) {
        fence(Ordering::SeqCst);
        if self.somebody_waits.load(Ordering::SeqCst) != 0 {
            self.wake_waiting();
        }
    }

    #[cold]
    pub fn wake_waiting(&self) {
        self.somebody_waits.store(0, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for waker in waiting {
            waker.wake();
        }
    }

    #[cold]
    fn wait(&self, waker: &Waker) {
        let mut waiting = lock(&self.waiting);
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        self.somebody_waits.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn closed(&self) -> SubmitError {
        SubmitError::Closed(self.ended.get().cloned().unwrap_or(Reason::Closed))
    }

    /// The large command whose turn it is: everything before it is sent.
    pub fn next_large(&self) -> Option<Large> {
        if self.larges_queued.load(Ordering::Acquire) == 0 {
            return None;
        }
        // Pairs with the end of a caller's write.
        fence(Ordering::SeqCst);
        let oldest = self.ring.oldest_reservation()?;
        let mut larges = lock(&self.larges);
        let at = larges
            .iter()
            .position(|large| large.place.ticket() == oldest)?;
        // Only now: what lies before it can neither be committed nor dropped any more.
        if self.ring.has_committed() {
            return None;
        }
        let large = larges.swap_remove(at);
        self.larges_queued.fetch_sub(1, Ordering::AcqRel);
        Some(large)
    }

    /// Whether a command would be refused, whatever is in flight. Those who wait ask before they
    /// count as in flight, and so wake nobody.
    #[cold]
    fn is_full_for(&self, len: usize) -> bool {
        if len > self.ring.capacity() / 2 {
            return !self.has_room_for_large(len);
        }
        !self.ring.has_room(len)
    }

    fn fits(&self, queued: usize, len: usize) -> bool {
        queued == 0 || queued.saturating_add(len) <= self.limits.max_large_bytes
    }

    fn has_room_for_large(&self, len: usize) -> bool {
        self.fits(self.larges_bytes.load(Ordering::SeqCst), len)
    }

    /// A large command was sent, or never will be.
    pub fn large_over(&self, bytes: usize) {
        self.larges_bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.wake_waiting();
    }

    /// Gives up the large commands that wait.
    pub fn drop_larges(&self) {
        for large in std::mem::take(&mut *lock(&self.larges)) {
            self.large_over(large.bytes.len());
        }
    }

    pub fn is_asked_to_close(&self) -> bool {
        self.asked_to_close.load(Ordering::Acquire) != 0
    }

    /// The code that fills a reservation panicked; what was to be sent is unknown.
    #[cold]
    fn give_up(&self) {
        let _ = self.ended.set(Reason::EncoderPanicked);
        self.asked_to_close.store(1, Ordering::Release);
        self.ring.close();
        self.mark();
    }
}

/// A connection that many callers share. Cheap to clone; usable from every thread.
///
/// Dropping handles changes nothing: a connection lives until it is closed, or breaks.
#[derive(Clone)]
pub struct Conn(pub(crate) Arc<Shared>);

impl Conn {
    /// Submits a command of `len` bytes that `fill` writes, all of them, and which is answered by
    /// `replies` frames. Never waits. `waker` is told when they are there, unless the call is
    /// polled by another one before. Its time is counted under `class`, less than
    /// [`CLASSES`](crate::stats::CLASSES).
    ///
    /// # Errors
    /// [`SubmitError`]; `fill` is not called then.
    ///
    /// # Panics
    /// If `replies` is 0. If `fill` panics the connection ends.
    pub fn submit(
        &self,
        len: usize,
        replies: u32,
        class: u8,
        timeout: Option<Duration>,
        waker: Option<Waker>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Call, SubmitError> {
        assert!(replies > 0, "a command has a reply");
        let shared = &*self.0;
        let mut laps = Laps::start(&[Stage::Submit, Stage::Encode]);
        let waited_for = shared.somebody_waits.load(Ordering::Relaxed) != 0;
        if waited_for && shared.is_full_for(len) && !shared.ring.is_closed() {
            return Err(SubmitError::Full);
        }
        let Some(others) = shared.enter() else {
            return Err(SubmitError::Full);
        };
        if len > shared.ring.capacity() / 2 {
            return self.submit_large(len, replies, class, timeout, waker, fill);
        }
        // Not settled if `fill` panics: so nothing behind it is ever sent.
        let mut place = match shared.ring.reserve(len) {
            Ok(place) => ManuallyDrop::new(place),
            Err(error) => {
                shared.take_back();
                return Err(match error {
                    ReserveError::Full => SubmitError::Full,
                    ReserveError::Closed => shared.closed(),
                    ReserveError::TooLong { .. } => unreachable!("at most half of the ring"),
                });
            }
        };
        let (call, unwinding) = self.expect(place.ticket(), len, replies, class, timeout, waker);
        laps.lap(Stage::Submit);
        fill(&mut place);
        laps.lap(Stage::Encode);
        std::mem::forget(unwinding);
        let commit = ManuallyDrop::into_inner(place).commit();
        laps.lap(Stage::Submit);
        if commit == Commit::First {
            shared.see_to_it(others);
        }
        Ok(call)
    }

    /// Sends `len` bytes that `fill` writes, all of them, and to which there is no reply: for
    /// connections whose peer only pushes. Never waits.
    ///
    /// A connection has either commands with replies or none: whoever posts must never submit on
    /// it.
    ///
    /// # Errors
    /// [`SubmitError`]; `fill` is not called then. What is larger than the ring never fits.
    ///
    /// # Panics
    /// If `fill` panics the connection ends.
    pub fn post(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SubmitError> {
        let shared = &*self.0;
        let mut place = shared.ring.reserve(len).map_err(|error| match error {
            ReserveError::Closed => shared.closed(),
            ReserveError::Full | ReserveError::TooLong { .. } => SubmitError::Full,
        })?;
        let unwinding = Unwinding(shared);
        fill(&mut place);
        std::mem::forget(unwinding);
        if place.commit() == Commit::First {
            shared.mark();
        }
        Ok(())
    }

    #[cold]
    fn submit_large(
        &self,
        len: usize,
        replies: u32,
        class: u8,
        timeout: Option<Duration>,
        waker: Option<Waker>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Call, SubmitError> {
        let shared = &*self.0;
        let add = |queued| shared.fits(queued, len).then_some(queued + len);
        let queued = &shared.larges_bytes;
        let taken = queued.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        let reserved = match taken {
            Ok(_) => shared.ring.reserve(0),
            Err(_) => {
                shared.take_back();
                return Err(SubmitError::Full);
            }
        };
        let place = match reserved {
            Ok(place) => ManuallyDrop::new(place.into_owned()),
            Err(error) => {
                shared.large_over(len);
                shared.take_back();
                return Err(match error {
                    ReserveError::Closed => shared.closed(),
                    ReserveError::Full | ReserveError::TooLong { .. } => SubmitError::Full,
                });
            }
        };
        let (call, unwinding) = self.expect(place.ticket(), len, replies, class, timeout, waker);
        let mut bytes = vec![0; len];
        fill(&mut bytes);
        std::mem::forget(unwinding);
        let place = ManuallyDrop::into_inner(place);
        lock(&shared.larges).push(Large { place, bytes });
        shared.larges_queued.fetch_add(1, Ordering::AcqRel);
        shared.mark();
        Ok(call)
    }

    #[inline]
    fn expect(
        &self,
        ticket: u32,
        len: usize,
        frames: u32,
        class: u8,
        timeout: Option<Duration>,
        waker: Option<Waker>,
    ) -> (Call, Unwinding<'_>) {
        let shared = &*self.0;
        let hasty = timeout.is_some_and(|timeout| timeout != shared.limits.timeout);
        if hasty {
            shared.hasty.fetch_add(1, Ordering::Relaxed);
        }
        let since = clock::now();
        let timeout = timeout.unwrap_or(shared.limits.timeout);
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let command = Command {
            ticket,
            frames,
            class,
            len: len as u64,
            since,
            deadline: since.saturating_add(nanos),
        };
        let seat = shared.slots.expect(&command, waker);
        let call = Call::new(Arc::clone(&self.0), seat, since, hasty);
        (call, Unwinding(shared))
    }

    /// As [`Conn::submit`], but waits for room: the task is woken when there may be some.
    ///
    /// # Errors
    /// [`SubmitError::Closed`].
    pub fn poll_submit(
        &self,
        cx: &mut Context<'_>,
        len: usize,
        replies: u32,
        class: u8,
        timeout: Option<Duration>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Poll<Result<Call, SubmitError>> {
        let shared = &*self.0;
        let mut attempt = |cx: &mut Context<'_>| {
            let waker = Some(cx.waker().clone());
            self.submit(len, replies, class, timeout, waker, &mut *fill)
        };
        match attempt(cx) {
            Err(SubmitError::Full) => {}
            other => return Poll::Ready(other),
        }
        // Whatever it is that is full, one of these hears of room in it.
        shared.wait(cx.waker());
        let ring = shared
            .ring
            .poll_room(len.min(shared.ring.capacity() / 2), cx);
        match attempt(cx) {
            Err(SubmitError::Full) => {}
            other => return Poll::Ready(other),
        }
        // For room for large commands, those who end one wake all.
        let is_large = len > shared.ring.capacity() / 2;
        let waits_for_large = is_large && !shared.has_room_for_large(len);
        if ring.is_ready() && !waits_for_large && shared.in_flight() < shared.limits.in_flight {
            // It was full and is not: nobody may be there to tell of room any more.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Closes the connection: commands that have no reply yet fail.
    pub fn close(&self) {
        self.0.asked_to_close.store(1, Ordering::Release);
        self.0.mark();
    }

    /// How it stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.0.standing()
    }

    /// Why it is over, once it is.
    #[must_use]
    pub fn ended(&self) -> Option<&Reason> {
        self.0.ended.get()
    }

    /// Commands that have no reply yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    /// What was done so far, as any thread may read it; on all connections that share its
    /// [`Meters`], but for those in flight.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.counters.stats(self.0.in_flight() as u64)
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Conn({:?}, {} in flight)",
            self.standing(),
            self.in_flight()
        )
    }
}

/// Dropped only when code that fills a reservation panics.
struct Unwinding<'a>(&'a Shared);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
