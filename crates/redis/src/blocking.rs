//! Commands that block, on connections of a pool.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use embar_mux::block_on;

use crate::client::Client;
use crate::commands::blocking::{BlockingCommand, Blocks};
use crate::engine::Router;
use crate::error::Error;
use crate::request::{Answer, FromFrames};
use crate::resp::FromReply;
pub(crate) use attempts::run;

mod attempts;

/// What waits for the reply's bytes.
type Running = Pin<Box<dyn Future<Output = Result<Vec<u8>, Error>> + Send>>;

/// A command that blocks, from [`BlockingCommands`](crate::commands::blocking::BlockingCommands): a future;
/// [`BlockingRequest::wait`] blocks for it. The first poll begins.
///
/// **Connections.** While the server waits, the command has a connection for itself: one of
/// [`max_blocking`](crate::Config::max_blocking) to that node. When all are in use it waits for one, first come, first
/// served, and fails with [`Error::Unavailable`] when that takes longer than the configuration's `timeout`. A connection
/// serves the next command only after a whole reply; in any other case it is closed. Idle ones are closed after
/// [`blocking_idle`](crate::Config::blocking_idle).
///
/// **Other servers.** When the slot moves away, or the node becomes a replica, the server answers that it stopped waiting, and
/// has executed nothing: the command goes on at the new node with the time that is left. Finding a server may take `timeout`
/// in all, beside the time that servers wait.
///
/// **What may be lost.** When the connection breaks while the server waits, nobody knows whether it took an element: the
/// command fails with [`Error::UnknownOutcome`] (`XREAD`, which takes nothing, goes on). Dropping the request closes its
/// connection, so that a late reply goes to nobody else; an element that the server took at that moment is gone. `BLMOVE` into
/// a list of one's own, or a group of a stream, keeps it.
#[must_use = "a command is sent when it is awaited"]
pub struct BlockingRequest<'c, R> {
    router: &'c Arc<Router>,
    command: BlockingCommand,
    wait: Duration,
    repeatable: bool,
    running: Option<Running>,
    result: PhantomData<fn() -> R>,
}

impl<R> BlockingRequest<'_, R> {
    /// Lets the client send it again when its connection breaks, although an element may be lost by that.
    pub fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }
}

impl<R: FromReply> BlockingRequest<'_, R> {
    /// Blocks the thread until there is a result. Not for the only thread of a runtime, as
    /// [`Request::wait`](crate::Request::wait).
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait(mut self) -> Result<R, Error> {
        block_on(|cx| Pin::new(&mut self).poll(cx))
    }
}

impl<R: FromReply> Future for BlockingRequest<'_, R> {
    type Output = Result<R, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let running = this.running.get_or_insert_with(|| {
            let command = this.command.clone();
            let repeatable = this.repeatable || this.router.shared.config.retry_writes;
            Box::pin(run(Arc::clone(this.router), command, this.wait, repeatable))
        });
        let reply = ready!(running.as_mut().poll(cx));
        Poll::Ready(reply.and_then(|reply| read(reply)))
    }
}

impl<R> fmt::Debug for BlockingRequest<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.running {
            Some(_) => "BlockingRequest(waiting)",
            None => "BlockingRequest(ready)",
        })
    }
}

impl<'c> Blocks for &'c Client {
    type Output<R: FromReply> = BlockingRequest<'c, R>;

    fn block<R: FromReply>(
        self,
        command: BlockingCommand,
        wait: Duration,
    ) -> BlockingRequest<'c, R> {
        BlockingRequest {
            router: &self.router,
            command,
            wait,
            repeatable: false,
            running: None,
            result: PhantomData,
        }
    }
}

/// Reads the reply to a command.
pub(crate) fn read<R: FromReply>(mut reply: Vec<u8>) -> Result<R, Error> {
    match R::read(&mut reply, 1) {
        // Such a command fails only before it changes anything.
        Answer::Result(result) => result.map_err(|error| error.of_command(false)),
        Answer::NotExecuted(error) => Err(error.into()),
    }
}
