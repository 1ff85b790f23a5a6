//! HyperLogLog: <https://redis.io/docs/latest/commands/?group=hyperloglog>.

use super::{Commands, Key, read, write};
use crate::cmd::Cmd;
use crate::command::{Fixed, Route};
use crate::prefix;
use crate::resp::Arg;

/// Commands that estimate how many different elements were seen.
pub trait HyperLogLogCommands: Commands {
    /// `PFADD key element`: whether the estimate may have changed.
    fn pfadd<K: Key, E: Arg>(self, key: K, element: E) -> Self::Given<Fixed<(K, E)>, bool> {
        let route = Route::of(&key);
        self.give(write(prefix!(3, 5, "PFADD"), route, (key, element)))
    }

    /// `PFADD key element ...`: whether the estimate may have changed.
    fn pfadd_many(
        self,
        key: impl Key,
        elements: impl IntoIterator<Item: Arg>,
    ) -> Self::Given<Cmd, bool> {
        self.give(Cmd::write("PFADD").key(key).args(elements))
    }

    /// `PFCOUNT key`: about how many different elements were added, within 1 %.
    fn pfcount<K: Key>(self, key: K) -> Self::Given<Fixed<(K,)>, u64> {
        let route = Route::of(&key);
        self.give(read(prefix!(2, 7, "PFCOUNT"), route, (key,)))
    }

    /// `PFCOUNT key ...`: the same for all together. Only for keys with one slot.
    fn pfcount_many(self, keys: impl IntoIterator<Item: Key>) -> Self::Given<Cmd, u64> {
        self.give(Cmd::read("PFCOUNT").keys(keys))
    }

    /// `PFMERGE destination source ...`. Only for keys with one slot.
    fn pfmerge(
        self,
        destination: impl Key,
        sources: impl IntoIterator<Item: Key>,
    ) -> Self::Given<Cmd, ()> {
        self.give(Cmd::write("PFMERGE").key(destination).keys(sources))
    }
}

impl<T: Commands> HyperLogLogCommands for T {}
