//! Scripts that the client sends to a server only once.

use crate::client::Client;
use crate::cmd::Cmd;
use crate::command::Key;
use crate::error::Error;
use crate::resp::{Arg, ErrorKind, FromReply};

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
}

impl Script {
    /// A script with this code.
    #[must_use]
    pub fn new(code: impl Into<String>) -> Self {
        let code = code.into();
        let sha1 = sha1_smol::Sha1::from(&code).hexdigest();
        Self { code, sha1 }
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
            keys: Cmd::write(""),
            args: Cmd::write(""),
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
    /// Behind a name that is not used.
    keys: Cmd,
    /// Behind a name that is not used.
    args: Cmd,
}

impl ScriptCall<'_> {
    /// Adds a key. All must have the same slot if the server is a cluster.
    pub fn key(mut self, key: impl Key) -> Self {
        self.keys = self.keys.key(key);
        self
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Arg) -> Self {
        self.args = self.args.arg(arg);
        self
    }

    /// Runs the script: the result is what it returns.
    ///
    /// # Errors
    /// As any command has, and those of the script, [`Error::Server`].
    pub async fn run<R: FromReply>(&self, client: &Client) -> Result<R, Error> {
        match client.send(self.by_sha1()).await {
            Err(error) if is_unknown(&error) => client.send(self.by_code()).await,
            other => other,
        }
    }

    /// As [`ScriptCall::run`], but blocks the thread.
    ///
    /// # Errors
    /// As [`ScriptCall::run`].
    pub fn wait<R: FromReply>(&self, client: &Client) -> Result<R, Error> {
        match client.send(self.by_sha1()).wait() {
            Err(error) if is_unknown(&error) => client.send(self.by_code()).wait(),
            other => other,
        }
    }

    fn by_sha1(&self) -> Cmd {
        self.command("EVALSHA", &self.script.sha1)
    }

    fn by_code(&self) -> Cmd {
        self.command("EVAL", &self.script.code)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let cmd = Cmd::write(name).arg(script);
        cmd.arg(self.keys.arguments())
            .joined(&self.keys)
            .joined(&self.args)
    }
}

fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::Server(error) if error.kind == ErrorKind::NoScript)
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
