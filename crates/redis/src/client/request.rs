//! A command under way: submitted, redirected, tried again, until there is a result.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use embar_mux::{Call, CallError, Conn, Reason, SubmitError, block_on};

use super::Inner;
use super::node::Link;
use crate::command::{Class, Command, Route};
use crate::config::{Mode, OnFull};
use crate::error::Error;
use crate::resp::{ErrorKind, FromReply, ServerError, View, WrongType, parse};

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

/// What only a command knows that did not go well at once.
struct Slow {
    /// When it is given up.
    deadline: Instant,
    attempts: u32,
    redirects: u32,
    /// Where a redirect leads, and whether it is for this time only.
    target: Option<(Arc<Link>, bool)>,
    /// It was told to the keeper that this is to be polled at the deadline.
    woken_at: Option<(Instant, Waker)>,
    why: String,
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
        let timeout = self.timeout.unwrap_or(self.client.config.timeout);
        self.slow.get_or_insert_with(|| {
            Box::new(Slow {
                deadline: Instant::now() + timeout,
                attempts: 0,
                redirects: 0,
                target: None,
                woken_at: None,
                why: "no connection in time".to_owned(),
            })
        })
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
        let target = self.slow.as_ref().and_then(|slow| slow.target.clone());
        if target.as_ref().is_some_and(|(link, _)| link.is_retired()) {
            self.slow().target = None;
            return self.again("the node has left the cluster", cx);
        }
        let asking = target.as_ref().is_some_and(|(_, asking)| *asking);
        let link = match target {
            Some((link, _)) => link,
            None => match self.client.link(self.command.route(), self.command.class()) {
                Some(link) => link,
                None => {
                    self.client.keeper.refresh();
                    return self.again("no node is known that serves the slot", cx);
                }
            },
        };
        let Poll::Ready(conn) = link.poll_conn(cx) else {
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
                self.state = State::Submitted(call, link);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(SubmitError::Full)) => Poll::Ready(Err(Error::Busy)),
            // It broke just now.
            Poll::Ready(Err(SubmitError::Closed(reason))) => self.again(&reason.to_string(), cx),
            Poll::Pending => self.poll_deadline(cx),
        }
    }

    #[inline]
    fn submit(
        &self,
        conn: &Conn,
        asking: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Call, SubmitError>> {
        let command = &self.command;
        let before = if asking { ASKING } else { b"" };
        let replies = command.replies() + u32::from(asking);
        let len = before.len() + command.encoded_len();
        let mut fill = |out: &mut [u8]| {
            let (first, rest) = out.split_at_mut(before.len());
            first.copy_from_slice(before);
            command.encode(rest);
        };
        match self.client.config.on_full {
            OnFull::Wait => conn.poll_submit(cx, len, replies, self.timeout, &mut fill),
            OnFull::Refuse => {
                let waker = Some(cx.waker().clone());
                Poll::Ready(conn.submit(len, replies, self.timeout, waker, fill))
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
        let known = self.slow().woken_at.as_ref();
        if !known.is_some_and(|(at, waker)| *at == deadline && waker.will_wake(cx.waker())) {
            self.slow().woken_at = Some((deadline, cx.waker().clone()));
            self.client.keeper.wake_at(deadline, cx.waker().clone());
        }
        Poll::Pending
    }

    /// It was not executed: after a while it is tried again.
    fn again<T>(&mut self, why: &str, cx: &mut Context<'_>) -> Poll<Result<T, Error>> {
        why.clone_into(&mut self.slow().why);
        let attempts = self.slow().attempts;
        self.slow().attempts += 1;
        let at = Instant::now() + self.client.keeper.backoff(attempts);
        self.state = State::Sleeping(at.min(self.slow().deadline));
        self.slow().woken_at = None;
        self.client.keeper.wake_at(at, cx.waker().clone());
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
            Err(CallError::NotSent(Reason::Closed)) if self.client.keeper.is_over() => {
                Poll::Ready(Err(Error::Closed))
            }
            Err(CallError::NotSent(reason)) => self.again(&reason.to_string(), cx),
            // What cannot be read once cannot be read again, and would disturb others again.
            Err(CallError::Unknown(reason))
                if self.retry && !matches!(reason, Reason::BadReply(_)) =>
            {
                self.again(&reason.to_string(), cx)
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
                return self.again(&error.text, cx);
            }
        }
        if in_doubt || self.slow().target.is_none() {
            return self.again(&error.text, cx);
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
                State::Ready => match this.poll_submit(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => {
                        this.state = State::Over;
                        return Poll::Ready(Err(error));
                    }
                    Poll::Pending => return Poll::Pending,
                },
                State::Submitted(call, link) => {
                    let (replies, reader) = (this.command.replies(), &mut this.reader);
                    let Poll::Ready(outcome) =
                        call.poll_reply(cx, |reply| reader.read(reply, replies))
                    else {
                        return Poll::Pending;
                    };
                    let link = Arc::clone(link);
                    this.state = State::Over;
                    match this.conclude(outcome, &link, cx) {
                        Poll::Ready(result) => return Poll::Ready(result),
                        Poll::Pending if matches!(this.state, State::Ready) => {}
                        Poll::Pending => return Poll::Pending,
                    }
                }
                State::Sleeping(until) => {
                    let until = *until;
                    if Instant::now() < until {
                        this.client.keeper.wake_at(until, cx.waker().clone());
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

/// What a reply comes to.
#[derive(Debug)]
#[doc(hidden)]
pub enum Answer<R> {
    /// The command was executed, or never will be.
    Result(Result<R, Error>),
    /// The command was not executed, and another node, or another time, may do.
    Elsewhere(ServerError),
}

/// What can be made of all frames of a reply, which may be one more than the command's own when
/// they begin with the answer to ASKING.
#[doc(hidden)]
pub trait Outcome: Sized {
    /// Takes what it wants of them.
    fn read(reply: &mut Vec<u8>, replies: u32) -> Answer<Self>;
}

/// Reads a reply, perhaps to somewhere.
#[doc(hidden)]
pub trait Reader<R> {
    /// As [`Outcome::read`].
    fn read(&mut self, reply: &mut Vec<u8>, replies: u32) -> Answer<R>;
}

/// Reads a reply as the type of the result.
#[derive(Debug)]
#[doc(hidden)]
pub struct ByType;

impl<R: Outcome> Reader<R> for ByType {
    #[inline]
    fn read(&mut self, reply: &mut Vec<u8>, replies: u32) -> Answer<R> {
        R::read(reply, replies)
    }
}

/// Copies a string to a buffer of the caller's; the result is its length.
#[derive(Debug)]
pub struct IntoBuffer<'b>(pub(crate) &'b mut Vec<u8>);

impl Reader<Option<usize>> for IntoBuffer<'_> {
    fn read(&mut self, reply: &mut Vec<u8>, replies: u32) -> Answer<Option<usize>> {
        let buffer = &mut *self.0;
        buffer.clear();
        let copied = read_with(reply, replies, |view| match view {
            View::Null => Ok(None),
            View::Bulk(bytes) | View::Simple(bytes) | View::Verbatim { text: bytes, .. } => {
                buffer.extend_from_slice(bytes);
                Ok(Some(bytes.len()))
            }
            other => Err(WrongType::new("a string", other)),
        });
        copied.unwrap_or_else(|error| Answer::Result(Err(error)))
    }
}

impl<R: FromReply> Outcome for R {
    #[inline]
    fn read(reply: &mut Vec<u8>, replies: u32) -> Answer<Self> {
        read_with(reply, replies, R::from_reply).unwrap_or_else(|error| Answer::Result(Err(error)))
    }
}

#[inline]
fn read_with<R>(
    reply: &[u8],
    replies: u32,
    read: impl FnOnce(View<'_>) -> Result<R, WrongType>,
) -> Result<Answer<R>, Error> {
    let (mut view, len) = parse(reply)?;
    if replies == 1 && len < reply.len() {
        // The answer to ASKING comes first.
        if let View::Error(error) = view {
            return Err(ServerError::from(error).into());
        }
        view = parse(&reply[len..])?.0;
    }
    if let View::Error(error) = view {
        let error = ServerError::from(error);
        if is_elsewhere(&error.kind) {
            return Ok(Answer::Elsewhere(error));
        }
        let result = read(view);
        return Ok(Answer::Result(result.map_err(|_| error.into())));
    }
    Ok(Answer::Result(read(view).map_err(Error::from)))
}

/// Errors after which a command is sent again, as it was certainly not executed.
pub(crate) fn is_elsewhere(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Moved { .. }
            | ErrorKind::Ask { .. }
            | ErrorKind::TryAgain
            | ErrorKind::ClusterDown
            | ErrorKind::Loading
            | ErrorKind::MasterDown
            | ErrorKind::ReadOnly
    )
}

/// For routing: what it is chosen by within a node.
pub(super) fn hint(route: Route) -> u16 {
    match route {
        Route::Slot(slot) => slot,
        Route::Any | Route::CrossSlot => 0,
    }
}
