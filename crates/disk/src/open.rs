//! Opens the directories that together are the disks of a log.

use std::io;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::disk::{Disk, Found, Locked};
use crate::error::DiskError;
use crate::format::{DISKS_MAX, Identity};
use crate::region_lock::RegionName;

/// How directories are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Make directories that are not there, and begin a log in empty ones, or let them join the log of the others. One
    /// process of a cluster may.
    pub may_create: bool,
    /// Take directories on one device, which fail together: for tests.
    pub same_device_is_fine: bool,
}

/// Opens the directories of a log, in any order, for the processes of a region. The disks come in the order of their numbers,
/// which begin at 0 and have no gap.
///
/// Directories that are new to the log get the numbers after the highest. A number that no directory has is never given
/// again: topics may be on that disk.
///
/// # Errors
/// [`DiskError`] names the first directory that cannot be used. It takes up to a second to find that another region uses one.
pub fn open_disks(
    paths: &[PathBuf],
    region: &RegionName,
    options: OpenOptions,
) -> Result<Vec<Disk>, DiskError> {
    let given = paths.len();
    if given > DISKS_MAX.into() {
        return Err(DiskError::TooMany { given });
    }
    let found = { paths.iter() }
        .map(|path| Found::look(path, options.may_create))
        .collect::<Result<Vec<_>, _>>()?;
    check_places(&found, options.same_device_is_fine)?;
    let locked = { found.into_iter() }
        .map(|found| found.lock(region))
        .collect::<Result<Vec<_>, _>>()?;
    let mut log = check_identities(&locked)?;
    let mut add = || match &mut log {
        Some(log) => log.add(),
        none => none.insert(Log::begin()?).add(),
    };
    let mut disks = { locked.into_iter() }
        .map(|locked| locked.open(&mut add))
        .collect::<Result<Vec<_>, _>>()?;
    disks.sort_by_key(Disk::number);
    Ok(disks)
}

/// The log that directories belong to.
struct Log {
    id: [u8; 16],
    disks: u16,
}

impl Log {
    fn begin() -> io::Result<Self> {
        let id = random_id()?;
        Ok(Self { id, disks: 0 })
    }

    /// One disk more.
    fn add(&mut self) -> io::Result<Identity> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let created = since.unwrap_or_default().as_nanos();
        let number = self.disks;
        self.disks += 1;
        Ok(Identity {
            disk: random_id()?,
            log: self.id,
            number,
            created: u64::try_from(created).unwrap_or(u64::MAX),
        })
    }
}

fn random_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    // So few bytes come all at once.
    retry_on_intr(|| getrandom(&mut id[..], GetRandomFlags::empty()))?;
    Ok(id)
}

/// Refuses directories that are not apart.
fn check_places(found: &[Found], same_device_is_fine: bool) -> Result<(), DiskError> {
    for (place, one) in found.iter().enumerate() {
        for other in &found[..place] {
            let (dir, other_dir) = (one.path.clone(), other.path.clone());
            if one.is_same(other) {
                return Err(DiskError::Twice {
                    dir,
                    other: other_dir,
                });
            }
            if !same_device_is_fine && one.is_on_same_device(other) {
                return Err(DiskError::SameDevice {
                    dir,
                    other: other_dir,
                });
            }
        }
    }
    Ok(())
}

/// Refuses directories that are not the disks of one log, or not all up to the highest. `None` if there is no log yet.
fn check_identities(locked: &[Locked]) -> Result<Option<Log>, DiskError> {
    let known = locked
        .iter()
        .filter_map(|it| Some((&it.path, it.identity?)));
    let mut known: Vec<(&PathBuf, Identity)> = known.collect();
    for (place, (dir, one)) in known.iter().enumerate() {
        for (other_dir, other) in &known[..place] {
            let (dir, other_dir) = ((*dir).clone(), (*other_dir).clone());
            if one.log != other.log {
                return Err(DiskError::OtherLog {
                    dir,
                    other: other_dir,
                });
            }
            if one.number == other.number || one.disk == other.disk {
                return Err(DiskError::Copy {
                    dir,
                    other: other_dir,
                    number: other.number,
                });
            }
        }
    }
    known.sort_by_key(|(_, it)| it.number);
    let numbers = known.iter().map(|(_, it)| it.number);
    if let Some((number, _)) = (0..).zip(numbers).find(|(due, has)| due != has) {
        return Err(DiskError::Missing { number });
    }
    Ok(known.first().map(|(_, it)| Log {
        id: it.log,
        disks: known.len() as u16,
    }))
}
