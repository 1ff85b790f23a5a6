//! The server itself: <https://redis.io/docs/latest/commands/?group=server>.

use super::{Commands, Key};
use crate::cmd::Cmd;
use crate::resp::{Arg, FromReply};

/// Commands for one node: any one that the client knows.
pub trait ServerCommands: Commands {
    /// `PING`.
    fn ping(self) -> Self::Given<Cmd, ()> {
        self.give(Cmd::read("PING"))
    }

    /// `ECHO message`: the message.
    fn echo<R: FromReply>(self, message: impl Arg) -> Self::Given<Cmd, R> {
        self.give(Cmd::read("ECHO").arg(message))
    }

    /// `TIME`: Unix time of the server: seconds, and microseconds.
    fn time(self) -> Self::Given<Cmd, (u64, u64)> {
        self.give(Cmd::read("TIME"))
    }

    /// `DBSIZE`: how many keys one node has.
    fn dbsize(self) -> Self::Given<Cmd, u64> {
        self.give(Cmd::read("DBSIZE"))
    }

    /// `INFO`: lines of names and values.
    fn info(self) -> Self::Given<Cmd, String> {
        self.give(Cmd::read("INFO"))
    }

    /// `INFO section ...`: some of them.
    fn info_of(self, sections: impl IntoIterator<Item: Arg>) -> Self::Given<Cmd, String> {
        self.give(Cmd::read("INFO").args(sections))
    }

    /// `CONFIG GET parameter ...`: a map of those that match.
    fn config_get<R: FromReply>(
        self,
        patterns: impl IntoIterator<Item: Arg>,
    ) -> Self::Given<Cmd, R> {
        self.give(Cmd::read("CONFIG").arg("GET").args(patterns))
    }

    /// `CONFIG SET parameter value ...`.
    fn config_set(
        self,
        parameters: impl IntoIterator<Item = (impl Arg, impl Arg)>,
    ) -> Self::Given<Cmd, ()> {
        self.give(Cmd::write("CONFIG").arg("SET").pairs(parameters))
    }

    /// `CONFIG RESETSTAT`: statistics begin anew.
    fn config_resetstat(self) -> Self::Given<Cmd, ()> {
        self.give(Cmd::write("CONFIG").arg("RESETSTAT"))
    }

    /// `CLIENT LIST`: a line for each connection.
    fn client_list(self) -> Self::Given<Cmd, String> {
        self.give(Cmd::read("CLIENT").arg("LIST"))
    }

    /// `CLIENT INFO`: that line of one of our connections.
    fn client_info(self) -> Self::Given<Cmd, String> {
        self.give(Cmd::read("CLIENT").arg("INFO"))
    }

    /// `CLIENT ID`: the number of one of our connections.
    fn client_id(self) -> Self::Given<Cmd, u64> {
        self.give(Cmd::read("CLIENT").arg("ID"))
    }

    /// `CLIENT GETNAME`: the name of our connections, as it was configured.
    fn client_getname(self) -> Self::Given<Cmd, Option<String>> {
        self.give(Cmd::read("CLIENT").arg("GETNAME"))
    }

    /// `CLIENT KILL filter value ...`: how many connections were ended, `ID` 7 for example. Ours are
    /// not among them unless `SKIPME` is `no`.
    fn client_kill(
        self,
        filters: impl IntoIterator<Item = (impl Arg, impl Arg)>,
    ) -> Self::Given<Cmd, u64> {
        self.give(Cmd::write("CLIENT").arg("KILL").pairs(filters))
    }

    /// `CLIENT PAUSE milliseconds WRITE|ALL`: clients wait for so long.
    fn client_pause(self, millis: u64, writes_only: bool) -> Self::Given<Cmd, ()> {
        let mode = if writes_only { "WRITE" } else { "ALL" };
        self.give(Cmd::write("CLIENT").arg("PAUSE").arg(millis).arg(mode))
    }

    /// `CLIENT UNPAUSE`.
    fn client_unpause(self) -> Self::Given<Cmd, ()> {
        self.give(Cmd::write("CLIENT").arg("UNPAUSE"))
    }

    /// `LASTSAVE`: when it was written to a file last, seconds of Unix time.
    fn lastsave(self) -> Self::Given<Cmd, u64> {
        self.give(Cmd::read("LASTSAVE"))
    }

    /// `ROLE`: `master` or `slave`, and more.
    fn role<R: FromReply>(self) -> Self::Given<Cmd, R> {
        self.give(Cmd::read("ROLE"))
    }

    /// `COMMAND COUNT`: how many commands it knows.
    fn command_count(self) -> Self::Given<Cmd, u64> {
        self.give(Cmd::read("COMMAND").arg("COUNT"))
    }

    /// `MEMORY USAGE key`: bytes that the key and its value take, if it is there.
    fn memory_usage(self, key: impl Key) -> Self::Given<Cmd, Option<u64>> {
        self.give(Cmd::read("MEMORY").arg("USAGE").key(key))
    }

    /// `SLOWLOG GET count`: the newest commands that took long.
    fn slowlog_get<R: FromReply>(self, count: u64) -> Self::Given<Cmd, R> {
        self.give(Cmd::read("SLOWLOG").arg("GET").arg(count))
    }

    /// `SLOWLOG LEN`: how many it remembers.
    fn slowlog_len(self) -> Self::Given<Cmd, u64> {
        self.give(Cmd::read("SLOWLOG").arg("LEN"))
    }

    /// `SLOWLOG RESET`: it forgets them.
    fn slowlog_reset(self) -> Self::Given<Cmd, ()> {
        self.give(Cmd::write("SLOWLOG").arg("RESET"))
    }

    /// `ACL WHOAMI`: the user of our connections.
    fn acl_whoami(self) -> Self::Given<Cmd, String> {
        self.give(Cmd::read("ACL").arg("WHOAMI"))
    }

    /// `FLUSHDB`: deletes all keys of the database. Of one node: in a cluster, send
    /// [`cmd`](crate::cmd()) with [`Cmd::to`] to each.
    fn flushdb(self) -> Self::Given<Cmd, ()> {
        self.give(Cmd::write("FLUSHDB"))
    }

    /// `FLUSHALL`: deletes all keys of all databases of one node.
    fn flushall(self) -> Self::Given<Cmd, ()> {
        self.give(Cmd::write("FLUSHALL"))
    }

    /// `SWAPDB index1 index2`: whoever uses one has the other. Not in a cluster.
    fn swapdb(self, first: u32, second: u32) -> Self::Given<Cmd, ()> {
        self.give(Cmd::write("SWAPDB").arg(first).arg(second))
    }

    /// `PUBLISH channel message`: how many clients of that node were told; in a cluster all nodes
    /// tell theirs.
    fn publish(self, channel: impl Arg, message: impl Arg) -> Self::Given<Cmd, u64> {
        self.give(Cmd::write("PUBLISH").arg(channel).arg(message))
    }

    /// `SPUBLISH shardchannel message`: how many clients were told by the node that serves the slot
    /// of the channel.
    fn spublish(self, channel: impl Key, message: impl Arg) -> Self::Given<Cmd, u64> {
        self.give(Cmd::write("SPUBLISH").key(channel).arg(message))
    }

    /// `PUBSUB CHANNELS pattern`: channels with subscribers at one node.
    fn pubsub_channels(self, pattern: impl Arg) -> Self::Given<Cmd, Vec<String>> {
        self.give(Cmd::read("PUBSUB").arg("CHANNELS").arg(pattern))
    }

    /// `PUBSUB NUMSUB channel ...`: how many subscribers each has, pairs.
    fn pubsub_numsub<R: FromReply>(
        self,
        channels: impl IntoIterator<Item: Arg>,
    ) -> Self::Given<Cmd, R> {
        self.give(Cmd::read("PUBSUB").arg("NUMSUB").args(channels))
    }
}

impl<T: Commands> ServerCommands for T {}
