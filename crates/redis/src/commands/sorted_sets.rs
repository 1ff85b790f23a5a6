//! Methods for the commands on sorted sets: <https://redis.io/docs/latest/commands/?group=sorted-set>.

use super::options::{Extreme, ScanOptions, ZAddOptions, ZRangeOptions};
use super::{Commands, Key, read, write};
use crate::cmd::Cmd;
use crate::command::{Fixed, Route};
use crate::prefix;
use crate::resp::{Arg, FromReply};

/// Commands for sorted sets: members, scores, ranks.
pub trait SortedSetCommands: Commands {
    /// `ZADD key score member`: how many are new, 0 or 1.
    fn zadd<K: Key, M: Arg>(
        self,
        key: K,
        score: f64,
        member: M,
    ) -> Self::Output<Fixed<(K, f64, M)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(4, 4, "ZADD"), route, (key, score, member)))
    }

    /// `ZADD key score member ...`: how many are new.
    fn zadd_many(
        self,
        key: impl Key,
        members: impl IntoIterator<Item = (f64, impl Arg)>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("ZADD").key(key).pairs(members))
    }

    /// `ZADD key options score member ...`: how many are new; with [`ZAddOptions::changed`] those
    /// whose score changed count too.
    fn zadd_with(
        self,
        key: impl Key,
        members: impl IntoIterator<Item = (f64, impl Arg)>,
        options: ZAddOptions,
    ) -> Self::Output<Cmd, u64> {
        self.execute(options.add(Cmd::write("ZADD").key(key)).pairs(members))
    }

    /// `ZADD key options INCR score member`: the new score; none if a condition was not met.
    fn zadd_incr(
        self,
        key: impl Key,
        by: f64,
        member: impl Arg,
        options: ZAddOptions,
    ) -> Self::Output<Cmd, Option<f64>> {
        let cmd = options.add(Cmd::write("ZADD").key(key));
        self.execute(cmd.arg("INCR").arg(by).arg(member))
    }

    /// `ZINCRBY key increment member`: the new score.
    fn zincrby<K: Key, M: Arg>(
        self,
        key: K,
        by: f64,
        member: M,
    ) -> Self::Output<Fixed<(K, f64, M)>, f64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(4, 7, "ZINCRBY"), route, (key, by, member)))
    }

    /// `ZSCORE key member`: its score, if it is one.
    fn zscore<K: Key, M: Arg>(self, key: K, member: M) -> Self::Output<Fixed<(K, M)>, Option<f64>> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 6, "ZSCORE"), route, (key, member)))
    }

    /// `ZMSCORE key member ...`: their scores in this order.
    fn zmscore(
        self,
        key: impl Key,
        members: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, Vec<Option<f64>>> {
        self.execute(Cmd::read("ZMSCORE").key(key).args(members))
    }

    /// `ZRANK key member`: how many members are before it, if it is one.
    fn zrank<K: Key, M: Arg>(self, key: K, member: M) -> Self::Output<Fixed<(K, M)>, Option<u64>> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 5, "ZRANK"), route, (key, member)))
    }

    /// `ZREVRANK key member`: how many members are after it, if it is one.
    fn zrevrank<K: Key, M: Arg>(
        self,
        key: K,
        member: M,
    ) -> Self::Output<Fixed<(K, M)>, Option<u64>> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 8, "ZREVRANK"), route, (key, member)))
    }

    /// `ZCARD key`: how many members it has.
    fn zcard<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, u64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 5, "ZCARD"), route, (key,)))
    }

    /// `ZCOUNT key min max`: how many have a score from `min` to `max`: a number, `(1.5` without the
    /// number itself, `-inf`, `+inf`.
    fn zcount<K: Key, A: Arg, B: Arg>(
        self,
        key: K,
        min: A,
        max: B,
    ) -> Self::Output<Fixed<(K, A, B)>, u64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(4, 6, "ZCOUNT"), route, (key, min, max)))
    }

    /// `ZLEXCOUNT key min max`: how many are from `min` to `max`: `[a`, `(a` without itself, `-`,
    /// `+`. All must have the same score.
    fn zlexcount<K: Key, A: Arg, B: Arg>(
        self,
        key: K,
        min: A,
        max: B,
    ) -> Self::Output<Fixed<(K, A, B)>, u64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(4, 9, "ZLEXCOUNT"), route, (key, min, max)))
    }

    /// `ZREM key member`: how many were removed, 0 or 1.
    fn zrem<K: Key, M: Arg>(self, key: K, member: M) -> Self::Output<Fixed<(K, M)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 4, "ZREM"), route, (key, member)))
    }

    /// `ZREM key member ...`: how many were removed.
    fn zrem_many(
        self,
        key: impl Key,
        members: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("ZREM").key(key).args(members))
    }

    /// `ZREMRANGEBYRANK key start stop`: how many were removed.
    fn zremrangebyrank<K: Key>(
        self,
        key: K,
        start: i64,
        stop: i64,
    ) -> Self::Output<Fixed<(K, i64, i64)>, u64> {
        let route = Route::of(&key);
        self.execute(write(
            prefix!(4, 15, "ZREMRANGEBYRANK"),
            route,
            (key, start, stop),
        ))
    }

    /// `ZREMRANGEBYSCORE key min max`: how many were removed.
    fn zremrangebyscore<K: Key, A: Arg, B: Arg>(
        self,
        key: K,
        min: A,
        max: B,
    ) -> Self::Output<Fixed<(K, A, B)>, u64> {
        let route = Route::of(&key);
        self.execute(write(
            prefix!(4, 16, "ZREMRANGEBYSCORE"),
            route,
            (key, min, max),
        ))
    }

    /// `ZREMRANGEBYLEX key min max`: how many were removed.
    fn zremrangebylex<K: Key, A: Arg, B: Arg>(
        self,
        key: K,
        min: A,
        max: B,
    ) -> Self::Output<Fixed<(K, A, B)>, u64> {
        let route = Route::of(&key);
        self.execute(write(
            prefix!(4, 14, "ZREMRANGEBYLEX"),
            route,
            (key, min, max),
        ))
    }

    /// `ZRANGE key start stop`: the members with those ranks, both ends included; negative ones
    /// count from the end.
    fn zrange<R: FromReply, K: Key>(
        self,
        key: K,
        start: i64,
        stop: i64,
    ) -> Self::Output<Fixed<(K, i64, i64)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(4, 6, "ZRANGE"), route, (key, start, stop)))
    }

    /// `ZRANGE key start stop` with options: by score or in the order of bytes, backwards, some of
    /// them, with scores (`Vec<(String, f64)>`).
    fn zrange_with<R: FromReply>(
        self,
        key: impl Key,
        start: impl Arg,
        stop: impl Arg,
        options: ZRangeOptions,
    ) -> Self::Output<Cmd, R> {
        self.execute(options.add(Cmd::read("ZRANGE").key(key).arg(start).arg(stop)))
    }

    /// `ZRANGESTORE destination source start stop` with options, but without scores: how many were
    /// kept. Only for keys with one slot.
    fn zrangestore(
        self,
        destination: impl Key,
        source: impl Key,
        start: impl Arg,
        stop: impl Arg,
        options: ZRangeOptions,
    ) -> Self::Output<Cmd, u64> {
        let cmd = Cmd::write("ZRANGESTORE").key(destination).key(source);
        self.execute(options.add(cmd.arg(start).arg(stop)))
    }

    /// `ZPOPMIN key count`: takes up to so many with the lowest scores, `Vec<(String, f64)>`.
    fn zpopmin<R: FromReply, K: Key>(self, key: K, count: u64) -> Self::Output<Fixed<(K, u64)>, R> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 7, "ZPOPMIN"), route, (key, count)))
    }

    /// `ZPOPMAX key count`: takes up to so many with the highest scores, `Vec<(String, f64)>`.
    fn zpopmax<R: FromReply, K: Key>(self, key: K, count: u64) -> Self::Output<Fixed<(K, u64)>, R> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 7, "ZPOPMAX"), route, (key, count)))
    }

    /// `ZMPOP numkeys key ... MIN|MAX COUNT count`: takes up to so many from the first set that has
    /// any: its key and them, `Option<(String, Vec<(String, f64)>)>`. Only for keys with one slot.
    fn zmpop<R: FromReply>(
        self,
        keys: impl IntoIterator<Item: Key>,
        which: Extreme,
        count: u64,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::write("ZMPOP").counted(keys, Cmd::key);
        self.execute(cmd.arg(which.word()).arg("COUNT").arg(count))
    }

    /// `ZRANDMEMBER key`: a member at random; null if there is none.
    fn zrandmember<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 11, "ZRANDMEMBER"), route, (key,)))
    }

    /// `ZRANDMEMBER key count`: so many at random; if negative, a member may come more than once.
    fn zrandmember_count<R: FromReply, K: Key>(
        self,
        key: K,
        count: i64,
    ) -> Self::Output<Fixed<(K, i64)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 11, "ZRANDMEMBER"), route, (key, count)))
    }

    /// `ZRANDMEMBER key count WITHSCORES`: the same with their scores, `Vec<(String, f64)>`.
    fn zrandmember_with_scores<R: FromReply>(
        self,
        key: impl Key,
        count: i64,
    ) -> Self::Output<Cmd, R> {
        self.execute(
            Cmd::read("ZRANDMEMBER")
                .key(key)
                .arg(count)
                .arg("WITHSCORES"),
        )
    }

    /// `ZSCAN key cursor`: where to go on, 0 at the end, and some of its members with their scores.
    /// An element may come more than once.
    fn zscan<R: FromReply>(
        self,
        key: impl Key,
        cursor: u64,
        options: ScanOptions<'_>,
    ) -> Self::Output<Cmd, (u64, R)> {
        self.execute(options.add(Cmd::read("ZSCAN").key(key).arg(cursor)))
    }
}

impl<T: Commands> SortedSetCommands for T {}
