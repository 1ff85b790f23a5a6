//! Methods for the commands on bitmaps: <https://redis.io/docs/latest/commands/?group=bitmap>.

use super::options::{BitField, BitOp, BitUnit};
use super::{Commands, Key, read};
use crate::cmd::Cmd;
use crate::command::{Fixed, Route};
use crate::prefix;
use crate::resp::Arg;

/// Commands for strings as rows of bits.
pub trait BitmapCommands: Commands {
    /// `GETBIT key offset`: that bit.
    fn getbit<K: Key>(self, key: K, offset: u64) -> Self::Output<Fixed<(K, u64)>, bool> {
        let route = Route::of(&key);
        self.execute(read(prefix!(3, 6, "GETBIT"), route, (key, offset)))
    }

    /// `SETBIT key offset value`: the bit before.
    fn setbit(self, key: impl Key, offset: u64, bit: bool) -> Self::Output<Cmd, bool> {
        self.execute(Cmd::write("SETBIT").key(key).arg(offset).arg(u8::from(bit)))
    }

    /// `BITCOUNT key`: how many bits are set.
    fn bitcount<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, u64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 8, "BITCOUNT"), route, (key,)))
    }

    /// `BITCOUNT key start end BYTE|BIT`: how many of those; negative ones count from the end.
    fn bitcount_range(
        self,
        key: impl Key,
        start: i64,
        end: i64,
        unit: BitUnit,
    ) -> Self::Output<Cmd, u64> {
        let cmd = Cmd::read("BITCOUNT").key(key).arg(start).arg(end);
        self.execute(cmd.arg(unit.word()))
    }

    /// `BITPOS key bit`: where the first such bit is; -1: nowhere.
    fn bitpos(self, key: impl Key, bit: bool) -> Self::Output<Cmd, i64> {
        self.execute(Cmd::read("BITPOS").key(key).arg(u8::from(bit)))
    }

    /// `BITPOS key bit start end BYTE|BIT`: the first of those.
    fn bitpos_range(
        self,
        key: impl Key,
        bit: bool,
        start: i64,
        end: i64,
        unit: BitUnit,
    ) -> Self::Output<Cmd, i64> {
        let cmd = Cmd::read("BITPOS").key(key).arg(u8::from(bit));
        self.execute(cmd.arg(start).arg(end).arg(unit.word()))
    }

    /// `BITOP AND|OR|XOR|NOT destination key ...`: the length of the result in bytes. Only for keys
    /// with one slot.
    fn bitop(
        self,
        op: BitOp,
        destination: impl Key,
        keys: impl IntoIterator<Item: Key>,
    ) -> Self::Output<Cmd, usize> {
        let cmd = Cmd::write("BITOP").arg(op.word()).key(destination);
        self.execute(cmd.keys(keys))
    }

    /// `BITFIELD key operation ...`: the result of each `GET`, `SET` and `INCRBY`; none for one that
    /// would have overflowed and was to fail then.
    fn bitfield(
        self,
        key: impl Key,
        operations: impl IntoIterator<Item = BitField>,
    ) -> Self::Output<Cmd, Vec<Option<i64>>> {
        let cmd = Cmd::write("BITFIELD").key(key);
        self.execute(
            operations
                .into_iter()
                .fold(cmd, |cmd, operation| operation.add(cmd)),
        )
    }

    /// `BITFIELD_RO key GET encoding offset ...`: the numbers there, for example `u8` at `0` and
    /// `i5` at `#2`.
    fn bitfield_ro(
        self,
        key: impl Key,
        fields: impl IntoIterator<Item = (impl Arg, impl Arg)>,
    ) -> Self::Output<Cmd, Vec<i64>> {
        let cmd = Cmd::read("BITFIELD_RO").key(key);
        let get = |cmd: Cmd, (kind, offset)| cmd.arg("GET").arg(kind).arg(offset);
        self.execute(fields.into_iter().fold(cmd, get))
    }
}

impl<T: Commands> BitmapCommands for T {}
