//! Why directories cannot be the disks of a log, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::format::{DISKS_MAX, IdentityError};

/// Why directories cannot be used as the disks of a log.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DiskError {
    /// There is no such directory, and this process may not make one.
    #[error("there is no directory {}: start the head first, which makes it, or give the one that the head has", .dir.display())]
    NotThere {
        /// The directory that was given.
        dir: PathBuf,
    },
    /// There is no such directory, and none to make it in.
    #[error("cannot make {}: the directory that it is to be in is not there; make that one, or mount its disk, first", .dir.display())]
    NoParent {
        /// The directory that was given.
        dir: PathBuf,
    },
    /// Something else is there.
    #[error("{} is no directory: give one", .path.display())]
    NoDirectory {
        /// The path that was given.
        path: PathBuf,
    },
    /// This process may not write there.
    #[error("{} cannot be written: let the user of this process own the directory and all in it", .dir.display())]
    Permissions {
        /// The directory that was given.
        dir: PathBuf,
    },
    /// Nobody may.
    #[error("{} is on a file system that is mounted for reading only: mount it for writing, and look in the kernel's log whether the disk fails", .dir.display())]
    ReadOnly {
        /// The directory that was given.
        dir: PathBuf,
    },
    /// It has files of others.
    #[error("{} is not empty and no directory of Embarcadero: give an empty one", .dir.display())]
    NotEmpty {
        /// The directory that was given.
        dir: PathBuf,
    },
    /// No log has been begun there, and this process may not begin one.
    #[error("{} has no data of a log yet: start the head with it first", .dir.display())]
    NoIdentity {
        /// The directory that was given.
        dir: PathBuf,
    },
    /// It does not say which disk it is.
    #[error("{}: {why}; put back a copy of the file, or give another directory", .file.display())]
    Identity {
        /// The file that should say it.
        file: PathBuf,
        /// What is wrong with it.
        why: IdentityError,
    },
    /// Two directories are not of the same log.
    #[error("{} belongs to another log than {}: give the directories of one", .dir.display(), .other.display())]
    OtherLog {
        /// One directory.
        dir: PathBuf,
        /// One that was given before it.
        other: PathBuf,
    },
    /// One directory was given twice.
    #[error("{} and {} are the same directory: give each once", .dir.display(), .other.display())]
    Twice {
        /// One way to name it.
        dir: PathBuf,
        /// The other way.
        other: PathBuf,
    },
    /// One directory is a copy of another.
    #[error("{} and {} both say that they are disk {number} of the log, so one is a copy: give only the one that was used last", .dir.display(), .other.display())]
    Copy {
        /// One directory.
        dir: PathBuf,
        /// The other.
        other: PathBuf,
        /// The number of both.
        number: u16,
    },
    /// Two directories fail together.
    #[error("{} and {} are on one device: when it fails both are lost; give directories on different devices, or --same-device-is-fine for tests", .dir.display(), .other.display())]
    SameDevice {
        /// One directory.
        dir: PathBuf,
        /// The other.
        other: PathBuf,
    },
    /// Not all disks of the log were given.
    #[error("disk {number} of the log is missing: give its directory, too")]
    Missing {
        /// The lowest number that no directory has.
        number: u16,
    },
    /// A log has fewer disks.
    #[error("{given} directories: a log has at most {DISKS_MAX} disks; give fewer")]
    TooMany {
        /// How many were given.
        given: usize,
    },
    /// The processes of another cluster use it.
    #[error("{} is in use by {}: stop that one first, or give this one a directory of its own", .dir.display(), user(.region.as_deref()))]
    InUse {
        /// The directory that was given.
        dir: PathBuf,
        /// The region of that cluster, if its processes said which.
        region: Option<PathBuf>,
    },
    /// The system refused something else.
    #[error("cannot use {}: {why}", .dir.display())]
    Io {
        /// The directory that was given.
        dir: PathBuf,
        /// What the system said.
        why: io::Error,
    },
}

impl DiskError {
    /// What the system said of a directory that is there.
    pub(crate) fn of(dir: &Path, why: io::Error) -> Self {
        let dir = dir.to_owned();
        match why.kind() {
            io::ErrorKind::PermissionDenied => Self::Permissions { dir },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { dir },
            _ => Self::Io { dir, why },
        }
    }
}

fn user(region: Option<&Path>) -> String {
    match region {
        Some(path) => format!("the cluster of region {}", path.display()),
        None => "another cluster".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn who_may_not_write_learns_whom_to_ask() {
        let says = |errno: Errno| DiskError::of(Path::new("/d"), errno.into()).to_string();
        assert!(says(Errno::ACCESS).starts_with("/d cannot be written: let the user"));
        assert!(says(Errno::ROFS).contains("mounted for reading only"));
        assert!(says(Errno::IO).starts_with("cannot use /d: "));
    }
}
