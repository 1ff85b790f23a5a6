//! A connection, as its callers see it: they submit commands here.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use embar_transport::ring::{Commit, ReserveError};

use crate::call::Call;
use crate::clock;
use crate::direct_send::send_or_mark;
use crate::error::{CloseReason, SubmitError};
use crate::profile::{Laps, Stage};
use crate::reply_slots::Command;
pub use crate::shared::{ConnectionLimits, ConnectionState};
use crate::shared::{LargeCommand, Shared};
use crate::stats::Stats;

/// A connection that many callers share. Cheap to clone; usable from every thread.
///
/// A connection lives until a caller closes it or it breaks; dropping handles does not end it.
#[derive(Clone)]
pub struct Connection(pub(crate) Arc<Shared>);

impl Connection {
    /// Submits a command of `len` bytes, all of which `fill` writes, and which `replies` frames
    /// answer. Never waits. The complete reply wakes `waker`, unless the call was polled with another
    /// waker before. The command's time counts under `class`, less than
    /// [`CLASSES`](crate::stats::CLASSES). Without a `timeout` it may take
    /// [`ConnectionLimits::timeout`].
    ///
    /// # Errors
    /// [`SubmitError`]; `fill` is not called then.
    ///
    /// # Panics
    /// If `replies` is 0. A panic of `fill` ends the connection.
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
        if shared.may_have_waiting() && shared.is_full_for(len) && !shared.ring.is_closed() {
            return Err(SubmitError::Full);
        }
        let Some(others) = shared.enter() else {
            return Err(SubmitError::Full);
        };
        if shared.is_large(len) {
            return self.submit_large(len, replies, class, timeout, waker, fill);
        }
        // A panic of `fill` leaks the reservation, so nothing behind it is ever sent.
        let mut place = match shared.ring.reserve(len) {
            Ok(place) => ManuallyDrop::new(place),
            Err(error) => {
                shared.undo_enter();
                return Err(match error {
                    ReserveError::Full => SubmitError::Full,
                    ReserveError::Closed => shared.closed(),
                    ReserveError::TooLong { .. } => unreachable!("at most half of the ring"),
                });
            }
        };
        let ticket = place.ticket();
        let (call, on_panic) = self.prepare_call(ticket, len, replies, class, timeout, waker);
        laps.lap(Stage::Submit);
        fill(&mut place);
        laps.lap(Stage::Encode);
        std::mem::forget(on_panic);
        let commit = ManuallyDrop::into_inner(place).commit();
        laps.lap(Stage::Submit);
        if commit == Commit::First {
            send_or_mark(shared, others, ticket);
        }
        Ok(call)
    }

    /// Sends `len` bytes, all of which `fill` writes, and which no reply answers: for connections
    /// whose peer only pushes. Never waits.
    ///
    /// The commands of a connection either all have replies or all have none: a caller that posts must
    /// never submit on the same connection.
    ///
    /// # Errors
    /// [`SubmitError`]; `fill` is not called then. Bytes that exceed the ring never fit.
    ///
    /// # Panics
    /// A panic of `fill` ends the connection.
    pub fn post(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SubmitError> {
        let shared = &*self.0;
        let mut place = shared.ring.reserve(len).map_err(|error| match error {
            ReserveError::Closed => shared.closed(),
            ReserveError::Full | ReserveError::TooLong { .. } => SubmitError::Full,
        })?;
        let on_panic = CloseOnPanic(shared);
        fill(&mut place);
        std::mem::forget(on_panic);
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
        let add = |queued| shared.large_fits(queued, len).then_some(queued + len);
        let queued = &shared.larges_bytes;
        let counted = queued.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        let reserved = match counted {
            Ok(_) => shared.ring.reserve(0),
            Err(_) => {
                shared.undo_enter();
                return Err(SubmitError::Full);
            }
        };
        let place = match reserved {
            Ok(place) => ManuallyDrop::new(place.into_owned()),
            Err(error) => {
                shared.large_over(len);
                shared.undo_enter();
                return Err(match error {
                    ReserveError::Closed => shared.closed(),
                    ReserveError::Full | ReserveError::TooLong { .. } => SubmitError::Full,
                });
            }
        };
        let (call, on_panic) =
            self.prepare_call(place.ticket(), len, replies, class, timeout, waker);
        let mut bytes = vec![0; len];
        fill(&mut bytes);
        std::mem::forget(on_panic);
        let place = ManuallyDrop::into_inner(place);
        shared.push_large(LargeCommand { place, bytes });
        shared.mark();
        Ok(call)
    }

    /// Prepares the reply slot of a command that the caller is about to write and commit.
    #[inline]
    fn prepare_call(
        &self,
        ticket: u32,
        len: usize,
        frames: u32,
        class: u8,
        timeout: Option<Duration>,
        waker: Option<Waker>,
    ) -> (Call, CloseOnPanic<'_>) {
        let shared = &*self.0;
        let has_own_timeout = timeout.is_some_and(|timeout| timeout != shared.limits.timeout);
        if has_own_timeout {
            shared.own_timeouts.fetch_add(1, Ordering::Relaxed);
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
        let id = shared.slots.prepare(&command, waker);
        let call = Call::new(Arc::clone(&self.0), id, since, has_own_timeout);
        (call, CloseOnPanic(shared))
    }

    /// As [`Connection::submit`], but waits for room: when there may be some, it wakes the task.
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
        // It waits for commands in flight, for large commands, and for the ring: room in whichever of
        // them was full wakes it.
        shared.wait(cx.waker());
        let ring = shared
            .ring
            .poll_room(len.min(shared.ring.capacity() / 2), cx);
        match attempt(cx) {
            Err(SubmitError::Full) => {}
            other => return Poll::Ready(other),
        }
        // The end of a large command wakes all that wait, so nothing is missed there.
        let waits_for_large = shared.is_large(len) && !shared.has_room_for_large(len);
        if ring.is_ready() && !waits_for_large && shared.in_flight() < shared.limits.in_flight {
            // There was no room just now, and there is some: the wake for it may have come before this
            // caller waited.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Closes the connection: commands without a reply fail.
    pub fn close(&self) {
        self.0.request_close();
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.0.state()
    }

    /// Why it is over, once it is.
    #[must_use]
    pub fn close_reason(&self) -> Option<&CloseReason> {
        self.0.close_reason.get()
    }

    /// How many commands wait for a reply, or to be sent.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    /// What happened so far, on all connections that share its [`Meters`](crate::Meters), and how many
    /// commands are in flight on this one.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.meters.stats(self.0.in_flight() as u64)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Connection({:?}, {} in flight)",
            self.state(),
            self.in_flight()
        )
    }
}

/// Ends the connection when it is dropped: only a panic of the code that fills a reservation drops it.
struct CloseOnPanic<'a>(&'a Shared);

impl Drop for CloseOnPanic<'_> {
    fn drop(&mut self) {
        self.0.encoder_panicked();
    }
}
