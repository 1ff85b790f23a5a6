//! Methods for the commands on hashes: <https://redis.io/docs/latest/commands/?group=hash>.

use super::options::ScanOptions;
use super::{Commands, Key, read, write};
use crate::cmd::Cmd;
use crate::command::{Fixed, Route};
use crate::prefix;
use crate::resp::{Arg, FromReply};

/// Commands for hashes.
pub trait HashCommands: Commands {
    /// `HGET key field`: its value; null if there is none.
    fn hget<R: FromReply, K: Key, F: Arg>(
        self,
        key: K,
        field: F,
    ) -> Self::Output<Fixed<(K, F)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 4, "HGET"), route, (key, field)))
    }

    /// `HSET key field value`: how many fields are new, 0 or 1.
    fn hset<K: Key, F: Arg, V: Arg>(
        self,
        key: K,
        field: F,
        value: V,
    ) -> Self::Output<Fixed<(K, F, V)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(4, 4, "HSET"), route, (key, field, value)))
    }

    /// `HSET key field value ...`: how many fields are new.
    fn hset_many(
        self,
        key: impl Key,
        pairs: impl IntoIterator<Item = (impl Arg, impl Arg)>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("HSET").key(key).pairs(pairs))
    }

    /// `HSETNX key field value`: whether there was none, and it is set.
    fn hsetnx<K: Key, F: Arg, V: Arg>(
        self,
        key: K,
        field: F,
        value: V,
    ) -> Self::Output<Fixed<(K, F, V)>, bool> {
        let route = Route::of(&key);
        self.execute(write(prefix!(4, 6, "HSETNX"), route, (key, field, value)))
    }

    /// `HMGET key field ...`: their values in this order, null where there is none.
    fn hmget<R: FromReply>(
        self,
        key: impl Key,
        fields: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("HMGET").key(key).args(fields))
    }

    /// `HGETALL key`: all fields with their values, as a map or a list of pairs.
    fn hgetall<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 7, "HGETALL"), route, (key,)))
    }

    /// `HKEYS key`: all fields.
    fn hkeys<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 5, "HKEYS"), route, (key,)))
    }

    /// `HVALS key`: all values.
    fn hvals<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 5, "HVALS"), route, (key,)))
    }

    /// `HLEN key`: how many fields it has.
    fn hlen<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, u64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 4, "HLEN"), route, (key,)))
    }

    /// `HEXISTS key field`: whether there is such a field.
    fn hexists<K: Key, F: Arg>(self, key: K, field: F) -> Self::Output<Fixed<(K, F)>, bool> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 7, "HEXISTS"), route, (key, field)))
    }

    /// `HSTRLEN key field`: the length of its value in bytes; 0 if there is none.
    fn hstrlen<K: Key, F: Arg>(self, key: K, field: F) -> Self::Output<Fixed<(K, F)>, usize> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 7, "HSTRLEN"), route, (key, field)))
    }

    /// `HDEL key field`: how many fields were deleted, 0 or 1.
    fn hdel<K: Key, F: Arg>(self, key: K, field: F) -> Self::Output<Fixed<(K, F)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 4, "HDEL"), route, (key, field)))
    }

    /// `HDEL key field ...`: how many fields were deleted.
    fn hdel_many(
        self,
        key: impl Key,
        fields: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("HDEL").key(key).args(fields))
    }

    /// `HINCRBY key field increment`: the new value.
    fn hincrby<K: Key, F: Arg>(
        self,
        key: K,
        field: F,
        by: i64,
    ) -> Self::Output<Fixed<(K, F, i64)>, i64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(4, 7, "HINCRBY"), route, (key, field, by)))
    }

    /// `HINCRBYFLOAT key field increment`: the new value.
    fn hincrbyfloat<K: Key, F: Arg>(
        self,
        key: K,
        field: F,
        by: f64,
    ) -> Self::Output<Fixed<(K, F, f64)>, f64> {
        let route = Route::of(&key);
        self.execute(write(
            prefix!(4, 12, "HINCRBYFLOAT"),
            route,
            (key, field, by),
        ))
    }

    /// `HRANDFIELD key`: a field at random; null if there is none.
    fn hrandfield<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 10, "HRANDFIELD"), route, (key,)))
    }

    /// `HRANDFIELD key count`: so many fields at random; if negative, a field may come more than
    /// once.
    fn hrandfield_count<R: FromReply, K: Key>(
        self,
        key: K,
        count: i64,
    ) -> Self::Output<Fixed<(K, i64)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 10, "HRANDFIELD"), route, (key, count)))
    }

    /// `HRANDFIELD key count WITHVALUES`: the same with their values, as a list of pairs.
    fn hrandfield_with_values<R: FromReply>(
        self,
        key: impl Key,
        count: i64,
    ) -> Self::Output<Cmd, R> {
        self.execute(
            Cmd::read("HRANDFIELD")
                .key(key)
                .arg(count)
                .arg("WITHVALUES"),
        )
    }

    /// `HSCAN key cursor`: where to go on, 0 at the end, and some of its fields with their values.
    /// An element may come more than once.
    fn hscan<R: FromReply>(
        self,
        key: impl Key,
        cursor: u64,
        options: ScanOptions<'_>,
    ) -> Self::Output<Cmd, (u64, R)> {
        self.execute(options.add(Cmd::read("HSCAN").key(key).arg(cursor)))
    }
}

impl<T: Commands> HashCommands for T {}
