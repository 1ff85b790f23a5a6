//! Methods for the commands on HyperLogLogs: <https://redis.io/docs/latest/commands/?group=hyperloglog>.

use super::{Commands, Key, read, write};
use crate::cmd::Cmd;
use crate::command::{Fixed, Route};
use crate::prefix;
use crate::resp::Arg;

/// Commands that estimate how many different elements were seen.
pub trait HyperLogLogCommands: Commands {
    /// `PFADD key element`: whether the estimate may have changed.
    fn pfadd<K: Key, E: Arg>(self, key: K, element: E) -> Self::Output<Fixed<(K, E)>, bool> {
        let route = Route::of(&key);
        self.execute(write(prefix!(3, 5, "PFADD"), route, (key, element)))
    }

    /// `PFADD key element ...`: whether the estimate may have changed.
    fn pfadd_many(
        self,
        key: impl Key,
        elements: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, bool> {
        self.execute(Cmd::write("PFADD").key(key).args(elements))
    }

    /// `PFCOUNT key`: about how many different elements were added, within 1 %.
    fn pfcount<K: Key>(self, key: K) -> Self::Output<Fixed<(K,)>, u64> {
        let route = Route::of(&key);
        self.execute(read(prefix!(2, 7, "PFCOUNT"), route, (key,)))
    }

    /// `PFCOUNT key ...`: the same for all together. Only for keys with one slot.
    fn pfcount_many(self, keys: impl IntoIterator<Item: Key>) -> Self::Output<Cmd, u64> {
        self.execute(Cmd::read("PFCOUNT").keys(keys))
    }

    /// `PFMERGE destination source ...`. Only for keys with one slot.
    fn pfmerge(
        self,
        destination: impl Key,
        sources: impl IntoIterator<Item: Key>,
    ) -> Self::Output<Cmd, ()> {
        self.execute(Cmd::write("PFMERGE").key(destination).keys(sources))
    }
}

impl<T: Commands> HyperLogLogCommands for T {}
