//! What a process knows of the log's disks.

use std::sync::Arc;

use embar_disk::Storage;
use embar_fabric::DiskState as Said;
use embar_fabric::region::Region;
use embar_memory::Memory;
use embar_meter::profile::Profile;
use embar_order::{Leadership, Term};
use embar_wire::control::{DiskState, DiskStatus};

use super::Node;
use crate::disks::Disks;
use crate::log::disk_row;

impl<M: Memory> Node<M> {
    /// The same, of a process that has opened the log's disks.
    #[must_use]
    pub fn with_disks(mut self, disks: &Arc<Disks>) -> Self {
        self.disks = Some(Arc::clone(disks));
        self
    }

    /// Stage timers of the threads that write and read disks, where there are any.
    #[must_use]
    pub fn disk_profile(&self) -> Option<&Arc<Profile>> {
        self.disks.as_ref().map(|disks| disks.profile())
    }

    /// How the log's disks do, as the one that sequences says.
    #[must_use]
    pub fn disk_statuses(&self) -> Vec<DiskStatus> {
        let term = Leadership::observe(&self.region).term;
        let disks = self.disks.iter().flat_map(|disks| disks.iter());
        let statuses = disks.map(|disk| DiskStatus {
            number: disk.number().into(),
            state: state_of_disk(&self.region, term, disk.number()),
            directory: disk.directory().path().display().to_string(),
            // What cannot be asked has none.
            free_bytes: disk.directory().free_bytes().unwrap_or(0),
        });
        statuses.collect()
    }

    /// Which disks are to get a new topic: those that take what comes, or have not said that they do not, then full ones, and failed
    /// ones last.
    pub(crate) fn ranks_of_disks(&self) -> Vec<u8> {
        let term = Leadership::observe(&self.region).term;
        let numbers = 0..self.region.geometry().disks;
        let ranks = numbers.map(|number| match state_of_disk(&self.region, term, number) {
            DiskState::Full => 1,
            DiskState::Failed => 2,
            _ => 0,
        });
        ranks.collect()
    }
}

/// What its writer says of a disk in this term.
fn state_of_disk<M: Memory>(region: &Region<M>, term: Option<Term>, number: u16) -> DiskState {
    let row = term.and_then(|term| disk_row(region, term, number));
    match row.and_then(|row| Said::from_number(row.state)) {
        Some(Said::Writes) => DiskState::Writes,
        Some(Said::Failed) => DiskState::Failed,
        Some(Said::Full | Said::FullAtStart) => DiskState::Full,
        Some(Said::Opens) | None => DiskState::Opens,
    }
}
