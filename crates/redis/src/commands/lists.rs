//! Methods for the commands on lists: <https://redis.io/docs/latest/commands/?group=list>.

use super::options::{LPosOptions, Side};
use super::{Commands, Key, read, write};
use crate::cmd::Cmd;
use crate::command::{Fixed, Route};
use crate::prefix;
use crate::resp::{Arg, FromReply};

/// Commands for lists.
pub trait ListCommands: Commands {
    /// `LPUSH key element`: adds it at the head; the new length.
    fn lpush<K: Key, V: Arg>(self, key: K, value: V) -> Self::Output<Fixed<(K, V)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 5, "LPUSH"), route, (key, value)))
    }

    /// `LPUSH key element ...`: adds them at the head one after another; the new length.
    fn lpush_many(
        self,
        key: impl Key,
        values: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("LPUSH").key(key).args(values))
    }

    /// `LPUSHX key element`: adds it at the head if there is a list; the new length.
    fn lpushx<K: Key, V: Arg>(self, key: K, value: V) -> Self::Output<Fixed<(K, V)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 6, "LPUSHX"), route, (key, value)))
    }

    /// `LPOP key`: takes the element at the head; null if there is none.
    fn lpop<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(write(prefix!(2, 4, "LPOP"), route, (key,)))
    }

    /// `LPOP key count`: takes so many at the head; null if there is no list.
    fn lpop_count<R: FromReply, K: Key>(
        self,
        key: K,
        count: u64,
    ) -> Self::Output<Fixed<(K, u64)>, R> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 4, "LPOP"), route, (key, count)))
    }

    /// `RPUSH key element`: adds it at the tail; the new length.
    fn rpush<K: Key, V: Arg>(self, key: K, value: V) -> Self::Output<Fixed<(K, V)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 5, "RPUSH"), route, (key, value)))
    }

    /// `RPUSH key element ...`: adds them at the tail one after another; the new length.
    fn rpush_many(
        self,
        key: impl Key,
        values: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("RPUSH").key(key).args(values))
    }

    /// `RPUSHX key element`: adds it at the tail if there is a list; the new length.
    fn rpushx<K: Key, V: Arg>(self, key: K, value: V) -> Self::Output<Fixed<(K, V)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 6, "RPUSHX"), route, (key, value)))
    }

    /// `RPOP key`: takes the element at the tail; null if there is none.
    fn rpop<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(write(prefix!(2, 4, "RPOP"), route, (key,)))
    }

    /// `RPOP key count`: takes so many at the tail; null if there is no list.
    fn rpop_count<R: FromReply, K: Key>(
        self,
        key: K,
        count: u64,
    ) -> Self::Output<Fixed<(K, u64)>, R> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 4, "RPOP"), route, (key, count)))
    }

    /// `LLEN key`: the length; 0 if there is no list.
    fn llen<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, u64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 4, "LLEN"), route, (key,)))
    }

    /// `LRANGE key start stop`: those elements, both ends included; negative ones count from the
    /// tail.
    fn lrange<R: FromReply, K: Key>(
        self,
        key: K,
        start: i64,
        stop: i64,
    ) -> Self::Output<Fixed<(K, i64, i64)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(4, 6, "LRANGE"), route, (key, start, stop)))
    }

    /// `LINDEX key index`: that element; null if there is none.
    fn lindex<R: FromReply, K: Key>(self, key: K, index: i64) -> Self::Output<Fixed<(K, i64)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 6, "LINDEX"), route, (key, index)))
    }

    /// `LSET key index element`: replaces that element.
    fn lset<K: Key, V: Arg>(
        self,
        key: K,
        index: i64,
        value: V,
    ) -> Self::Output<Fixed<(K, i64, V)>, ()> {
        let route = Route::of(&key);
        self.execute(write(prefix!(4, 4, "LSET"), route, (key, index, value)))
    }

    /// `LREM key count element`: removes so many that are equal, from the tail if negative, all if
    /// 0; how many they were.
    fn lrem<K: Key, V: Arg>(
        self,
        key: K,
        count: i64,
        value: V,
    ) -> Self::Output<Fixed<(K, i64, V)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(4, 4, "LREM"), route, (key, count, value)))
    }

    /// `LTRIM key start stop`: keeps only those elements.
    fn ltrim<K: Key>(
        self,
        key: K,
        start: i64,
        stop: i64,
    ) -> Self::Output<Fixed<(K, i64, i64)>, ()> {
        let route = Route::of(&key);
        self.execute(write(prefix!(4, 5, "LTRIM"), route, (key, start, stop)))
    }

    /// `LINSERT key BEFORE pivot element`: the new length; -1 if there is no such pivot, 0 if there
    /// is no list.
    fn linsert_before(
        self,
        key: impl Key,
        pivot: impl Arg,
        value: impl Arg,
    ) -> Self::Output<Cmd, i64> {
        self.execute(
            Cmd::write("LINSERT")
                .key(key)
                .arg("BEFORE")
                .arg(pivot)
                .arg(value),
        )
    }

    /// `LINSERT key AFTER pivot element`: the new length; -1 if there is no such pivot, 0 if there
    /// is no list.
    fn linsert_after(
        self,
        key: impl Key,
        pivot: impl Arg,
        value: impl Arg,
    ) -> Self::Output<Cmd, i64> {
        self.execute(
            Cmd::write("LINSERT")
                .key(key)
                .arg("AFTER")
                .arg(pivot)
                .arg(value),
        )
    }

    /// `LPOS key element`: the index of the first that is equal.
    fn lpos<K: Key, V: Arg>(self, key: K, value: V) -> Self::Output<Fixed<(K, V)>, Option<u64>> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 4, "LPOS"), route, (key, value)))
    }

    /// `LPOS key element` with options: an index or null; with [`LPosOptions::count`] a list of
    /// them.
    fn lpos_with<R: FromReply>(
        self,
        key: impl Key,
        value: impl Arg,
        options: LPosOptions,
    ) -> Self::Output<Cmd, R> {
        self.execute(options.add(Cmd::read("LPOS").key(key).arg(value)))
    }

    /// `LMOVE source destination LEFT|RIGHT LEFT|RIGHT`: the element that was moved; null if there
    /// is none. Only for keys with one slot.
    fn lmove<R: FromReply>(
        self,
        source: impl Key,
        destination: impl Key,
        from: Side,
        to: Side,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::write("LMOVE").key(source).key(destination);
        self.execute(cmd.arg(from.word()).arg(to.word()))
    }

    /// `RPOPLPUSH source destination`: the element that was moved; null if there is none. Only for
    /// keys with one slot.
    fn rpoplpush<R: FromReply>(
        self,
        source: impl Key,
        destination: impl Key,
    ) -> Self::Output<Cmd, R> {
        self.execute(Cmd::write("RPOPLPUSH").key(source).key(destination))
    }

    /// `LMPOP numkeys key ... LEFT|RIGHT COUNT count`: takes up to so many from the first list that
    /// has any: its key and the elements, `Option<(String, Vec<String>)>`. Only for keys with one
    /// slot.
    fn lmpop<R: FromReply>(
        self,
        keys: impl IntoIterator<Item: Key>,
        side: Side,
        count: u64,
    ) -> Self::Output<Cmd, R> {
        let cmd = Cmd::write("LMPOP").counted(keys, Cmd::key);
        self.execute(cmd.arg(side.word()).arg("COUNT").arg(count))
    }
}

impl<T: Commands> ListCommands for T {}
