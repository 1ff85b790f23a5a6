//! One directory that is a disk of a log.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::directory::Directory;
use crate::error::DiskError;
use crate::format::Identity;
use crate::names::{IDENTITY, NEW_IDENTITY, NO_DATA};
use crate::region_lock::{LockError, RegionLock, RegionName};
use crate::take_back::TakeBack;

/// A directory that is a disk of a log. While this lives, processes of the same region may use it, and no others.
///
/// What was made for it is removed when this is dropped, unless it is to be [kept](Disk::keep).
#[derive(Debug)]
pub struct Disk {
    // Goes before the lock does.
    take_back: TakeBack,
    directory: Directory,
    identity: Identity,
    lock: RegionLock,
}

impl Disk {
    /// Where its files are.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Which disk it is, and of which log.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether somebody removed the directory, or the lock in it: then what is written there may go with this process, and another log may
    /// begin there.
    ///
    /// # Errors
    /// What the system says.
    pub fn is_removed(&self) -> io::Result<bool> {
        Ok(self.directory.is_removed()? || self.lock.is_removed()?)
    }

    /// The start goes well: a directory that was made for it, and an identity, stay.
    pub fn keep(&mut self) {
        self.take_back.keep();
    }

    /// Its number among the disks of the log, from 0.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.identity.number
    }
}

/// A directory that may become a disk: it has the files of one, or none.
#[derive(Debug)]
pub(crate) struct Found {
    take_back: TakeBack,
    pub path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
    is_new: bool,
}

impl Found {
    /// Looks at a directory; makes it if it is not there and `may_create`.
    pub(crate) fn look(path: &Path, may_create: bool) -> Result<Self, DiskError> {
        let dir = || path.to_owned();
        let mut made = false;
        let said = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && may_create => {
                made = true;
                make(path)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(DiskError::NotThere { dir: dir() });
            }
            said => said.map_err(|error| DiskError::of(path, error))?,
        };
        let take_back = TakeBack::new(dir(), made);
        if !said.is_dir() {
            return Err(DiskError::NoDirectory { path: dir() });
        }
        let is_new = is_new(path).map_err(|error| DiskError::of(path, error))?;
        match is_new {
            Some(true) if !may_create => Err(DiskError::NoIdentity { dir: dir() }),
            None => Err(DiskError::NotEmpty { dir: dir() }),
            Some(is_new) => Ok(Self {
                take_back,
                path: dir(),
                id: (said.dev(), said.ino()),
                is_new,
            }),
        }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
    }

    pub(crate) fn is_on_same_device(&self, other: &Self) -> bool {
        self.id.0 == other.id.0
    }

    pub(crate) fn lock(self, region: &RegionName) -> Result<Locked, DiskError> {
        let lock = RegionLock::take(&self.path, region).map_err(|error| match error {
            LockError::InUse(user) => DiskError::InUse {
                dir: self.path.clone(),
                region: user.map(|it| it.path),
            },
            LockError::Io(why) => DiskError::of(&self.path, why),
        })?;
        // Whoever had the lock until now may have made it its own.
        let is_new = match self.is_new {
            true => is_new(&self.path).map_err(|error| DiskError::of(&self.path, error))?,
            false => Some(false),
        };
        let identity = match is_new {
            Some(true) => None,
            _ => Some(read_identity(&self.path)?),
        };
        Ok(Locked {
            take_back: self.take_back,
            path: self.path,
            identity,
            lock,
        })
    }
}

/// A directory that no other region uses.
#[derive(Debug)]
pub(crate) struct Locked {
    take_back: TakeBack,
    pub path: PathBuf,
    /// `None` if it has no files yet.
    pub identity: Option<Identity>,
    lock: RegionLock,
}

impl Locked {
    /// The disk that it is, or, if it has no identity, the one that `new` says.
    pub(crate) fn open(
        mut self,
        new: impl FnOnce() -> io::Result<Identity>,
    ) -> Result<Disk, DiskError> {
        let failed = |error| DiskError::of(&self.path, error);
        let identity = match self.identity {
            Some(identity) => identity,
            None => {
                let identity = new().map_err(failed)?;
                write_identity(&self.path, &identity).map_err(failed)?;
                self.take_back.wrote_identity();
                identity
            }
        };
        Ok(Disk {
            directory: Directory::open(&self.path).map_err(failed)?,
            take_back: self.take_back,
            identity,
            lock: self.lock,
        })
    }
}

/// Makes one directory, for this user alone. Its name survives a power cut.
fn make(path: &Path) -> Result<Metadata, DiskError> {
    let made = DirBuilder::new().mode(0o700).create(path);
    made.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => DiskError::NoParent {
            dir: path.to_owned(),
        },
        _ => DiskError::of(path, error),
    })?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let synced = File::open(parent).and_then(|parent| parent.sync_all());
    let said = synced.and_then(|()| fs::metadata(path));
    said.map_err(|error| DiskError::of(path, error))
}

/// Whether a directory has no identity yet. `None` if it has none, and other files.
fn is_new(path: &Path) -> io::Result<Option<bool>> {
    let mut has_others = false;
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if name == IDENTITY {
            return Ok(Some(false));
        }
        has_others |= !NO_DATA.iter().any(|it| name == *it);
    }
    Ok((!has_others).then_some(true))
}

fn read_identity(path: &Path) -> Result<Identity, DiskError> {
    let file = path.join(IDENTITY);
    let bytes = fs::read(&file).map_err(|error| DiskError::of(path, error))?;
    Identity::decode(&bytes).map_err(|why| DiskError::Identity { file, why })
}

/// It is there whole, or not at all, whenever the power goes.
pub(crate) fn write_identity(path: &Path, identity: &Identity) -> io::Result<()> {
    let new = path.join(NEW_IDENTITY);
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(&identity.encode())?;
    file.sync_all()?;
    fs::rename(&new, path.join(IDENTITY))?;
    File::open(path)?.sync_all()
}
