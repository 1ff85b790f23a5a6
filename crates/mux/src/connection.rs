//! A connection, as its callers see it: they submit commands here.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use embar_transport::ring::{Commit, ReserveError};

use crate::call::Call;
use crate::clock;
use crate::direct_send::send_or_mark;
use crate::error::{CloseReason, SubmitError};
use crate::larges::LargeCommand;
use crate::profile::{Laps, Stage};
use crate::reply_slots::Command;
use crate::shared::Shared;
pub use crate::shared::{ConnectionLimits, ConnectionState};
use crate::stats::Stats;
use crate::turn::Turn;

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
        let Some(others) = shared.in_flight.enter() else {
            return Err(SubmitError::Full);
        };
        let submitted = self.submit_entered(others, len, replies, class, timeout, waker, fill);
        if submitted.is_err() {
            shared.in_flight.undo_enter();
        }
        submitted
    }

    /// Submits a command that is counted as in flight, beside `others`. If it fails, the caller counts it out.
    #[expect(clippy::too_many_arguments, reason = "one more than `submit` has")]
    #[inline]
    fn submit_entered(
        &self,
        others: usize,
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
        if shared.is_large(len) {
            return self.submit_large(len, replies, class, timeout, waker, fill);
        }
        // A panic of `fill` leaks the reservation, so nothing behind it is ever sent.
        let mut place = match shared.ring.reserve(len) {
            Ok(place) => ManuallyDrop::new(place),
            Err(ReserveError::Full) => return Err(SubmitError::Full),
            Err(ReserveError::Closed) => return Err(shared.closed()),
            Err(ReserveError::TooLong { .. }) => unreachable!("at most half of the ring"),
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
        if !shared.larges.add(len) {
            // Nobody makes room any more when the connection is over.
            return Err(match shared.ring.is_closed() {
                true => shared.closed(),
                false => SubmitError::Full,
            });
        }
        let place = match shared.ring.reserve(0) {
            Ok(place) => ManuallyDrop::new(place.into_owned()),
            Err(error) => {
                shared.larges.over(len);
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
        shared.larges.push(LargeCommand { place, bytes });
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

    /// As [`Connection::submit`], but waits: for fewer commands in flight, and for room. First come, first served:
    /// `turn` is the caller's place among those who wait. The caller keeps it from one poll to the next, and drops it
    /// when it waits no more.
    ///
    /// # Errors
    /// [`SubmitError::Closed`].
    #[expect(
        clippy::too_many_arguments,
        reason = "those of `submit`, a task and its place"
    )]
    pub fn poll_submit(
        &self,
        turn: &mut Turn,
        cx: &mut Context<'_>,
        len: usize,
        replies: u32,
        class: u8,
        timeout: Option<Duration>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Poll<Result<Call, SubmitError>> {
        let waker = |cx: &mut Context<'_>| Some(cx.waker().clone());
        let awaited = self.0.in_flight.is_awaited() || self.0.ring.is_awaited();
        if turn.is_unused() && !awaited {
            match self.submit(len, replies, class, timeout, waker(cx), &mut *fill) {
                Err(SubmitError::Full) => {}
                other => return Poll::Ready(other),
            }
        }
        let waiting = turn.at(&self.0);
        let submitted = loop {
            let Some(others) = ready!(waiting.poll_enter(len, cx)) else {
                break Err(self.0.closed());
            };
            let waker = waker(cx);
            match self.submit_entered(others, len, replies, class, timeout, waker, &mut *fill) {
                Err(SubmitError::Full) => waiting.keep_turn(),
                Ok(call) => break Ok(call),
                Err(error) => {
                    self.0.in_flight.undo_enter();
                    break Err(error);
                }
            }
        };
        turn.end();
        Poll::Ready(submitted)
    }

    /// Whether the command of this call went to this connection.
    #[must_use]
    pub fn took(&self, call: &Call) -> bool {
        Arc::ptr_eq(&self.0, &call.shared)
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

    /// Whether the peer owes replies and has sent nothing for a quarter of
    /// [`dead_after`](ConnectionLimits::dead_after) or longer. It may be busy, or gone.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.0.is_silent.load(Ordering::Relaxed)
    }

    /// How many commands wait for a reply, or to be sent.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.in_flight.count()
    }

    /// What happened so far, on all connections that share its [`Meters`](crate::Meters), and how many
    /// commands are in flight on this one.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.meters.stats(self.0.in_flight.count() as u64)
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
