//! The way of a request from its caller to the wire: it waits for its turn, then for room.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use embar_session::{Room, SendError};
use embar_transport::waiters::Place;

use super::link::Link;
use super::table::Table;
use crate::protocol::{CallNumber, Credit, RequestFrame};
use crate::{Metadata, MetadataError, Method, Outgoing, Status};

/// A call, as far as its request: what [`PendingCall`](super::PendingCall) and [`Items`](super::Items) have in
/// common. Dropped, it gives the call up.
pub(super) struct Start<Q> {
    link: Link,
    method: &'static Method,
    request: Q,
    credit: Option<Credit>,
    timeout: Option<Duration>,
    metadata: Metadata,
    /// Known from the first poll on.
    deadline: Option<Instant>,
    /// The session's timer wakes the caller at the deadline.
    timer_set: bool,
    step: Step,
}

enum Step {
    New,
    Waits(Option<Place>),
    Unsent(CallNumber, Option<Room>),
    Sent(CallNumber),
    Over,
}

/// Who polls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Poller {
    /// A task: the session's timer wakes it when its time is over.
    Task,
    /// A thread, which watches the time itself.
    Thread,
}

impl<Q: Outgoing> Start<Q> {
    pub(super) fn new(
        link: &Link,
        method: &'static Method,
        request: Q,
        timeout: Option<Duration>,
        credit: Option<Credit>,
    ) -> Self {
        Self {
            link: link.clone(),
            method,
            request,
            credit,
            timeout,
            metadata: Metadata::new(),
            deadline: None,
            timer_set: false,
            step: Step::New,
        }
    }

    /// The time begins with the call, or now if that has begun.
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
        if !matches!(self.step, Step::New) {
            self.deadline = Instant::now().checked_add(timeout);
            self.timer_set = false;
        }
    }

    /// The metadata, as long as the request can have more.
    pub(super) fn metadata(&mut self) -> Result<&mut Metadata, MetadataError> {
        match self.step {
            Step::New => Ok(&mut self.metadata),
            _ => Err(MetadataError::Started),
        }
    }

    pub(super) fn table(&self) -> &Arc<Table> {
        &self.link.table
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Fixes the deadline, and asks the interceptors; once.
    fn begin(&mut self) -> Result<(), Status> {
        if let Step::New = self.step {
            self.step = Step::Over;
            let far = |timeout| Instant::now().checked_add(timeout);
            self.deadline = self.timeout.and_then(far);
            self.link.add_metadata(self.method, &mut self.metadata)?;
            self.step = Step::Waits(None);
        }
        Ok(())
    }

    /// What is left of the call's time; an error when it is over. None: it has no limit.
    fn time_left(&self) -> Result<Option<Duration>, Status> {
        let Some(deadline) = self.deadline else {
            return Ok(None);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(Status::deadline_exceeded("the call's time is over")),
            false => Ok(Some(left)),
        }
    }

    /// Ready when the request was sent, with the call's number. Without a context it does not wait.
    pub(super) fn poll_sent(
        &mut self,
        mut cx: Option<&mut Context<'_>>,
        poller: Poller,
    ) -> Poll<Result<CallNumber, Status>> {
        if let Step::Sent(call) = self.step {
            return Poll::Ready(Ok(call));
        }
        let polled = self.advance(&mut cx, poller);
        if let Poll::Ready(Err(_)) = polled {
            self.give_up();
        }
        polled
    }

    fn advance(
        &mut self,
        cx: &mut Option<&mut Context<'_>>,
        poller: Poller,
    ) -> Poll<Result<CallNumber, Status>> {
        self.begin()?;
        if let Step::Waits(place) = &mut self.step {
            let waker = cx.as_ref().map(|cx| cx.waker());
            let Some(slot) = self.link.table.take(place, waker)? else {
                let left = self.time_left().map_err(Status::unsent)?;
                if let (Some(left), Some(deadline), Poller::Task) = (left, self.deadline, poller)
                    && cx.is_some()
                {
                    self.link.table.wake_waiting_at(deadline, left);
                }
                return Poll::Pending;
            };
            match self.link.table.begin(slot, self.credit) {
                Ok(call) => self.step = Step::Unsent(call, None),
                Err(status) => {
                    self.step = Step::Over;
                    self.link.table.give_back(slot);
                    return Poll::Ready(Err(status));
                }
            }
        }
        self.send(cx, poller)
    }

    fn send(
        &mut self,
        cx: &mut Option<&mut Context<'_>>,
        poller: Poller,
    ) -> Poll<Result<CallNumber, Status>> {
        loop {
            let left = self.time_left().map_err(Status::unsent)?;
            let Step::Unsent(call, room) = &mut self.step else {
                return Poll::Ready(Err(over()));
            };
            let call = *call;
            let session = &self.link.session;
            if let (Some(wait), Some(cx)) = (&mut *room, cx.as_deref_mut()) {
                match Pin::new(wait).poll(cx) {
                    // Others may take it meanwhile: it waits again then.
                    Poll::Ready(Ok(())) => *room = None,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(not_sent(error))),
                    Poll::Pending => {
                        self.wake_in_time(call, left, cx, poller);
                        return Poll::Pending;
                    }
                }
            }
            if room.is_some() {
                return Poll::Pending;
            }
            let micros = left.map_or(0, |left| left.as_micros().max(1));
            let frame = RequestFrame {
                call,
                method: self.method.number(),
                time_left_us: u64::try_from(micros).unwrap_or(u64::MAX),
                credit: self.credit,
                metadata: self.metadata.as_bytes(),
                message: &[],
            };
            let (id, prefix) = frame.prefix();
            let parts = [prefix.as_bytes(), frame.metadata];
            match self.request.try_send(session, id, &parts) {
                Ok(_) => {
                    self.step = Step::Sent(call);
                    self.link.table.calls.fetch_add(1, Ordering::Relaxed);
                    return Poll::Ready(Ok(call));
                }
                Err(SendError::Full) => {
                    let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
                    let room_for = bytes + self.request.encoded_bytes();
                    if cx.is_none() {
                        return Poll::Pending;
                    }
                    *room = Some(session.room(room_for));
                }
                Err(error) => return Poll::Ready(Err(not_sent(error))),
            }
        }
    }

    /// Has the session's timer wake a task when the call's time is over.
    fn wake_in_time(
        &mut self,
        call: CallNumber,
        left: Option<Duration>,
        cx: &Context<'_>,
        poller: Poller,
    ) {
        let Some(left) = left.filter(|_| poller == Poller::Task) else {
            return;
        };
        if let Some(mut slot) = self.link.table.slot(call.slot) {
            slot.deadline = self.deadline;
            let before = set_waker(&mut slot.waker, cx);
            drop(slot);
            drop(before);
        }
        if !self.timer_set {
            self.timer_set = true;
            self.link.session.wake_after(left);
        }
    }

    /// Nothing is there yet for a call that was sent: waits for it. An error when its time is over;
    /// the call is given up then.
    pub(super) fn wait(
        &mut self,
        call: CallNumber,
        cx: &Context<'_>,
        poller: Poller,
    ) -> Result<(), Status> {
        let left = match self.time_left() {
            Ok(left) => left,
            Err(status) => {
                self.give_up();
                return Err(status);
            }
        };
        self.wake_in_time(call, left, cx, poller);
        Ok(())
    }

    /// The status of a call that fails without a word of the server.
    pub(super) fn failed(&self, status: Status) -> Status {
        match self.step {
            Step::Sent(_) => status,
            _ => status.unsent(),
        }
    }

    /// The call is over, and its slot taken care of.
    pub(super) fn done(&mut self) {
        self.step = Step::Over;
    }
}

impl<Q> Start<Q> {
    /// Leaves the call, wherever it is.
    pub(super) fn give_up(&mut self) {
        let table = &self.link.table;
        match std::mem::replace(&mut self.step, Step::Over) {
            Step::New | Step::Over => {}
            Step::Waits(mut place) => table.leave(&mut place),
            Step::Unsent(call, room) => {
                drop(room);
                table.not_sent(call);
            }
            Step::Sent(call) => table.give_up(call),
        }
    }
}

impl<Q> Drop for Start<Q> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Stores who is to be woken, unless it is stored already. Gives who was before, to be dropped without
/// the lock of the slot: its destructor is anybody's code.
#[must_use]
pub(super) fn set_waker(stored: &mut Option<Waker>, cx: &Context<'_>) -> Option<Waker> {
    match stored {
        Some(waker) if waker.will_wake(cx.waker()) => None,
        _ => stored.replace(cx.waker().clone()),
    }
}

fn over() -> Status {
    Status::internal("the call is over: do not poll it again")
}

#[cold]
fn not_sent(error: SendError) -> Status {
    let text = format!("the request was not sent: {error}");
    let status = match error {
        SendError::TooLong { .. } => Status::resource_exhausted(text),
        SendError::Closed | SendError::NotOpen => Status::unavailable(text),
        _ => Status::internal(text),
    };
    status.unsent()
}
