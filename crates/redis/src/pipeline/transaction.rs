//! Transactions: a server executes their commands together, between MULTI and EXEC:
//! <https://redis.io/docs/latest/develop/interact/transactions/>.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use embar_mux::{Call, block_on};

use crate::command::{Class, Command, Route};
use crate::commands::Commands;
use crate::config::Mode;
use crate::engine::Router;
use crate::error::Error;
use crate::request::{Answer, FromFrames, Request};
use crate::resp::{ErrorKind, ErrorView, FromReply, ServerError, View, WrongType, parse};
use crate::runs::{EncodedCommands, ReplyRange, ResultKey, Results};

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Commands that the server executes together, with nothing of other clients in between: all of them,
/// or none if the server refuses one before they run. In a cluster all keys must have one slot.
///
/// The client sends it as one piece over the shared connection, so it delays no other caller. To make
/// it depend on what was read before, use a dedicated connection and `WATCH`.
#[derive(Clone)]
#[must_use = "only a run sends it"]
pub struct Transaction<'c> {
    router: &'c Arc<Router>,
    list: EncodedCommands,
    timeout: Option<Duration>,
}

impl Commands for &mut Transaction<'_> {
    type Output<C: Command, R: FromReply> = ResultKey<R>;

    fn execute<C: Command, R: FromReply>(self, command: C) -> ResultKey<R> {
        self.add(&command)
    }
}

impl<'c> Transaction<'c> {
    pub(crate) fn new(router: &'c Arc<Router>) -> Self {
        Self {
            router,
            list: EncodedCommands::default(),
            timeout: None,
        }
    }

    /// How long a run may take, instead of the configuration's `timeout`; on a dedicated connection,
    /// instead of for ever.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sends it and waits for the results. A transaction may run several times.
    ///
    /// # Errors
    /// When there are no results; [`Error::may_have_executed`] says whether the server may have
    /// executed the transaction. [`Error::NotAtomic`] if the server does not allow transactions. The
    /// error of a single command is that command's result, and does not undo the others.
    pub async fn run(&self) -> Result<Results, Error> {
        let Some(whole) = self.whole()? else {
            return Ok(Results::empty());
        };
        let request = Request::<_, Option<Executed>>::new(self.router, whole);
        let executed = match self.timeout {
            Some(timeout) => request.timeout(timeout).await?,
            None => request.await?,
        };
        // No key is watched on a shared connection.
        executed
            .map(|executed| self.results(executed))
            .ok_or_else(|| WrongType::new("the results of EXEC", View::Null).into())
    }

    /// As [`Transaction::run`], for commands that change nothing, and so may be sent again. Also gives
    /// the call, which knows over which connection they were answered.
    pub(crate) async fn run_repeatable(&self) -> Result<(Results, Call), Error> {
        let whole = self.whole()?.ok_or(Error::Closed)?;
        let request = Request::<_, Option<Executed>>::new(self.router, whole);
        let mut request = request.repeatable();
        let executed = (&mut request).await?;
        let call = request.into_answered().ok_or(Error::Closed)?;
        let executed = executed.ok_or_else(|| WrongType::new("the results of EXEC", View::Null))?;
        Ok((self.results(executed), call))
    }

    /// Adds a command.
    pub(crate) fn add<C: Command, R: FromReply>(&mut self, command: &C) -> ResultKey<R> {
        self.list.add(command)
    }

    /// The transaction as one command; `None` if it has no commands.
    pub(crate) fn whole(&self) -> Result<Option<WholeTransaction<'_>>, Error> {
        if self.list.commands.is_empty() {
            return Ok(None);
        }
        Ok(Some(WholeTransaction {
            list: &self.list,
            route: self.route()?,
        }))
    }

    pub(crate) fn time_limit(&self) -> Option<Duration> {
        self.timeout
    }

    pub(crate) fn results(&self, executed: Executed) -> Results {
        executed.into_results(&self.list)
    }

    /// As [`Transaction::run`], for code without an executor.
    ///
    /// # Errors
    /// As [`Transaction::run`].
    pub fn run_blocking(&self) -> Result<Results, Error> {
        let mut run = std::pin::pin!(self.run());
        block_on(|cx| run.as_mut().poll(cx))
    }

    /// The slot of all keys. With one server they may have several.
    fn route(&self) -> Result<Route, Error> {
        let mut route = Route::Any;
        for entry in &self.list.commands {
            if let Some(error) = &entry.refused {
                return Err(error.clone());
            }
            match (route, entry.route) {
                (_, Route::Any) => {}
                (Route::Any, other) => route = other,
                (known, other) if known == other => {}
                _ if self.router.shared.config.mode == Mode::Cluster => {
                    return Err(Error::CrossSlot);
                }
                _ => route = Route::CrossSlot,
            }
        }
        Ok(route)
    }
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transaction({} commands)", self.list.commands.len())
    }
}

/// The transaction as one command.
pub(crate) struct WholeTransaction<'l> {
    list: &'l EncodedCommands,
    route: Route,
}

impl Command for WholeTransaction<'_> {
    fn encoded_len(&self) -> usize {
        MULTI.len() + self.list.bytes.len() + EXEC.len()
    }

    fn encode(&self, out: &mut [u8]) {
        let (first, rest) = out.split_at_mut(MULTI.len());
        first.copy_from_slice(MULTI);
        let (commands, last) = rest.split_at_mut(self.list.bytes.len());
        commands.copy_from_slice(&self.list.bytes);
        last.copy_from_slice(EXEC);
    }

    fn route(&self) -> Route {
        self.route
    }

    fn class(&self) -> Class {
        Class::Write
    }

    fn replies(&self) -> u32 {
        let replies = self.list.commands.iter().map(|entry| entry.replies);
        2 + replies.sum::<u32>()
    }
}

/// The results of all commands: from `at` on, with these lengths. `None` stands for a transaction that
/// the server did not execute, as a watched key has changed.
pub(crate) struct Executed {
    bytes: Vec<u8>,
    at: usize,
    lens: Vec<usize>,
}

impl FromFrames for Option<Executed> {
    fn read(reply: &mut Vec<u8>, replies: u32) -> Answer<Self> {
        match Executed::try_read(reply, replies) {
            Ok(answer) => answer,
            Err(error) => Answer::Result(Err(error)),
        }
    }
}

impl Executed {
    /// The results, for the commands of this list.
    fn into_results(self, list: &EncodedCommands) -> Results {
        let (mut lens, mut at) = (self.lens.into_iter(), self.at);
        let outcomes = list.commands.iter().map(|entry| {
            // A command may be several, with a result each.
            let len: usize = lens.by_ref().take(entry.replies as usize).sum();
            let range = at..at + len;
            at += len;
            Ok(ReplyRange {
                buffer: 0,
                range,
                may_fail_midway: entry.may_fail_midway,
            })
        });
        Results {
            outcomes: outcomes.collect(),
            buffers: vec![self.bytes],
        }
    }

    fn try_read(reply: &mut Vec<u8>, replies: u32) -> Result<Answer<Option<Self>>, Error> {
        let lens = frames(reply)?;
        // The answer to ASKING comes first if there is one.
        let before = lens.len().saturating_sub(replies as usize);
        let asking = &lens[..before];
        let mut at = 0;
        for len in asking {
            if let (View::Error(error), _) = parse(&reply[at..])? {
                return Err(ServerError::from(error).into());
            }
            at += len;
        }
        if let (View::Error(error), _) = parse(&reply[at..])? {
            let commands = &lens[before + 1..lens.len() - 1];
            let first = at + lens[before];
            return refused_multi(error, &reply[first..], commands);
        }
        let mut refused = None;
        for len in &lens[before..lens.len() - 1] {
            if let (View::Error(error), _) = parse(&reply[at..])? {
                refused.get_or_insert(ServerError::from(error));
            }
            at += len;
        }
        if let Some(error) = refused {
            // The server executed nothing of it.
            return Ok(answer_of_refusal(error));
        }
        match parse(&reply[at..])?.0 {
            View::Error(error) => {
                // The slot moved after the commands were queued: none was executed.
                let error = ServerError::from(error);
                Ok(match error.kind.is_retryable() {
                    true => Answer::NotExecuted(error),
                    false => Answer::Result(Err(error.into())),
                })
            }
            View::Null => Ok(Answer::Result(Ok(None))),
            View::Array(items) => {
                let count = items.len();
                let line = memchr::memchr(b'\n', &reply[at..]).map_or(0, |end| end + 1);
                let first = at + line;
                let lens = frames(&reply[first..])?;
                if count != lens.len() || count != replies as usize - 2 {
                    let what = View::Array(items);
                    return Err(WrongType::new("a result of each command", what).into());
                }
                Ok(Answer::Result(Ok(Some(Self {
                    bytes: std::mem::take(reply),
                    at: first,
                    lens,
                }))))
            }
            other => Err(WrongType::new("the results of EXEC", other).into()),
        }
    }
}

/// The server refused MULTI, so it took the commands behind it, which were on their way already, for
/// single ones: `reply` begins with their replies, of these lengths.
fn refused_multi<R>(
    error: ErrorView<'_>,
    mut reply: &[u8],
    lens: &[usize],
) -> Result<Answer<R>, Error> {
    let error = ServerError::from(error);
    for len in lens {
        let refused = match parse(reply)?.0 {
            View::Error(single) => is_before_execution(&single.kind()),
            _ => false,
        };
        if !refused {
            return Err(Error::NotAtomic(error));
        }
        reply = &reply[*len..];
    }
    Ok(answer_of_refusal(error))
}

/// Whether a server that answers so has certainly not begun to execute the command.
fn is_before_execution(kind: &ErrorKind) -> bool {
    kind.is_retryable()
        || matches!(
            kind,
            ErrorKind::NoPerm
                | ErrorKind::NoAuth
                | ErrorKind::UnknownCommand
                | ErrorKind::CrossSlot
        )
}

/// The server executed nothing of it, because it refused a part.
fn answer_of_refusal<R>(error: ServerError) -> Answer<R> {
    match error.kind {
        // A node to which the slot is moving takes single commands only.
        ErrorKind::Ask { .. } => Answer::NotExecuted(ServerError {
            kind: ErrorKind::TryAgain,
            ..error
        }),
        ref kind if kind.is_retryable() => Answer::NotExecuted(error),
        _ => Answer::Result(Err(error.into())),
    }
}

/// The lengths of all frames.
fn frames(mut bytes: &[u8]) -> Result<Vec<usize>, Error> {
    let mut lens = Vec::new();
    while !bytes.is_empty() {
        let (_, len) = parse(bytes)?;
        lens.push(len);
        bytes = &bytes[len..];
    }
    Ok(lens)
}
