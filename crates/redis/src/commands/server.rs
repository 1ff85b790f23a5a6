//! Methods for the commands on the server itself: <https://redis.io/docs/latest/commands/?group=server>.

use super::{Commands, Key};
use crate::cmd::Cmd;
use crate::resp::{Arg, FromReply};

/// Commands on the server: for any node that the client knows, unless it says otherwise. [`Cmd::to`] sends one to a certain node.
pub trait ServerCommands: Commands {
    /// `PING`, to all primaries.
    fn ping(self) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::read("PING"))
    }

    /// `ECHO message`: the message.
    fn echo<R: FromReply>(self, message: impl Arg) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("ECHO").arg(message))
    }

    /// `TIME`: Unix time of the server: seconds, and microseconds.
    fn time(self) -> Self::Output<Cmd, (u64, u64)> {
        self.execute(Cmd::read("TIME"))
    }

    /// `DBSIZE`: how many keys there are, of all primaries.
    fn dbsize(self) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::read("DBSIZE"))
    }

    /// `INFO`: lines of names and values.
    fn info(self) -> Self::Output<Cmd, String> {
        self.execute(Cmd::read("INFO"))
    }

    /// `INFO section ...`: the lines of these sections.
    fn info_of(self, sections: impl IntoIterator<Item: Arg>) -> Self::Output<Cmd, String> {
        self.execute(Cmd::read("INFO").args(sections))
    }

    /// `CONFIG GET parameter ...`: a map of the parameters that match.
    fn config_get<R: FromReply>(
        self,
        patterns: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("CONFIG").arg("GET").args(patterns))
    }

    /// `CONFIG SET parameter value ...`, on all nodes.
    fn config_set(
        self,
        parameters: impl IntoIterator<Item = (impl Arg, impl Arg)>,
    ) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("CONFIG").arg("SET").pairs(parameters))
    }

    /// `CONFIG RESETSTAT`: sets statistics of all nodes to zero.
    fn config_resetstat(self) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("CONFIG").arg("RESETSTAT"))
    }

    /// `CLIENT LIST`: a line for each connection.
    fn client_list(self) -> Self::Output<Cmd, String> {
        self.execute(Cmd::read("CLIENT").arg("LIST"))
    }

    /// `CLIENT INFO`: the line of one of this client's connections.
    fn client_info(self) -> Self::Output<Cmd, String> {
        self.execute(Cmd::read("CLIENT").arg("INFO"))
    }

    /// `CLIENT ID`: the number of one of this client's connections.
    fn client_id(self) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::read("CLIENT").arg("ID"))
    }

    /// `CLIENT GETNAME`: the name of this client's connections, from its configuration.
    fn client_getname(self) -> Self::Output<Cmd, Option<String>> {
        self.execute(Cmd::read("CLIENT").arg("GETNAME"))
    }

    /// `CLIENT KILL filter value ...`: how many connections the server closed, for example with `ID` 7.
    /// It spares the connection of this command unless `SKIPME` is `no`.
    fn client_kill(
        self,
        filters: impl IntoIterator<Item = (impl Arg, impl Arg)>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("CLIENT").arg("KILL").pairs(filters))
    }

    /// `CLIENT PAUSE milliseconds WRITE|ALL`: the server executes no command for so long.
    fn client_pause(self, millis: u64, writes_only: bool) -> Self::Output<Cmd, ()> {
        let mode = if writes_only { "WRITE" } else { "ALL" };
        self.execute(Cmd::write("CLIENT").arg("PAUSE").arg(millis).arg(mode))
    }

    /// `CLIENT UNPAUSE`.
    fn client_unpause(self) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("CLIENT").arg("UNPAUSE"))
    }

    /// `LASTSAVE`: when the server wrote its data to a file last, seconds of Unix time.
    fn lastsave(self) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::read("LASTSAVE"))
    }

    /// `ROLE`: `master` or `slave`, and more.
    fn role<R: FromReply>(self) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("ROLE"))
    }

    /// `COMMAND COUNT`: how many commands the server knows.
    fn command_count(self) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::read("COMMAND").arg("COUNT"))
    }

    /// `MEMORY USAGE key`: bytes that the key and its value take, if it is there.
    fn memory_usage(self, key: impl Key) -> Self::Output<Cmd, Option<u64>> {
        self.execute(Cmd::read("MEMORY").arg("USAGE").key(key))
    }

    /// `SLOWLOG GET count`: the newest slow commands of each node.
    fn slowlog_get<R: FromReply>(self, count: u64) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("SLOWLOG").arg("GET").arg(count))
    }

    /// `SLOWLOG LEN`: how many slow commands all nodes remember.
    fn slowlog_len(self) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::read("SLOWLOG").arg("LEN"))
    }

    /// `SLOWLOG RESET`: all nodes forget them.
    fn slowlog_reset(self) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("SLOWLOG").arg("RESET"))
    }

    /// `ACL WHOAMI`: the user of this client's connections.
    fn acl_whoami(self) -> Self::Output<Cmd, String> {
        self.execute(Cmd::read("ACL").arg("WHOAMI"))
    }

    /// `FLUSHDB`: deletes all keys of the database, on all primaries.
    fn flushdb(self) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("FLUSHDB"))
    }

    /// `FLUSHALL`: deletes all keys of all databases, on all primaries.
    fn flushall(self) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("FLUSHALL"))
    }

    /// `SWAPDB index1 index2`: exchanges two databases for all clients. Not in a cluster.
    fn swapdb(self, first: u32, second: u32) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("SWAPDB").arg(first).arg(second))
    }

    /// `PUBLISH channel message`: how many clients of the node received it; in a cluster all nodes pass
    /// it on to theirs.
    fn publish(self, channel: impl Arg, message: impl Arg) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("PUBLISH").arg(channel).arg(message))
    }

    /// `SPUBLISH shardchannel message`: how many clients received it from the node that serves the slot
    /// of the channel.
    fn spublish(self, channel: impl Key, message: impl Arg) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("SPUBLISH").key(channel).arg(message))
    }

    /// `PUBSUB CHANNELS pattern`: channels with subscribers at one node.
    fn pubsub_channels(self, pattern: impl Arg) -> Self::Output<Cmd, Vec<String>> {
        self.execute(Cmd::read("PUBSUB").arg("CHANNELS").arg(pattern))
    }

    /// `PUBSUB NUMSUB channel ...`: how many subscribers each has, pairs.
    fn pubsub_numsub<R: FromReply>(
        self,
        channels: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("PUBSUB").arg("NUMSUB").args(channels))
    }
}

impl<T: Commands> ServerCommands for T {}
