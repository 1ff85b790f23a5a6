//! Methods for unions, intersections and differences of sorted sets:
//! <https://redis.io/docs/latest/commands/?group=sorted-set>.

use super::options::ZCombine;
use super::{Commands, Key};
use crate::cmd::Cmd;
use crate::resp::FromReply;

/// Commands that combine sorted sets. All their keys must have one slot.
pub trait SortedSetAlgebra: Commands {
    /// `ZUNION numkeys key ...`: members of any; with [`ZCombine::scores`] a list of pairs.
    fn zunion<R: FromReply>(
        self,
        keys: impl IntoIterator<Item: Key>,
        how: ZCombine<'_>,
    ) -> Self::Output<Cmd, R> {
        self.execute(how.add(Cmd::read("ZUNION").counted(keys, Cmd::key)))
    }

    /// `ZUNIONSTORE destination numkeys key ...`: stores members of any; how many they are.
    fn zunionstore(
        self,
        destination: impl Key,
        keys: impl IntoIterator<Item: Key>,
        how: ZCombine<'_>,
    ) -> Self::Output<Cmd, u64> {
        let cmd = Cmd::write("ZUNIONSTORE").key(destination);
        self.execute(how.add(cmd.counted(keys, Cmd::key)))
    }

    /// `ZINTER numkeys key ...`: members of all; with [`ZCombine::scores`] a list of pairs.
    fn zinter<R: FromReply>(
        self,
        keys: impl IntoIterator<Item: Key>,
        how: ZCombine<'_>,
    ) -> Self::Output<Cmd, R> {
        self.execute(how.add(Cmd::read("ZINTER").counted(keys, Cmd::key)))
    }

    /// `ZINTERSTORE destination numkeys key ...`: stores members of all; how many they are.
    fn zinterstore(
        self,
        destination: impl Key,
        keys: impl IntoIterator<Item: Key>,
        how: ZCombine<'_>,
    ) -> Self::Output<Cmd, u64> {
        let cmd = Cmd::write("ZINTERSTORE").key(destination);
        self.execute(how.add(cmd.counted(keys, Cmd::key)))
    }

    /// `ZDIFF numkeys key ...`: members of the first that no other has.
    fn zdiff<R: FromReply>(self, keys: impl IntoIterator<Item: Key>) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("ZDIFF").counted(keys, Cmd::key))
    }

    /// `ZDIFF numkeys key ... WITHSCORES`: the same with their scores.
    fn zdiff_with_scores<R: FromReply>(
        self,
        keys: impl IntoIterator<Item: Key>,
    ) -> Self::Output<Cmd, R> {
        self.execute(Cmd::read("ZDIFF").counted(keys, Cmd::key).arg("WITHSCORES"))
    }

    /// `ZDIFFSTORE destination numkeys key ...`: stores members of the first that no other has; how
    /// many they are.
    fn zdiffstore(
        self,
        destination: impl Key,
        keys: impl IntoIterator<Item: Key>,
    ) -> Self::Output<Cmd, u64> {
        self.execute(
            Cmd::write("ZDIFFSTORE")
                .key(destination)
                .counted(keys, Cmd::key),
        )
    }

    /// `ZINTERCARD numkeys key ... LIMIT limit`: how many members all have; it stops to count at the
    /// limit, unless that is 0.
    fn zintercard(self, keys: impl IntoIterator<Item: Key>, limit: u64) -> Self::Output<Cmd, u64> {
        let cmd = Cmd::read("ZINTERCARD").counted(keys, Cmd::key);
        self.execute(cmd.arg("LIMIT").arg(limit))
    }
}

impl<T: Commands> SortedSetAlgebra for T {}
