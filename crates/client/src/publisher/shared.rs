//! What the handles and I/O threads of one publisher share, and the rules by which they wake each other.
//!
//! Locks, in the order in which they are taken: a handle's `Current`, `state`; then `handles`, pool, receipts and
//! `opening`, which are leaves. Callbacks run with none of them held. A reservation holds a `Current` for as long as the
//! application likes, so no I/O thread waits for one. Whoever publishes owns its `Current`; all others visit it.
//!
//! The control thread sleeps until `sleep_until`. Whoever creates an earlier deadline wakes it. To lose none, that
//! thread first stores "asleep for ever", then looks for deadlines, then stores what it found: a deadline made before
//! the look is seen by it, and one made after it sees a value that is too late and wakes. Deadlines of the core are guarded by
//! its lock; those of handles' batches, which no lock guards, and `sleep_until` are sequentially consistent.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use embar_frame::Now;
use embar_memory::sealed::SealedRange;
use embar_meter::{Profile, Recorder};
use embar_transport::Waker;

use super::batch_memory::BatchMemory;
use super::batcher::HandleBatch;
use super::buffer_sizes::BufferSizes;
use super::core::PublisherCore;
use super::model::Event;
use super::outlet::State;
use super::pool::Pool;
use super::receipt::{Failure, Helper, Outcome, Position, Receipts};
use crate::clock::{Clock, Ticks};
use crate::connection::ChannelId;
use crate::error::{ClientError, PublishError, panic_text};
use crate::profile::publisher::{BATCHES_RESENT, RECONNECTS, WAIT_FOR_ACK};
use crate::wait::Wait;
use crate::wake::{WakeList, block_on};

/// Batch buffers beyond this lie in private memory: a broker maps no more of one publisher.
const BATCH_MEMORY_MAX: usize = 256 << 20;

/// When to look again at a handle whose batch may be due, but which is in use.
const BUSY_HANDLE_RETRY: Duration = Duration::from_millis(1);

/// What became of a batch, as told to [`PublisherBuilder::on_ack`](super::PublisherBuilder::on_ack).
#[derive(Debug)]
pub struct Delivery {
    /// The batch's number, as in [`Ticket::batch`](super::Ticket::batch).
    pub batch: u64,
    /// Its messages; indices run from 0.
    pub messages: u32,
    /// Where its first message is; the others follow it. `Ok(None)` with [`Acks::None`](crate::Acks::None): handed to
    /// the kernel, and nothing more is known. With acknowledgements `Ok(None)` is stored, once, and where is not known
    /// any more.
    pub result: Result<Option<Position>, PublishError>,
    /// Time from hand-over to acknowledgement, if it was acknowledged.
    pub waited: Option<Duration>,
}

pub(super) type OnAck = Box<dyn Fn(&Delivery) + Send + Sync>;

/// What is known once the publisher is open.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opened {
    pub(super) topic_id: u32,
    pub(super) max_batch_bytes: u32,
    pub(super) max_message_bytes: u32,
    pub(super) channels: u32,
}

#[derive(Default)]
struct Opening {
    result: Option<Result<Opened, ClientError>>,
    waiting: WakeList,
}

/// What a handle needs and what is not there before the publisher is open.
pub(super) struct Ready {
    pub(super) pool: Pool,
    pub(super) topic_id: u32,
    pub(super) batch_bytes: usize,
    pub(super) batches_in_flight: usize,
    pub(super) max_message_bytes: usize,
}

/// What drives a channel.
pub(super) trait Drive: Send + Sync {
    /// Drives it on this thread until `is_over` says that it may stop, or `deadline` has passed. Returns at once if another
    /// thread drives.
    fn drive(&self, deadline: Option<Instant>, is_over: &mut dyn FnMut(&mut Context<'_>) -> bool);

    /// Takes what the channel has brought, and gives it what can go, without waiting; nothing if another thread drives.
    fn pass(&self);

    /// Somebody waits for what the channel brings: its own thread is to be woken for that from now on.
    fn hurry(&self);
}

impl Helper for Shared {
    fn help(
        &self,
        batch: u64,
        deadline: Option<Instant>,
        is_over: &mut dyn FnMut(&mut Context<'_>) -> bool,
    ) {
        let carrier = |core: &PublisherCore| core.carrier(batch);
        if let Some(drive) = self.drive_of(carrier) {
            drive.drive(deadline, is_over);
        }
    }

    fn hurry(&self) {
        let drives = self.drives.read().unwrap_or_else(PoisonError::into_inner);
        for drive in drives.iter().flatten().filter_map(Weak::upgrade) {
            drive.hurry();
        }
    }
}

pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    pub(super) ready: OnceLock<Ready>,
    pub(super) receipts: Arc<Receipts>,
    pub(super) profile: Arc<Profile>,
    pub(super) clock: Clock,
    pub(super) linger: Duration,
    pub(super) spin: Duration,
    pub(super) producer: u64,
    pub(super) stopping: AtomicBool,
    handles: Mutex<Vec<Weak<HandleBatch>>>,
    opening: Mutex<Opening>,
    /// By channel; none before its thread runs.
    wakers: RwLock<Vec<Option<Waker>>>,
    /// By channel; none before its thread runs, and after.
    drives: RwLock<Vec<Option<Weak<dyn Drive>>>>,
    sleep_until: AtomicU64,
    sizes: BufferSizes,
    batch_memory: OnceLock<Option<BatchMemory>>,
    /// Batches are sealed with checksums, because some connection goes by a socket.
    sums: AtomicBool,
    pub(super) on_ack: Option<OnAck>,
    on_ack_panicked: AtomicBool,
    ticks: Ticks,
}

pub(super) struct SharedSettings {
    pub(super) sizes: BufferSizes,
    pub(super) linger: Duration,
    pub(super) spin: Duration,
    pub(super) delivery_timeout: Duration,
    pub(super) producer: u64,
    pub(super) on_ack: Option<OnAck>,
}

impl Shared {
    pub(super) fn new(
        core: PublisherCore,
        profile: Arc<Profile>,
        settings: SharedSettings,
    ) -> Self {
        Self {
            state: Mutex::new(State::new(core)),
            ready: OnceLock::new(),
            receipts: Arc::new(Receipts::new(settings.delivery_timeout)),
            profile,
            clock: Clock::new(),
            linger: settings.linger,
            spin: settings.spin,
            producer: settings.producer,
            stopping: AtomicBool::new(false),
            handles: Mutex::default(),
            opening: Mutex::default(),
            wakers: RwLock::default(),
            drives: RwLock::default(),
            sleep_until: AtomicU64::new(u64::MAX),
            sizes: settings.sizes,
            batch_memory: OnceLock::new(),
            sums: AtomicBool::new(true),
            on_ack: settings.on_ack,
            on_ack_panicked: AtomicBool::new(false),
            ticks: Ticks::of_this_machine(),
        }
    }

    /// For tools outside; `None` while it is not open.
    #[cfg(feature = "profile")]
    pub(super) fn told(&self, profile: embar_meter::Snapshot) -> Option<crate::PublisherProfile> {
        let (ready, handles) = (self.ready.get()?, self.live_handles());
        Some(crate::PublisherProfile {
            profile,
            batch_bytes: ready.batch_bytes as u64,
            linger_s: self.linger.as_secs_f64(),
            batches_in_flight: ready.batches_in_flight as u64,
            callers: handles.iter().filter_map(|it| it.caller.told()).collect(),
        })
    }

    /// What brokers that are reached by shared memory may read, for so many connections. It is made by the first caller, unless
    /// the publisher is open, and has buffers.
    pub(super) fn batch_memory(&self, connections: u32) -> Option<&BatchMemory> {
        if self.ready.get().is_some() {
            return self.batch_memory.get()?.as_ref();
        }
        let make = || {
            let most = BATCH_MEMORY_MAX / self.sizes.batch_bytes;
            let buffers = self.sizes.count(connections).min(most);
            BatchMemory::new(self.sizes.batch_bytes, buffers)
        };
        self.batch_memory.get_or_init(make).as_ref()
    }

    /// Some connection has begun or ended.
    pub(super) fn find_who_sums(&self) {
        // Under the lock, so that of two channels the one that looked last says so last.
        let state = lock(&self.state);
        self.sums.store(state.core.needs_sums(), Ordering::Relaxed);
    }

    /// Whether batches are sealed with checksums. What was sealed without, and goes by a socket after all, gets one then.
    pub(super) fn sums(&self) -> bool {
        self.sums.load(Ordering::Relaxed)
    }

    /// The buffers of that memory, if there is one.
    pub(super) fn take_batch_memory(&self) -> Vec<SealedRange> {
        let memory = self.batch_memory.get().and_then(Option::as_ref);
        memory.map_or_else(Vec::new, BatchMemory::take)
    }

    /// Runs `f` on the core and wakes the other threads that have something to do because of it. Events are left in
    /// `events` for [`Shared::handle`], or in the core, for the control thread, if `events` is `None`.
    pub(super) fn with_core(
        &self,
        own: Option<ChannelId>,
        events: Option<&mut Vec<Event>>,
        f: impl FnOnce(&mut PublisherCore, Now),
    ) {
        self.with_state(own, events, |state, now| f(&mut state.core, now));
    }

    /// As [`Shared::with_core`], on all that the lock guards.
    pub(super) fn with_state<R>(
        &self,
        own: Option<ChannelId>,
        events: Option<&mut Vec<Event>>,
        f: impl FnOnce(&mut State, Now) -> R,
    ) -> R {
        let mut state = lock(&self.state);
        let result = f(&mut state, self.clock.now());
        let core = &mut state.core;
        if let Some(events) = events {
            events.extend(std::iter::from_fn(|| core.next_event()));
        }
        let next_tick = core.next_tick().unwrap_or(Now(u64::MAX));
        let control_has_work = core.has_event() || core.has_action(ChannelId::CONTROL);
        let mut to_wake = (1..core.channel_count())
            .map(ChannelId)
            .filter(|channel| Some(*channel) != own && state.has_work(*channel));
        // One other thread at most has work after nearly every event, so nothing is collected in memory.
        let first = to_wake.next();
        for channel in to_wake {
            self.wake(channel);
        }
        drop(state);
        if let Some(channel) = first {
            self.wake(channel);
        }
        if own != Some(ChannelId::CONTROL) && (control_has_work || self.is_too_late(next_tick)) {
            self.wake(ChannelId::CONTROL);
        }
        result
    }

    /// What drives the channel that is chosen, for a thread of the application. Callbacks are for the channels' threads.
    fn drive_of(
        &self,
        choose: impl FnOnce(&PublisherCore) -> Option<ChannelId>,
    ) -> Option<Arc<dyn Drive>> {
        if self.on_ack.is_some() {
            return None;
        }
        let channel = choose(&lock(&self.state).core)?;
        let drives = self.drives.read().unwrap_or_else(PoisonError::into_inner);
        drives.get(channel.index())?.as_ref()?.upgrade()
    }

    /// Waits for a batch buffer; false if `deadline` passed first. By shared memory the thread drives meanwhile. Sockets are better left to the
    /// channels' own threads: those copy what they send.
    pub(super) fn wait_for_buffer(&self, pool: &Pool, deadline: Instant) -> bool {
        let mut is_there = false;
        if let Some(drive) = self.drive_of(PublisherCore::fullest) {
            drive.drive(Some(deadline), &mut |context| {
                is_there = pool.poll_ready(context).is_ready();
                is_there
            });
        }
        is_there || block_on(self.buffer(pool), Some(deadline)).is_some()
    }

    /// Resolves once a batch buffer may be free.
    pub(super) async fn buffer(&self, pool: &Pool) {
        poll_fn(|context| {
            let polled = pool.poll_ready(context);
            if polled.is_pending() {
                self.hurry();
            }
            polled
        })
        .await;
    }

    /// A thread of the application has handed a batch over, and looks what has come by its channel, if that has enough to do to be
    /// worth it.
    pub(super) fn pass(&self, channel: ChannelId) {
        // The caller holds a handle's lock, with which no task is to be woken that may want it at once.
        if self.has_waiters() {
            return;
        }
        let busy = |core: &PublisherCore| core.is_busy(channel).then_some(channel);
        if let Some(drive) = self.drive_of(busy) {
            drive.pass();
        }
    }

    /// Whether anybody waits for an outcome, or for a buffer.
    fn has_waiters(&self) -> bool {
        let pool = self.ready.get().map(|ready| &ready.pool);
        self.receipts.has_waiters() || pool.is_none_or(Pool::has_waiters)
    }

    /// Whether it is enough that the application's threads look now and then for what `channel` brings: it has something under
    /// way, and nobody waits for anything.
    pub(super) fn is_left_to_callers(&self, channel: ChannelId) -> bool {
        !self.has_waiters() && lock(&self.state).core.is_busy(channel)
    }

    /// What the core waits for.
    pub(super) fn waiting_for(&self) -> Option<Wait> {
        lock(&self.state).core.waiting_for(self.clock.now())
    }

    /// Acts on what the core reported. Call it with no lock held.
    pub(super) fn handle(&self, events: &mut Vec<Event>, recorder: &Recorder) {
        for event in events.drain(..) {
            match event {
                Event::Opened {
                    topic_id,
                    max_batch_bytes,
                    max_message_bytes,
                } => {
                    let channels = lock(&self.state).core.channel_count() - 1;
                    self.finish_opening(Ok(Opened {
                        topic_id,
                        max_batch_bytes,
                        max_message_bytes,
                        channels,
                    }));
                }
                Event::Resolved {
                    batch,
                    messages,
                    outcome,
                    waited_ns,
                } => self.resolved(batch, messages, outcome, waited_ns, recorder),
                Event::Released { buffer } => {
                    if let Some(ready) = self.ready.get() {
                        ready.pool.put(buffer);
                    }
                }
                Event::Resent => recorder.count(BATCHES_RESENT, 1),
                Event::Reconnected(channel) => {
                    recorder.count(RECONNECTS, 1);
                    tracing::info!(channel = channel.0, "connected again");
                }
                Event::ChannelLost {
                    channel,
                    broker,
                    cause,
                } => {
                    if !self.stopping.load(Ordering::Relaxed) {
                        tracing::warn!(
                            channel = channel.0,
                            broker,
                            cause,
                            "lost a connection to a data broker"
                        );
                    }
                }
                Event::Failed(error) => {
                    if let Some(ready) = self.ready.get() {
                        ready.pool.fail(error.clone());
                    }
                    self.finish_opening(Err(error));
                }
            }
        }
    }

    fn resolved(
        &self,
        batch: u64,
        messages: u32,
        outcome: Outcome,
        waited_ns: Option<u64>,
        recorder: &Recorder,
    ) {
        if let Some(ns) = waited_ns {
            recorder.add_ticks(WAIT_FOR_ACK, self.ticks.of_ns(ns), 1);
        }
        self.receipts.resolve(batch, messages, outcome);
        if outcome == Outcome::Failed(Failure::TimedOut)
            && let Some(ready) = self.ready.get()
        {
            // The next call that needs a buffer says so, instead of filling buffers that go nowhere.
            let why = lock(&self.state).core.why_unavailable();
            ready.pool.warn(why);
        }
        self.call_back(&Delivery {
            batch,
            messages,
            result: match outcome {
                Outcome::Stored(position) => Ok(Some(position)),
                Outcome::StoredSomewhere | Outcome::Sent => Ok(None),
                Outcome::Failed(failure) => Err(self.receipts.explain(failure)),
            },
            waited: waited_ns.map(Duration::from_nanos),
        });
    }

    /// A panic of the caller's code costs that call only, not the batches behind it.
    fn call_back(&self, delivery: &Delivery) {
        let Some(on_ack) = &self.on_ack else { return };
        let Err(payload) = catch_unwind(AssertUnwindSafe(|| on_ack(delivery))) else {
            return;
        };
        if !self.on_ack_panicked.swap(true, Ordering::Relaxed) {
            tracing::error!(
                batch = delivery.batch,
                cause = panic_text(&*payload),
                "on_ack panicked; it is still called for other batches, further panics are not reported"
            );
        }
    }

    fn finish_opening(&self, result: Result<Opened, ClientError>) {
        let waiting = {
            let mut opening = lock(&self.opening);
            opening.result.get_or_insert(result);
            opening.waiting.take()
        };
        waiting.wake_all();
    }

    /// Resolves when the publisher is open, or cannot be.
    pub(super) async fn opened(&self) -> Result<Opened, ClientError> {
        poll_fn(|context| {
            let mut opening = lock(&self.opening);
            match &opening.result {
                Some(result) => Poll::Ready(result.clone()),
                None => {
                    opening.waiting.register(context);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The publisher has its buffers; it may have failed in the meantime.
    ///
    /// # Panics
    /// If it had them before.
    pub(super) fn set_ready(&self, ready: Ready) {
        assert!(self.ready.set(ready).is_ok(), "a publisher opens once");
        let failure = lock(&self.state).core.failure();
        if let (Some(ready), Some(error)) = (self.ready.get(), failure) {
            ready.pool.fail(error);
        }
    }

    pub(super) fn add_handle(&self, batch: &Arc<HandleBatch>) {
        let mut handles = lock(&self.handles);
        handles.retain(|handle| handle.strong_count() > 0);
        handles.push(Arc::downgrade(batch));
    }

    /// Seals the batches that are due at `now`; returns when to look again. A handle that is in use at the moment,
    /// maybe for long by a reservation, keeps no other waiting.
    pub(super) fn seal_due(&self, now: Now) -> Option<Now> {
        let mut next: Option<Now> = None;
        for handle in self.live_handles() {
            let Some(due) = handle.due() else { continue };
            let again = if now < due {
                due
            } else {
                match handle.current.try_visit() {
                    None => now.after(BUSY_HANDLE_RETRY),
                    Some(mut current) => match current.due.get().filter(|due| now < *due) {
                        Some(due) => due,
                        None => {
                            self.seal(&mut current);
                            continue;
                        }
                    },
                }
            };
            next = Some(next.map_or(again, |next| next.min(again)));
        }
        next
    }

    /// Seals whatever any handle has; waits for those in use that have something.
    pub(super) fn seal_all(&self) {
        for handle in self.live_handles() {
            if handle.due().is_some() {
                self.seal(&mut handle.current.visit());
            }
        }
    }

    /// Copied out, so that waiting for one of them keeps nobody from the list.
    fn live_handles(&self) -> Vec<Arc<HandleBatch>> {
        let handles = lock(&self.handles);
        handles.iter().filter_map(Weak::upgrade).collect()
    }

    /// A deadline came into being; wakes the control thread if it sleeps for longer.
    pub(super) fn deadline_at(&self, deadline: Now) {
        if self.is_too_late(deadline) {
            self.wake(ChannelId::CONTROL);
        }
    }

    fn is_too_late(&self, deadline: Now) -> bool {
        deadline.0 < self.sleep_until.load(Ordering::SeqCst)
    }

    pub(super) fn sleep_until(&self, at: Option<Now>) {
        self.sleep_until
            .store(at.map_or(u64::MAX, |at| at.0), Ordering::SeqCst);
    }

    /// The thread of `channel` can be woken from now on. It looks at the core after this call and before it sleeps.
    pub(super) fn set_waker(&self, channel: ChannelId, waker: Waker) {
        let mut wakers = self.wakers.write().unwrap_or_else(PoisonError::into_inner);
        let count = wakers.len().max(channel.index() + 1);
        wakers.resize(count, None);
        wakers[channel.index()] = Some(waker);
    }

    /// Threads that wait may drive `channel` from now on.
    pub(super) fn set_drive(&self, channel: ChannelId, drive: Weak<dyn Drive>) {
        let mut drives = self.drives.write().unwrap_or_else(PoisonError::into_inner);
        let count = drives.len().max(channel.index() + 1);
        drives.resize_with(count, || None);
        drives[channel.index()] = Some(drive);
    }

    fn wake(&self, channel: ChannelId) {
        let wakers = self.wakers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(waker)) = wakers.get(channel.index()) {
            waker.wake();
        }
    }

    /// As [`Shared::stop`], when the core can no longer be trusted to tell everyone who waits.
    pub(super) fn abandon(&self, why: ClientError) {
        tracing::error!(%why, "a publisher ends");
        self.receipts.end(why.clone());
        if let Some(ready) = self.ready.get() {
            ready.pool.fail(why.clone());
        }
        self.finish_opening(Err(why.clone()));
        self.stop(why);
    }

    /// Ends the connections and lets the threads return.
    pub(super) fn stop(&self, why: ClientError) {
        self.stopping.store(true, Ordering::SeqCst);
        let mut events = Vec::new();
        self.with_core(None, Some(&mut events), |core, now| core.stop(why, now));
        self.handle(&mut events, &self.profile.recorder());
        for waker in self
            .wakers
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .flatten()
        {
            waker.wake();
        }
    }
}

/// Every step under these locks leaves the data valid, so a panic of another holder spoils nothing.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
