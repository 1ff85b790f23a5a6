//! A connection for one caller alone: for commands that block it, or that depend on what was said on
//! it before.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use embar_mux::{Call, CallError, Connection, SubmitError, block_on};

use crate::client::{Answer, Outcome};
use crate::command::Command;
use crate::commands::Commands;
use crate::error::Error;
use crate::pipeline::{Results, Transaction};
use crate::resp::FromReply;

/// A connection that nobody else uses, made by [`Client::dedicated`](crate::Client::dedicated) and
/// closed when it is dropped.
///
/// Blocking commands wait here without holding up others, and state stays: `WATCH`, `SELECT`,
/// `CLIENT` settings. It belongs to one node, so nothing is redirected; and it ends when it breaks,
/// as its state is lost then. Commands have no time limit but what they say themselves, or
/// [`Asked::timeout`].
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
///     // Somebody else changed it meanwhile.
/// }
/// # Ok(())
/// # }
/// ```
pub struct Dedicated {
    conn: Connection,
}

impl Dedicated {
    pub(crate) fn new(conn: &Arc<Connection>) -> Self {
        Self {
            conn: Connection::clone(conn),
        }
    }

    /// Gives it a command; it is sent when the future is awaited, behind those sent before.
    pub fn send<C: Command, R: FromReply>(&self, command: C) -> Asked<'_, C, R> {
        self.ask(command)
    }

    fn ask<C: Command, R>(&self, command: C) -> Asked<'_, C, R> {
        Asked {
            conn: &self.conn,
            command,
            timeout: None,
            call: None,
            result: PhantomData,
        }
    }

    /// Runs a transaction here. `None`: it was not executed, because a key that was watched has
    /// changed.
    ///
    /// # Errors
    /// As [`Transaction::run`]; redirects are errors.
    pub async fn run(&self, transaction: &Transaction<'_>) -> Result<Option<Results>, Error> {
        let Some(whole) = transaction.whole()? else {
            return Ok(Some(Results::of_none()));
        };
        let executed: Option<crate::pipeline::Executed> = self.ask(whole).await?;
        Ok(executed.map(|executed| transaction.results(executed)))
    }
}

impl<'d> Commands for &'d Dedicated {
    type Given<C: Command, R: FromReply> = Asked<'d, C, R>;

    fn give<C: Command, R: FromReply>(self, command: C) -> Asked<'d, C, R> {
        self.send(command)
    }
}

impl Drop for Dedicated {
    fn drop(&mut self) {
        self.conn.close();
    }
}

impl fmt::Debug for Dedicated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dedicated({:?})", self.conn)
    }
}

/// A command on a connection of its own: a future, or to be waited for.
#[must_use = "a command is sent when it is awaited"]
pub struct Asked<'d, C, R> {
    conn: &'d Connection,
    command: C,
    timeout: Option<Duration>,
    call: Option<Call>,
    result: PhantomData<fn() -> R>,
}

impl<C, R> Asked<'_, C, R> {
    /// How long to wait for the reply.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<C: Command + Unpin, R: Outcome> Asked<'_, C, R> {
    /// Blocks the thread until there is a result.
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait(mut self) -> Result<R, Error> {
        block_on(|cx| Pin::new(&mut self).poll(cx))
    }
}

impl<C: Command + Unpin, R: Outcome> Future for Asked<'_, C, R> {
    type Output = Result<R, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (len, replies) = (this.command.encoded_len(), this.command.replies());
        let call = match &mut this.call {
            Some(call) => call,
            None => {
                let command = &this.command;
                let mut fill = |out: &mut [u8]| command.encode(out);
                let class = command.class() as u8;
                let submitted =
                    this.conn
                        .poll_submit(cx, len, replies, class, this.timeout, &mut fill);
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
            Ok(Answer::Result(result)) => result,
            Ok(Answer::Elsewhere(error)) => Err(error.into()),
            Err(CallError::NotSent(reason)) => Err(Error::Unavailable {
                why: reason.to_string(),
            }),
            Err(CallError::Unknown(reason)) => Err(Error::UnknownOutcome(reason)),
            Err(CallError::TimedOut) => Err(Error::TimedOut),
            Err(CallError::TooLarge { max }) => Err(Error::ReplyTooLarge { max }),
        })
    }
}

impl<C, R> fmt::Debug for Asked<'_, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.call.is_some() {
            "Asked(sent)"
        } else {
            "Asked(ready)"
        })
    }
}
