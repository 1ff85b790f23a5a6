//! A connection for one caller alone: for commands that depend on the connection's state.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use embar_mux::{Call, CallError, Connection, SubmitError, Turn, block_on};
use own_connection::OwnConnection;

use crate::cmd::{Cmd, cmd};
use crate::command::Command;
use crate::commands::Commands;
use crate::commands::blocking::{BlockingCommand, Blocks, milliseconds};
use crate::engine::{Authenticated, Cache, Opened, Shared};
use crate::error::Error;
use crate::pipeline::{Executed, Results, Transaction};
use crate::request::{Answer, FromFrames};
use crate::resp::FromReply;

mod own_connection;

/// A connection for one caller alone, from [`Client::dedicated`](crate::Client::dedicated). Dropping it
/// closes it.
///
/// The connection's state stays: `WATCH`, `SELECT`, `CLIENT` settings. Blocking commands wait here without delaying other
/// callers, as they do on the pool of the [`Client`](crate::Client), which is for them when they need no such state. It belongs to one node, so it follows no redirects; and it
/// does not reconnect, as a broken connection has lost its state. Commands have no time limit but the
/// one in their arguments, or [`DedicatedRequest::timeout`]. Methods that block take the configuration's `timeout` longer than
/// the server is to wait: if that does not answer then, an element that it takes later is lost.
///
/// ```no_run
/// # async fn example(client: &embar_redis::Client) -> Result<(), embar_redis::Error> {
/// use embar_redis::command::Route;
/// use embar_redis::commands::strings::StringCommands;
/// use embar_redis::cmd;
///
/// let connection = client.dedicated(Route::of("stock")).await?;
/// loop {
///     let _: () = connection.send(cmd("WATCH").key("stock")).await?;
///     let left: i64 = connection.get("stock").await?;
///     let mut transaction = client.transaction();
///     let sold = transaction.set("stock", left - 1);
///     if let Some(results) = connection.run(&transaction).await? {
///         break results.take(sold)?;
///     }
///     // Another client changed it meanwhile.
/// }
/// # Ok(())
/// # }
/// ```
pub struct Dedicated {
    own: Arc<OwnConnection>,
    /// How much longer than the server a caller waits for a command that blocks.
    reserve: Duration,
    /// The client's cache, which must not have what is changed here.
    cache: Option<Arc<Cache>>,
}

impl Dedicated {
    pub(crate) fn new(opened: Opened, shared: &Arc<Shared>) -> Self {
        let own = Arc::new(OwnConnection::new(Connection::clone(&opened.conn)));
        if let Some(credentials) = &shared.credentials {
            let member: Arc<dyn Authenticated> = Arc::clone(&own) as Arc<dyn Authenticated>;
            credentials.add(Arc::downgrade(&member));
            credentials.opened(opened.credentials_version);
        }
        Self {
            own,
            reserve: shared.config.timeout,
            cache: shared.cache.clone(),
        }
    }

    /// A request with this command. The first poll sends it, behind the commands sent before.
    pub fn send<C: Command, R: FromReply>(&self, command: C) -> DedicatedRequest<'_, C, R> {
        self.request(command)
    }

    fn request<C: Command, R>(&self, command: C) -> DedicatedRequest<'_, C, R> {
        DedicatedRequest {
            dedicated: self,
            command,
            timeout: None,
            turn: Turn::default(),
            call: None,
            result: PhantomData,
        }
    }

    /// Runs a transaction here. `None` when the server did not execute it, because a watched key has
    /// changed.
    ///
    /// # Errors
    /// As [`Transaction::run`]; redirects are errors.
    pub async fn run(&self, transaction: &Transaction<'_>) -> Result<Option<Results>, Error> {
        let Some(whole) = transaction.whole()? else {
            return Ok(Some(Results::empty()));
        };
        let mut request = self.request(whole);
        request.timeout = transaction.time_limit();
        let executed: Option<Executed> = request.await?;
        Ok(executed.map(|executed| transaction.results(executed)))
    }
}

impl Dedicated {
    /// `WAIT replicas wait`: waits until so many replicas have all that was written on this connection, at most so long: how
    /// many have it. Writes of other connections do not count. [`Duration::MAX`] is for ever.
    pub fn replicated(&self, replicas: u32, wait: Duration) -> DedicatedRequest<'_, Cmd, u64> {
        let limit = wait.saturating_add(self.reserve);
        let command = cmd("WAIT").arg(replicas).arg(milliseconds(wait));
        self.send(command).timeout(limit)
    }
}

impl<'d> Commands for &'d Dedicated {
    type Output<C: Command, R: FromReply> = DedicatedRequest<'d, C, R>;

    fn execute<C: Command, R: FromReply>(self, command: C) -> DedicatedRequest<'d, C, R> {
        self.send(command)
    }
}

impl<'d> Blocks for &'d Dedicated {
    type Output<R: FromReply> = DedicatedRequest<'d, Cmd, R>;

    fn block<R: FromReply>(
        self,
        command: BlockingCommand,
        wait: Duration,
    ) -> DedicatedRequest<'d, Cmd, R> {
        let limit = wait.saturating_add(self.reserve);
        self.send(command.waiting(wait)).timeout(limit)
    }
}

impl Drop for Dedicated {
    fn drop(&mut self) {
        self.own.connection.close();
    }
}

impl fmt::Debug for Dedicated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dedicated({:?})", self.own.connection)
    }
}

/// A command on a dedicated connection: a future; [`DedicatedRequest::wait`] blocks for it. The first
/// poll sends it.
#[must_use = "a command is sent when it is awaited"]
pub struct DedicatedRequest<'d, C, R> {
    dedicated: &'d Dedicated,
    command: C,
    timeout: Option<Duration>,
    turn: Turn,
    call: Option<Call>,
    result: PhantomData<fn() -> R>,
}

impl<C, R> DedicatedRequest<'_, C, R> {
    /// How long to wait for the reply.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<C: Command + Unpin, R: FromFrames> DedicatedRequest<'_, C, R> {
    /// Blocks the thread until there is a result.
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait(mut self) -> Result<R, Error> {
        block_on(|cx| Pin::new(&mut self).poll(cx))
    }
}

impl<C: Command + Unpin, R: FromFrames> Future for DedicatedRequest<'_, C, R> {
    type Output = Result<R, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let replies = this.command.replies();
        let call = match &mut this.call {
            Some(call) => call,
            None => {
                let (turn, timeout) = (&mut this.turn, this.timeout);
                let own = &this.dedicated.own;
                let submitted = own.poll_submit(&this.command, turn, cx, timeout);
                match submitted {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(call)) => this.call.insert(call),
                    Poll::Ready(Err(SubmitError::Full)) => return Poll::Ready(Err(Error::Busy)),
                    Poll::Ready(Err(SubmitError::Closed(reason))) => {
                        let why = reason.to_string();
                        return Poll::Ready(Err(Error::Unavailable { why }));
                    }
                }
            }
        };
        let Poll::Ready(answer) = call.poll_reply(cx, |reply| R::read(reply, replies)) else {
            return Poll::Pending;
        };
        Poll::Ready(match answer {
            Ok(Answer::Result(result)) => {
                if let Some(cache) = &this.dedicated.cache {
                    cache.wrote(&this.command);
                }
                result.map_err(|error| error.of_command(this.command.may_fail_midway()))
            }
            Ok(Answer::NotExecuted(error)) => Err(error.into()),
            Err(CallError::NotSent(reason)) => Err(Error::Unavailable {
                why: reason.to_string(),
            }),
            Err(CallError::Unknown(reason)) => Err(Error::UnknownOutcome(reason)),
            Err(CallError::TimedOut) => Err(Error::TimedOut),
            Err(CallError::TooLarge { max }) => Err(Error::ReplyTooLarge { max }),
        })
    }
}

impl<C, R> fmt::Debug for DedicatedRequest<'_, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.call.is_some() {
            "DedicatedRequest(sent)"
        } else {
            "DedicatedRequest(ready)"
        })
    }
}
