//! Who has a row of a region, as its locks and records tell: also processes that we did not start.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use embar_fabric::Region;
use embar_fabric::error::RegionError;
use embar_fabric::records::{BrokerRow, BrokerState};
use embar_fabric::region::Probe;
use embar_memory::{Coherence, Mapped};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::regions;

/// How long a command that was killed may take to let go of its region.
const ENDING_WITHIN: Duration = Duration::from_secs(1);
/// How often it is looked whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Another command supervises the region, and none of its brokers has a row of it yet.
#[derive(Debug, thiserror::Error)]
#[error(
    "region {} is in use by another command, whose brokers are just starting or ending: stop it, or use another region",
    dir.display()
)]
pub struct InUse {
    /// The region's directory.
    pub dir: PathBuf,
}

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

/// Says that this process supervises a region, for as long as it lives: no other command takes its brokers for left alone,
/// or starts any. It is a lock on the region's directory, so that is there before the region, and outlasts its files.
#[derive(Debug)]
pub struct Supervision {
    lock: File,
    dir: PathBuf,
}

impl Supervision {
    /// Makes the directory if it is not there, and locks it.
    ///
    /// # Errors
    /// Another process supervises the region.
    pub fn over(dir: &Path) -> Result<Self> {
        let deadline = Instant::now() + ENDING_WITHIN;
        loop {
            let opened = make(dir).and_then(|()| File::open(dir));
            let lock = match opened {
                // Somebody tidies an empty directory, or its empty parent, away.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound && Instant::now() < deadline =>
                {
                    continue;
                }
                opened => opened.map_err(|error| cannot_have(dir, error))?,
            };
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let dir = dir.to_owned();
                    let it = Self { lock, dir };
                    if it.holds() {
                        return Ok(it);
                    }
                }
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(LOOK_EVERY),
                Err(Errno::WOULDBLOCK) => return Err(in_use(dir)),
                Err(error) => {
                    let why = format!("cannot lock the region's directory {}", dir.display());
                    return Err(anyhow::Error::from(error).context(why));
                }
            }
        }
    }

    /// Whether the directory that is there is the one that is locked: somebody may have removed it.
    pub fn holds(&self) -> bool {
        let id = |it: Metadata| (it.dev(), it.ino());
        let found = fs::metadata(&self.dir).map(id).ok();
        found.is_some() && found == self.lock.metadata().map(id).ok()
    }
}

impl Drop for Supervision {
    fn drop(&mut self) {
        // Of a start that failed nothing is left: the directory goes if it is empty, and still the one that is locked.
        if self.holds() {
            let _in_use = fs::remove_dir(&self.dir);
        }
    }
}

/// As private as the region that it is for.
fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// In the words of whoever would make the region.
fn cannot_have(dir: &Path, error: io::Error) -> anyhow::Error {
    let dir = dir.to_owned();
    match error.kind() {
        io::ErrorKind::PermissionDenied => RegionError::Permissions { path: dir }.into(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            RegionError::Exists { dir }.into()
        }
        _ => anyhow::Error::from(error).context(format!(
            "cannot make the region's directory {}",
            dir.display()
        )),
    }
}

fn in_use(dir: &Path) -> anyhow::Error {
    match Region::probe(dir) {
        Probe::InUse { rows } if !rows.is_empty() => {
            let dir = dir.to_owned();
            RegionError::InUse { dir, rows }.into()
        }
        _ => InUse {
            dir: dir.to_owned(),
        }
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_supervises_a_region() {
        let dir = tempfile::tempdir().expect("a directory");
        let region = dir.path().join("parent/region");
        let first = Supervision::over(&region).expect("nobody has it");
        let refused = Supervision::over(&region).expect_err("taken").to_string();
        assert!(refused.contains("in use"), "{refused}");
        drop(first);
        assert!(!region.exists(), "it was not used");
        let again = Supervision::over(&region).expect("nobody has it");
        fs::write(region.join("control"), "").expect("room");
        drop(again);
        assert!(region.exists(), "somebody needs it");
        let refused = Supervision::over(&region.join("control")).expect_err("a file");
        assert!(
            refused.to_string().contains("already holds files"),
            "{refused}"
        );
    }

    #[test]
    fn a_lock_on_a_directory_that_was_removed_is_no_lock() {
        let dir = tempfile::tempdir().expect("a directory");
        let region = dir.path().join("region");
        let first = Supervision::over(&region).expect("nobody has it");
        fs::remove_dir(&region).expect("it is empty");
        assert!(!first.holds());
        let second = Supervision::over(&region).expect("nobody has the new one");
        assert!(!first.holds() && second.holds());
        drop(first);
        assert!(region.exists(), "it is another's");
    }

    #[test]
    fn nobody_has_a_row_of_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(tenure(dir.path(), 0), Tenure::Free { is_unused: true });
    }
}
