//! Methods for the commands on streams: <https://redis.io/docs/latest/commands/?group=stream>.

use super::options::{Trim, XAddOptions};
use super::{Commands, Key, read};
use crate::cmd::Cmd;
use crate::command::{Fixed, Route};
use crate::prefix;
use crate::resp::{Arg, FromReply};

/// Commands for streams. An entry is read as `(String, Vec<(String, String)>)`: its id, its fields and values.
pub trait StreamCommands: Commands {
    /// `XADD key id field value ...`: adds an entry; its id, which the server makes for `*`.
    fn xadd(
        self,
        key: impl Key,
        id: impl Arg,
        fields: impl IntoIterator<Item = (impl Arg, impl Arg)>,
    ) -> Self::Output<Cmd, String> {
        self.execute(Cmd::write("XADD").key(key).arg(id).pairs(fields))
    }

    /// `XADD key options id field value ...`: the same; none if there is no stream, and none was to
    /// be made.
    fn xadd_with(
        self,
        key: impl Key,
        options: XAddOptions<'_>,
        id: impl Arg,
        fields: impl IntoIterator<Item = (impl Arg, impl Arg)>,
    ) -> Self::Output<Cmd, Option<String>> {
        let cmd = options.add(Cmd::write("XADD").key(key));
        self.execute(cmd.arg(id).pairs(fields))
    }

    /// `XTRIM key MAXLEN|MINID ...`: how many entries were removed.
    fn xtrim(self, key: impl Key, trim: Trim<'_>) -> Self::Output<Cmd, u64> {
        self.execute(trim.add(Cmd::write("XTRIM").key(key)))
    }

    /// `XLEN key`: how many entries it has.
    fn xlen<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, u64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 4, "XLEN"), route, (key,)))
    }

    /// `XDEL key id ...`: how many entries were removed.
    fn xdel(self, key: impl Key, ids: impl IntoIterator<Item: Arg>) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("XDEL").key(key).args(ids))
    }

    /// `XRANGE key start end`: the entries with those ids, both ends included; `-` and `+` are the
    /// first and the last, `(id` is without itself.
    fn xrange<R: FromReply, K: Key, A: Arg, B: Arg>(
        self,
        key: K,
        start: A,
        end: B,
    ) -> Self::Output<Fixed<(K, A, B)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(4, 6, "XRANGE"), route, (key, start, end)))
    }

    /// `XRANGE key start end COUNT count`: at most so many.
    fn xrange_count<R: FromReply>(
        self,
        key: impl Key,
        start: impl Arg,
        end: impl Arg,
        count: u64,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::read("XRANGE").key(key).arg(start).arg(end);
        self.execute(cmd.arg("COUNT").arg(count))
    }

    /// `XREVRANGE key end start`: the same, the last first.
    fn xrevrange<R: FromReply, K: Key, A: Arg, B: Arg>(
        self,
        key: K,
        end: A,
        start: B,
    ) -> Self::Output<Fixed<(K, A, B)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(4, 9, "XREVRANGE"), route, (key, end, start)))
    }

    /// `XREVRANGE key end start COUNT count`: at most so many.
    fn xrevrange_count<R: FromReply>(
        self,
        key: impl Key,
        end: impl Arg,
        start: impl Arg,
        count: u64,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::read("XREVRANGE").key(key).arg(end).arg(start);
        self.execute(cmd.arg("COUNT").arg(count))
    }

    /// `XREAD COUNT count STREAMS key ... id ...`: what is after those ids, at most so many of each:
    /// `Option<Vec<(String, Vec<entry>)>>`, one for each stream that has any. It does not wait;
    /// blocking connections do. Only for keys with one slot.
    fn xread<R: FromReply>(
        self,
        streams: impl IntoIterator<Item = (impl Key, impl Arg), IntoIter: Clone>,
        count: Option<u64>,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::read("XREAD").option("COUNT", count).arg("STREAMS");
        let streams = streams.into_iter();
        let cmd = cmd.keys(streams.clone().map(|(key, _)| key));
        self.execute(cmd.args(streams.map(|(_, id)| id)))
    }

    /// `XSETID key id`: the greatest id so far.
    fn xsetid(self, key: impl Key, id: impl Arg) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("XSETID").key(key).arg(id))
    }

    /// `XINFO STREAM key`: a map.
    fn xinfo_stream<R: FromReply>(self, key: impl Key) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("XINFO").arg("STREAM").key(key))
    }

    /// `XINFO STREAM key FULL COUNT count`: a map with all groups, and up to so many entries (all if
    /// 0).
    fn xinfo_stream_full<R: FromReply>(self, key: impl Key, count: u64) -> Self::Output<Cmd, R> {
        let cmd = Cmd::read("XINFO").arg("STREAM").key(key);
        self.execute(cmd.arg("FULL").arg("COUNT").arg(count))
    }
}

impl<T: Commands> StreamCommands for T {}
