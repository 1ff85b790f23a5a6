//! Methods for the commands on keys of any type: <https://redis.io/docs/latest/commands/?group=generic>.

use super::options::{CopyOptions, ExpireIf, RestoreOptions, SortOptions};
use super::{Commands, Key, read, write};
use crate::cmd::Cmd;
use crate::command::{Fixed, Route};
use crate::prefix;
use crate::resp::{Arg, FromReply};

/// Commands for keys of any type.
pub trait KeyCommands: Commands {
    /// `DEL key`: how many were deleted, 0 or 1.
    fn del<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(2, 3, "DEL"), route, (key,)))
    }

    /// `DEL key ...`: how many were deleted, those of a slot at once.
    fn del_many(self, keys: impl IntoIterator<Item: Key>) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("DEL").keys(keys))
    }

    /// `UNLINK key`: how many were removed, 0 or 1; the memory is freed later.
    fn unlink<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, u64> {
        let route = Route::of(&key);
        self.execute(write(prefix!(2, 6, "UNLINK"), route, (key,)))
    }

    /// `UNLINK key ...`: how many were removed, those of a slot at once.
    fn unlink_many(self, keys: impl IntoIterator<Item: Key>) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::write("UNLINK").keys(keys))
    }

    /// `EXISTS key`: whether it is there.
    fn exists<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, bool> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 6, "EXISTS"), route, (key,)))
    }

    /// `EXISTS key ...`: how many are there.
    fn exists_many(self, keys: impl IntoIterator<Item: Key>) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::read("EXISTS").keys(keys))
    }

    /// `TOUCH key ...`: how many are there; they count as used now.
    fn touch(self, keys: impl IntoIterator<Item: Key>) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::read("TOUCH").keys(keys))
    }

    /// `EXPIRE key time`: it expires after so long; whether it is there.
    fn expire<K: Key>(self, key: K, seconds: u64) -> Self::Output<Fixed<(K, u64)>, bool> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 6, "EXPIRE"), route, (key, seconds)))
    }

    /// `EXPIRE key time NX|XX|GT|LT`: the same under a condition; whether it was met.
    fn expire_if(
        self,
        key: impl Key,
        seconds: u64,
        condition: ExpireIf,
    ) -> Self::Output<Cmd, bool> {
        let cmd = Cmd::write("EXPIRE").key(key).arg(seconds);
        self.execute(cmd.arg(condition.word()))
    }

    /// `PEXPIRE key time`: it expires after so long; whether it is there.
    fn pexpire<K: Key>(self, key: K, millis: u64) -> Self::Output<Fixed<(K, u64)>, bool> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 7, "PEXPIRE"), route, (key, millis)))
    }

    /// `PEXPIRE key time NX|XX|GT|LT`: the same under a condition; whether it was met.
    fn pexpire_if(
        self,
        key: impl Key,
        millis: u64,
        condition: ExpireIf,
    ) -> Self::Output<Cmd, bool> {
        let cmd = Cmd::write("PEXPIRE").key(key).arg(millis);
        self.execute(cmd.arg(condition.word()))
    }

    /// `EXPIREAT key time`: it expires then, in seconds of Unix time; whether it is there.
    fn expireat<K: Key>(self, key: K, at_seconds: u64) -> Self::Output<Fixed<(K, u64)>, bool> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 8, "EXPIREAT"), route, (key, at_seconds)))
    }

    /// `EXPIREAT key time NX|XX|GT|LT`: the same under a condition; whether it was met.
    fn expireat_if(
        self,
        key: impl Key,
        at_seconds: u64,
        condition: ExpireIf,
    ) -> Self::Output<Cmd, bool> {
        let cmd = Cmd::write("EXPIREAT").key(key).arg(at_seconds);
        self.execute(cmd.arg(condition.word()))
    }

    /// `PEXPIREAT key time`: it expires then, in milliseconds of Unix time; whether it is there.
    fn pexpireat<K: Key>(self, key: K, at_millis: u64) -> Self::Output<Fixed<(K, u64)>, bool> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 9, "PEXPIREAT"), route, (key, at_millis)))
    }

    /// `PEXPIREAT key time NX|XX|GT|LT`: the same under a condition; whether it was met.
    fn pexpireat_if(
        self,
        key: impl Key,
        at_millis: u64,
        condition: ExpireIf,
    ) -> Self::Output<Cmd, bool> {
        let cmd = Cmd::write("PEXPIREAT").key(key).arg(at_millis);
        self.execute(cmd.arg(condition.word()))
    }

    /// `EXPIRETIME key`: when it expires, seconds of Unix time; -1: never, -2: it is not there.
    fn expiretime<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, i64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 10, "EXPIRETIME"), route, (key,)))
    }

    /// `PEXPIRETIME key`: when it expires, milliseconds of Unix time; -1: never, -2: it is not
    /// there.
    fn pexpiretime<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, i64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 11, "PEXPIRETIME"), route, (key,)))
    }

    /// `TTL key`: seconds until it expires; -1: never, -2: it is not there.
    fn ttl<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, i64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 3, "TTL"), route, (key,)))
    }

    /// `PTTL key`: milliseconds until it expires; -1: never, -2: it is not there.
    fn pttl<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, i64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 4, "PTTL"), route, (key,)))
    }

    /// `PERSIST key`: it does not expire any more; whether it would have.
    fn persist<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, bool> {
        let route = Route::of(&key);
        self.execute(write(prefix!(2, 7, "PERSIST"), route, (key,)))
    }

    /// `TYPE key`: `string`, `hash`, `list`, `set`, `zset`, `stream`; `none` if it is not there.
    fn type_of<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, String> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 4, "TYPE"), route, (key,)))
    }

    /// `RENAME key newkey`: an error if it is not there. Only for keys with one slot.
    fn rename(self, key: impl Key, to: impl Key) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("RENAME").key(key).key(to))
    }

    /// `RENAMENX key newkey`: whether there was no such key, and it is renamed. Only for keys with
    /// one slot.
    fn renamenx(self, key: impl Key, to: impl Key) -> Self::Output<Cmd, bool> {
        self.execute(Cmd::write("RENAMENX").key(key).key(to))
    }

    /// `COPY source destination`: whether it was copied. Only for keys with one slot.
    fn copy(
        self,
        source: impl Key,
        destination: impl Key,
        options: CopyOptions,
    ) -> Self::Output<Cmd, bool> {
        self.execute(options.add(Cmd::write("COPY").key(source).key(destination)))
    }

    /// `MOVE key db`: whether it was moved there. Not in a cluster.
    fn move_to<K: Key>(self, key: K, database: u32) -> Self::Output<Fixed<(K, u32)>, bool> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 4, "MOVE"), route, (key, database)))
    }

    /// `DUMP key`: what [`restore`](KeyCommands::restore) takes; null if it is not there.
    fn dump<R: FromReply, K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, R> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 4, "DUMP"), route, (key,)))
    }

    /// `RESTORE key ttl serialized-value`: creates it from a dump; it expires after so many
    /// milliseconds, never if 0.
    fn restore(
        self,
        key: impl Key,
        ttl_millis: u64,
        dump: impl Arg,
        options: RestoreOptions,
    ) -> Self::Output<Cmd, ()> {
        let cmd = Cmd::write("RESTORE").key(key).arg(ttl_millis);
        self.execute(options.add(cmd.arg(dump)))
    }

    /// `OBJECT ENCODING key`: how it is stored, `listpack` for example.
    fn object_encoding(self, key: impl Key) -> Self::Output<Cmd, Option<String>> {
        self.execute(Cmd::read("OBJECT").arg("ENCODING").key(key))
    }

    /// `OBJECT FREQ key`: how often it is used, if the server counts that (`maxmemory-policy` LFU).
    fn object_freq(self, key: impl Key) -> Self::Output<Cmd, Option<u64>> {
        self.execute(Cmd::read("OBJECT").arg("FREQ").key(key))
    }

    /// `OBJECT IDLETIME key`: seconds since it was used.
    fn object_idletime(self, key: impl Key) -> Self::Output<Cmd, Option<u64>> {
        self.execute(Cmd::read("OBJECT").arg("IDLETIME").key(key))
    }

    /// `OBJECT REFCOUNT key`: how many references there are to its value.
    fn object_refcount(self, key: impl Key) -> Self::Output<Cmd, Option<u64>> {
        self.execute(Cmd::read("OBJECT").arg("REFCOUNT").key(key))
    }

    /// `SORT key`: the elements of a list, set or sorted set in order.
    fn sort<R: FromReply>(self, key: impl Key, options: SortOptions<'_>) -> Self::Output<Cmd, R> {
        self.execute(options.add(Cmd::write("SORT").key(key)))
    }

    /// `SORT_RO key`: the same, which a replica does too.
    fn sort_ro<R: FromReply>(
        self,
        key: impl Key,
        options: SortOptions<'_>,
    ) -> Self::Output<Cmd, R> {
        self.execute(options.add(Cmd::read("SORT_RO").key(key)))
    }

    /// `SORT key STORE destination`: stores them as a list; how many they are. Only for keys with one
    /// slot.
    fn sort_store(
        self,
        key: impl Key,
        options: SortOptions<'_>,
        destination: impl Key,
    ) -> Self::Output<Cmd, u64> {
        let cmd = options.add(Cmd::write("SORT").key(key));
        self.execute(cmd.arg("STORE").key(destination))
    }

    /// `RANDOMKEY`: a key of some primary at random; null if there is none.
    fn randomkey<R: FromReply>(self) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("RANDOMKEY"))
    }

    /// `KEYS pattern`: all keys that match, of all primaries. These do nothing else meanwhile: see [`Client::scan`](crate::Client::scan).
    fn keys<R: FromReply>(self, pattern: impl Arg) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("KEYS").arg(pattern))
    }
}

impl<T: Commands> KeyCommands for T {}
