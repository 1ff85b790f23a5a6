//! Functions of servers, which the client loads where they are missing.

use std::future::Future;
use std::pin::pin;

use embar_mux::block_on;

use crate::client::Client;
use crate::cmd::Cmd;
use crate::command::{Key, Route};
use crate::error::Error;
use crate::resp::{Arg, ErrorView, FromReply};
use crate::script::{Arguments, Callable, Called};

/// A function of a library. The client calls it by its name, and loads the library into a server that does not have the
/// function: <https://redis.io/docs/latest/develop/interact/programmability/functions-intro/>.
///
/// It never replaces a library: if a server has one of this name without the function, the call fails. The function must not
/// itself return the error `ERR Function not found`, by which servers say that they have executed nothing.
///
/// ```no_run
/// # async fn example(client: embar_redis::Client) -> Result<(), embar_redis::Error> {
/// use embar_redis::function::Function;
///
/// let library = "#!lua name=visits
/// redis.register_function('visit', function(keys) return redis.call('INCR', keys[1]) end)";
/// let visit = Function::new("visit", library);
/// let visits: i64 = visit.key("visits").run(&client).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Function {
    name: String,
    library: String,
    /// It changes nothing.
    reads: bool,
}

impl Function {
    /// The function of this name, in the library with this code.
    #[must_use]
    pub fn new(name: impl Into<String>, library: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            library: library.into(),
            reads: false,
        }
    }

    /// Says that it changes nothing (its library must register it with `no-writes`): it may go to a replica, and the client sends it
    /// again when its connection breaks.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.reads = true;
        self
    }

    /// Begins a call; keys and arguments follow.
    pub fn call(&self) -> FunctionCall<'_> {
        FunctionCall {
            function: self,
            arguments: Arguments::new(),
        }
    }

    /// Begins a call with a key.
    pub fn key(&self, key: impl Key) -> FunctionCall<'_> {
        self.call().key(key)
    }
}

/// A call of a [`Function`].
#[derive(Debug, Clone)]
#[must_use = "a call does nothing until it is run"]
pub struct FunctionCall<'f> {
    function: &'f Function,
    arguments: Arguments,
}

impl FunctionCall<'_> {
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

    /// Calls the function: the result is what it returns.
    ///
    /// # Errors
    /// As any command has; those of the function, and of loading it, [`Error::Server`].
    pub async fn run<R: FromReply>(&self, client: &Client) -> Result<R, Error> {
        match client.send(self.command()).await? {
            Called::Returned(result, _) => Ok(result),
            Called::<R, Function>::Missing => {
                is_there(client.send(self.load()).await)?;
                client.send(self.command()).await
            }
        }
    }

    /// As [`FunctionCall::run`], but blocks the thread.
    ///
    /// # Errors
    /// As [`FunctionCall::run`].
    pub fn wait<R: FromReply>(&self, client: &Client) -> Result<R, Error> {
        let mut run = pin!(self.run(client));
        block_on(|cx| run.as_mut().poll(cx))
    }

    fn command(&self) -> Cmd {
        let cmd = match self.function.reads {
            true => Cmd::read("FCALL_RO"),
            false => Cmd::write("FCALL"),
        };
        self.arguments.add(cmd.arg(&self.function.name))
    }

    /// Loads the library where the call goes: its replicas get it from there.
    fn load(&self) -> Cmd {
        let cmd = Cmd::write("FUNCTION")
            .arg("LOAD")
            .arg(&self.function.library);
        match self.arguments.route() {
            Route::Any => cmd.to(Route::AllPrimaries),
            route => cmd.to(route),
        }
    }
}

impl Callable for Function {
    fn is_missing(error: ErrorView<'_>) -> bool {
        error.bytes().starts_with(b"ERR Function not found")
    }
}

/// Another client may have loaded it just now.
fn is_there(loaded: Result<String, Error>) -> Result<(), Error> {
    match loaded {
        Err(error) if !error.to_string().contains("already exists") => Err(error),
        _ => Ok(()),
    }
}
