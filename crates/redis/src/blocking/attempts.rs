//! The attempts of one command that blocks: which node, which connection, and what became of it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use embar_mux::{Call, CallError, CloseReason, SubmitError, Turn};

use crate::attempt::{ASKING, PROMPT_REDIRECTS, Target, cause};
use crate::command::{Class, Command, Route};
use crate::commands::blocking::{BlockingCommand, is_for_ever};
use crate::engine::{Lease, NodeConnection, Router, after, lease, sleep_until};
use crate::error::Error;
use crate::metrics::RetryCause;
use crate::resp::{ErrorKind, ServerError, View, parse};

/// Executes a command that blocks for at most `wait`: the bytes of its reply, which may be an error of the server.
///
/// # Errors
/// When it has no reply.
pub(crate) async fn run(
    router: Arc<Router>,
    command: BlockingCommand,
    wait: Duration,
    repeatable: bool,
) -> Result<Vec<u8>, Error> {
    let route = command.route();
    if let Some(error) = router.refused(route) {
        return Err(error);
    }
    let class = command.class();
    let mut attempts = Attempts {
        route,
        repeatable: repeatable || class == Class::Read,
        class,
        until: (!is_for_ever(wait)).then(|| after(wait)),
        deadline: after(router.shared.config.timeout),
        command,
        router,
        paused: 0,
        redirects: 0,
        target: None,
        unknown: None,
    };
    let outcome = attempts.run().await;
    if let (Some(cache), Ok(_)) = (&attempts.router.shared.cache, &outcome) {
        cache.wrote(&attempts.command.waiting(Duration::ZERO));
    }
    outcome.map_err(|error| attempts.failed(error))
}

/// What one attempt came to.
enum Outcome {
    Reply(Vec<u8>),
    /// Another one, perhaps elsewhere.
    Again,
}

struct Attempts {
    router: Arc<Router>,
    command: BlockingCommand,
    /// Where it goes by its keys.
    route: Route,
    class: Class,
    repeatable: bool,
    /// When the server's wait ends; `None`: never.
    until: Option<Instant>,
    /// When the client gives up to look for a server. The time that servers wait does not count.
    deadline: Instant,
    /// How often it has paused since a server waited for it.
    paused: u32,
    /// How many redirects it has followed since a server waited for it.
    redirects: u32,
    /// Where the last redirect leads.
    target: Option<Target>,
    /// Why an earlier attempt has no reply, if the server may have executed it.
    unknown: Option<CloseReason>,
}

impl Attempts {
    async fn run(&mut self) -> Result<Vec<u8>, Error> {
        loop {
            if let Outcome::Reply(reply) = self.attempt().await? {
                return Ok(reply);
            }
        }
    }

    async fn attempt(&mut self) -> Result<Outcome, Error> {
        let target = self.target.take();
        let target = target.filter(|target| !target.connection.is_retired());
        let (node, asking) = match target {
            Some(target) => (target.connection, target.asking),
            None => match self.router.connection(self.route, self.class) {
                Some(node) => (node, false),
                None => {
                    self.router.shared.schedule.request_refresh();
                    let why = self.router.why_no_node(self.route);
                    return self.pause(RetryCause::NoNode, &why).await;
                }
            },
        };
        let leased = lease(&self.router.shared, &node.endpoint, self.deadline).await;
        let mut lease = match leased {
            Ok(lease) => lease,
            Err(Error::Unavailable { why }) => {
                // Perhaps another node has taken over.
                self.router.shared.schedule.request_refresh();
                return self.pause(RetryCause::NotSent, &why).await;
            }
            Err(error) => return Err(error),
        };
        let mut call = match self.submit(&lease, asking).await {
            Ok(call) => call,
            Err(SubmitError::Full) => return Err(Error::Busy),
            Err(SubmitError::Closed(reason)) => {
                return self.pause(RetryCause::NotSent, &reason.to_string()).await;
            }
        };
        let reply = self.reply(&mut call, &node, asking).await;
        let age = call.age();
        drop(call);
        match reply {
            Ok(reply) => self.answered(reply, &mut lease, &node, asking, age).await,
            Err(CallError::NotSent(reason)) => {
                self.pause(RetryCause::NotSent, &reason.to_string()).await
            }
            // A reply that broke the protocol would do so again.
            Err(CallError::Unknown(reason))
                if self.repeatable && !matches!(reason, CloseReason::BadReply(_)) =>
            {
                self.waited(age);
                let why = reason.to_string();
                self.unknown = Some(reason);
                self.pause(RetryCause::Unknown, &why).await
            }
            Err(CallError::Unknown(reason)) => Err(Error::UnknownOutcome(reason)),
            Err(CallError::TimedOut) => Err(Error::TimedOut),
            Err(CallError::TooLarge { max }) => Err(Error::ReplyTooLarge { max }),
        }
    }

    async fn submit(&self, lease: &Lease, asking: bool) -> Result<Call, SubmitError> {
        let Some(conn) = lease.conn() else {
            return Err(SubmitError::Closed(CloseReason::Closed));
        };
        let left = match self.until {
            Some(until) => until.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        };
        let command = self.command.waiting(left);
        // The server ends the wait; the client only if the server does not.
        let limit = left.saturating_add(self.router.shared.config.timeout);
        let before = if asking { ASKING } else { b"" };
        let (len, replies) = (before.len() + command.encoded_len(), 1 + u32::from(asking));
        let mut fill = |out: &mut [u8]| {
            let (first, rest) = out.split_at_mut(before.len());
            first.copy_from_slice(before);
            command.encode(rest);
        };
        let mut turn = Turn::default();
        let class = self.class as u8;
        poll_fn(|cx| conn.poll_submit(&mut turn, cx, len, replies, class, Some(limit), &mut fill))
            .await
    }

    /// Waits for the reply. Gives up on a node that the slot has left for long, although that should have said so: it
    /// hangs, perhaps, and another one has taken over.
    async fn reply(
        &self,
        call: &mut Call,
        node: &Arc<NodeConnection>,
        asking: bool,
    ) -> Result<Vec<u8>, CallError> {
        let shared = &self.router.shared;
        let (mut timer, mut look_at, mut gone) = (None, after(shared.config.dead_after), false);
        poll_fn(|cx| {
            if let Poll::Ready(reply) = call.poll_reply(cx, std::mem::take) {
                return Poll::Ready(reply);
            }
            if asking {
                return Poll::Pending;
            }
            if Instant::now() >= look_at {
                let was_gone = std::mem::replace(&mut gone, !self.leads_to(node));
                if was_gone && gone {
                    return Poll::Ready(Err(CallError::Unknown(CloseReason::Silent)));
                }
                look_at = after(shared.config.dead_after);
            }
            shared.schedule.wake_at(&mut timer, look_at, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Whether the command would go to this node now.
    fn leads_to(&self, node: &NodeConnection) -> bool {
        let now = self.router.connection(self.route, self.class);
        now.is_some_and(|now| now.endpoint == node.endpoint)
    }

    /// A server waited so long.
    fn waited(&mut self, age: Duration) {
        self.deadline = self.deadline.checked_add(age).unwrap_or(self.deadline);
        if age >= self.router.shared.config.retries.backoff_max {
            (self.paused, self.redirects) = (0, 0);
        }
    }

    async fn answered(
        &mut self,
        mut reply: Vec<u8>,
        lease: &mut Lease,
        node: &Arc<NodeConnection>,
        asking: bool,
        age: Duration,
    ) -> Result<Outcome, Error> {
        if asking {
            let (answer, len) = parse(&reply)?;
            if !matches!(answer, View::Error(_)) {
                reply.drain(..len);
            }
        }
        let error = match parse(&reply)?.0 {
            View::Error(error) => ServerError::from(error),
            _ => {
                lease.mark_clean();
                return Ok(Outcome::Reply(reply));
            }
        };
        let redirect = matches!(error.kind, ErrorKind::Moved { .. } | ErrorKind::Ask { .. });
        let is_result = !error.kind.is_retryable() && !is_forced(&error);
        // Of a server that has become a replica the connection ends, so that the next one may lead elsewhere.
        if redirect || is_result {
            lease.mark_clean();
        }
        if is_result {
            return Ok(Outcome::Reply(reply));
        }
        self.waited(age);
        self.redirects += u32::from(redirect);
        if self.redirects > self.router.shared.config.retries.max_redirects {
            return Ok(Outcome::Reply(reply));
        }
        let connection = match &error.kind {
            ErrorKind::Moved { slot, address } => self.router.moved(*slot, address, node),
            ErrorKind::Ask { slot, address } => self.router.asked(*slot, address, node),
            _ => None,
        };
        let asking = matches!(error.kind, ErrorKind::Ask { .. });
        self.target = connection.map(|connection| Target { connection, asking });
        if self.target.is_some() && self.redirects <= PROMPT_REDIRECTS {
            return Ok(Outcome::Again);
        }
        self.router.shared.schedule.request_refresh();
        self.pause(cause(&error.kind), &error.text).await
    }

    /// It was not executed, or may be repeated: pauses before the next attempt.
    async fn pause(&mut self, cause: RetryCause, why: &str) -> Result<Outcome, Error> {
        let shared = &self.router.shared;
        if shared.schedule.is_over() {
            return Err(Error::Closed);
        }
        if Instant::now() >= self.deadline {
            let why = why.to_owned();
            return Err(Error::Unavailable { why });
        }
        shared.counters.retried(cause);
        tracing::debug!(
            cause = cause.name(),
            why,
            "a command that blocks is sent again"
        );
        let at = after(shared.config.retries.backoff(self.paused)).min(self.deadline);
        sleep_until(&shared.schedule, at).await;
        self.paused += 1;
        Ok(Outcome::Again)
    }

    /// The error that the caller gets.
    fn failed(&mut self, error: Error) -> Error {
        let counters = &self.router.shared.counters;
        let error = match self.unknown.take() {
            // The last attempt was not executed, but an earlier one may have been.
            Some(reason) if self.class == Class::Write && !error.may_have_executed() => {
                Error::UnknownOutcome(reason)
            }
            _ => error,
        };
        match &error {
            Error::UnknownOutcome(_) => counters.unknown_outcomes.add(1),
            Error::Unavailable { .. } => counters.unavailable.add(1),
            _ => {}
        }
        error
    }
}

/// Whether a server stopped waiting because it became a replica, and not because somebody asked it to (`CLIENT UNBLOCK`).
fn is_forced(error: &ServerError) -> bool {
    error.kind == ErrorKind::Unblocked && error.text.starts_with("UNBLOCKED force unblock")
}
