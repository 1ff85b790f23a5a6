//! A directory that is a disk of a log, looked at by somebody who changes nothing there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};
use thiserror::Error;

use crate::aligned::AlignedBuffer;
use crate::directory::Directory;
use crate::disk::write_identity;
use crate::error::DiskError;
use crate::format::{
    Identity, IdentityError, SEGMENT_HEADER_BYTES, SegmentHeader, segment_name, segment_number,
};
use crate::names::IDENTITY;
use crate::region_lock::{DirectoryUser, LockError, RegionLock, RegionName};
use crate::scan::Depth;
use crate::storage::{Storage, StoredFile};
use crate::verify::{Damage, Verified, Wrong, verify};

/// A directory that is a disk of a log, or was one. A cluster may use it meanwhile.
#[derive(Debug)]
pub struct DiskView {
    directory: Directory,
    identity: Result<Identity, ViewError>,
    is_copy_damaged: bool,
    disk: [u8; 16],
}

/// Why a directory cannot be looked at.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ViewError {
    /// There is no such directory.
    #[error("there is no directory {}: give one that was given to `embar up --data`", .0.display())]
    NotThere(PathBuf),
    /// Something else is there.
    #[error("{} is no directory: give one that was given to `embar up --data`", .0.display())]
    NoDirectory(PathBuf),
    /// It has nothing of a log.
    #[error("{} has no data of a log: give a directory that was given to `embar up --data`", .0.display())]
    NoData(PathBuf),
    /// This process may not read there.
    #[error("{} cannot be read: do this as the user whose cluster it is", .0.display())]
    Permissions(PathBuf),
    /// It has segments, and does not say which disk it is.
    #[error("{} is missing: put back a copy of this file", .0.display())]
    NoIdentity(PathBuf),
    /// It does not say which disk it is.
    #[error("{}: {why}; put back a copy of this file", .file.display())]
    Identity {
        /// The file that should say it.
        file: PathBuf,
        /// What is wrong with it.
        why: IdentityError,
    },
    /// The system refused something else.
    #[error("cannot read {}: {why}", .path.display())]
    Io {
        /// The directory, or a file in it.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
    },
}

impl ViewError {
    fn of(path: &Path, why: io::Error) -> Self {
        let path = path.to_owned();
        match why.kind() {
            io::ErrorKind::NotFound => Self::NotThere(path),
            io::ErrorKind::NotADirectory => Self::NoDirectory(path),
            io::ErrorKind::PermissionDenied => Self::Permissions(path),
            _ => Self::Io { path, why },
        }
    }
}

impl ViewError {
    /// What is wrong with a directory that has no segments either.
    fn without_data(self, path: &Path) -> Self {
        match self {
            Self::NoIdentity(_) => Self::NoData(path.to_owned()),
            other => other,
        }
    }
}

impl DiskView {
    /// Opens a directory that has an identity or segments.
    ///
    /// # Errors
    /// [`ViewError`]. A missing or damaged identity is none where there are segments.
    pub fn open(path: &Path) -> Result<Self, ViewError> {
        let failed = |why| ViewError::of(path, why);
        let directory = Directory::open_to_read(path).map_err(failed)?;
        let file = path.join(IDENTITY);
        let (identity, damaged_copies) = match fs::read(&file) {
            Ok(bytes) => {
                let damaged = Identity::damaged_copies(&bytes);
                let identity = Identity::decode(&bytes);
                (
                    identity.map_err(|why| ViewError::Identity { file, why }),
                    damaged,
                )
            }
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                (Err(ViewError::NoIdentity(file)), 0)
            }
            Err(why) if why.kind() == io::ErrorKind::PermissionDenied => {
                return Err(ViewError::Permissions(file));
            }
            Err(why) => (Err(ViewError::Io { path: file, why }), 0),
        };
        let (disk, identity) = match identity {
            Ok(identity) => (identity.disk, Ok(identity)),
            Err(why) => match disk_of_segments(&directory).map_err(failed)? {
                Some(disk) => (disk, Err(why)),
                None => return Err(why.without_data(path)),
            },
        };
        Ok(Self {
            directory,
            is_copy_damaged: identity.is_ok() && damaged_copies > 0,
            identity,
            disk,
        })
    }

    /// Where it is, for reading.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Which disk it is, and of which log, or why it does not say so.
    ///
    /// # Errors
    /// [`ViewError::NoIdentity`], [`ViewError::Identity`] or [`ViewError::Io`].
    pub fn identity(&self) -> Result<&Identity, &ViewError> {
        self.identity.as_ref()
    }

    /// Which disk it is; where its identity does not say so, its segments do.
    #[must_use]
    pub fn disk(&self) -> &[u8; 16] {
        &self.disk
    }

    /// Who uses the directory now.
    ///
    /// # Errors
    /// What the system says.
    pub fn user(&self) -> io::Result<DirectoryUser> {
        DirectoryUser::of(self.directory.path())
    }

    /// Bytes of its segments and indexes.
    ///
    /// # Errors
    /// What the system says.
    pub fn bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for name in self.directory.names()? {
            if name.ends_with(".segment") || name.ends_with(".index") {
                // One that goes meanwhile has none.
                let said = fs::symlink_metadata(self.directory.path().join(name));
                bytes += said.map_or(0, |said| said.len());
            }
        }
        Ok(bytes)
    }

    /// Keeps clusters and other repairs away from the directory, for as long as the result lives.
    ///
    /// # Errors
    /// [`DiskError::InUse`], after a second, or what the system says.
    pub fn lock(&self) -> Result<DirectoryLock, DiskError> {
        let path = self.directory.path();
        let failed = |why| DiskError::of(path, why);
        let mut nonce = [0; 4];
        retry_on_intr(|| getrandom(&mut nonce[..], GetRandomFlags::empty()))
            .map_err(|error| failed(error.into()))?;
        let name = RegionName {
            nonce: u32::from_le_bytes(nonce),
            path: "a repair".into(),
        };
        let lock = RegionLock::take(path, &name).map_err(|error| match error {
            LockError::InUse(user) => DiskError::InUse {
                dir: path.to_owned(),
                region: user.map(|it| it.path),
            },
            LockError::Io(why) => failed(why),
        })?;
        Ok(DirectoryLock {
            directory: Directory::open(path).map_err(failed)?,
            _lock: lock,
        })
    }

    /// Writes which disk it is again, twice over, if one of the two copies is damaged.
    ///
    /// # Errors
    /// What the system says.
    pub fn restore_identity(&self, lock: &DirectoryLock) -> io::Result<()> {
        match &self.identity {
            Ok(identity) => write_identity(lock.directory.path(), identity),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }

    /// Reads everything, as [`verify`] does, and the identity.
    ///
    /// # Errors
    /// What the system says of the directory.
    pub fn verify(&self, depth: Depth, on_read: &(dyn Fn(u64) + Sync)) -> io::Result<Verified> {
        let mut verified = verify(&self.directory, &self.disk, depth, on_read)?;
        let what = match &self.identity {
            Ok(_) if self.is_copy_damaged => Some(Wrong::Identity),
            Ok(_) => None,
            Err(ViewError::NoIdentity(_)) => Some(Wrong::Missing),
            Err(ViewError::Identity { why, .. }) => Some(Wrong::NoIdentity(*why)),
            Err(error) => Some(Wrong::Closed(error.to_string())),
        };
        if let Some(what) = what {
            let damage = Damage {
                file: IDENTITY.into(),
                what,
                lost: Vec::new(),
                was_there: Vec::new(),
                unseen_behind: Vec::new(),
                may_be_more: false,
            };
            verified.damage.insert(0, damage);
        }
        Ok(verified)
    }
}

/// A directory that no cluster uses, and that is to be changed.
#[derive(Debug)]
pub struct DirectoryLock {
    directory: Directory,
    _lock: RegionLock,
}

impl DirectoryLock {
    /// Where it is, for reading and writing.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }
}

/// The disk whose segments lie in a directory.
fn disk_of_segments(directory: &Directory) -> io::Result<Option<[u8; 16]>> {
    let mut first = AlignedBuffer::new(SEGMENT_HEADER_BYTES);
    let names = directory.names()?;
    for number in names.iter().filter_map(|name| segment_number(name)) {
        let read = directory.open(&segment_name(number));
        let read = read.and_then(|file| file.read(0, &mut first));
        let came = read.unwrap_or(0);
        if let Some(header) = SegmentHeader::decode(&first[..came]) {
            return Ok(Some(header.disk));
        }
    }
    Ok(None)
}
