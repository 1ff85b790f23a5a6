//! Who has a row of a region, as its locks and records tell: also processes that we did not start.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;

use embar_fabric::Region;
use embar_fabric::memory::{Coherence, Mapped};
use embar_fabric::records::{BrokerRow, BrokerState};
use embar_fabric::region::Probe;
use rustix::fs::{FlockOperation, flock};

use crate::regions;

/// Who has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure {
    /// Nobody, or a process that is being put away.
    Free {
        /// Nobody ever had it.
        is_unused: bool,
    },
    /// Nobody: its broker left the cluster for good, or is about to end for that.
    Left,
    /// A process that lives.
    Held {
        /// Its id.
        pid: u32,
        /// Where it listens, once it has said so.
        address: Option<SocketAddr>,
        /// It says that it serves, and not that it is about to end.
        serves: bool,
    },
}

/// The rows of a region at one moment.
pub struct Tenures {
    region: Region<Mapped>,
    held: Vec<(u16, u32)>,
}

impl Tenures {
    /// Looks. `None` if there is no region that can be read: then nobody has anything of it.
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

    /// Who has row `id`.
    pub fn of(&self, id: u16) -> Tenure {
        let row = self.region.broker_row(id).found();
        let state = row.as_ref().and_then(BrokerRow::broker_state);
        let held = self.held.iter().find(|(row, _)| *row == id);
        match held {
            _ if state == Some(BrokerState::Left) => Tenure::Left,
            Some((_, pid)) if !regions::is_ending(*pid) => Tenure::Held {
                pid: *pid,
                address: row.as_ref().and_then(BrokerRow::address),
                serves: state == Some(BrokerState::Ready),
            },
            _ => Tenure::Free {
                is_unused: self.region.incarnation(id) == 0,
            },
        }
    }
}

/// Who has row `id` of the region in `dir`.
pub fn tenure(dir: &Path, id: u16) -> Tenure {
    let tenures = Tenures::look(dir);
    tenures.map_or(Tenure::Free { is_unused: true }, |it| it.of(id))
}

/// Says that this process supervises a region, for as long as it lives: no other command takes its brokers for left alone.
#[derive(Debug)]
pub struct Supervision {
    _lock: File,
}

impl Supervision {
    /// `None` if another process does, or there is no region.
    pub fn of(dir: &Path) -> Option<Self> {
        let lock = File::open(dir).ok()?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(Self { _lock: lock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_supervises_a_region() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = Supervision::of(dir.path());
        assert!(first.is_some() && Supervision::of(dir.path()).is_none());
        drop(first);
        assert!(Supervision::of(dir.path()).is_some());
        assert!(Supervision::of(&dir.path().join("nothing")).is_none());
    }

    #[test]
    fn nobody_has_a_row_of_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(tenure(dir.path(), 0), Tenure::Free { is_unused: true });
    }
}
