//! Methods for the commands on sets: <https://redis.io/docs/latest/commands/?group=set>.

use super::options::ScanOptions;
use super::{Commands, Key, read, write};
use crate::cmd::Cmd;
use crate::command::{Fixed, Route};
use crate::prefix;
use crate::resp::{Arg, FromReply};

/// Commands for sets.
pub trait SetCommands: Commands {
    /// `SADD key member`: how many are new, 0 or 1.
    fn sadd<K: Key, M: Arg>(self, key: K, member: M) -> Self::Output<Fixed<(K, M)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 4, "SADD"), route, (key, member)))
    }

    /// `SADD key member ...`: how many are new.
    fn sadd_many(
        self,
        key: impl Key,
        members: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("SADD").key(key).args(members))
    }

    /// `SREM key member`: how many were removed, 0 or 1.
    fn srem<K: Key, M: Arg>(self, key: K, member: M) -> Self::Output<Fixed<(K, M)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 4, "SREM"), route, (key, member)))
    }

    /// `SREM key member ...`: how many were removed.
    fn srem_many(
        self,
        key: impl Key,
        members: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("SREM").key(key).args(members))
    }

    /// `SISMEMBER key member`: whether it is one.
    fn sismember<K: Key, M: Arg>(self, key: K, member: M) -> Self::Output<Fixed<(K, M)>, bool> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 9, "SISMEMBER"), route, (key, member)))
    }

    /// `SMISMEMBER key member ...`: for each whether it is one.
    fn smismember(
        self,
        key: impl Key,
        members: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, Vec<bool>> {
        self.execute(Cmd::read("SMISMEMBER").key(key).args(members))
    }

    /// `SMEMBERS key`: all members, as a set or a list.
    fn smembers<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 8, "SMEMBERS"), route, (key,)))
    }

    /// `SCARD key`: how many members it has.
    fn scard<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, u64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 5, "SCARD"), route, (key,)))
    }

    /// `SPOP key`: takes a member at random; null if there is none.
    fn spop<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(write(prefix!(2, 4, "SPOP"), route, (key,)))
    }

    /// `SPOP key count`: takes up to so many at random.
    fn spop_count<R: FromReply, K: Key>(
        self,
        key: K,
        count: u64,
    ) -> Self::Output<Fixed<(K, u64)>, R> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 4, "SPOP"), route, (key, count)))
    }

    /// `SRANDMEMBER key`: a member at random; null if there is none.
    fn srandmember<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 11, "SRANDMEMBER"), route, (key,)))
    }

    /// `SRANDMEMBER key count`: so many at random; if negative, a member may come more than once.
    fn srandmember_count<R: FromReply, K: Key>(
        self,
        key: K,
        count: i64,
    ) -> Self::Output<Fixed<(K, i64)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 11, "SRANDMEMBER"), route, (key, count)))
    }

    /// `SMOVE source destination member`: whether it was there, and was moved. Only for keys with
    /// one slot.
    fn smove(
        self,
        source: impl Key,
        destination: impl Key,
        member: impl Arg,
    ) -> Self::Output<Cmd, bool> {
        self.execute(Cmd::write("SMOVE").key(source).key(destination).arg(member))
    }

    /// `SINTER key ...`: what all sets have. Only for keys with one slot.
    fn sinter<R: FromReply>(self, keys: impl IntoIterator<Item: Key>) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("SINTER").keys(keys))
    }

    /// `SINTERSTORE destination key ...`: stores what all sets have; how many they are. Only for keys
    /// with one slot.
    fn sinterstore(
        self,
        destination: impl Key,
        keys: impl IntoIterator<Item: Key>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("SINTERSTORE").key(destination).keys(keys))
    }

    /// `SUNION key ...`: what any of the sets has. Only for keys with one slot.
    fn sunion<R: FromReply>(self, keys: impl IntoIterator<Item: Key>) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("SUNION").keys(keys))
    }

    /// `SUNIONSTORE destination key ...`: stores what any of the sets has; how many they are. Only
    /// for keys with one slot.
    fn sunionstore(
        self,
        destination: impl Key,
        keys: impl IntoIterator<Item: Key>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("SUNIONSTORE").key(destination).keys(keys))
    }

    /// `SDIFF key ...`: what the first set has and no other. Only for keys with one slot.
    fn sdiff<R: FromReply>(self, keys: impl IntoIterator<Item: Key>) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("SDIFF").keys(keys))
    }

    /// `SDIFFSTORE destination key ...`: stores what the first set has and no other; how many they
    /// are. Only for keys with one slot.
    fn sdiffstore(
        self,
        destination: impl Key,
        keys: impl IntoIterator<Item: Key>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("SDIFFSTORE").key(destination).keys(keys))
    }

    /// `SINTERCARD numkeys key ... LIMIT limit`: how many members all sets have; it stops to count
    /// at the limit, unless that is 0. Only for keys with one slot.
    fn sintercard(self, keys: impl IntoIterator<Item: Key>, limit: u64) -> Self::Output<Cmd, u64> {
        let cmd = Cmd::read("SINTERCARD").counted(keys, Cmd::key);
        self.execute(cmd.arg("LIMIT").arg(limit))
    }

    /// `SSCAN key cursor`: where to go on, 0 at the end, and some of its members. An element may
    /// come more than once.
    fn sscan<R: FromReply>(
        self,
        key: impl Key,
        cursor: u64,
        options: ScanOptions<'_>,
    ) -> Self::Output<Cmd, (u64, R)> {
        self.execute(options.add(Cmd::read("SSCAN").key(key).arg(cursor)))
    }
}

impl<T: Commands> SetCommands for T {}
