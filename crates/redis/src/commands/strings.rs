//! Methods for the commands on strings: <https://redis.io/docs/latest/commands/?group=string>.

use super::options::{Expiry, SetOptions};
use super::{Commands, Key, read, write};
use crate::cmd::Cmd;
use crate::command::{Fixed, Route};
use crate::prefix;
use crate::resp::{Arg, FromReply};

/// Commands for strings.
pub trait StringCommands: Commands {
    /// `GET key`: the value; null if there is none.
    fn get<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 3, "GET"), route, (key,)))
    }

    /// `SET key value`.
    fn set<K: Key, V: Arg>(self, key: K, value: V) -> Self::Output<Fixed<(K, V)>, ()> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 3, "SET"), route, (key, value)))
    }

    /// `SET key value` with options: null if a condition was not met (`Option<()>`); with
    /// [`SetOptions::old`] the value before.
    fn set_with<R: FromReply>(
        self,
        key: impl Key,
        value: impl Arg,
        options: SetOptions,
    ) -> Self::Output<Cmd, R> {
        self.execute(options.add(Cmd::write("SET").key(key).arg(value)))
    }

    /// `SETNX key value`: whether there was none, and it is set.
    fn setnx<K: Key, V: Arg>(self, key: K, value: V) -> Self::Output<Fixed<(K, V)>, bool> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 5, "SETNX"), route, (key, value)))
    }

    /// `SETEX key seconds value`: sets it for so long.
    fn setex<K: Key, V: Arg>(
        self,
        key: K,
        seconds: u64,
        value: V,
    ) -> Self::Output<Fixed<(K, u64, V)>, ()> {
        let route = Route::of(&key);
        self.execute(write(prefix!(4, 5, "SETEX"), route, (key, seconds, value)))
    }

    /// `PSETEX key milliseconds value`: sets it for so long.
    fn psetex<K: Key, V: Arg>(
        self,
        key: K,
        millis: u64,
        value: V,
    ) -> Self::Output<Fixed<(K, u64, V)>, ()> {
        let route = Route::of(&key);
        self.execute(write(prefix!(4, 6, "PSETEX"), route, (key, millis, value)))
    }

    /// `GETSET key value`: the value before; null if there was none.
    fn getset<R: FromReply, K: Key, V: Arg>(
        self,
        key: K,
        value: V,
    ) -> Self::Output<Fixed<(K, V)>, R> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 6, "GETSET"), route, (key, value)))
    }

    /// `GETDEL key`: the value, which is deleted; null if there is none.
    fn getdel<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(write(prefix!(2, 6, "GETDEL"), route, (key,)))
    }

    /// `GETEX key EX|PX|EXAT|PXAT time`: the value, which expires then; null if there is none.
    fn getex<R: FromReply>(self, key: impl Key, expiry: Expiry) -> Self::Output<Cmd, R> {
        self.execute(expiry.add(Cmd::write("GETEX").key(key)))
    }

    /// `GETEX key PERSIST`: the value, which does not expire any more; null if there is none.
    fn getex_persist<R: FromReply>(self, key: impl Key) -> Self::Output<Cmd, R> {
        self.execute(Cmd::write("GETEX").key(key).arg("PERSIST"))
    }

    /// `APPEND key value`: the new length in bytes.
    fn append<K: Key, V: Arg>(self, key: K, value: V) -> Self::Output<Fixed<(K, V)>, usize> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 6, "APPEND"), route, (key, value)))
    }

    /// `STRLEN key`: the length in bytes; 0 if there is none.
    fn strlen<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, usize> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 6, "STRLEN"), route, (key,)))
    }

    /// `GETRANGE key start end`: those bytes, both ends included; negative ones count from the end.
    fn getrange<R: FromReply, K: Key>(
        self,
        key: K,
        start: i64,
        end: i64,
    ) -> Self::Output<Fixed<(K, i64, i64)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(4, 8, "GETRANGE"), route, (key, start, end)))
    }

    /// `SETRANGE key offset value`: the new length in bytes.
    fn setrange<K: Key, V: Arg>(
        self,
        key: K,
        offset: u64,
        value: V,
    ) -> Self::Output<Fixed<(K, u64, V)>, usize> {
        let route = Route::of(&key);
        self.execute(write(
            prefix!(4, 8, "SETRANGE"),
            route,
            (key, offset, value),
        ))
    }

    /// `INCR key`: the new value.
    fn incr<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, i64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(2, 4, "INCR"), route, (key,)))
    }

    /// `INCRBY key increment`: the new value.
    fn incrby<K: Key>(self, key: K, by: i64) -> Self::Output<Fixed<(K, i64)>, i64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 6, "INCRBY"), route, (key, by)))
    }

    /// `DECR key`: the new value.
    fn decr<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, i64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(2, 4, "DECR"), route, (key,)))
    }

    /// `DECRBY key decrement`: the new value.
    fn decrby<K: Key>(self, key: K, by: i64) -> Self::Output<Fixed<(K, i64)>, i64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 6, "DECRBY"), route, (key, by)))
    }

    /// `INCRBYFLOAT key increment`: the new value.
    fn incrbyfloat<K: Key>(self, key: K, by: f64) -> Self::Output<Fixed<(K, f64)>, f64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 11, "INCRBYFLOAT"), route, (key, by)))
    }

    /// `MGET key ...`: the values in the order of the keys, null for keys that hold no string. Keys of
    /// several slots are not read at one instant.
    fn mget<R: FromReply>(self, keys: impl IntoIterator<Item: Key>) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("MGET").keys(keys))
    }

    /// `MSET key value ...`: sets all of them, those of a slot at once.
    fn mset(self, pairs: impl IntoIterator<Item = (impl Key, impl Arg)>) -> Self::Output<Cmd, ()> {
        let cmd = Cmd::write("MSET");
        self.execute(
            pairs
                .into_iter()
                .fold(cmd, |cmd, (key, value)| cmd.key(key).arg(value)),
        )
    }

    /// `MSETNX key value ...`: whether none of them was there, and all are set. Only for keys with
    /// one slot.
    fn msetnx(
        self,
        pairs: impl IntoIterator<Item = (impl Key, impl Arg)>,
    ) -> Self::Output<Cmd, bool> {
        let cmd = Cmd::write("MSETNX");
        self.execute(
            pairs
                .into_iter()
                .fold(cmd, |cmd, (key, value)| cmd.key(key).arg(value)),
        )
    }

    /// `LCS key1 key2`: the longest common subsequence. Only for keys with one slot.
    fn lcs<R: FromReply>(self, first: impl Key, second: impl Key) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("LCS").key(first).key(second))
    }

    /// `LCS key1 key2 LEN`: its length in bytes. Only for keys with one slot.
    fn lcs_len(self, first: impl Key, second: impl Key) -> Self::Output<Cmd, usize> {
        self.execute(Cmd::read("LCS").key(first).key(second).arg("LEN"))
    }
}

impl<T: Commands> StringCommands for T {}
