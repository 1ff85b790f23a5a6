//! How a broker comes by its region and its row: the head creates a region or takes one over, the others join it.

use std::net::SocketAddr;
use std::path::Path;

use embar_fabric::error::RegionError;
use embar_fabric::owner::Claim;
use embar_fabric::region::{Probe, Region};
use embar_fabric::{ClusterShape, Geometry};
use embar_memory::{Coherence, Mapped};

use super::join;
use super::progress::Progress;
use super::role::{Entry, RegionSpec};
use super::start_error::StartError;
use crate::config::BrokerConfig;
use crate::places::{HEAD, NoPlace, check_row, rows_to_join};

/// What every region's directory holds.
const CONTROL_FILE: &str = "control";

/// A region, and a row of it.
pub(super) struct Place {
    pub region: Region<Mapped>,
    pub claim: Claim,
    /// This start made the region: nobody has anything in it.
    is_new: bool,
}

impl Place {
    /// Gives it up, as this start fails. A new region goes: its memory would be taken, and the next start may want another.
    pub(super) fn give_up(self) {
        let dir = self.region.dir().map(Path::to_owned);
        let Some(dir) = dir.filter(|_| self.is_new) else {
            return;
        };
        drop(self);
        if let Err(error) = Region::discard(&dir) {
            tracing::warn!(dir = %dir.display(), "cannot remove the region of a start that failed: {error}");
        }
    }
}

/// The head's part: a region in `dir`, new or taken over, for a log on so many disks.
pub(super) fn open_as_head(
    dir: &Path,
    spec: RegionSpec,
    disks: u16,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Place, StartError> {
    let geometry = geometry_of(&spec, disks)?;
    let (region, is_new) = match Region::probe(dir) {
        Probe::Stale { .. } if !spec.fresh => {
            tracing::info!(dir = %dir.display(), "taking over the region of a cluster that is gone");
            (take_over(dir, &geometry, spec.coherence)?, false)
        }
        // Others of the cluster live: only its head is gone.
        Probe::InUse { rows } if !spec.fresh && lack_a_head(&rows) => {
            tracing::info!(dir = %dir.display(), "going on as the head of a cluster that lost its own");
            (take_over(dir, &geometry, spec.coherence)?, false)
        }
        Probe::Stale { .. } => {
            tracing::info!(dir = %dir.display(), "discarding the region of a cluster that is gone");
            (recreate(dir, &geometry, spec.coherence, progress)?, true)
        }
        // Creating reports best what is in the way, if anything is.
        Probe::Absent => (create(dir, &geometry, spec.coherence, progress)?, true),
        Probe::InUse { rows } => {
            let dir = dir.to_owned();
            return Err(RegionError::InUse { dir, rows }.into());
        }
        // The files of another program: creating refuses them by name.
        Probe::Damaged(_) if !dir.join(CONTROL_FILE).exists() => {
            (create(dir, &geometry, spec.coherence, progress)?, true)
        }
        Probe::Unfinished => {
            tracing::warn!(dir = %dir.display(), "the creation of this region was interrupted: it is made anew");
            (recreate(dir, &geometry, spec.coherence, progress)?, true)
        }
        Probe::Damaged(_) | Probe::OtherVersion { .. } if spec.fresh => {
            (recreate(dir, &geometry, spec.coherence, progress)?, true)
        }
        // Opening reports best what is wrong with it.
        Probe::Damaged(_) | Probe::OtherVersion { .. } | Probe::Denied => {
            (Region::open(dir, spec.coherence)?, false)
        }
    };
    let claim = region.claim(HEAD)?;
    Ok(Place {
        region,
        claim,
        is_new,
    })
}

fn geometry_of(spec: &RegionSpec, disks: u16) -> Result<Geometry, StartError> {
    let mut geometry = Geometry::for_cluster(ClusterShape {
        region_bytes: spec.bytes,
        data_brokers: spec.data_brokers,
        standbys: spec.standbys,
        spares: spec.spares,
        topics: spec.topics,
        disks,
    })?;
    if let Some(most) = spec.sessions {
        geometry.sessions = most.min(geometry.sessions);
    }
    Ok(geometry)
}

fn recreate(
    dir: &Path,
    geometry: &Geometry,
    coherence: Coherence,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Region<Mapped>, StartError> {
    Region::discard(dir)?;
    create(dir, geometry, coherence, progress)
}

fn create(
    dir: &Path,
    geometry: &Geometry,
    coherence: Coherence,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Region<Mapped>, StartError> {
    let total = geometry.total_bytes();
    Ok(Region::create_with_progress(
        dir,
        geometry,
        coherence,
        &|done| progress(Progress::Reserving { done, total }),
    )?)
}

/// Whether live processes hold rows, but none holds the head's. While a region is being created, no row is
/// held at all.
fn lack_a_head(rows: &[(u16, u32)]) -> bool {
    !rows.is_empty() && rows.iter().all(|(row, _)| *row != HEAD)
}

/// A region that is there, if it has the shape that is wanted.
fn take_over(
    dir: &Path,
    wanted: &Geometry,
    coherence: Coherence,
) -> Result<Region<Mapped>, StartError> {
    let region = Region::open(dir, coherence)?;
    let found = region.geometry();
    if found == wanted {
        return Ok(region);
    }
    Err(StartError::other_shape(dir, found))
}

/// The part of a broker that joins: a row of the region whose owner, if it ever had one, is dead.
pub(super) fn join_region(
    entry: Entry,
    takes_data: bool,
    coherence: Coherence,
    config: &BrokerConfig,
) -> Result<Place, StartError> {
    let (region, claim) = match entry {
        Entry::Head { address, id } => join_by_head(address, id, takes_data, coherence, config)?,
        Entry::Region { dir, id } => {
            let region = Region::open(&dir, coherence)?;
            check_row(region.geometry(), id, takes_data)?;
            let claim = region.claim(id)?;
            (region, claim)
        }
    };
    let is_new = false;
    Ok(Place {
        region,
        claim,
        is_new,
    })
}

/// As [`join_region`], in the region that the head names.
fn join_by_head(
    head: SocketAddr,
    id: Option<u16>,
    takes_data: bool,
    coherence: Coherence,
    config: &BrokerConfig,
) -> Result<(Region<Mapped>, Claim), StartError> {
    let fail = |why: String| StartError::Join { head, why };
    let offered = join::request_place(head, config.listen, takes_data)?;
    let region = Region::open(&offered.dir, coherence)?;
    if u64::from(region.nonce()) != offered.nonce {
        let dir = offered.dir.display();
        return Err(fail(format!(
            "{dir} holds another region than the head's: both must see the same memory"
        )));
    }
    if let Some(id) = id {
        check_row(region.geometry(), id, takes_data).map_err(|why| fail(why.to_string()))?;
        let claim = region.claim(id)?;
        return Ok((region, claim));
    }
    // What the head offers first; another broker may have come in between.
    let rows = rows_to_join(region.geometry(), takes_data);
    let first = rows.iter().filter(|row| **row == offered.row);
    let others = rows.iter().filter(|row| **row != offered.row);
    for row in first.chain(others) {
        match region.claim(*row) {
            Ok(claim) => return Ok((region, claim)),
            Err(RegionError::InUse { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let why = NoPlace::in_cluster(region.geometry(), takes_data);
    Err(fail(why.to_string()))
}
