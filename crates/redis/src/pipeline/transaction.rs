//! MULTI and EXEC: <https://redis.io/docs/latest/develop/interact/transactions/>.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use embar_mux::block_on;

use super::{List, Place, Results, Stored, frames};
use crate::client::{Answer, Inner, Outcome, Request, is_elsewhere};
use crate::command::{Class, Command, Route};
use crate::commands::Commands;
use crate::config::Mode;
use crate::error::Error;
use crate::resp::{ErrorKind, ErrorView, FromReply, ServerError, View, WrongType, parse};

const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Commands that are executed together, with nothing of other clients in between: all of them, or,
/// when the server refuses one before they run, none. In a cluster all keys must have one slot.
///
/// It is sent as one piece over the shared connection, so it holds up nobody. To make it depend on
/// what was read before, use a dedicated connection and `WATCH`.
#[derive(Clone)]
#[must_use = "nothing is sent before it is run"]
pub struct Transaction<'c> {
    client: &'c Arc<Inner>,
    list: List,
}

impl Commands for &mut Transaction<'_> {
    type Given<C: Command, R: FromReply> = Place<R>;

    fn give<C: Command, R: FromReply>(self, command: C) -> Place<R> {
        self.list.add(&command)
    }
}

impl<'c> Transaction<'c> {
    pub(crate) fn new(client: &'c Arc<Inner>) -> Self {
        Self {
            client,
            list: List::default(),
        }
    }

    /// Sends it and waits for the results. It can be run again.
    ///
    /// # Errors
    /// None of it was executed, or nobody knows, by [`Error::may_have_executed`];
    /// [`Error::NotAtomic`] if the server does not allow transactions. Errors of single commands
    /// while they run are theirs, and do not undo the others.
    pub async fn run(&self) -> Result<Results, Error> {
        let Some(whole) = self.whole()? else {
            return Ok(Results::of_none());
        };
        let executed = Request::<_, Option<Executed>>::new(self.client, whole).await?;
        // Nothing is watched on a shared connection.
        executed
            .map(|executed| self.results(executed))
            .ok_or_else(|| WrongType::new("the results of EXEC", View::Null).into())
    }

    /// All of it as one command; `None` if there is nothing to do.
    pub(crate) fn whole(&self) -> Result<Option<Whole<'_>>, Error> {
        if self.list.entries.is_empty() {
            return Ok(None);
        }
        Ok(Some(Whole {
            list: &self.list,
            route: self.route()?,
        }))
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

    /// The slot of all keys; they may have several where there is one server.
    fn route(&self) -> Result<Route, Error> {
        let mut route = Route::Any;
        for entry in &self.list.entries {
            if let Some(error) = &entry.refused {
                return Err(error.clone());
            }
            match (route, entry.route) {
                (_, Route::Any) => {}
                (Route::Any, other) => route = other,
                (known, other) if known == other => {}
                _ if self.client.config.mode == Mode::Cluster => return Err(Error::CrossSlot),
                _ => route = Route::CrossSlot,
            }
        }
        Ok(route)
    }
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transaction({} commands)", self.list.entries.len())
    }
}

/// The transaction as one command.
pub(crate) struct Whole<'l> {
    list: &'l List,
    route: Route,
}

impl Command for Whole<'_> {
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
        let replies = self.list.entries.iter().map(|entry| entry.replies);
        2 + replies.sum::<u32>()
    }
}

/// The results of all commands: from `at` on, with these lengths. `None`: a watched key changed.
pub(crate) struct Executed {
    bytes: Vec<u8>,
    at: usize,
    lens: Vec<usize>,
}

impl Outcome for Option<Executed> {
    fn read(reply: &mut Vec<u8>, replies: u32) -> Answer<Self> {
        match Executed::try_read(reply, replies) {
            Ok(answer) => answer,
            Err(error) => Answer::Result(Err(error)),
        }
    }
}

impl Executed {
    /// The results for the commands of this list.
    fn into_results(self, list: &List) -> Results {
        let (mut lens, mut at) = (self.lens.into_iter(), self.at);
        let outcomes = list.entries.iter().map(|entry| {
            // A command may be several, with a result each.
            let len: usize = lens.by_ref().take(entry.replies as usize).sum();
            let range = at..at + len;
            at += len;
            Ok(Stored { buffer: 0, range })
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
            // Nothing of it was executed.
            return Ok(answer_of_refusal(error));
        }
        match parse(&reply[at..])?.0 {
            View::Error(error) => {
                // The slot moved after the commands were queued: none was executed.
                let error = ServerError::from(error);
                Ok(match is_elsewhere(&error.kind) {
                    true => Answer::Elsewhere(error),
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

/// The server refused MULTI, so it took the commands behind it for single ones: `reply` begins with
/// their replies, of these lengths. They were all on their way already.
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
    is_elsewhere(kind)
        || matches!(
            kind,
            ErrorKind::NoPerm
                | ErrorKind::NoAuth
                | ErrorKind::UnknownCommand
                | ErrorKind::CrossSlot
        )
}

/// Nothing of it was executed, because a part of it was refused.
fn answer_of_refusal<R>(error: ServerError) -> Answer<R> {
    match error.kind {
        // A node to which the slot is on its way takes single commands only.
        ErrorKind::Ask { .. } => Answer::Elsewhere(ServerError {
            kind: ErrorKind::TryAgain,
            text: error.text,
        }),
        ref kind if is_elsewhere(kind) => Answer::Elsewhere(error),
        _ => Answer::Result(Err(error.into())),
    }
}
