//! The lock by which one process supervises a region.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use embar_fabric::Region;
use embar_fabric::error::RegionError;
use embar_fabric::region::Probe;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// How long a command that was killed may take to let go of its region.
const ENDING_WITHIN: Duration = Duration::from_secs(1);
/// Between two looks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Another command supervises the region, and none of its brokers has a row of it yet.
#[derive(Debug, thiserror::Error)]
#[error(
    "region {} is in use by another command, whose brokers are just starting or ending: stop it, or use another region",
    dir.display()
)]
pub struct RegionInUse {
    /// The region's directory.
    pub dir: PathBuf,
}

/// This process supervises a region for as long as this lives: no other command takes its brokers for abandoned, or starts
/// any. It is a lock on the region's directory, which is there before the region and outlasts its files.
#[derive(Debug)]
pub struct SupervisorLock {
    lock: File,
    dir: PathBuf,
}

impl SupervisorLock {
    /// Makes the directory if it is not there, and locks it.
    ///
    /// # Errors
    /// Another process supervises the region.
    pub fn over(dir: &Path) -> Result<Self> {
        let deadline = Instant::now() + ENDING_WITHIN;
        loop {
            let opened = make(dir).and_then(|()| File::open(dir));
            let lock = match opened {
                // Another command removed the empty directory, or its empty parent.
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

    /// Whether the directory that is there is the one that is locked: another process may have replaced it.
    pub fn holds(&self) -> bool {
        let id = |it: Metadata| (it.dev(), it.ino());
        let found = fs::metadata(&self.dir).map(id).ok();
        found.is_some() && found == self.lock.metadata().map(id).ok()
    }
}

impl Drop for SupervisorLock {
    fn drop(&mut self) {
        // A start that failed leaves nothing: the directory goes if it is empty, and still the one that is locked.
        if self.holds() {
            let _in_use = fs::remove_dir(&self.dir);
        }
    }
}

/// Makes the directory, as private as the region will be.
fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// The error that making the region would give.
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
        _ => RegionInUse {
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
        let first = SupervisorLock::over(&region).expect("it is free");
        let refused = SupervisorLock::over(&region)
            .expect_err("taken")
            .to_string();
        assert!(refused.contains("in use"), "{refused}");
        drop(first);
        assert!(!region.exists(), "it was not used");
        let again = SupervisorLock::over(&region).expect("it is free");
        fs::write(region.join("control"), "").expect("room");
        drop(again);
        assert!(region.exists(), "it is in use");
        let refused = SupervisorLock::over(&region.join("control")).expect_err("a file");
        assert!(
            refused.to_string().contains("already holds files"),
            "{refused}"
        );
    }

    #[test]
    fn a_lock_on_a_directory_that_was_removed_is_no_lock() {
        let dir = tempfile::tempdir().expect("a directory");
        let region = dir.path().join("region");
        let first = SupervisorLock::over(&region).expect("it is free");
        fs::remove_dir(&region).expect("it is empty");
        assert!(!first.holds());
        let second = SupervisorLock::over(&region).expect("the new one is free");
        assert!(!first.holds() && second.holds());
        drop(first);
        assert!(region.exists(), "it is another's");
    }
}
