//! A command under way: submitted, redirected, tried again, until there is a result.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use embar_mux::{Call, CallError, CloseReason, Connection, SubmitError, block_on};
use tracing::Span;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};

use super::Inner;
use super::metrics::Cause;
use super::node::Link;
use super::sleepers::{Nap, after};
use crate::command::{Class, Command, Route};
use crate::config::{Mode, OnFull, ReadFrom};
use crate::error::Error;
use crate::resp::{ErrorKind, ServerError};
use answer::{ByType, Reader};

mod answer;

pub use answer::IntoBuffer;
pub(crate) use answer::{Answer, Outcome, is_elsewhere};

/// Goes before a command that is sent to the node to which its slot is on its way.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// Redirects of one command that are followed without a pause.
const PROMPT_REDIRECTS: u32 = 3;

/// A command that was given to a client. As a future it resolves to the result; without an
/// executor, [`Request::wait`] blocks for it. It is sent when it is polled first; dropped after
/// that, it may still be executed.
#[must_use = "a command is sent when it is awaited"]
pub struct Request<'c, C, R, W = ByType> {
    client: &'c Arc<Inner>,
    command: C,
    timeout: Option<Duration>,
    retry: bool,
    state: State,
    slow: Option<Box<Slow>>,
    reader: W,
    result: PhantomData<fn() -> R>,
}

enum State {
    /// To be submitted.
    Ready,
    Submitted(Call, Arc<Link>),
    /// To be tried again then.
    Sleeping(Instant),
    Over,
}

/// What only a command knows that did not go well at once, or that is traced.
struct Slow {
    /// When it is given up, however often it was sent by then.
    deadline: Instant,
    attempts: u32,
    redirects: u32,
    /// Where a redirect leads, and whether it is for this time only.
    target: Option<(Arc<Link>, bool)>,
    /// The keeper wakes it, when the deadline or a pause is over.
    nap: Option<Nap>,
    why: String,
    /// Why nobody knows whether it was executed when it was sent before.
    unknown: Option<CloseReason>,
    span: Span,
}

/// Whether anybody wants to hear of each command: an instruction or two if not.
#[inline]
fn is_traced() -> bool {
    STATIC_MAX_LEVEL >= LevelFilter::TRACE && LevelFilter::current() >= LevelFilter::TRACE
}

impl<'c, C: Command, R> Request<'c, C, R> {
    pub(crate) fn new(client: &'c Arc<Inner>, command: C) -> Self {
        Self::read_by(client, command, ByType)
    }
}

impl<'c, C: Command, R, W> Request<'c, C, R, W> {
    pub(crate) fn read_by(client: &'c Arc<Inner>, command: C, reader: W) -> Self {
        Self {
            reader,
            retry: client.config.retry_writes || command.class() == Class::Read,
            client,
            command,
            timeout: None,
            state: State::Ready,
            slow: None,
            result: PhantomData,
        }
    }

    pub(crate) fn command(&self) -> &C {
        &self.command
    }

    /// How long it may take, instead of what the configuration says.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Send it again if its connection breaks, although it may have been executed by then: for
    /// commands that may be executed twice, and cannot undo what somebody else did in between.
    pub fn repeatable(mut self) -> Self {
        self.retry = true;
        self
    }
}

impl<C: Command + Unpin, R, W: Reader<R> + Unpin> Request<'_, C, R, W> {
    /// Blocks the thread until there is a result. Not for the only thread of a runtime on which
    /// [`Client::with`](crate::Client::with) was called: nobody would be left to serve the
    /// connections.
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait(mut self) -> Result<R, Error> {
        block_on(|cx| Pin::new(&mut self).poll(cx))
    }

    fn slow(&mut self) -> &mut Slow {
        self.slow_after(Duration::ZERO)
    }

    /// As [`Request::slow`], for a command on which so much time was spent so far.
    fn slow_after(&mut self, spent: Duration) -> &mut Slow {
        let timeout = self.timeout.unwrap_or(self.client.config.timeout);
        self.slow.get_or_insert_with(|| {
            Box::new(Slow {
                deadline: after(timeout.saturating_sub(spent)),
                attempts: 0,
                redirects: 0,
                target: None,
                nap: None,
                why: "no connection in time".to_owned(),
                unknown: None,
                span: Span::none(),
            })
        })
    }

    /// How long it may take from now on. `None`: it may take all of its time, or as long as usual.
    #[inline]
    fn time_left(&self) -> Option<Duration> {
        match &self.slow {
            None => self.timeout,
            Some(slow) => Some(slow.deadline.saturating_duration_since(Instant::now())),
        }
    }

    /// Opens a span for it, once.
    #[cold]
    fn trace(&mut self) {
        if self.slow.as_ref().is_some_and(|slow| !slow.span.is_none()) {
            return;
        }
        let slot = match self.command.route() {
            Route::Slot(slot) => Some(slot),
            Route::Any | Route::CrossSlot => None,
        };
        let (class, bytes) = (self.command.class(), self.command.encoded_len());
        let span =
            tracing::trace_span!("command", ?class, slot, bytes, node = tracing::field::Empty);
        if !span.is_disabled() {
            self.slow().span = span;
        }
    }

    /// The last thing that is done: the result as its caller is told it.
    #[cold]
    fn failed(&mut self, error: Error) -> Error {
        let error = match self.slow.as_mut().and_then(|slow| slow.unknown.take()) {
            // The last attempt was not executed, but an earlier one may have been.
            Some(reason) if self.command.class() == Class::Write && !error.may_have_executed() => {
                Error::UnknownOutcome(reason)
            }
            _ => error,
        };
        let tally = &self.client.keeper.tally;
        match &error {
            Error::UnknownOutcome(_) => tally.unknown_outcomes.add(1),
            Error::Unavailable { .. } => tally.unavailable.add(1),
            _ => {}
        }
        if let Some(slow) = &self.slow {
            slow.span.in_scope(|| tracing::trace!(%error, "failed"));
        }
        error
    }

    /// Why it cannot be sent at all.
    #[inline]
    fn refused(&self) -> Option<Error> {
        let cluster = self.client.config.mode == Mode::Cluster;
        if cluster && self.command.route() == Route::CrossSlot {
            return Some(Error::CrossSlot);
        }
        self.command.refused()
    }

    /// Submits it where it belongs.
    fn poll_submit(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Some(error) = self.refused() {
            return Poll::Ready(Err(error));
        }
        if self.time_left() == Some(Duration::ZERO) {
            return self.poll_deadline(cx);
        }
        let target = self.slow.as_ref().and_then(|slow| slow.target.clone());
        if target.as_ref().is_some_and(|(link, _)| link.is_retired()) {
            self.slow().target = None;
            return self.again(Cause::Redirects, "the node has left the cluster", cx);
        }
        let asking = target.as_ref().is_some_and(|(_, asking)| *asking);
        let link = match target {
            Some((link, _)) => link,
            None => match self.client.link(self.command.route(), self.command.class()) {
                Some(link) => link,
                None => {
                    self.client.keeper.refresh();
                    let why = self.nobody();
                    return self.again(Cause::NoNode, why, cx);
                }
            },
        };
        let conn = match self.slow {
            None => link.poll_conn(cx),
            Some(_) => link.poll_open(cx),
        };
        let Poll::Ready(conn) = conn else {
            if let Some(reason) = link.last_failure() {
                self.slow().why = reason.to_string();
            }
            return self.poll_deadline(cx);
        };
        match self.submit(&conn, asking, cx) {
            Poll::Ready(Ok(call)) => {
                if asking && let Some(slow) = &mut self.slow {
                    slow.target = None;
                }
                if let Some(slow) = &self.slow {
                    let node = tracing::field::display(&link.endpoint);
                    slow.span.record("node", node);
                }
                self.state = State::Submitted(call, link);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(SubmitError::Full)) => Poll::Ready(Err(Error::Busy)),
            // It broke just now.
            Poll::Ready(Err(SubmitError::Closed(reason))) => {
                self.again(Cause::NotSent, &reason.to_string(), cx)
            }
            Poll::Pending => self.poll_deadline(cx),
        }
    }

    /// Why no node is known to which it could be sent.
    fn nobody(&self) -> &'static str {
        let Route::Slot(slot) = self.command.route() else {
            return "no node is known";
        };
        let replica = self.client.config.read_from == ReadFrom::Replica;
        if replica && self.client.primary_of(slot).is_some() {
            return "the slot's shard has no replica, and read_from allows nothing else";
        }
        "no node is known that serves the slot"
    }

    #[inline]
    fn submit(
        &self,
        conn: &Connection,
        asking: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Call, SubmitError>> {
        let (command, timeout) = (&self.command, self.time_left());
        let before = if asking { ASKING } else { b"" };
        let replies = command.replies() + u32::from(asking);
        let class = command.class() as u8;
        let len = before.len() + command.encoded_len();
        let mut fill = |out: &mut [u8]| {
            let (first, rest) = out.split_at_mut(before.len());
            first.copy_from_slice(before);
            command.encode(rest);
        };
        match self.client.config.on_full {
            OnFull::Wait => conn.poll_submit(cx, len, replies, class, timeout, &mut fill),
            OnFull::Refuse => {
                let waker = Some(cx.waker().clone());
                Poll::Ready(conn.submit(len, replies, class, timeout, waker, fill))
            }
        }
    }

    /// Whether it is time to give up; if not, sees to it that somebody looks when it is.
    fn poll_deadline<T>(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, Error>> {
        if self.client.keeper.is_over() {
            return Poll::Ready(Err(Error::Closed));
        }
        let deadline = self.slow().deadline;
        if Instant::now() >= deadline {
            let why = std::mem::take(&mut self.slow().why);
            return Poll::Ready(Err(Error::Unavailable { why }));
        }
        self.wake_at(deadline, cx);
        Poll::Pending
    }

    /// Sees to it that it is polled then. One wish of a command counts at a time, the last one.
    fn wake_at(&mut self, at: Instant, cx: &Context<'_>) {
        let keeper = &self.client.keeper;
        if let Some(slow) = &mut self.slow {
            keeper.wake_at(&mut slow.nap, at, cx.waker());
        }
    }

    /// It was not executed: after a while it is tried again.
    fn again<T>(
        &mut self,
        cause: Cause,
        why: &str,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, Error>> {
        self.client.keeper.tally.retried(cause);
        tracing::debug!(cause = cause.name(), why, "a command is sent again");
        why.clone_into(&mut self.slow().why);
        let attempts = self.slow().attempts;
        self.slow().attempts += 1;
        let at = after(self.client.keeper.backoff(attempts)).min(self.slow().deadline);
        self.state = State::Sleeping(at);
        self.wake_at(at, cx);
        if Instant::now() >= self.slow().deadline {
            return self.poll_deadline(cx);
        }
        Poll::Pending
    }

    /// What to do about a reply, or about there being none.
    fn conclude(
        &mut self,
        outcome: Result<Answer<R>, CallError>,
        link: &Arc<Link>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<R, Error>> {
        match outcome {
            Ok(Answer::Result(result)) => Poll::Ready(result),
            Ok(Answer::Elsewhere(error)) => self.elsewhere(error, link, cx),
            Err(CallError::NotSent(CloseReason::Closed)) if self.client.keeper.is_over() => {
                Poll::Ready(Err(Error::Closed))
            }
            Err(CallError::NotSent(reason)) => self.again(Cause::NotSent, &reason.to_string(), cx),
            // What cannot be read once cannot be read again, and would disturb others again.
            Err(CallError::Unknown(reason))
                if self.retry && !matches!(reason, CloseReason::BadReply(_)) =>
            {
                let why = reason.to_string();
                self.slow().unknown = Some(reason);
                self.again(Cause::Unknown, &why, cx)
            }
            Err(CallError::Unknown(reason)) => Poll::Ready(Err(Error::UnknownOutcome(reason))),
            Err(CallError::TimedOut) => Poll::Ready(Err(Error::TimedOut)),
            Err(CallError::TooLarge { max }) => Poll::Ready(Err(Error::ReplyTooLarge { max })),
        }
    }

    /// The server did not execute it, and says where, or that it may be tried later.
    fn elsewhere(
        &mut self,
        error: ServerError,
        link: &Arc<Link>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<R, Error>> {
        let most = self.client.config.retries.max_redirects;
        let slow = self.slow();
        slow.target = None;
        let redirect = matches!(error.kind, ErrorKind::Moved { .. } | ErrorKind::Ask { .. });
        slow.redirects += u32::from(redirect);
        if slow.redirects > most {
            return Poll::Ready(Err(error.into()));
        }
        // Nodes that send each other's callers back and forth do not agree yet: that takes time.
        let in_doubt = redirect && slow.redirects > PROMPT_REDIRECTS;
        match &error.kind {
            ErrorKind::Moved { slot, address } => {
                let link = self.client.moved(*slot, address, link);
                self.slow().target = link.map(|link| (link, false));
            }
            ErrorKind::Ask { slot, address } => {
                let link = self.client.known(*slot, address, link);
                self.slow().target = link.map(|link| (link, true));
            }
            _ => {
                self.client.keeper.refresh();
                if Instant::now() >= self.slow().deadline {
                    return Poll::Ready(Err(error.into()));
                }
                return self.again(cause(&error.kind), &error.text, cx);
            }
        }
        if in_doubt || self.slow().target.is_none() {
            return self.again(Cause::Redirects, &error.text, cx);
        }
        self.state = State::Ready;
        Poll::Pending
    }
}

impl<C: Command + Unpin, R, W: Reader<R> + Unpin> Future for Request<'_, C, R, W> {
    type Output = Result<R, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Ready => {
                    if is_traced() {
                        this.trace();
                    }
                    match this.poll_submit(cx) {
                        Poll::Ready(Ok(())) => {}
                        Poll::Ready(Err(error)) => {
                            this.state = State::Over;
                            return Poll::Ready(Err(this.failed(error)));
                        }
                        Poll::Pending => return Poll::Pending,
                    }
                }
                State::Submitted(call, link) => {
                    let (replies, reader) = (this.command.replies(), &mut this.reader);
                    let Poll::Ready(outcome) =
                        call.poll_reply(cx, |reply| reader.read(reply, replies))
                    else {
                        return Poll::Pending;
                    };
                    if let Ok(Answer::Result(result)) = outcome {
                        this.state = State::Over;
                        return Poll::Ready(result.map_err(|error| this.failed(error)));
                    }
                    // What it took so far is part of its time.
                    let (age, link) = (call.age(), Arc::clone(link));
                    this.slow_after(age);
                    this.state = State::Over;
                    match this.conclude(outcome, &link, cx) {
                        Poll::Ready(result) => {
                            return Poll::Ready(result.map_err(|error| this.failed(error)));
                        }
                        Poll::Pending if matches!(this.state, State::Ready) => {}
                        Poll::Pending => return Poll::Pending,
                    }
                }
                State::Sleeping(until) => {
                    let until = *until;
                    if Instant::now() < until {
                        this.wake_at(until, cx);
                        return Poll::Pending;
                    }
                    // Where a redirect led is of no use if that did not work.
                    if let Some(slow) = &mut this.slow {
                        slow.target = None;
                    }
                    this.state = State::Ready;
                }
                State::Over => panic!("a request gives its result once"),
            }
        }
    }
}

impl<C, R, W> fmt::Debug for Request<'_, C, R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Ready => "ready",
            State::Submitted(..) => "submitted",
            State::Sleeping(_) => "to be tried again",
            State::Over => "over",
        };
        write!(f, "Request({state})")
    }
}

/// Why a server did not execute a command, if that is no redirect.
fn cause(kind: &ErrorKind) -> Cause {
    match kind {
        ErrorKind::TryAgain => Cause::TryAgain,
        ErrorKind::ClusterDown => Cause::ClusterDown,
        ErrorKind::Loading => Cause::Loading,
        ErrorKind::MasterDown => Cause::MasterDown,
        ErrorKind::ReadOnly => Cause::ReadOnly,
        _ => Cause::Redirects,
    }
}

/// For routing: what it is chosen by within a node.
pub(super) fn hint(route: Route) -> u16 {
    match route {
        Route::Slot(slot) => slot,
        Route::Any | Route::CrossSlot => 0,
    }
}
