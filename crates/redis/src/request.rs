//! The life of a command: the client submits it, follows redirects, and sends it again, until there is a
//! result.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use embar_mux::{Call, CallError, CloseReason, Connection, SubmitError, Turn, block_on};
use tracing::Span;

use crate::attempt::{ASKING, PROMPT_REDIRECTS, Target, cause, is_traced, submit};
use crate::command::{Class, Command, Route};
use crate::config::Config;
use crate::engine::{ConnWait, NodeConnection, Router, Timer, after};
use crate::error::Error;
use crate::fan_out;
use crate::metrics::RetryCause;
use crate::resp::{ErrorKind, ServerError};

mod answer;

pub(crate) use answer::{Answer, FromFrames, ReadReply, WholeReply};
pub use answer::{ByType, IntoBuffer, ReadFrame};

/// A command for a client. As a future it resolves to the result; without an executor,
/// [`Request::wait`] blocks for it. The first poll sends it. A request that is dropped after that may
/// still be executed.
#[must_use = "a command is sent when it is awaited"]
pub struct Request<'c, C, R, W = ByType> {
    router: &'c Arc<Router>,
    command: C,
    timeout: Option<Duration>,
    /// The client may send it again although it may have been executed.
    repeatable: bool,
    state: State,
    waits: Waits,
    retrying: Option<Box<Retrying>>,
    reader: W,
    result: PhantomData<fn() -> R>,
}

enum State {
    /// To be submitted.
    Ready,
    Submitted(Call, Arc<NodeConnection>),
    /// To be submitted again at that time.
    Pausing(Instant),
    /// It went to several nodes.
    FannedOut(fan_out::Reply),
    Over,
}

/// Its places among those who wait for a node's connection, and for room on that.
#[derive(Default)]
struct Waits {
    conn: ConnWait,
    turn: Turn,
}

/// The state of a command that did not go well at once, or that is traced. Others do not allocate it.
struct Retrying {
    /// When the client gives up, however often it has sent the command by then.
    deadline: Instant,
    attempts: u32,
    redirects: u32,
    /// Where the last redirect leads.
    target: Option<Target>,
    /// Wakes the request when the deadline or a pause is over.
    timer: Option<Timer>,
    /// What was wrong last.
    why: String,
    /// Why an earlier attempt has no reply, if the server may have executed it.
    unknown: Option<CloseReason>,
    span: Span,
}

impl<'c, C: Command, R> Request<'c, C, R> {
    pub(crate) fn new(router: &'c Arc<Router>, command: C) -> Self {
        Self::read_by(router, command, ByType)
    }
}

impl<'c, C: Command, R, W> Request<'c, C, R, W> {
    pub(crate) fn read_by(router: &'c Arc<Router>, command: C, reader: W) -> Self {
        Self {
            reader,
            repeatable: router.shared.config.retry_writes || command.class() == Class::Read,
            router,
            command,
            timeout: None,
            state: State::Ready,
            waits: Waits::default(),
            retrying: None,
            result: PhantomData,
        }
    }

    /// How long it may take, instead of the configuration's `timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Lets the client send it again if its connection breaks, although the server may have executed
    /// it by then: for commands that may run twice, and cannot undo what another client did in
    /// between.
    pub fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }
}

impl<C: Command + Unpin, R, W: ReadReply<R> + Unpin> Request<'_, C, R, W> {
    /// Blocks the thread until there is a result. Not for the only thread of a runtime on which
    /// [`Client::with`](crate::Client::with) was called: no thread would be left to serve the
    /// connections.
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait(mut self) -> Result<R, Error> {
        block_on(|cx| Pin::new(&mut self).poll(cx))
    }

    /// The call that was answered, which knows its connection. `None` if it went to several nodes, or has no result.
    pub(crate) fn into_answered(self) -> Option<Call> {
        match self.state {
            State::Submitted(call, _) => Some(call),
            _ => None,
        }
    }

    fn retrying(&mut self) -> &mut Retrying {
        self.retrying_after(Duration::ZERO)
    }

    /// As [`Request::retrying`], for a command that took so long until now.
    fn retrying_after(&mut self, spent: Duration) -> &mut Retrying {
        let timeout = self.timeout.unwrap_or(self.router.shared.config.timeout);
        self.retrying.get_or_insert_with(|| {
            Box::new(Retrying {
                deadline: after(timeout.saturating_sub(spent)),
                attempts: 0,
                redirects: 0,
                target: None,
                timer: None,
                why: "no connection in time".to_owned(),
                unknown: None,
                span: Span::none(),
            })
        })
    }

    /// How long it may take from now on. `None`: the configuration's `timeout`.
    #[inline]
    fn time_left(&self) -> Option<Duration> {
        match &self.retrying {
            None => self.timeout,
            Some(retrying) => Some(retrying.deadline.saturating_duration_since(Instant::now())),
        }
    }

    /// Opens its span, once.
    #[cold]
    fn trace(&mut self) {
        if self
            .retrying
            .as_ref()
            .is_some_and(|retrying| !retrying.span.is_none())
        {
            return;
        }
        let slot = match self.command.route() {
            Route::Slot(slot) => Some(slot),
            _ => None,
        };
        let (class, bytes) = (self.command.class(), self.command.encoded_len());
        let span =
            tracing::trace_span!("command", ?class, slot, bytes, node = tracing::field::Empty);
        if !span.is_disabled() {
            self.retrying().span = span;
        }
    }

    /// Counts a failure, and returns the error that the caller gets.
    #[cold]
    fn failed(&mut self, error: Error) -> Error {
        let error = error.of_command(self.command.may_fail_midway());
        let error = match self
            .retrying
            .as_mut()
            .and_then(|retrying| retrying.unknown.take())
        {
            // The last attempt was not executed, but an earlier one may have been.
            Some(reason) if self.command.class() == Class::Write && !error.may_have_executed() => {
                Error::UnknownOutcome(reason)
            }
            _ => error,
        };
        let counters = &self.router.shared.counters;
        match &error {
            Error::UnknownOutcome(_) => counters.unknown_outcomes.add(1),
            Error::Unavailable { .. } => counters.unavailable.add(1),
            _ => {}
        }
        if let Some(retrying) = &self.retrying {
            retrying.span.in_scope(|| tracing::trace!(%error, "failed"));
        }
        error
    }

    /// Why it cannot be sent at all.
    #[inline]
    fn refused(&self) -> Option<Error> {
        let refused = self.router.refused(self.command.route());
        refused.or_else(|| self.command.refused())
    }

    /// Sends a command to several nodes that does not go to one, for this reason.
    #[cold]
    fn fan_out(&mut self, refused: Error) -> Result<(), Error> {
        let Some(parts) = self.command.fan_out() else {
            return Err(refused);
        };
        if let Some(error) = self.command.refused() {
            return Err(error);
        }
        let timeout = self.time_left();
        let reply = fan_out::send(self.router, &self.command, parts, timeout)?;
        self.state = State::FannedOut(reply);
        Ok(())
    }

    /// Submits it to the node that serves its slot, or to which the last redirect leads.
    fn poll_submit(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Some(error) = self.refused() {
            let goes_to_all = matches!(error, Error::SeveralNodes);
            if goes_to_all && self.router.awaits_topology() {
                return self.no_node(Route::AllNodes, cx);
            }
            return Poll::Ready(self.fan_out(error));
        }
        if self.time_left() == Some(Duration::ZERO) {
            return self.poll_deadline(cx);
        }
        let retrying = self.retrying.as_ref();
        let (connection, asking) = match retrying.and_then(|retrying| retrying.target.clone()) {
            Some(target) if target.connection.is_retired() => {
                self.retrying().target = None;
                let why = "the node has left the cluster";
                return self.pause(RetryCause::Redirects, why, cx);
            }
            Some(target) => (target.connection, target.asking),
            None => {
                let (route, class) = (self.command.route(), self.command.class());
                let Some(connection) = self.router.connection(route, class) else {
                    return self.no_node(route, cx);
                };
                (connection, false)
            }
        };
        // Before a connection is chosen: so the end of that is noticed.
        self.reader.submitting(&connection);
        let conn = match self.retrying {
            None => connection.poll_conn(&mut self.waits.conn, cx),
            Some(_) => connection.poll_open(&mut self.waits.conn, cx),
        };
        let Poll::Ready(conn) = conn else {
            if let Some(reason) = connection.last_failure() {
                self.retrying().why = reason.to_string();
            }
            self.waits.turn.end();
            if let Some(error) = self.router.first_refusal() {
                return Poll::Ready(Err(error));
            }
            return self.poll_deadline(cx);
        };
        self.waits.conn.end();
        match self.submit(&conn, asking, cx) {
            Poll::Ready(Ok(call)) => {
                if asking && let Some(retrying) = &mut self.retrying {
                    retrying.target = None;
                }
                if let Some(retrying) = &self.retrying {
                    let node = tracing::field::display(&connection.endpoint);
                    retrying.span.record("node", node);
                }
                self.state = State::Submitted(call, connection);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(SubmitError::Full)) => Poll::Ready(Err(Error::Busy)),
            // It broke just now.
            Poll::Ready(Err(SubmitError::Closed(reason))) => {
                self.pause(RetryCause::NotSent, &reason.to_string(), cx)
            }
            Poll::Pending => self.poll_deadline(cx),
        }
    }

    /// No node is known that serves it.
    #[cold]
    fn no_node<T>(&mut self, route: Route, cx: &mut Context<'_>) -> Poll<Result<T, Error>> {
        if let Some(error) = self.router.first_refusal() {
            return Poll::Ready(Err(error));
        }
        self.router.shared.schedule.request_refresh();
        let why = self.router.why_no_node(route);
        self.pause(RetryCause::NoNode, &why, cx)
    }

    #[inline]
    fn submit(
        &mut self,
        conn: &Connection,
        asking: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Call, SubmitError>> {
        let (command, timeout) = (&self.command, self.time_left());
        let before = if asking { ASKING } else { b"" };
        let replies = command.replies() + u32::from(asking);
        let len = before.len() + command.encoded_len();
        let fill = |out: &mut [u8]| {
            let (first, rest) = out.split_at_mut(before.len());
            first.copy_from_slice(before);
            command.encode(rest);
        };
        let on_full = self.router.shared.config.on_full;
        let turn = &mut self.waits.turn;
        let shape = (len, replies, command.class());
        submit((conn, turn, on_full), cx, shape, timeout, fill)
    }

    /// Gives up if its time is over; if not, sets the timer to its deadline.
    fn poll_deadline<T>(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, Error>> {
        if self.router.shared.schedule.is_over() {
            return Poll::Ready(Err(Error::Closed));
        }
        let deadline = self.retrying().deadline;
        if Instant::now() >= deadline {
            let why = std::mem::take(&mut self.retrying().why);
            return Poll::Ready(Err(Error::Unavailable { why }));
        }
        self.wake_at(deadline, cx);
        Poll::Pending
    }

    /// Sets the timer.
    fn wake_at(&mut self, at: Instant, cx: &Context<'_>) {
        let schedule = &self.router.shared.schedule;
        if let Some(retrying) = &mut self.retrying {
            schedule.wake_at(&mut retrying.timer, at, cx.waker());
        }
    }

    /// It was not executed, or may be repeated: the client sends it again after a pause.
    fn pause<T>(
        &mut self,
        cause: RetryCause,
        why: &str,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, Error>> {
        self.router.shared.counters.retried(cause);
        tracing::debug!(cause = cause.name(), why, "a command is sent again");
        why.clone_into(&mut self.retrying().why);
        let attempts = self.retrying().attempts;
        self.retrying().attempts += 1;
        let at = after(self.router.shared.config.retries.backoff(attempts))
            .min(self.retrying().deadline);
        self.state = State::Pausing(at);
        self.waits = Waits::default();
        self.wake_at(at, cx);
        if Instant::now() >= self.retrying().deadline {
            return self.poll_deadline(cx);
        }
        Poll::Pending
    }

    /// Decides what to do about a reply that is no result, or about a missing one.
    fn conclude(
        &mut self,
        outcome: Result<Answer<R>, CallError>,
        connection: &Arc<NodeConnection>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<R, Error>> {
        match outcome {
            Ok(Answer::Result(result)) => Poll::Ready(result),
            Ok(Answer::NotExecuted(error)) => self.not_executed(error, connection, cx),
            Err(CallError::NotSent(CloseReason::Closed))
                if self.router.shared.schedule.is_over() =>
            {
                Poll::Ready(Err(Error::Closed))
            }
            Err(CallError::NotSent(reason)) => {
                self.pause(RetryCause::NotSent, &reason.to_string(), cx)
            }
            // A reply that broke the protocol would do so again, and end the connection for others again.
            Err(CallError::Unknown(reason))
                if self.repeatable && !matches!(reason, CloseReason::BadReply(_)) =>
            {
                let why = reason.to_string();
                self.retrying().unknown = Some(reason);
                self.pause(RetryCause::Unknown, &why, cx)
            }
            Err(CallError::Unknown(reason)) => Poll::Ready(Err(Error::UnknownOutcome(reason))),
            Err(CallError::TimedOut) => Poll::Ready(Err(Error::TimedOut)),
            Err(CallError::TooLarge { max }) => Poll::Ready(Err(Error::ReplyTooLarge { max })),
        }
    }

    /// The server did not execute it: follows the redirect, or sends it again later.
    fn not_executed(
        &mut self,
        error: ServerError,
        connection: &Arc<NodeConnection>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<R, Error>> {
        let most = self.router.shared.config.retries.max_redirects;
        let retrying = self.retrying();
        retrying.target = None;
        let redirect = matches!(error.kind, ErrorKind::Moved { .. } | ErrorKind::Ask { .. });
        retrying.redirects += u32::from(redirect);
        if retrying.redirects > most {
            return Poll::Ready(Err(error.into()));
        }
        // Nodes that redirect to each other do not agree yet who has the slot: that takes time.
        let nodes_disagree = redirect && retrying.redirects > PROMPT_REDIRECTS;
        match &error.kind {
            ErrorKind::Moved { slot, address } => {
                let connection = self.router.moved(*slot, address, connection);
                let asking = false;
                self.retrying().target = connection.map(|connection| Target { connection, asking });
            }
            ErrorKind::Ask { slot, address } => {
                let connection = self.router.asked(*slot, address, connection);
                let asking = true;
                self.retrying().target = connection.map(|connection| Target { connection, asking });
            }
            _ => {
                self.router.shared.schedule.request_refresh();
                if Instant::now() >= self.retrying().deadline {
                    return Poll::Ready(Err(error.into()));
                }
                return self.pause(cause(&error.kind), &error.text, cx);
            }
        }
        if nodes_disagree || self.retrying().target.is_none() {
            return self.pause(RetryCause::Redirects, &error.text, cx);
        }
        self.state = State::Ready;
        Poll::Pending
    }
}

impl<C: Command + Unpin, R, W: ReadReply<R> + Unpin> Future for Request<'_, C, R, W> {
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
                            this.waits = Waits::default();
                            return Poll::Ready(Err(this.failed(error)));
                        }
                        Poll::Pending => return Poll::Pending,
                    }
                }
                State::Submitted(call, connection) => {
                    let (replies, reader) = (this.command.replies(), &mut this.reader);
                    let Poll::Ready(outcome) =
                        call.poll_reply(cx, |reply| reader.read(reply, replies))
                    else {
                        return Poll::Pending;
                    };
                    let config = &this.router.shared.config;
                    let outcome = match outcome {
                        Ok(Answer::Result(Ok(_))) => outcome,
                        _ => leave_if_told(outcome, call, connection, config),
                    };
                    if let Ok(Answer::Result(result)) = outcome {
                        // The call stays for those who want to know who answered.
                        if let Some(cache) = &this.router.shared.cache {
                            cache.wrote(&this.command);
                        }
                        return Poll::Ready(result.map_err(|error| this.failed(error)));
                    }
                    // The time until now counts.
                    let (age, connection) = (call.age(), Arc::clone(connection));
                    this.retrying_after(age);
                    this.state = State::Over;
                    match this.conclude(outcome, &connection, cx) {
                        Poll::Ready(result) => {
                            return Poll::Ready(result.map_err(|error| this.failed(error)));
                        }
                        Poll::Pending if matches!(this.state, State::Ready) => {}
                        Poll::Pending => return Poll::Pending,
                    }
                }
                State::FannedOut(reply) => {
                    let Poll::Ready(reply) = reply.as_mut().poll(cx) else {
                        return Poll::Pending;
                    };
                    this.state = State::Over;
                    let result = reply.and_then(|mut reply| {
                        match this.reader.read(&mut reply, this.command.replies()) {
                            Answer::Result(result) => result,
                            Answer::NotExecuted(error) => Err(error.into()),
                        }
                    });
                    return Poll::Ready(result.map_err(|error| this.failed(error)));
                }
                State::Pausing(until) => {
                    let until = *until;
                    if Instant::now() < until {
                        this.wake_at(until, cx);
                        return Poll::Pending;
                    }
                    // Where a redirect led did not help.
                    if let Some(retrying) = &mut this.retrying {
                        retrying.target = None;
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
            State::Pausing(_) => "pausing",
            State::FannedOut(_) => "sent to several nodes",
            State::Over => "over",
        };
        write!(f, "Request({state})")
    }
}

/// Leaves the connection if the server answered what the configuration names (`reconnect_on`). Of a
/// command that was certainly not executed it says so, so that it goes to the next connection.
#[cold]
fn leave_if_told<R>(
    outcome: Result<Answer<R>, CallError>,
    call: &Call,
    connection: &Arc<NodeConnection>,
    config: &Config,
) -> Result<Answer<R>, CallError> {
    let error = match &outcome {
        Ok(Answer::NotExecuted(error) | Answer::Result(Err(Error::Server(error)))) => error,
        _ => return outcome,
    };
    if !config.reconnects_on(&error.text) {
        return outcome;
    }
    connection.leave(call, &error.text);
    match outcome {
        Ok(Answer::Result(Err(Error::Server(error)))) if !error.may_have_executed() => {
            Ok(Answer::NotExecuted(error))
        }
        other => other,
    }
}
