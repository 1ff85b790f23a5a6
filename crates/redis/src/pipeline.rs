//! Several commands at once: pipelines, which save time, and transactions, which are all or nothing.
//!
//! Both are filled with the same methods as a client, each of which gives a [`Place`]; when they
//! have run, that place is where the result is.
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

use crate::client::{Answer, Inner, Outcome, Request, is_elsewhere};
use crate::command::{Class, Command, Route};
use crate::commands::Commands;
use crate::config::Mode;
use crate::error::Error;
use crate::resp::{FromReply, ServerError, View, parse};

mod transaction;

pub(crate) use transaction::Executed;
pub use transaction::Transaction;

/// Where the result of a command will be.
#[must_use = "without it the result cannot be taken"]
pub struct Place<R> {
    index: usize,
    result: PhantomData<fn() -> R>,
}

impl<R> fmt::Debug for Place<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({})", self.index)
    }
}

/// A command that is encoded already.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    bytes: Range<usize>,
    route: Route,
    class: Class,
    replies: u32,
    /// Why it must not be sent.
    refused: Option<Error>,
}

/// Encoded commands, one behind the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct List {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl List {
    fn add<R>(&mut self, command: &impl Command) -> Place<R> {
        let start = self.bytes.len();
        let len = command.encoded_len();
        self.bytes.resize(start + len, 0);
        command.encode(&mut self.bytes[start..]);
        self.entries.push(Entry {
            bytes: start..start + len,
            route: command.route(),
            class: command.class(),
            replies: command.replies(),
            refused: command.refused(),
        });
        Place {
            index: self.entries.len() - 1,
            result: PhantomData,
        }
    }
}

/// Commands that are sent together: one write and one wait for all that go to the same node, which
/// is where the time goes when commands are small.
///
/// Each has its own result, and one that fails keeps none of the others from being executed. Those
/// for the same node are executed in order, but others may come in between; and when a slot moves
/// to another node meanwhile, commands for it may be executed later than those behind them.
#[derive(Clone)]
#[must_use = "nothing is sent before it is run"]
pub struct Pipeline<'c> {
    client: &'c Arc<Inner>,
    list: List,
}

impl Commands for &mut Pipeline<'_> {
    type Given<C: Command, R: FromReply> = Place<R>;

    fn give<C: Command, R: FromReply>(self, command: C) -> Place<R> {
        self.list.add(&command)
    }
}

impl<'c> Pipeline<'c> {
    pub(crate) fn new(client: &'c Arc<Inner>) -> Self {
        Self {
            client,
            list: List::default(),
        }
    }

    /// How many commands are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.entries.len()
    }

    /// Whether no command is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.entries.is_empty()
    }

    /// Empties it, and keeps its memory.
    pub fn clear(&mut self) {
        self.list.bytes.clear();
        self.list.entries.clear();
    }

    /// Sends all commands and waits for all results. It can be run again.
    pub async fn run(&self) -> Results {
        let mut results = Results::new(self.list.entries.len());
        for (outcome, entry) in results.outcomes.iter_mut().zip(&self.list.entries) {
            if let Some(error) = self.refused(entry) {
                *outcome = Err(error);
            }
        }
        let mut batches = self.batches();
        poll_fn(|cx| poll_all(&mut batches, cx)).await;
        let mut again = Vec::new();
        for batch in batches {
            batch.settle(&self.list, &mut results, &mut again);
        }
        // What was redirected, in its order.
        again.sort_unstable();
        for index in again {
            let entry = &self.list.entries[index];
            let single = Batch::of(&self.list, vec![index], entry.class);
            let whole = Request::<_, Whole>::new(self.client, single).await;
            results.outcomes[index] = whole.map(|whole| results.keep(whole.0));
        }
        results
    }

    /// As [`Pipeline::run`], for code without an executor.
    #[must_use]
    pub fn run_blocking(&self) -> Results {
        let mut run = std::pin::pin!(self.run());
        block_on(|cx| run.as_mut().poll(cx))
    }

    /// Why a command of it must not be sent.
    fn refused(&self, entry: &Entry) -> Option<Error> {
        let cluster = self.client.config.mode == Mode::Cluster;
        let cross = cluster && entry.route == Route::CrossSlot;
        cross
            .then_some(Error::CrossSlot)
            .or_else(|| entry.refused.clone())
    }

    /// One batch for each connection that takes part.
    fn batches(&self) -> Vec<Sent<'c, '_>> {
        let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut anywhere = Vec::new();
        let routes = self.client.routes();
        for (index, entry) in self.list.entries.iter().enumerate() {
            if self.refused(entry).is_some() {
                continue;
            }
            if entry.route == Route::Any {
                anywhere.push(index);
                continue;
            }
            let link = self.client.link_in(&routes, entry.route, entry.class);
            let place = link.map_or(0, |link| Arc::as_ptr(link).addr());
            match groups.iter_mut().find(|(known, _)| *known == place) {
                Some((_, group)) => group.push(index),
                None => groups.push((place, vec![index])),
            }
        }
        // Those that any node can execute go with the others, in their order.
        match groups.first_mut() {
            Some((_, group)) if !anywhere.is_empty() => {
                group.append(&mut anywhere);
                group.sort_unstable();
            }
            None if !anywhere.is_empty() => groups.push((0, anywhere)),
            _ => {}
        }
        let sent = |(_, group): (usize, Vec<usize>)| {
            let reads = |index: &usize| self.list.entries[*index].class == Class::Read;
            let class = match group.iter().all(reads) {
                true => Class::Read,
                false => Class::Write,
            };
            let batch = Batch::of(&self.list, group, class);
            Sent {
                request: Request::new(self.client, batch),
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

/// Some commands of a list, as one.
struct Batch<'l> {
    list: &'l List,
    group: Vec<usize>,
    route: Route,
    class: Class,
    len: usize,
    replies: u32,
}

impl<'l> Batch<'l> {
    fn of(list: &'l List, group: Vec<usize>, class: Class) -> Self {
        let entries = || group.iter().map(|index| &list.entries[*index]);
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
            let bytes = &self.list.bytes[self.list.entries[*index].bytes.clone()];
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

/// All frames of a reply, as they came; errors among them are its owner's business.
struct Frames(Vec<u8>);

impl Outcome for Frames {
    fn read(reply: &mut Vec<u8>, _: u32) -> Answer<Self> {
        Answer::Result(Ok(Self(std::mem::take(reply))))
    }
}

/// The frames of one command, unless it is to be sent again.
struct Whole(Vec<u8>);

impl Outcome for Whole {
    fn read(reply: &mut Vec<u8>, replies: u32) -> Answer<Self> {
        match Self::try_read(reply, replies) {
            Ok(answer) => answer,
            Err(error) => Answer::Result(Err(error)),
        }
    }
}

impl Whole {
    fn try_read(reply: &mut Vec<u8>, replies: u32) -> Result<Answer<Self>, Error> {
        let lens = frames(reply)?;
        if lens.len() > replies as usize {
            // The answer to ASKING.
            reply.drain(..lens[0]);
        }
        if let (View::Error(error), _) = parse(reply)? {
            let error = ServerError::from(error);
            if is_elsewhere(&error.kind) {
                return Ok(Answer::Elsewhere(error));
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

/// A batch under way.
struct Sent<'c, 'l> {
    request: Request<'c, Batch<'l>, Frames>,
    outcome: Option<Result<Frames, Error>>,
}

fn poll_all(batches: &mut [Sent<'_, '_>], cx: &mut Context<'_>) -> Poll<()> {
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

impl Sent<'_, '_> {
    /// Puts each command's frames, or why there are none, where its caller finds them.
    fn settle(self, list: &List, results: &mut Results, again: &mut Vec<usize>) {
        let group = &self.request.command().group;
        let bytes = match self.outcome.unwrap_or(Err(Error::Closed)) {
            Ok(Frames(bytes)) => bytes,
            Err(error) => {
                for &index in group {
                    let repeat = matches!(error, Error::UnknownOutcome(_))
                        && list.entries[index].class == Class::Read;
                    if repeat {
                        again.push(index);
                    }
                    results.outcomes[index] = Err(error.clone());
                }
                return;
            }
        };
        let buffer = results.buffers.len();
        let mut at = 0;
        for &index in group {
            let (elsewhere, len) = match frames_of(list.entries[index].replies, &bytes[at..]) {
                Ok(frames) => frames,
                Err(error) => {
                    results.outcomes[index] = Err(error);
                    continue;
                }
            };
            if elsewhere {
                again.push(index);
            }
            let range = at..at + len;
            at += len;
            results.outcomes[index] = Ok(Stored { buffer, range });
        }
        results.buffers.push(bytes);
    }
}

/// Of the frames that a command is answered by: whether the first says that it is to be sent
/// elsewhere or later, and the length of all.
fn frames_of(count: u32, bytes: &[u8]) -> Result<(bool, usize), Error> {
    let (mut elsewhere, mut all) = (false, 0);
    for frame in 0..count {
        let (view, len) = parse(&bytes[all..])?;
        if let View::Error(error) = view
            && frame == 0
        {
            elsewhere = is_elsewhere(&error.kind());
        }
        all += len;
    }
    Ok((elsewhere, all))
}

/// Where the frames of a command are.
#[derive(Debug, Clone)]
struct Stored {
    buffer: usize,
    range: Range<usize>,
}

/// What came of the commands of a pipeline or a transaction.
#[derive(Debug)]
pub struct Results {
    buffers: Vec<Vec<u8>>,
    outcomes: Vec<Result<Stored, Error>>,
}

impl Results {
    fn new(count: usize) -> Self {
        Self {
            buffers: Vec::new(),
            outcomes: (0..count).map(|_| Err(Error::Closed)).collect(),
        }
    }

    pub(crate) fn of_none() -> Self {
        Self::new(0)
    }

    fn keep(&mut self, bytes: Vec<u8>) -> Stored {
        let (buffer, range) = (self.buffers.len(), 0..bytes.len());
        self.buffers.push(bytes);
        Stored { buffer, range }
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
    /// With a place of another pipeline that had more commands.
    pub fn take<R: FromReply>(&self, place: Place<R>) -> Result<R, Error> {
        self.read(place.index)
    }

    /// The result of the command with this number, from 0, as any type.
    ///
    /// # Errors
    /// That command's.
    ///
    /// # Panics
    /// If there were not so many.
    pub fn read<R: FromReply>(&self, index: usize) -> Result<R, Error> {
        let view = self.view(index)?;
        R::from_reply(view).map_err(|wrong| match view {
            View::Error(error) => ServerError::from(error).into(),
            _ => wrong.into(),
        })
    }

    /// The reply to the command with this number, from 0, where it was received. An error of the
    /// server is a reply, too.
    ///
    /// # Errors
    /// Why there is no reply.
    ///
    /// # Panics
    /// If there were not so many.
    pub fn view(&self, index: usize) -> Result<View<'_>, Error> {
        let stored = self.outcomes[index].as_ref().map_err(Clone::clone)?;
        let bytes = &self.buffers[stored.buffer][stored.range.clone()];
        Ok(parse(bytes)?.0)
    }
}
