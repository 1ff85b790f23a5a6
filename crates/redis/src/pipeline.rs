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
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use embar_mux::block_on;

use crate::cmd::Cmd;
use crate::command::Command;
use crate::commands::Commands;
use crate::engine::Router;
use crate::resp::{ErrorKind, FromReply, View};
use crate::runs::{EncodedCommands, run_of};
pub use crate::runs::{ResultKey, Results};

mod transaction;

pub(crate) use transaction::Executed;
pub use transaction::Transaction;

/// Commands that the client sends together: one write and one wait for all commands of a node. Small
/// commands spend most of their time there.
///
/// Each command has its own result, and a command that fails does not stop the others. A node executes
/// its commands in order, but may execute other clients' commands in between. When a slot moves to
/// another node meanwhile, its commands may run later than those behind them, but those of a slot that
/// are sent again stay in their order.
///
/// # When something goes wrong
/// A run is over when each command has its result, or at its deadline at the latest. Until then:
/// - Commands that a node did not execute (`MOVED`, `ASK`, `TRYAGAIN`, `LOADING`, ...) and those that it
///   did not receive are sent again, together, each to the node that serves it by then.
///   [`RetryPolicy`](crate::config::RetryPolicy) says how many redirects are followed and how long the
///   client pauses: once for all commands that came back together.
/// - When a connection breaks, commands that were answered before keep their results. Of those that were
///   on their way, reads are sent again, and writes only if
///   [`retry_writes`](crate::Config::retry_writes) allows it. Other writes have
///   [`Error::UnknownOutcome`](crate::Error::UnknownOutcome).
/// - A node that loads, or is gone, holds up no commands of other nodes.
///
/// At the deadline, a command that no node has executed fails with what was wrong last: with the
/// server's own answer, or with [`Error::Unavailable`](crate::Error::Unavailable). One that is on its way
/// fails with [`Error::TimedOut`](crate::Error::TimedOut).
///
/// # Large pipelines
/// A pipeline may have any number of commands. The client sends them in batches of at most 1,024
/// commands and half of [`ring_bytes`](crate::Config::ring_bytes), if not a single command is larger, and
/// has at most 8 of them in flight on a connection, so that other callers find room between them. All
/// replies stay in memory until the [`Results`] are dropped.
///
/// The replies to a batch may together have [`max_reply_bytes`](crate::Config::max_reply_bytes). Reads
/// beyond that are sent again, in smaller batches. The server has executed writes beyond that, so they
/// fail with [`Error::ReplyTooLarge`](crate::Error::ReplyTooLarge).
#[derive(Clone)]
#[must_use = "only a run sends it"]
pub struct Pipeline<'c> {
    router: &'c Arc<Router>,
    list: EncodedCommands,
    /// What to send instead of a script that a server does not know, with the script's number in the list.
    scripts: Vec<(usize, Cmd)>,
    timeout: Option<Duration>,
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
            scripts: Vec::new(),
            timeout: None,
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
        self.list.clear();
        self.scripts.clear();
    }

    /// How long a run may take, instead of the configuration's `timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sends all commands and waits for all results. A pipeline may run several times.
    pub async fn run(&self) -> Results {
        let begun = Instant::now();
        let mut results = run_of(self.router, &self.list, self.timeout).await;
        if !self.scripts.is_empty() {
            self.run_unknown_scripts(&mut results, begun).await;
        }
        results
    }

    /// Adds a call of a script by its digest, and with its code for a server that does not know it.
    pub(crate) fn add_script<R: FromReply>(&mut self, by_sha1: &Cmd, by_code: Cmd) -> ResultKey<R> {
        self.scripts.push((self.len(), by_code));
        self.list.add(by_sha1)
    }

    /// Runs those scripts with their code that no server executed because it did not know them.
    async fn run_unknown_scripts(&self, results: &mut Results, begun: Instant) {
        let is_unknown = |index: &usize| {
            let view = results.view(*index);
            matches!(view, Ok(View::Error(error)) if error.kind() == ErrorKind::NoScript)
        };
        let unknown = self.scripts.iter().filter(|(index, _)| is_unknown(index));
        let (mut list, mut places) = (EncodedCommands::default(), Vec::new());
        for (index, by_code) in unknown {
            let _its_place: ResultKey<()> = list.add(by_code);
            places.push(*index);
        }
        let timeout = self.timeout.unwrap_or(self.router.shared.config.timeout);
        let left = timeout.saturating_sub(begun.elapsed());
        if !places.is_empty() && !left.is_zero() {
            let late = run_of(self.router, &list, Some(left)).await;
            results.replace(&places, late);
        }
    }

    /// As [`Pipeline::run`], for code without an executor.
    #[must_use]
    pub fn run_blocking(&self) -> Results {
        let mut run = std::pin::pin!(self.run());
        block_on(|cx| run.as_mut().poll(cx))
    }
}

impl fmt::Debug for Pipeline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipeline({} commands)", self.len())
    }
}
