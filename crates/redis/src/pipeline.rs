//! Several commands at once: pipelines, which save time, and transactions, which are all or nothing.
//!
//! Both have the same command methods as a client. Each method returns a [`ResultKey`], with which the
//! caller takes the command's result after the run.
//!
//! ```no_run
//! # async fn example(client: &embar_redis::Client) -> Result<(), embar_redis::Error> {
//! use embar_redis::commands::strings::StringCommands;
//!
//! let mut pipeline = client.pipeline();
//! pipeline.set("greeting", "hello");
//! let greeting = pipeline.get::<String, _>("greeting");
//! let visits = pipeline.incr("visits");
//! let results = pipeline.run().await;
//! println!("{} for the {}th time", results.take(greeting)?, results.take(visits)?);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use embar_mux::block_on;

use crate::command::{Class, Command, Route};
use crate::commands::Commands;
use crate::config::Mode;
use crate::engine::Router;
use crate::error::Error;
use crate::request::{Answer, FromFrames, Request};
use crate::resp::{FromReply, ServerError, View, parse};

mod transaction;

pub(crate) use transaction::Executed;
pub use transaction::Transaction;

/// Names a command's result in the [`Results`] of a run.
#[must_use = "only the key takes the command's result"]
pub struct ResultKey<R> {
    index: usize,
    result: PhantomData<fn() -> R>,
}

impl<R> fmt::Debug for ResultKey<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResultKey({})", self.index)
    }
}

/// An encoded command.
#[derive(Debug, Clone)]
pub(crate) struct EncodedCommand {
    bytes: Range<usize>,
    route: Route,
    class: Class,
    replies: u32,
    /// Why the client must not send it.
    refused: Option<Error>,
}

/// Encoded commands, one behind the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct EncodedCommands {
    bytes: Vec<u8>,
    commands: Vec<EncodedCommand>,
}

impl EncodedCommands {
    fn add<R>(&mut self, command: &impl Command) -> ResultKey<R> {
        let start = self.bytes.len();
        let len = command.encoded_len();
        self.bytes.resize(start + len, 0);
        command.encode(&mut self.bytes[start..]);
        self.commands.push(EncodedCommand {
            bytes: start..start + len,
            route: command.route(),
            class: command.class(),
            replies: command.replies(),
            refused: command.refused(),
        });
        ResultKey {
            index: self.commands.len() - 1,
            result: PhantomData,
        }
    }
}

/// Commands that the client sends together: one write and one wait for all commands of a node. Small
/// commands spend most of their time there.
///
/// Each command has its own result, and a command that fails does not stop the others. A node executes
/// its commands in order, but may execute other clients' commands in between. When a slot moves to
/// another node meanwhile, its commands may run later than those behind them.
#[derive(Clone)]
#[must_use = "only a run sends it"]
pub struct Pipeline<'c> {
    router: &'c Arc<Router>,
    list: EncodedCommands,
}

impl Commands for &mut Pipeline<'_> {
    type Output<C: Command, R: FromReply> = ResultKey<R>;

    fn execute<C: Command, R: FromReply>(self, command: C) -> ResultKey<R> {
        self.list.add(&command)
    }
}

impl<'c> Pipeline<'c> {
    pub(crate) fn new(router: &'c Arc<Router>) -> Self {
        Self {
            router,
            list: EncodedCommands::default(),
        }
    }

    /// How many commands it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.commands.len()
    }

    /// Whether it has no commands.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.commands.is_empty()
    }

    /// Removes all commands, and keeps the memory.
    pub fn clear(&mut self) {
        self.list.bytes.clear();
        self.list.commands.clear();
    }

    /// Sends all commands and waits for all results. A pipeline may run several times.
    pub async fn run(&self) -> Results {
        let mut results = Results::new(self.list.commands.len());
        for (outcome, entry) in results.outcomes.iter_mut().zip(&self.list.commands) {
            if let Some(error) = self.refused(entry) {
                *outcome = Err(error);
            }
        }
        let mut batches = self.batches();
        poll_fn(|cx| poll_all(&mut batches, cx)).await;
        let mut retry = Vec::new();
        for batch in batches {
            batch.settle(&self.list, &mut results, &mut retry);
        }
        // Redirected commands, in their order.
        retry.sort_unstable();
        for index in retry {
            let entry = &self.list.commands[index];
            let single = Batch::of(&self.list, vec![index], entry.class);
            let reply = Request::<_, SingleReply>::new(self.router, single).await;
            results.outcomes[index] = reply.map(|reply| results.keep(reply.0));
        }
        results
    }

    /// As [`Pipeline::run`], for code without an executor.
    #[must_use]
    pub fn run_blocking(&self) -> Results {
        let mut run = std::pin::pin!(self.run());
        block_on(|cx| run.as_mut().poll(cx))
    }

    /// Why the client must not send a command.
    fn refused(&self, entry: &EncodedCommand) -> Option<Error> {
        let cluster = self.router.shared.config.mode == Mode::Cluster;
        let cross = cluster && entry.route == Route::CrossSlot;
        cross
            .then_some(Error::CrossSlot)
            .or_else(|| entry.refused.clone())
    }

    /// One batch for each connection that has commands.
    fn batches(&self) -> Vec<BatchInFlight<'c, '_>> {
        let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut anywhere = Vec::new();
        let routes = self.router.routes();
        for (index, entry) in self.list.commands.iter().enumerate() {
            if self.refused(entry).is_some() {
                continue;
            }
            if entry.route == Route::Any {
                anywhere.push(index);
                continue;
            }
            let connection = self.router.connection_in(&routes, entry.route, entry.class);
            let place = connection.map_or(0, |connection| Arc::as_ptr(connection).addr());
            match groups.iter_mut().find(|(known, _)| *known == place) {
                Some((_, group)) => group.push(index),
                None => groups.push((place, vec![index])),
            }
        }
        // Commands that any node can execute go with the others, in their order.
        match groups.first_mut() {
            Some((_, group)) if !anywhere.is_empty() => {
                group.append(&mut anywhere);
                group.sort_unstable();
            }
            None if !anywhere.is_empty() => groups.push((0, anywhere)),
            _ => {}
        }
        let sent = |(_, group): (usize, Vec<usize>)| {
            let reads = |index: &usize| self.list.commands[*index].class == Class::Read;
            let class = match group.iter().all(reads) {
                true => Class::Read,
                false => Class::Write,
            };
            let batch = Batch::of(&self.list, group, class);
            BatchInFlight {
                request: Request::new(self.router, batch),
                outcome: None,
            }
        };
        groups.into_iter().map(sent).collect()
    }
}

impl fmt::Debug for Pipeline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipeline({} commands)", self.len())
    }
}

/// Some commands of a list, sent as one.
struct Batch<'l> {
    list: &'l EncodedCommands,
    group: Vec<usize>,
    route: Route,
    class: Class,
    len: usize,
    replies: u32,
}

impl<'l> Batch<'l> {
    fn of(list: &'l EncodedCommands, group: Vec<usize>, class: Class) -> Self {
        let entries = || group.iter().map(|index| &list.commands[*index]);
        Self {
            len: entries().map(|entry| entry.bytes.len()).sum(),
            replies: entries().map(|entry| entry.replies).sum(),
            route: entries()
                .map(|entry| entry.route)
                .find(|route| *route != Route::Any)
                .unwrap_or(Route::Any),
            list,
            class,
            group,
        }
    }
}

impl Command for Batch<'_> {
    fn encoded_len(&self) -> usize {
        self.len
    }

    fn encode(&self, mut out: &mut [u8]) {
        for index in &self.group {
            let bytes = &self.list.bytes[self.list.commands[*index].bytes.clone()];
            let (these, rest) = out.split_at_mut(bytes.len());
            these.copy_from_slice(bytes);
            out = rest;
        }
    }

    fn route(&self) -> Route {
        self.route
    }

    fn class(&self) -> Class {
        self.class
    }

    fn replies(&self) -> u32 {
        self.replies
    }
}

/// All frames of a batch's reply, errors included.
struct Frames(Vec<u8>);

impl FromFrames for Frames {
    fn read(reply: &mut Vec<u8>, _: u32) -> Answer<Self> {
        Answer::Result(Ok(Self(std::mem::take(reply))))
    }
}

/// The frames of one command's reply, unless the server did not execute it.
struct SingleReply(Vec<u8>);

impl FromFrames for SingleReply {
    fn read(reply: &mut Vec<u8>, replies: u32) -> Answer<Self> {
        match Self::try_read(reply, replies) {
            Ok(answer) => answer,
            Err(error) => Answer::Result(Err(error)),
        }
    }
}

impl SingleReply {
    fn try_read(reply: &mut Vec<u8>, replies: u32) -> Result<Answer<Self>, Error> {
        let lens = frames(reply)?;
        if lens.len() > replies as usize {
            // The answer to ASKING.
            reply.drain(..lens[0]);
        }
        if let (View::Error(error), _) = parse(reply)? {
            let error = ServerError::from(error);
            if error.kind.is_retryable() {
                return Ok(Answer::NotExecuted(error));
            }
        }
        Ok(Answer::Result(Ok(Self(std::mem::take(reply)))))
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

/// A batch whose reply is to come.
struct BatchInFlight<'c, 'l> {
    request: Request<'c, Batch<'l>, Frames>,
    outcome: Option<Result<Frames, Error>>,
}

fn poll_all(batches: &mut [BatchInFlight<'_, '_>], cx: &mut Context<'_>) -> Poll<()> {
    let mut pending = false;
    for batch in batches {
        if batch.outcome.is_none() {
            match Pin::new(&mut batch.request).poll(cx) {
                Poll::Ready(outcome) => batch.outcome = Some(outcome),
                Poll::Pending => pending = true,
            }
        }
    }
    match pending {
        true => Poll::Pending,
        false => Poll::Ready(()),
    }
}

impl BatchInFlight<'_, '_> {
    /// Puts each command's frames, or its error, into the results. Adds the commands that the client
    /// must send again to `retry`.
    fn settle(self, list: &EncodedCommands, results: &mut Results, retry: &mut Vec<usize>) {
        let group = &self.request.command().group;
        let bytes = match self.outcome.unwrap_or(Err(Error::Closed)) {
            Ok(Frames(bytes)) => bytes,
            Err(error) => {
                for &index in group {
                    let repeat = matches!(error, Error::UnknownOutcome(_))
                        && list.commands[index].class == Class::Read;
                    if repeat {
                        retry.push(index);
                    }
                    results.outcomes[index] = Err(error.clone());
                }
                return;
            }
        };
        let buffer = results.buffers.len();
        let mut at = 0;
        for &index in group {
            let (not_executed, len) = match frames_of(list.commands[index].replies, &bytes[at..]) {
                Ok(frames) => frames,
                Err(error) => {
                    results.outcomes[index] = Err(error);
                    continue;
                }
            };
            if not_executed {
                retry.push(index);
            }
            let range = at..at + len;
            at += len;
            results.outcomes[index] = Ok(ReplyRange { buffer, range });
        }
        results.buffers.push(bytes);
    }
}

/// Looks at the `count` frames of a command's reply: whether the first one says that the server did not
/// execute the command and the client may send it again, and the length of all.
fn frames_of(count: u32, bytes: &[u8]) -> Result<(bool, usize), Error> {
    let (mut not_executed, mut all) = (false, 0);
    for frame in 0..count {
        let (view, len) = parse(&bytes[all..])?;
        if let View::Error(error) = view
            && frame == 0
        {
            not_executed = error.kind().is_retryable();
        }
        all += len;
    }
    Ok((not_executed, all))
}

/// Where the frames of a command's reply are.
#[derive(Debug, Clone)]
struct ReplyRange {
    buffer: usize,
    range: Range<usize>,
}

/// The results of a pipeline or a transaction.
#[derive(Debug)]
pub struct Results {
    buffers: Vec<Vec<u8>>,
    outcomes: Vec<Result<ReplyRange, Error>>,
}

impl Results {
    fn new(count: usize) -> Self {
        Self {
            buffers: Vec::new(),
            outcomes: (0..count).map(|_| Err(Error::Closed)).collect(),
        }
    }

    pub(crate) fn empty() -> Self {
        Self::new(0)
    }

    fn keep(&mut self, bytes: Vec<u8>) -> ReplyRange {
        let (buffer, range) = (self.buffers.len(), 0..bytes.len());
        self.buffers.push(bytes);
        ReplyRange { buffer, range }
    }

    /// How many commands there were.
    #[must_use]
    pub fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// Whether there were none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// The result of a command.
    ///
    /// # Errors
    /// That command's.
    ///
    /// # Panics
    /// With a key of another pipeline that had more commands.
    pub fn take<R: FromReply>(&self, key: ResultKey<R>) -> Result<R, Error> {
        self.read(key.index)
    }

    /// The result of the command with this number, from 0, as any type.
    ///
    /// # Errors
    /// That command's.
    ///
    /// # Panics
    /// If there were fewer commands.
    pub fn read<R: FromReply>(&self, index: usize) -> Result<R, Error> {
        let view = self.view(index)?;
        R::from_reply(view).map_err(|wrong| match view {
            View::Error(error) => ServerError::from(error).into(),
            _ => wrong.into(),
        })
    }

    /// The reply to the command with this number, from 0, as the server sent it. An error of the
    /// server is a reply, too.
    ///
    /// # Errors
    /// Why there is no reply.
    ///
    /// # Panics
    /// If there were fewer commands.
    pub fn view(&self, index: usize) -> Result<View<'_>, Error> {
        let stored = self.outcomes[index].as_ref().map_err(Clone::clone)?;
        let bytes = &self.buffers[stored.buffer][stored.range.clone()];
        Ok(parse(bytes)?.0)
    }
}
