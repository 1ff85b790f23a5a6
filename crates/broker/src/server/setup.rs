//! From a role to a claimed region: create, take over, or join.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use embar_fabric::error::RegionError;
use embar_fabric::geometry::Geometry;
use embar_fabric::memory::{Coherence, Mapped};
use embar_fabric::owner::Claim;
use embar_fabric::records::BrokerState;
use embar_fabric::region::{Probe, Region};
use embar_transport::socket::SocketOptions;

use super::membership::{Announcement, Membership};
use super::{Progress, RegionSpec, Role, join};
use crate::clock::Clock;
use crate::config::BrokerConfig;
use crate::error::StartError;
use crate::log::{Log, Recovered, Watermarks};
use crate::node::{HEAD, Node};
use crate::topics::TopicTable;

/// What every region's directory holds.
const CONTROL_FILE: &str = "control";

/// A broker that has everything but a listener.
pub(super) struct Joined {
    pub node: Arc<Node<Mapped>>,
    pub claim: Arc<Claim>,
    pub recovered: Recovered,
    /// Says `Starting` so far.
    pub announcement: Announcement,
}

pub(super) fn socket_options(config: &BrokerConfig) -> SocketOptions {
    SocketOptions {
        recv_buffer_bytes: config.recv_buffer_bytes.map(|b| b as usize),
        send_buffer_bytes: config.send_buffer_bytes.map(|b| b as usize),
        ..SocketOptions::default()
    }
}

pub(super) fn join(
    role: Role,
    config: BrokerConfig,
    address: SocketAddr,
    clock: Clock,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Joined, StartError> {
    let (region, claim) = match role {
        Role::Head { dir, region } => lead(&dir, region, progress)?,
        Role::Follower {
            head,
            id,
            coherence,
        } => follow(head, id, coherence, &config)?,
    };
    let claim = Arc::new(claim);
    let row = claim.row();
    // Before the slow part: until then the row speaks of its owner before.
    let mut announcement = Membership::prepare(&region, &claim);
    announcement.announce(
        BrokerState::Starting,
        address,
        config.network_threads,
        clock.at(),
    );
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    region.prefault(row, threads, &|done, total| {
        progress(Progress::Prefault { done, total })
    })?;
    let head_cells = (row == HEAD).then(|| region.cell_writer(&claim));
    let topics = TopicTable::attach(region.cells(), head_cells);
    progress(Progress::Recovering);
    let (log, recovered) = if region.geometry().takes_data(row) {
        let known: Vec<_> = topics.iter().cloned().collect();
        let marks = Watermarks::of(region.geometry().blog_bytes, &config);
        let (log, recovered) = Log::open(&region, &claim, config.network_threads, marks, &known);
        (Some(log), recovered)
    } else {
        (None, Recovered::default())
    };
    if recovered.damaged > 0 {
        tracing::error!(
            damaged = recovered.damaged,
            "batches were damaged and are lost"
        );
    }
    let locks = region.clone();
    // A lock that cannot be looked at (no file descriptor is free) says nothing: the row does.
    let alive = Box::new(move |row| locks.owner_alive(row).unwrap_or(true));
    let node = Node::new(config, &claim, region, alive, topics, log, clock.at().wall);
    Ok(Joined {
        node: Arc::new(node),
        claim,
        recovered,
        announcement,
    })
}

/// The head's part: a region in `dir`, new or taken over.
fn lead(
    dir: &Path,
    spec: RegionSpec,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<(Region<Mapped>, Claim), StartError> {
    let geometry = Geometry::for_cluster(spec.bytes, spec.data_brokers)?;
    let region = match Region::probe(dir) {
        Probe::Stale {
            geometry: found, ..
        } if !spec.fresh => {
            if found != geometry {
                return Err(StartError::OtherShape {
                    dir: dir.to_owned(),
                    found_mib: found.total_bytes() >> 20,
                    found_brokers: found.brokers,
                });
            }
            tracing::info!(dir = %dir.display(), "taking over the region of a cluster that is gone");
            Region::open(dir, spec.coherence)?
        }
        Probe::Stale { .. } => {
            tracing::info!(dir = %dir.display(), "discarding the region of a cluster that is gone");
            Region::remove(dir)?;
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
        Probe::Damaged(_) | Probe::OtherVersion { .. } if spec.fresh => {
            Region::remove(dir)?;
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
    progress(Progress::Reserving {
        bytes: geometry.total_bytes(),
    });
    Ok(Region::create(dir, geometry, coherence)?)
}

/// A follower's part: the region that the head names, and a row of it whose
/// owner, if it ever had one, is dead.
fn follow(
    head: SocketAddr,
    id: Option<u16>,
    coherence: Coherence,
    config: &BrokerConfig,
) -> Result<(Region<Mapped>, Claim), StartError> {
    let fail = |why: String| StartError::Join { head, why };
    let invitation = join::ask(head, config.listen)?;
    let region = Region::open(&invitation.dir, coherence)?;
    if u64::from(region.nonce()) != invitation.nonce {
        let dir = invitation.dir.display();
        return Err(fail(format!(
            "{dir} holds another region than the head's: both must see the same memory"
        )));
    }
    if let Some(id) = id {
        if !region.geometry().takes_data(id) {
            let rows = region.geometry().brokers - 1;
            return Err(fail(format!("broker id {id} is not one of 1 to {rows}")));
        }
        let claim = region.claim(id)?;
        return Ok((region, claim));
    }
    // The head's guess first; another broker may have come in between.
    let others = region
        .geometry()
        .data_rows()
        .filter(|row| *row != invitation.row);
    for row in std::iter::once(invitation.row).chain(others) {
        match region.claim(row) {
            Ok(claim) => return Ok((region, claim)),
            Err(RegionError::InUse { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(fail(
        "all its rows are taken: start the cluster with more --brokers".into(),
    ))
}
