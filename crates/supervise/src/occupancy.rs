//! Which process holds a row of a region, by the locks and records of the region: also a process that another command
//! started.

use std::net::SocketAddr;
use std::path::Path;

use embar_fabric::Region;
use embar_fabric::records::{BrokerRow, BrokerState};
use embar_fabric::region::Probe;
use embar_memory::{Coherence, Mapped};

use super::regions;

/// Which process holds a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupancy {
    /// None, or one that the kernel is removing.
    Free {
        /// No process ever held it.
        is_unused: bool,
    },
    /// None: its broker left the cluster for good, or is about to end for that.
    Left,
    /// A process that lives.
    Held {
        /// Its id.
        pid: u32,
        /// Where it listens, once its record has that.
        address: Option<SocketAddr>,
        /// Its record says that it serves, and is not about to end.
        serves: bool,
    },
}

/// The rows of a region at one moment.
pub struct RowSnapshot {
    region: Region<Mapped>,
    held: Vec<(u16, u32)>,
}

impl RowSnapshot {
    /// Reads them. `None` if there is no region that can be read: then no process holds a row.
    pub fn look(dir: &Path) -> Option<Self> {
        let held = match Region::probe(dir) {
            Probe::InUse { rows } => rows,
            _ => Vec::new(),
        };
        let region = Region::open(dir, Coherence::Coherent).ok()?;
        Some(Self { region, held })
    }

    /// The region.
    pub fn region(&self) -> &Region<Mapped> {
        &self.region
    }

    /// The occupancy of row `id`.
    pub fn of(&self, id: u16) -> Occupancy {
        let row = self.region.broker_row(id).found();
        let state = row.as_ref().and_then(BrokerRow::broker_state);
        let held = self.held.iter().find(|(row, _)| *row == id);
        match held {
            _ if state == Some(BrokerState::Left) => Occupancy::Left,
            Some((_, pid)) if !regions::is_ending(*pid) => Occupancy::Held {
                pid: *pid,
                address: row.as_ref().and_then(BrokerRow::address),
                serves: state == Some(BrokerState::Ready),
            },
            _ => Occupancy::Free {
                is_unused: self.region.incarnation(id) == 0,
            },
        }
    }
}

/// The occupancy of row `id` of the region in `dir`.
pub fn occupancy(dir: &Path, id: u16) -> Occupancy {
    let rows_now = RowSnapshot::look(dir);
    rows_now.map_or(Occupancy::Free { is_unused: true }, |it| it.of(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_no_region_are_free() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(
            occupancy(dir.path(), 0),
            Occupancy::Free { is_unused: true }
        );
    }
}
