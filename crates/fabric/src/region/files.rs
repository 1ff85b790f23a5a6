//! Regions as directories of mapped files.
//!
//! `control`: superblock and tables. `payload-<row>`: payload of one data broker; of a spare row it is
//! made by the first claim of the row. `owner-<row>`: the lock of a row. `sockets/<row>` and `sockets/<row>.shm`: the socket
//! file of a broker, for clients on its machine. The superblock is stored
//! last, so a creation that was interrupted leaves what is not taken for a region, and not for a damaged
//! one either: see [`Probe::Unfinished`].

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use embar_memory::{Coherence, FileId, Mapped, Memory};

use super::{Home, Region, invalid};
use crate::error::RegionError;
use crate::geometry::{Geometry, LANES_MAX, ROWS_MAX};
use crate::layout::{Layout, SUPERBLOCK_BYTES};
use crate::owner::{self, Claim};
use crate::superblock::Superblock;
use crate::wakeup::wakeup_name;

mod create;
mod space;
mod spare;

const CONTROL: &str = "control";
/// A directory with the socket files of brokers. They have one of their own because whoever makes and
/// removes them locks it, and supervisors lock the region's.
const SOCKETS: &str = "sockets";
/// Behind the row, in the name of a socket file for connections by shared memory.
const SHARED_MEMORY: &str = ".shm";
/// A lock of older versions, whose regions can be removed.
const TAKEOVER: &str = "takeover";

fn payload_name(row: u16) -> String {
    format!("payload-{row}")
}

/// Of a payload file that is being made, and gets its name when it is whole.
fn unfinished_payload_name(row: u16) -> String {
    format!("payload-{row}.new")
}

/// How the names of all owner files begin.
const OWNER: &str = "owner-";

fn owner_name(row: u16) -> String {
    format!("{OWNER}{row}")
}

/// Of a pipe in a region of a version before 9, which can only be removed.
fn earlier_wakeup_name(row: u16, number: u16) -> String {
    format!("bell-{row}-{number}")
}

/// Of payload files, whole and unfinished, in a region of a version before 10, which can only be removed.
fn earlier_payload_names(row: u16) -> [String; 2] {
    [format!("blog-{row}"), format!("blog-{row}.new")]
}

/// Every name of a file that a region's directory may hold.
fn known_names() -> impl Iterator<Item = String> {
    let rows = (0..ROWS_MAX).flat_map(|row| {
        let wakeups = (0..=LANES_MAX)
            .flat_map(move |number| [wakeup_name(row, number), earlier_wakeup_name(row, number)]);
        let payload_files = [payload_name(row), unfinished_payload_name(row)];
        let names = payload_files.into_iter().chain(earlier_payload_names(row));
        names.chain([owner_name(row)]).chain(wakeups)
    });
    [CONTROL, TAKEOVER]
        .map(str::to_owned)
        .into_iter()
        .chain(rows)
}

impl<M: Memory> Region<M> {
    /// Where the brokers' socket files are, each with its row's number for a name, if there are any.
    /// `None` for a region without a directory.
    pub fn socket_dir(&self) -> Option<PathBuf> {
        // Others are told of it, and may be elsewhere.
        std::path::absolute(self.dir()?.join(SOCKETS)).ok()
    }
}

/// What is found at a directory that may hold a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// Nothing, or an empty directory.
    Absent,
    /// A region that live processes hold.
    InUse {
        /// The rows held, each with its holder's process id (0 when unknown); empty while the
        /// region is being created.
        rows: Vec<(u16, u32)>,
    },
    /// A whole region that no process holds: it may be recovered or removed.
    Stale {
        /// When it was created, in nanoseconds since the Unix epoch.
        created: u64,
        /// Its shape.
        geometry: Geometry,
    },
    /// A region whose creation was interrupted: no process ever had a row of it, so it holds no data.
    Unfinished,
    /// Not a region, or not a complete one. The text says what is wrong.
    Damaged(String),
    /// A region of another version.
    OtherVersion {
        /// The version found.
        found: u32,
        /// The version of this program.
        ours: u32,
    },
    /// Another user's: it cannot be looked at.
    Denied,
}

/// How often a parent that vanishes is made again.
const PARENT_ATTEMPTS_MAX: u32 = 16;

fn make_parent(dir: &Path) -> Result<(), RegionError> {
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
            made.map_err(|e| RegionError::io("making", parent, e))
        }
        _ => Ok(()),
    }
}

impl Region<Mapped> {
    /// Creates a region in `dir`, which must not exist or be empty, and reserves all its memory. A
    /// missing parent is made, as private as the region.
    ///
    /// On an error nothing is left behind, but perhaps an empty parent.
    pub fn create(
        dir: &Path,
        geometry: &Geometry,
        coherence: Coherence,
    ) -> Result<Self, RegionError> {
        Self::create_with_progress(dir, geometry, coherence, &|_| ())
    }

    /// As [`Region::create`]; `progress(done)` counts the bytes that are reserved, and is called after each 256 MiB at
    /// the latest.
    pub fn create_with_progress(
        dir: &Path,
        geometry: &Geometry,
        coherence: Coherence,
        progress: &dyn Fn(u64),
    ) -> Result<Self, RegionError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let made =
                make_parent(dir).and_then(|()| create::region(dir, geometry, coherence, progress));
            match made {
                // Somebody tidies the empty parent away while it is made, or just after.
                Err(RegionError::Io { source, .. })
                    if matches!(
                        source.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists
                    ) && attempt < PARENT_ATTEMPTS_MAX => {}
                outcome => return outcome,
            }
        }
    }

    /// Opens the region in `dir`, whose superblock and file lengths are validated first.
    pub fn open(dir: &Path, coherence: Coherence) -> Result<Self, RegionError> {
        let (control, superblock) = read_superblock(dir)?;
        let geometry = &superblock.geometry;
        let control = map(
            &control,
            dir,
            CONTROL,
            Layout::new(geometry).control_bytes(),
            coherence,
        )?;
        let payload_files = geometry
            .data_rows()
            .map(|row| {
                let name = payload_name(row);
                if geometry.is_spare(row) && !dir.join(&name).exists() {
                    return Ok(None);
                }
                map_payload_file(dir, row, geometry.payload_bytes, coherence).map(Some)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Self::attach(control, payload_files, Some(Home::of(dir, geometry)))
    }

    /// Looks at what `dir` holds, without a lasting effect.
    pub fn probe(dir: &Path) -> Probe {
        let found = holders(dir).and_then(|rows| match rows {
            Some(rows) => Ok(Probe::InUse { rows }),
            None if is_absent(dir)? => Ok(Probe::Absent),
            None => match Self::open(dir, Coherence::Coherent) {
                Ok(region) => Ok(Probe::Stale {
                    created: region.created(),
                    geometry: region.geometry().clone(),
                }),
                Err(RegionError::Damaged { .. }) if is_unfinished(dir)? => Ok(Probe::Unfinished),
                Err(error) => Err(error),
            },
        });
        found.unwrap_or_else(|error| match error {
            RegionError::OtherVersion { found, ours, .. } => Probe::OtherVersion { found, ours },
            RegionError::Permissions { .. } => Probe::Denied,
            RegionError::Damaged { what, .. } => Probe::Damaged(what),
            other => Probe::Damaged(other.to_string()),
        })
    }

    /// Removes the region in `dir`, whole or damaged, of any version, unless it is in use.
    ///
    /// Refuses a directory that holds anything else.
    pub fn remove(dir: &Path) -> Result<(), RegionError> {
        let _locks = Self::remove_files(dir)?;
        fs::remove_dir(dir).map_err(|e| RegionError::io("removing", dir, e))
    }

    /// As [`Region::remove`], but the directory stays, for a region that is to be made anew, and with it a lock that
    /// a process has on it.
    pub fn discard(dir: &Path) -> Result<(), RegionError> {
        Self::remove_files(dir).map(drop)
    }

    /// Removes them, and returns the locks: held until the directory is gone, they keep others from claiming rows.
    fn remove_files(dir: &Path) -> Result<Vec<File>, RegionError> {
        let names = region_files(dir)?;
        // Held until the files are gone, so that no process claims a row half-way through.
        let mut locks = Vec::new();
        for name in names.iter().filter(|name| is_lock(name)) {
            let file = open_file(dir, name)?;
            if !owner::try_lock(&file).map_err(|e| RegionError::io("locking", dir.join(name), e))? {
                // Our own locks are not an answer to who holds it.
                drop(locks);
                let rows = holders(dir)?.unwrap_or_default();
                return Err(RegionError::InUse {
                    dir: dir.to_owned(),
                    rows,
                });
            }
            locks.push(file);
        }
        for name in &names {
            let path = dir.join(name);
            let removed = match name == SOCKETS {
                true => remove_sockets(&path),
                false => fs::remove_file(&path),
            };
            removed.map_err(|e| RegionError::io("removing", path, e))?;
        }
        Ok(locks)
    }

    /// Claims a row for this process, with the next incarnation. The first claim of a spare makes its
    /// payload file, and reserves all of it. Unfinished files that dead processes left for any row go.
    ///
    /// The claim holds the row's lock; dropping it, or dying, gives the row up.
    pub fn claim(&self, row: u16) -> Result<Claim, RegionError> {
        if row >= self.geometry().brokers {
            let what = format!(
                "row {row} of a region with {} rows",
                self.geometry().brokers
            );
            return Err(RegionError::InvalidGeometry { what });
        }
        let Some(dir) = self.dir() else {
            return Ok(self.claim_unlocked(row));
        };
        let path = dir.join(owner_name(row));
        let io = |doing| {
            let path = path.clone();
            move |e| RegionError::io(doing, path, e)
        };
        let file = open_file(dir, &owner_name(row))?;
        if !owner::try_lock(&file).map_err(io("locking"))? {
            let rows = vec![(row, owner::read_pid(&file))];
            return Err(RegionError::InUse {
                dir: dir.to_owned(),
                rows,
            });
        }
        // A region that was removed meanwhile still has its files for those who opened them, and another
        // may have taken its place.
        let removed = file.metadata().map_err(io("looking at"))?.nlink() == 0;
        let control = self.control_memory().file();
        let found = fs::metadata(dir.join(CONTROL)).map(|it| FileId::of(&it));
        let Some(control) = found.ok().filter(|it| !removed && Some(*it) == control) else {
            return Err(RegionError::NotFound {
                dir: dir.to_owned(),
            });
        };
        owner::write_pid(&file).map_err(io("writing"))?;
        let geometry = self.geometry();
        let others = geometry.data_rows().filter(|it| *it != row);
        spare::remove_unfinished(dir, others.filter(|it| geometry.is_spare(*it)));
        if geometry.is_spare(row) {
            spare::make_payload_file(dir, row, geometry.payload_bytes, &space::reserve)?;
        }
        // An opening of its own: what the owner before lent stays locked by that one's.
        let payload = dir.join(payload_name(row));
        let lends = geometry.takes_data(row).then(|| File::open(&payload));
        let lends = lends
            .transpose()
            .map_err(|e| RegionError::io("opening", &payload, e))?;
        self.take_as_own(row);
        let claim = Claim::locked(row, self.raise_incarnation(row), file, control, lends);
        claim.map_err(|e| RegionError::io("looking at", payload, e))
    }

    /// Makes sure that the directory of the brokers' socket files is there, and that only this user may
    /// enter it. `None` for a region without a directory.
    ///
    /// # Errors
    /// [`RegionError::Io`] says what cannot be made.
    pub fn make_socket_dir(&self) -> Result<Option<PathBuf>, RegionError> {
        let Some(path) = self.socket_dir() else {
            return Ok(None);
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        let private = made.and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o700)));
        match private {
            Ok(()) => Ok(Some(path)),
            Err(e) => Err(RegionError::io("making", path, e)),
        }
    }

    /// Whether a live process holds the row. False for a region without a directory, and, at the
    /// price of two loads, for a row that was never claimed.
    pub fn owner_alive(&self, row: u16) -> Result<bool, RegionError> {
        let home = self.parts.home.as_ref();
        let Some(home) = home.filter(|_| self.was_claimed(row)) else {
            return Ok(false);
        };
        let path = &home.owners[usize::from(row)];
        let file = open_path(&home.dir, path)?;
        owner::is_locked(&file).map_err(|e| RegionError::io("looking at", path, e))
    }
}

/// Whether there is nothing but files of rows in the directory of socket files.
fn holds_rows_only(sockets: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(sockets)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let row = name.strip_suffix(SHARED_MEMORY).unwrap_or(&name);
        if row.parse::<u16>().is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the directory of socket files, of which no process owns one any more.
fn remove_sockets(sockets: &Path) -> io::Result<()> {
    for entry in fs::read_dir(sockets)? {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(sockets)
}

/// Whether a file is there to be locked.
fn is_lock(name: &str) -> bool {
    name == CONTROL || name == TAKEOVER || name.starts_with(OWNER)
}

fn open_file(dir: &Path, name: &str) -> Result<File, RegionError> {
    open_path(dir, &dir.join(name))
}

/// Opens a file of the directory.
fn open_path(dir: &Path, path: &Path) -> Result<File, RegionError> {
    match File::options().read(true).write(true).open(path) {
        Ok(file) => Ok(file),
        Err(e) if e.kind() == io::ErrorKind::NotFound && dir.join(CONTROL).exists() => {
            let name = path.file_name().unwrap_or(path.as_os_str());
            let what = format!("{} is missing", name.display());
            Err(RegionError::damaged(dir, what))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(RegionError::NotFound {
            dir: dir.to_owned(),
        }),
        Err(e) => Err(RegionError::io("opening", path, e)),
    }
}

fn map(
    file: &File,
    dir: &Path,
    name: &str,
    len: u64,
    coherence: Coherence,
) -> Result<Arc<Mapped>, RegionError> {
    let io = |e| RegionError::io("mapping", dir.join(name), e);
    let found = file.metadata().map_err(io)?.len();
    if found != len {
        return Err(RegionError::damaged(
            dir,
            format!("{name} has {found} bytes instead of {len}"),
        ));
    }
    // SAFETY: a region hands its mappings out to no other code, uses words of payload files only where it shows
    // no slices of them, and has one payload file of each by an `Exclusive` and a lock.
    let mapped = unsafe { Mapped::map(file, len, coherence) };
    Ok(Arc::new(mapped.map_err(io)?))
}

fn map_payload_file(
    dir: &Path,
    row: u16,
    len: u64,
    coherence: Coherence,
) -> Result<Arc<Mapped>, RegionError> {
    let name = payload_name(row);
    map(&open_file(dir, &name)?, dir, &name, len, coherence)
}

impl Home<Mapped> {
    fn of(dir: &Path, geometry: &Geometry) -> Self {
        Self {
            dir: dir.to_owned(),
            owners: (0..geometry.brokers)
                .map(|row| dir.join(owner_name(row)))
                .collect(),
            map_payload: |control, dir, row, len| {
                map_payload_file(dir, row, len, control.coherence())
            },
        }
    }
}

fn read_superblock(dir: &Path) -> Result<(File, Superblock), RegionError> {
    let file = open_file(dir, CONTROL)?;
    let mut page = vec![0; SUPERBLOCK_BYTES as usize];
    if let Err(e) = file.read_exact_at(&mut page, 0) {
        return Err(match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                RegionError::damaged(dir, "the superblock is cut short")
            }
            _ => RegionError::io("reading", dir.join(CONTROL), e),
        });
    }
    let superblock = Superblock::decode_either(&page).map_err(|e| invalid(dir, e))?;
    Ok((file, superblock))
}

/// Whether a region's creation was interrupted: its first page, as far as it is there, is zeros, and no owner file was
/// ever written to. A claim does that first, and a creation ends with the superblock. So a region that
/// may hold data and has lost its superblock is not taken for one that never had one.
fn is_unfinished(dir: &Path) -> Result<bool, RegionError> {
    let Ok(names) = region_files(dir) else {
        return Ok(false);
    };
    let io = |name: &str, e| RegionError::io("reading", dir.join(name), e);
    let mut page = Vec::new();
    let read = open_file(dir, CONTROL)?
        .take(SUPERBLOCK_BYTES)
        .read_to_end(&mut page);
    read.map_err(|e| io(CONTROL, e))?;
    if page.iter().any(|byte| *byte != 0) {
        return Ok(false);
    }
    for name in names.iter().filter(|name| name.starts_with(OWNER)) {
        let found = fs::metadata(dir.join(name)).map_err(|e| io(name, e))?;
        if found.len() > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_absent(dir: &Path) -> Result<bool, RegionError> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(RegionError::io("reading", dir, e)),
    }
}

/// The names in a region's directory, if there is nothing else in it.
fn region_files(dir: &Path) -> Result<Vec<String>, RegionError> {
    let io = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => RegionError::NotFound {
            dir: dir.to_owned(),
        },
        _ => RegionError::io("reading", dir, e),
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let name = entry
            .map_err(io)?
            .file_name()
            .to_string_lossy()
            .into_owned();
        let foreign = match name == SOCKETS {
            true => !holds_rows_only(&dir.join(&name)).map_err(io)?,
            false => !known_names().any(|known| known == name),
        };
        if foreign {
            return Err(RegionError::damaged(
                dir,
                format!("{name} does not belong to a region; remove it by hand"),
            ));
        }
        names.push(name);
    }
    Ok(names)
}

/// The rows that live processes hold, or `None` when the region is not in use.
fn holders(dir: &Path) -> Result<Option<Vec<(u16, u32)>>, RegionError> {
    let mut rows = Vec::new();
    let mut creating = false;
    let locked = |name: &str| -> Result<Option<u32>, RegionError> {
        let path = dir.join(name);
        let file = match File::options().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(None);
            }
            Err(e) => return Err(RegionError::io("opening", path, e)),
        };
        let held = owner::is_locked(&file).map_err(|e| RegionError::io("looking at", path, e))?;
        Ok(held.then(|| owner::read_pid(&file)))
    };
    if locked(CONTROL)?.is_some() {
        creating = true;
    }
    for row in 0..ROWS_MAX {
        if let Some(pid) = locked(&owner_name(row))? {
            rows.push((row, pid));
        }
    }
    Ok((creating || !rows.is_empty()).then_some(rows))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_is_being_created_is_in_use() {
        let tmp = tempfile::tempdir().unwrap();
        let control = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(tmp.path().join(CONTROL))
            .unwrap();
        assert!(owner::try_lock(&control).unwrap());
        assert_eq!(Region::probe(tmp.path()), Probe::InUse { rows: Vec::new() });
        let refused = Region::remove(tmp.path()).unwrap_err();
        assert!(refused.to_string().contains("creating"), "{refused}");
        drop(control);
        Region::remove(tmp.path()).unwrap();
    }
}
