//! Creating a region: all of it, or nothing.

use std::cell::Cell;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use embar_memory::{Coherence, Mapped};

use super::{CONTROL, Home, map, owner_name, payload_name, space};
use crate::error::RegionError;
use crate::geometry::Geometry;
use crate::layout::Layout;
use crate::owner;
use crate::region::Region;

/// Creates a region in `dir`, which must not exist or be empty.
pub(super) fn region(
    dir: &Path,
    geometry: &Geometry,
    coherence: Coherence,
    progress: &dyn Fn(u64),
) -> Result<Region<Mapped>, RegionError> {
    geometry.validate()?;
    let needed = geometry.total_bytes();
    let made_dir = prepare_dir(dir, needed)?;
    let mut made = Made {
        dir: made_dir.then(|| dir.to_owned()),
        files: Vec::new(),
        keep: false,
    };
    let done = Cell::new(0);
    let reserve = |file: &File, len| {
        space::reserve_and_tell(file, len, &|bytes| {
            done.set(done.get() + bytes);
            progress(done.get());
        })
    };
    let region = make_files(dir, geometry, coherence, &mut made, &reserve)?;
    made.keep = true;
    Ok(region)
}

/// Makes sure that `dir` is an empty directory of ours with room for `needed` bytes. Returns
/// whether it had to be made.
fn prepare_dir(dir: &Path, needed: u64) -> Result<bool, RegionError> {
    match fs::read_dir(dir) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return Err(RegionError::Exists {
                    dir: dir.to_owned(),
                });
            }
            space::check(dir, dir, needed)?;
            let private = fs::Permissions::from_mode(0o700);
            fs::set_permissions(dir, private)
                .map_err(|e| RegionError::io("changing the mode of", dir, e))?;
            Ok(false)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let parent = match dir.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            space::check(parent, dir, needed)?;
            let made = DirBuilder::new().mode(0o700).create(dir);
            match made {
                Ok(()) => Ok(true),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(RegionError::Exists {
                    dir: dir.to_owned(),
                }),
                Err(e) => Err(RegionError::io("creating", dir, e)),
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => Err(RegionError::Exists {
            dir: dir.to_owned(),
        }),
        Err(e) => Err(RegionError::io("reading", dir, e)),
    }
}

/// What a creation has made so far; dropped before `keep` is set, it removes all of it.
struct Made {
    dir: Option<PathBuf>,
    files: Vec<PathBuf>,
    keep: bool,
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        // Nothing more can be done about what cannot be removed; the error that led here matters.
        // The control file last: what is left if this is interrupted is known by it.
        for file in self.files.iter().rev() {
            let _unremovable = fs::remove_file(file);
        }
        if let Some(dir) = &self.dir {
            let _unremovable = fs::remove_dir(dir);
        }
    }
}

fn make_files(
    dir: &Path,
    geometry: &Geometry,
    coherence: Coherence,
    made: &mut Made,
    reserve: &space::Reserve<'_>,
) -> Result<Region<Mapped>, RegionError> {
    let mut make = |name: &str| {
        let path = dir.join(name);
        let options = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .clone();
        let file = match options.open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                return Err(RegionError::Exists {
                    dir: dir.to_owned(),
                });
            }
            Err(e) => return Err(RegionError::io("creating", path, e)),
        };
        made.files.push(path);
        Ok(file)
    };
    let needed = geometry.total_bytes();
    let sized = |file: &File, name: &str, len: u64| {
        reserve(file, len).map_err(|e| space::refused(dir, &dir.join(name), needed, e))
    };
    let control = make(CONTROL)?;
    // Held until the region is complete, so that no process removes it half-way.
    if !owner::try_lock(&control).map_err(|e| RegionError::io("locking", dir, e))? {
        // Another process takes what was just begun for what was interrupted.
        return Err(RegionError::Exists {
            dir: dir.to_owned(),
        });
    }
    let control_bytes = Layout::new(geometry).control_bytes();
    sized(&control, CONTROL, control_bytes)?;
    let mut payload_files = Vec::new();
    for row in 0..geometry.brokers {
        make(&owner_name(row))?;
        if geometry.is_spare(row) {
            payload_files.push(None);
        } else if geometry.takes_data(row) {
            let name = payload_name(row);
            let file = make(&name)?;
            sized(&file, &name, geometry.payload_bytes)?;
            let payload_file = map(&file, dir, &name, geometry.payload_bytes, coherence)?;
            payload_files.push(Some(payload_file));
        }
    }
    let mapped = map(&control, dir, CONTROL, control_bytes, coherence)?;
    let (nonce, created) = (random_nonce(dir)?, wall_ns());
    Region::write_tables(&*mapped, geometry, nonce, created)?;
    owner::unlock(&control).map_err(|e| RegionError::io("unlocking", dir, e))?;
    Region::attach(mapped, payload_files, Some(Home::of(dir, geometry)))
}

fn random_nonce(dir: &Path) -> Result<u32, RegionError> {
    let mut bytes = [0; 4];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    got.map_err(|e| RegionError::io("drawing a random number for", dir, e.into()))?;
    Ok(u32::from_le_bytes(bytes).max(1))
}

fn wall_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The file system fills up while the memory is being reserved.
    #[test]
    fn a_refused_reservation_leaves_nothing_behind() {
        let tmp = tempfile::tempdir().unwrap();
        let geometry = Geometry {
            brokers: 3,
            index_pages: 4,
            payload_bytes: 1 << 20,
            ..Geometry::default()
        };
        for refused_call in 0..3 {
            let dir = tmp.path().join("region");
            assert!(prepare_dir(&dir, 0).unwrap());
            let calls = std::cell::Cell::new(0);
            let reserve = |file: &File, len| {
                calls.set(calls.get() + 1);
                if calls.get() > refused_call {
                    return Err(io::Error::from(io::ErrorKind::StorageFull));
                }
                space::reserve(file, len)
            };
            let mut made = Made {
                dir: Some(dir.clone()),
                files: Vec::new(),
                keep: false,
            };
            let refused = make_files(&dir, &geometry, Coherence::Coherent, &mut made, &reserve);
            assert!(
                matches!(refused, Err(RegionError::NoSpace { .. })),
                "{refused:?}"
            );
            drop(made);
            assert!(!dir.exists());
        }
    }
}
