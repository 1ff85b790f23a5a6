//! Methods for the commands on places on earth: <https://redis.io/docs/latest/commands/?group=geo>.

use super::options::{GeoAddOptions, GeoFrom, GeoSearchOptions, GeoShape, GeoUnit};
use super::{Commands, Key};
use crate::cmd::Cmd;
use crate::resp::{Arg, FromReply};

/// Commands for places on earth.
pub trait GeoCommands: Commands {
    /// `GEOADD key longitude latitude member ...`, in degrees: how many are new.
    fn geoadd(
        self,
        key: impl Key,
        options: GeoAddOptions,
        places: impl IntoIterator<Item = (f64, f64, impl Arg)>,
    ) -> Self::Output<Cmd, u64> {
        let cmd = options.add(Cmd::write("GEOADD").key(key));
        let add =
            |cmd: Cmd, (longitude, latitude, member)| cmd.arg(longitude).arg(latitude).arg(member);
        self.execute(places.into_iter().fold(cmd, add))
    }

    /// `GEOPOS key member ...`: longitude and latitude of each that is one.
    fn geopos(
        self,
        key: impl Key,
        members: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, Vec<Option<(f64, f64)>>> {
        self.execute(Cmd::read("GEOPOS").key(key).args(members))
    }

    /// `GEODIST key member1 member2 unit`: how far it is, if both are there.
    fn geodist(
        self,
        key: impl Key,
        first: impl Arg,
        second: impl Arg,
        unit: GeoUnit,
    ) -> Self::Output<Cmd, Option<f64>> {
        let cmd = Cmd::read("GEODIST").key(key).arg(first).arg(second);
        self.execute(cmd.arg(unit.word()))
    }

    /// `GEOHASH key member ...`: 11 letters each, as <https://en.wikipedia.org/wiki/Geohash> says.
    fn geohash(
        self,
        key: impl Key,
        members: impl IntoIterator<Item: Arg>,
    ) -> Self::Output<Cmd, Vec<Option<String>>> {
        self.execute(Cmd::read("GEOHASH").key(key).args(members))
    }

    /// `GEOSEARCH key FROM... BY...`: the members within; with options a list of rows: the member,
    /// its distance, its (longitude, latitude).
    fn geosearch<R: FromReply>(
        self,
        key: impl Key,
        from: GeoFrom<'_>,
        shape: GeoShape,
        options: GeoSearchOptions,
    ) -> Self::Output<Cmd, R> {
        let cmd = from.add(Cmd::read("GEOSEARCH").key(key));
        self.execute(options.add(shape.add(cmd)))
    }

    /// `GEOSEARCHSTORE destination source FROM... BY...`: how many it stored. No row options. Only
    /// for keys with one slot.
    fn geosearchstore(
        self,
        destination: impl Key,
        source: impl Key,
        from: GeoFrom<'_>,
        shape: GeoShape,
        options: GeoSearchOptions,
    ) -> Self::Output<Cmd, u64> {
        let cmd = Cmd::write("GEOSEARCHSTORE").key(destination).key(source);
        self.execute(options.add(shape.add(from.add(cmd))))
    }
}

impl<T: Commands> GeoCommands for T {}
