//! Methods for the commands on groups of consumers of a stream: <https://redis.io/docs/latest/commands/?group=stream>.

use super::{Commands, Key};
use crate::cmd::Cmd;
use crate::resp::{Arg, FromReply};
use std::time::Duration;

use super::options::{XClaimOptions, XPendingOptions, XReadGroupOptions, millis};

/// Commands for groups of consumers of a stream.
pub trait StreamGroupCommands: Commands {
    /// `XGROUP CREATE key group id MKSTREAM`: a group that begins after that id, `$` for the last.
    fn xgroup_create(
        self,
        key: impl Key,
        group: impl Arg,
        id: impl Arg,
        make_stream: bool,
    ) -> Self::Output<Cmd, ()> {
        let cmd = Cmd::write("XGROUP").arg("CREATE").key(key).arg(group);
        self.execute(cmd.arg(id).word_if(make_stream, "MKSTREAM"))
    }

    /// `XGROUP SETID key group id`: it goes on after that id.
    fn xgroup_setid(self, key: impl Key, group: impl Arg, id: impl Arg) -> Self::Output<Cmd, ()> {
        self.execute(
            Cmd::write("XGROUP")
                .arg("SETID")
                .key(key)
                .arg(group)
                .arg(id),
        )
    }

    /// `XGROUP DESTROY key group`: whether there was one.
    fn xgroup_destroy(self, key: impl Key, group: impl Arg) -> Self::Output<Cmd, bool> {
        self.execute(Cmd::write("XGROUP").arg("DESTROY").key(key).arg(group))
    }

    /// `XGROUP CREATECONSUMER key group consumer`: whether it is new.
    fn xgroup_createconsumer(
        self,
        key: impl Key,
        group: impl Arg,
        consumer: impl Arg,
    ) -> Self::Output<Cmd, bool> {
        let cmd = Cmd::write("XGROUP").arg("CREATECONSUMER").key(key);
        self.execute(cmd.arg(group).arg(consumer))
    }

    /// `XGROUP DELCONSUMER key group consumer`: how many entries it had not acknowledged.
    fn xgroup_delconsumer(
        self,
        key: impl Key,
        group: impl Arg,
        consumer: impl Arg,
    ) -> Self::Output<Cmd, u64> {
        let cmd = Cmd::write("XGROUP").arg("DELCONSUMER").key(key);
        self.execute(cmd.arg(group).arg(consumer))
    }

    /// `XREADGROUP GROUP group consumer STREAMS key ... id ...`: entries that no consumer was given
    /// yet for the id `>`, else those after it that this one has not acknowledged. As
    /// [`xread`](super::streams::StreamCommands::xread). Only for keys with one slot.
    fn xreadgroup<R: FromReply>(
        self,
        group: impl Arg,
        consumer: impl Arg,
        streams: impl IntoIterator<Item = (impl Key, impl Arg), IntoIter: Clone>,
        options: XReadGroupOptions,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::write("XREADGROUP")
            .arg("GROUP")
            .arg(group)
            .arg(consumer);
        let cmd = options.add(cmd).arg("STREAMS");
        let streams = streams.into_iter();
        let cmd = cmd.keys(streams.clone().map(|(key, _)| key));
        self.execute(cmd.args(streams.map(|(_, id)| id)))
    }

    /// `XACK key group id ...`: how many were acknowledged by this.
    fn xack(
        self,
        key: impl Key,
        group: impl Arg,
        ids: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("XACK").key(key).arg(group).args(ids))
    }

    /// `XPENDING key group`: how many are not acknowledged, the first and the last of them, and how
    /// many each consumer has: `(u64, Option<String>, Option<String>, Option<Vec<(String, u64)>>)`.
    fn xpending<R: FromReply>(self, key: impl Key, group: impl Arg) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("XPENDING").key(key).arg(group))
    }

    /// `XPENDING key group IDLE min-idle start end count consumer`: which: `Vec<(String, String,
    /// u64, u64)>`, the id, the consumer, milliseconds since it was given, how often it was.
    fn xpending_range<R: FromReply>(
        self,
        key: impl Key,
        group: impl Arg,
        start: impl Arg,
        end: impl Arg,
        options: XPendingOptions<'_>,
    ) -> Self::Output<Cmd, R> {
        let cmd = options.idle(Cmd::read("XPENDING").key(key).arg(group));
        self.execute(options.rest(cmd.arg(start).arg(end)))
    }

    /// `XCLAIM key group consumer min-idle-time id ...`: gives entries to another consumer; these
    /// entries, or their ids with [`XClaimOptions::just_id`].
    fn xclaim<R: FromReply>(
        self,
        key: impl Key,
        group: impl Arg,
        consumer: impl Arg,
        min_idle: Duration,
        ids: impl IntoIterator<Item: Arg>,
        options: XClaimOptions,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::write("XCLAIM").key(key).arg(group).arg(consumer);
        self.execute(options.add(cmd.arg(millis(min_idle)).args(ids)))
    }

    /// `XAUTOCLAIM key group consumer min-idle-time start COUNT count`: gives up to so many to
    /// another consumer: where to go on, the entries, the ids of deleted ones, `(String,
    /// Vec<entry>, Vec<String>)`.
    fn xautoclaim<R: FromReply>(
        self,
        key: impl Key,
        group: impl Arg,
        consumer: impl Arg,
        min_idle: Duration,
        start: impl Arg,
        count: u64,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::write("XAUTOCLAIM").key(key).arg(group).arg(consumer);
        let cmd = cmd.arg(millis(min_idle)).arg(start);
        self.execute(cmd.arg("COUNT").arg(count))
    }

    /// `XAUTOCLAIM key group consumer min-idle-time start COUNT count JUSTID`: the same with ids
    /// only.
    fn xautoclaim_justid<R: FromReply>(
        self,
        key: impl Key,
        group: impl Arg,
        consumer: impl Arg,
        min_idle: Duration,
        start: impl Arg,
        count: u64,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::write("XAUTOCLAIM").key(key).arg(group).arg(consumer);
        let cmd = cmd.arg(millis(min_idle)).arg(start);
        self.execute(cmd.arg("COUNT").arg(count).arg("JUSTID"))
    }

    /// `XINFO GROUPS key`: a list of maps.
    fn xinfo_groups<R: FromReply>(self, key: impl Key) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("XINFO").arg("GROUPS").key(key))
    }

    /// `XINFO CONSUMERS key group`: a list of maps.
    fn xinfo_consumers<R: FromReply>(self, key: impl Key, group: impl Arg) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("XINFO").arg("CONSUMERS").key(key).arg(group))
    }
}

impl<T: Commands> StreamGroupCommands for T {}
