//! Options of commands for places on earth.

use super::words;
use crate::cmd::Cmd;

words! {
    /// What distances are in.
    GeoUnit {
        /// Metres.
        Metres => "m",
        /// Kilometres.
        Kilometres => "km",
        /// Miles.
        Miles => "mi",
        /// Feet.
        Feet => "ft",
    }
}

/// Options of `GEOADD`.
#[derive(Debug, Clone, Copy, Default)]
pub struct GeoAddOptions {
    presence: Option<&'static str>,
    changed: bool,
}

impl GeoAddOptions {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `NX`: only adds new members.
    #[must_use]
    pub fn if_absent(mut self) -> Self {
        self.presence = Some("NX");
        self
    }

    /// `XX`: only moves members.
    #[must_use]
    pub fn if_present(mut self) -> Self {
        self.presence = Some("XX");
        self
    }

    /// `CH`: the result counts members that were moved too.
    #[must_use]
    pub fn changed(mut self) -> Self {
        self.changed = true;
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        cmd.args(self.presence).word_if(self.changed, "CH")
    }
}

/// The middle of a search.
#[derive(Debug, Clone, Copy)]
pub enum GeoFrom<'a> {
    /// `FROMMEMBER`: where this member is.
    Member(&'a str),
    /// `FROMLONLAT`: longitude and latitude, degrees.
    Position(f64, f64),
}

impl GeoFrom<'_> {
    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        match self {
            Self::Member(member) => cmd.arg("FROMMEMBER").arg(member),
            Self::Position(longitude, latitude) => {
                cmd.arg("FROMLONLAT").arg(longitude).arg(latitude)
            }
        }
    }
}

/// How far a search goes.
#[derive(Debug, Clone, Copy)]
pub enum GeoShape {
    /// `BYRADIUS`.
    Radius(f64, GeoUnit),
    /// `BYBOX`: width and height.
    Box(f64, f64, GeoUnit),
}

impl GeoShape {
    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        match self {
            Self::Radius(radius, unit) => cmd.arg("BYRADIUS").arg(radius).arg(unit.word()),
            Self::Box(width, height, unit) => {
                cmd.arg("BYBOX").arg(width).arg(height).arg(unit.word())
            }
        }
    }
}

/// Options of `GEOSEARCH`.
#[derive(Debug, Clone, Copy, Default)]
pub struct GeoSearchOptions {
    order: Option<&'static str>,
    count: Option<(u64, bool)>,
    positions: bool,
    distances: bool,
    store_distances: bool,
}

impl GeoSearchOptions {
    /// No options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `ASC`: the nearest first.
    #[must_use]
    pub fn nearest_first(mut self) -> Self {
        self.order = Some("ASC");
        self
    }

    /// `DESC`: the farthest first.
    #[must_use]
    pub fn farthest_first(mut self) -> Self {
        self.order = Some("DESC");
        self
    }

    /// `COUNT`: the nearest so many.
    #[must_use]
    pub fn count(mut self, count: u64) -> Self {
        self.count = Some((count, false));
        self
    }

    /// `COUNT ... ANY`: so many, not always the nearest.
    #[must_use]
    pub fn any(mut self, count: u64) -> Self {
        self.count = Some((count, true));
        self
    }

    /// `WITHCOORD`: where they are. Not where the result is stored.
    #[must_use]
    pub fn positions(mut self) -> Self {
        self.positions = true;
        self
    }

    /// `WITHDIST`: how far they are, in the unit of the search. Not where the result is stored.
    #[must_use]
    pub fn distances(mut self) -> Self {
        self.distances = true;
        self
    }

    /// `STOREDIST`: the server stores distances as scores. Only where the result is stored.
    #[must_use]
    pub fn store_distances(mut self) -> Self {
        self.store_distances = true;
        self
    }

    pub(crate) fn add(self, cmd: Cmd) -> Cmd {
        let cmd = cmd.args(self.order);
        let cmd = cmd.option("COUNT", self.count.map(|(count, _)| count));
        let cmd = cmd.word_if(self.count.is_some_and(|(_, any)| any), "ANY");
        let cmd = cmd.word_if(self.positions, "WITHCOORD");
        let cmd = cmd.word_if(self.distances, "WITHDIST");
        cmd.word_if(self.store_distances, "STOREDIST")
    }
}
