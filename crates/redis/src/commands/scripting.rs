//! Methods for the commands on scripts and functions: <https://redis.io/docs/latest/commands/?group=scripting>.

use super::{Commands, Key};
use crate::cmd::Cmd;
use crate::resp::{Arg, FromReply};

/// Commands for scripts and functions.
pub trait ScriptCommands: Commands {
    /// `EVAL script numkeys key ... arg ...`: what the script returns. Only for keys with one slot.
    fn eval<R: FromReply>(
        self,
        script: impl Arg,
        keys: impl IntoIterator<Item: Key>,
        args: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::write("EVAL").arg(script);
        self.execute(cmd.counted(keys, Cmd::key).args(args))
    }

    /// `EVAL_RO script numkeys key ... arg ...`: the same for a script that changes nothing. Only
    /// for keys with one slot.
    fn eval_ro<R: FromReply>(
        self,
        script: impl Arg,
        keys: impl IntoIterator<Item: Key>,
        args: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::read("EVAL_RO").arg(script);
        self.execute(cmd.counted(keys, Cmd::key).args(args))
    }

    /// `EVALSHA sha1 numkeys key ... arg ...`: the same for a script that the server has, by its
    /// SHA1; else the error `NOSCRIPT`. Only for keys with one slot.
    fn evalsha<R: FromReply>(
        self,
        sha1: impl Arg,
        keys: impl IntoIterator<Item: Key>,
        args: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::write("EVALSHA").arg(sha1);
        self.execute(cmd.counted(keys, Cmd::key).args(args))
    }

    /// `EVALSHA_RO sha1 numkeys key ... arg ...`: the same for a script that changes nothing. Only
    /// for keys with one slot.
    fn evalsha_ro<R: FromReply>(
        self,
        sha1: impl Arg,
        keys: impl IntoIterator<Item: Key>,
        args: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::read("EVALSHA_RO").arg(sha1);
        self.execute(cmd.counted(keys, Cmd::key).args(args))
    }

    /// `FCALL function numkeys key ... arg ...`: what a function returns that was loaded. Only for
    /// keys with one slot.
    fn fcall<R: FromReply>(
        self,
        function: impl Arg,
        keys: impl IntoIterator<Item: Key>,
        args: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::write("FCALL").arg(function);
        self.execute(cmd.counted(keys, Cmd::key).args(args))
    }

    /// `FCALL_RO function numkeys key ... arg ...`: the same for a function that changes nothing.
    /// Only for keys with one slot.
    fn fcall_ro<R: FromReply>(
        self,
        function: impl Arg,
        keys: impl IntoIterator<Item: Key>,
        args: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::read("FCALL_RO").arg(function);
        self.execute(cmd.counted(keys, Cmd::key).args(args))
    }

    /// `SCRIPT LOAD script`: its SHA1, to call it by; all nodes know it then.
    fn script_load(self, script: impl Arg) -> Self::Output<Cmd, String> {
        self.execute(Cmd::write("SCRIPT").arg("LOAD").arg(script))
    }

    /// `SCRIPT EXISTS sha1 ...`: for each whether all primaries have it.
    fn script_exists(self, sha1s: impl IntoIterator<Item: Arg>) -> Self::Output<Cmd, Vec<bool>> {
        self.execute(Cmd::read("SCRIPT").arg("EXISTS").args(sha1s))
    }

    /// `SCRIPT FLUSH`: all nodes forget all scripts.
    fn script_flush(self) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("SCRIPT").arg("FLUSH"))
    }

    /// `SCRIPT KILL`: ends the scripts that primaries run, if these changed nothing yet; an error if none runs any.
    fn script_kill(self) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("SCRIPT").arg("KILL"))
    }

    /// `FUNCTION LOAD REPLACE code`, on all primaries: the name of the library.
    fn function_load(self, code: impl Arg, replace: bool) -> Self::Output<Cmd, String> {
        let cmd = Cmd::write("FUNCTION").arg("LOAD");
        self.execute(cmd.word_if(replace, "REPLACE").arg(code))
    }

    /// `FUNCTION DELETE library`, on all primaries.
    fn function_delete(self, library: impl Arg) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("FUNCTION").arg("DELETE").arg(library))
    }

    /// `FUNCTION LIST`: the libraries of one node, a list of maps.
    fn function_list<R: FromReply>(self) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("FUNCTION").arg("LIST"))
    }

    /// `FUNCTION DUMP`: all libraries, for [`function_restore`](ScriptCommands::function_restore).
    fn function_dump<R: FromReply>(self) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("FUNCTION").arg("DUMP"))
    }

    /// `FUNCTION RESTORE dump REPLACE`, on all primaries.
    fn function_restore(self, dump: impl Arg, replace: bool) -> Self::Output<Cmd, ()> {
        let cmd = Cmd::write("FUNCTION").arg("RESTORE").arg(dump);
        self.execute(cmd.word_if(replace, "REPLACE"))
    }

    /// `FUNCTION FLUSH`: deletes all libraries, on all primaries.
    fn function_flush(self) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("FUNCTION").arg("FLUSH"))
    }

    /// `FUNCTION STATS`: what one node runs now, a map.
    fn function_stats<R: FromReply>(self) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("FUNCTION").arg("STATS"))
    }

    /// `FUNCTION KILL`: ends the functions that primaries run, if these changed nothing yet; an error if none runs any.
    fn function_kill(self) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("FUNCTION").arg("KILL"))
    }
}

impl<T: Commands> ScriptCommands for T {}
