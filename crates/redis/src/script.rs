//! Scripts that the client sends to a server only once.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::pin;

use embar_mux::block_on;

use crate::client::Client;
use crate::cmd::Cmd;
use crate::command::{Command, Key, Route};
use crate::commands::Commands;
use crate::error::Error;
use crate::pipeline::{Pipeline, ResultKey, Transaction};
use crate::resp::{Arg, ErrorKind, ErrorView, FromReply, View, WrongType};

/// A script in Lua. The client calls it by its SHA-1, and sends the whole script to a server that does
/// not know it yet: <https://redis.io/docs/latest/develop/interact/programmability/eval-intro/>.
///
/// ```no_run
/// # async fn example(client: embar_redis::Client) -> Result<(), embar_redis::Error> {
/// use embar_redis::script::Script;
///
/// let add = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
/// let sum: i64 = add.key("visits").arg(5).run(&client).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Script {
    code: String,
    sha1: String,
    /// It changes nothing.
    reads: bool,
}

impl Script {
    /// A script with this code.
    #[must_use]
    pub fn new(code: impl Into<String>) -> Self {
        let code = code.into();
        let sha1 = sha1_smol::Sha1::from(&code).hexdigest();
        Self {
            code,
            sha1,
            reads: false,
        }
    }

    /// Says that it changes nothing, which servers check (`EVAL_RO`): it may go to a replica, and the client sends it again when
    /// its connection breaks.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.reads = true;
        self
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The SHA-1 of the code, by which servers know it: 40 hexadecimal digits.
    #[must_use]
    pub fn sha1(&self) -> &str {
        &self.sha1
    }

    /// Begins a call; keys and arguments follow.
    pub fn call(&self) -> ScriptCall<'_> {
        ScriptCall {
            script: self,
            arguments: Arguments::new(),
        }
    }

    /// Begins a call with a key.
    pub fn key(&self, key: impl Key) -> ScriptCall<'_> {
        self.call().key(key)
    }
}

/// A call of a [`Script`].
#[derive(Debug, Clone)]
#[must_use = "a call does nothing until it is run"]
pub struct ScriptCall<'s> {
    script: &'s Script,
    arguments: Arguments,
}

impl ScriptCall<'_> {
    /// Adds a key. All must have the same slot if the server is a cluster.
    pub fn key(mut self, key: impl Key) -> Self {
        self.arguments = self.arguments.key(key);
        self
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Arg) -> Self {
        self.arguments = self.arguments.arg(arg);
        self
    }

    /// Runs the script: the result is what it returns.
    ///
    /// # Errors
    /// As any command has, and those of the script, [`Error::Server`].
    pub async fn run<R: FromReply>(&self, client: &Client) -> Result<R, Error> {
        match client.send(self.by_sha1()).await? {
            Called::Returned(result, _) => Ok(result),
            Called::<R, Script>::Missing => client.send(self.by_code()).await,
        }
    }

    /// As [`ScriptCall::run`], but blocks the thread.
    ///
    /// # Errors
    /// As [`ScriptCall::run`].
    pub fn wait<R: FromReply>(&self, client: &Client) -> Result<R, Error> {
        let mut run = pin!(self.run(client));
        block_on(|cx| run.as_mut().poll(cx))
    }

    /// Adds the call to a pipeline. If a server does not know the script yet, the client sends it that call once more, with
    /// the code, when it has the other results: so the script then runs later than commands behind it. Load it before
    /// (`SCRIPT LOAD`) where that matters.
    pub fn in_pipeline<R: FromReply>(&self, pipeline: &mut Pipeline<'_>) -> ResultKey<R> {
        pipeline.add_script(&self.by_sha1(), self.by_code())
    }

    /// Adds the call to a transaction, with the code: what the server has begun to execute could not be made good.
    pub fn in_transaction<R: FromReply>(&self, transaction: &mut Transaction<'_>) -> ResultKey<R> {
        transaction.execute(self.by_code())
    }

    fn by_sha1(&self) -> Cmd {
        self.command(["EVALSHA", "EVALSHA_RO"], &self.script.sha1)
    }

    fn by_code(&self) -> Cmd {
        self.command(["EVAL", "EVAL_RO"], &self.script.code)
    }

    fn command(&self, [writes, reads]: [&str; 2], script: &str) -> Cmd {
        let cmd = match self.script.reads {
            true => Cmd::read(reads),
            false => Cmd::write(writes),
        };
        self.arguments.add(cmd.arg(script))
    }
}

/// The keys and arguments of a call.
#[derive(Debug, Clone)]
pub(crate) struct Arguments {
    /// Behind a name that is not used.
    keys: Cmd,
    /// Behind a name that is not used.
    args: Cmd,
}

impl Arguments {
    pub fn new() -> Self {
        Self {
            keys: Cmd::write(""),
            args: Cmd::write(""),
        }
    }

    pub fn key(mut self, key: impl Key) -> Self {
        self.keys = self.keys.key(key);
        self
    }

    pub fn arg(mut self, arg: impl Arg) -> Self {
        self.args = self.args.arg(arg);
        self
    }

    /// The command with how many keys there are, and all of them.
    pub fn add(&self, cmd: Cmd) -> Cmd {
        let cmd = cmd.arg(self.keys.arguments());
        cmd.joined(&self.keys).joined(&self.args)
    }

    /// Where they lead.
    pub fn route(&self) -> Route {
        self.keys.route()
    }
}

/// What a server answers that does not have what was called.
pub(crate) trait Callable {
    fn is_missing(error: ErrorView<'_>) -> bool;
}

impl Callable for Script {
    fn is_missing(error: ErrorView<'_>) -> bool {
        error.kind() == ErrorKind::NoScript
    }
}

/// What came of a call. A caller may ask for a type that takes errors, so the answer has to be known before that.
pub(crate) enum Called<R, C> {
    Returned(R, PhantomData<C>),
    /// The server does not have it, and has executed nothing.
    Missing,
}

impl<R: FromReply, C: Callable> FromReply for Called<R, C> {
    fn from_reply(view: View<'_>) -> Result<Self, WrongType> {
        match view {
            View::Error(error) if C::is_missing(error) => Ok(Self::Missing),
            _ => R::from_reply(view).map(|result| Self::Returned(result, PhantomData)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the examples that NIST published with the standard.
    #[test]
    fn a_script_has_the_sha1_of_its_code() {
        let two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        for (code, wanted) in [
            ("", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            ("abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (two_blocks, "84983e441c3bd26ebaae4aa1f95129e5e54670f1"),
        ] {
            assert_eq!(Script::new(code).sha1(), wanted);
        }
    }
}
