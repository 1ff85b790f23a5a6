//! Which broker of a cluster to start, and what region it belongs to.

use std::net::SocketAddr;
use std::path::PathBuf;

use embar_memory::Coherence;

/// Which broker of a cluster to start.
#[derive(Clone, Debug)]
pub enum Role {
    /// The broker that creates the region, owns the topics, and sequences first. It takes no data,
    /// unless it is alone.
    Head {
        /// Directory of the region; made if it is not there.
        dir: PathBuf,
        /// The region to create, or what one that is there must match.
        region: RegionSpec,
    },
    /// A broker that takes data.
    Follower {
        /// How it finds its place.
        entry: Entry,
        /// How processes see each other's stores: as at the head.
        coherence: Coherence,
    },
    /// A broker that takes no data, and sequences when no other candidate does.
    Standby {
        /// How it finds its place.
        entry: Entry,
        /// How processes see each other's stores: as at the head.
        coherence: Coherence,
    },
}

impl Role {
    /// How processes see each other's stores.
    pub(super) fn coherence(&self) -> Coherence {
        match self {
            Self::Head { region, .. } => region.coherence,
            Self::Follower { coherence, .. } | Self::Standby { coherence, .. } => *coherence,
        }
    }
}

/// How a broker that joins finds its place.
#[derive(Clone, Debug)]
pub enum Entry {
    /// The head answers where the region is, and which row is free.
    Head {
        /// Address of the head, or of a standby, which knows as much.
        address: SocketAddr,
        /// The row to take; `None` takes one whose owner is dead, or a free one.
        id: Option<u16>,
    },
    /// The caller knows both, so the head may be gone or stand still: the row's lock says whether the row is
    /// free.
    Region {
        /// Directory of the region.
        dir: PathBuf,
        /// The row to take.
        id: u16,
    },
}

/// The region that a head wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Bytes of shared memory in all; at least 32 MiB for each data broker.
    pub bytes: u64,
    /// Brokers that take data; with none the head is alone and takes it itself.
    pub data_brokers: u16,
    /// Brokers that stand by to sequence.
    pub standbys: u16,
    /// Brokers that may join later and take data. Their payload comes on top of `bytes`, as much as
    /// that of each other one, and is taken when they join.
    pub spares: u16,
    /// Topics that there may be at the same time; `None` for as many as [`Geometry::for_cluster`] plans
    /// with.
    ///
    /// [`Geometry::for_cluster`]: embar_fabric::geometry::Geometry::for_cluster
    pub topics: Option<u16>,
    /// Sessions of publishers that there is room for, if that is less than what goes with `bytes`.
    pub sessions: Option<u32>,
    /// Throw a stale region away instead of taking it over with its data.
    pub fresh: bool,
    /// How processes see each other's stores.
    pub coherence: Coherence,
}
