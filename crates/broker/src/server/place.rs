//! The region and the row of a broker: the head makes or takes over a region, the others join it.

use std::net::SocketAddr;
use std::path::Path;

use embar_fabric::error::RegionError;
use embar_fabric::geometry::Geometry;
use embar_fabric::memory::{Coherence, Mapped};
use embar_fabric::owner::Claim;
use embar_fabric::region::{Probe, Region};

use super::{Entry, Progress, RegionSpec, join};
use crate::config::BrokerConfig;
use crate::error::{StartError, no_place};
use crate::node::HEAD;

/// What every region's directory holds.
const CONTROL_FILE: &str = "control";

/// The head's part: a region in `dir`, new or taken over.
pub(super) fn lead(
    dir: &Path,
    spec: RegionSpec,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<(Region<Mapped>, Claim), StartError> {
    let RegionSpec {
        bytes,
        data_brokers,
        standbys,
        spares,
        topics,
        sessions,
        ..
    } = spec;
    let mut geometry = Geometry::for_cluster(bytes, data_brokers, standbys, spares, topics)?;
    geometry.sessions = sessions.map_or(geometry.sessions, |most| most.min(geometry.sessions));
    let region = match Region::probe(dir) {
        Probe::Stale { .. } if !spec.fresh => {
            tracing::info!(dir = %dir.display(), "taking over the region of a cluster that is gone");
            take(dir, &geometry, spec.coherence)?
        }
        // Others of the cluster live: only its head is gone.
        Probe::InUse { rows } if !spec.fresh && lack_a_head(&rows) => {
            tracing::info!(dir = %dir.display(), "going on as the head of a cluster that lost its own");
            take(dir, &geometry, spec.coherence)?
        }
        Probe::Stale { .. } => {
            tracing::info!(dir = %dir.display(), "discarding the region of a cluster that is gone");
            Region::discard(dir)?;
            create(dir, &geometry, spec.coherence, progress)?
        }
        // Creating says best what is in the way, if anything is.
        Probe::Absent => create(dir, &geometry, spec.coherence, progress)?,
        Probe::InUse { rows } => {
            return Err(RegionError::InUse {
                dir: dir.to_owned(),
                rows,
            }
            .into());
        }
        // Somebody else's files: creating refuses them by name.
        Probe::Damaged(_) if !dir.join(CONTROL_FILE).exists() => {
            create(dir, &geometry, spec.coherence, progress)?
        }
        Probe::Unfinished => {
            tracing::warn!(dir = %dir.display(), "the creation of this region was interrupted: it is made anew");
            Region::discard(dir)?;
            create(dir, &geometry, spec.coherence, progress)?
        }
        Probe::Damaged(_) | Probe::OtherVersion { .. } if spec.fresh => {
            Region::discard(dir)?;
            create(dir, &geometry, spec.coherence, progress)?
        }
        // Opening says best what is wrong with it.
        Probe::Damaged(_) | Probe::OtherVersion { .. } | Probe::Denied => {
            Region::open(dir, spec.coherence)?
        }
    };
    let claim = region.claim(HEAD)?;
    Ok((region, claim))
}

fn create(
    dir: &Path,
    geometry: &Geometry,
    coherence: Coherence,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Region<Mapped>, StartError> {
    let total = geometry.total_bytes();
    Ok(Region::create_and_tell(
        dir,
        geometry,
        coherence,
        &|done| progress(Progress::Reserving { done, total }),
    )?)
}

/// Whether rows are held, but not the head's. None at all are while the region is being created.
fn lack_a_head(rows: &[(u16, u32)]) -> bool {
    !rows.is_empty() && rows.iter().all(|(row, _)| *row != HEAD)
}

/// A region that is there, if it has the shape that is wanted.
fn take(dir: &Path, wanted: &Geometry, coherence: Coherence) -> Result<Region<Mapped>, StartError> {
    let region = Region::open(dir, coherence)?;
    let found = region.geometry();
    if found == wanted {
        return Ok(region);
    }
    Err(StartError::OtherShape {
        dir: dir.to_owned(),
        found_mib: found.total_bytes() >> 20,
        found_brokers: found.brokers - found.standbys - found.spares,
        found_standbys: found.standbys,
        found_spares: found.spares,
        found_topics: found.topics,
    })
}

/// The part of one that joins: a row of the region whose owner, if it ever had one, is dead.
pub(super) fn follow(
    entry: Entry,
    takes_data: bool,
    coherence: Coherence,
    config: &BrokerConfig,
) -> Result<(Region<Mapped>, Claim), StartError> {
    match entry {
        Entry::Head { address, id } => ask_head(address, id, takes_data, coherence, config),
        Entry::Region { dir, id } => {
            let region = Region::open(&dir, coherence)?;
            check_row(region.geometry(), id, takes_data).map_err(StartError::Config)?;
            let claim = region.claim(id)?;
            Ok((region, claim))
        }
    }
}

/// The region is the one that the head names.
fn ask_head(
    head: SocketAddr,
    id: Option<u16>,
    takes_data: bool,
    coherence: Coherence,
    config: &BrokerConfig,
) -> Result<(Region<Mapped>, Claim), StartError> {
    let fail = |why: String| StartError::Join { head, why };
    let invitation = join::ask(head, config.listen, takes_data)?;
    let region = Region::open(&invitation.dir, coherence)?;
    if u64::from(region.nonce()) != invitation.nonce {
        let dir = invitation.dir.display();
        return Err(fail(format!(
            "{dir} holds another region than the head's: both must see the same memory"
        )));
    }
    if let Some(id) = id {
        check_row(region.geometry(), id, takes_data).map_err(fail)?;
        let claim = region.claim(id)?;
        return Ok((region, claim));
    }
    // The head's guess first; another broker may have come in between.
    let rows = rows_to_join(region.geometry(), takes_data);
    let guess = rows.iter().filter(|row| **row == invitation.row);
    let others = rows.iter().filter(|row| **row != invitation.row);
    for row in guess.chain(others) {
        match region.claim(*row) {
            Ok(claim) => return Ok((region, claim)),
            Err(RegionError::InUse { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(fail(no_place(region.geometry(), takes_data)))
}

/// Which rows one that joins may take, in order.
fn rows_to_join(geometry: &Geometry, takes_data: bool) -> Vec<u16> {
    let rows = 0..geometry.brokers;
    rows.filter(|row| *row != HEAD && geometry.takes_data(*row) == takes_data)
        .collect()
}

fn check_row(geometry: &Geometry, id: u16, takes_data: bool) -> Result<(), String> {
    let rows = rows_to_join(geometry, takes_data);
    if rows.contains(&id) {
        return Ok(());
    }
    Err(match (rows.first(), rows.last()) {
        (Some(first), Some(last)) => format!("broker id {id} is not one of {first} to {last}"),
        _ => "the cluster has no such place: start it with --standbys".into(),
    })
}
