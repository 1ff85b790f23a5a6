//! The payload file of a spare row, which the first claim of the row makes: whole, or not there.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{open_file, owner_name, payload_name, space, unfinished_payload_name};
use crate::error::RegionError;
use crate::owner;

/// Makes it, unless the row has one. The caller holds the row's lock, so what is there under the name
/// of an unfinished one is of a process that died.
pub(super) fn make_payload_file(
    dir: &Path,
    row: u16,
    len: u64,
    reserve: &space::Reserve<'_>,
) -> Result<(), RegionError> {
    let path = dir.join(payload_name(row));
    if path.exists() {
        return Ok(());
    }
    let unfinished = dir.join(unfinished_payload_name(row));
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&unfinished)
        .map_err(|e| RegionError::io("creating", &unfinished, e))?;
    let made = space::check(dir, dir, len)
        .and_then(|()| reserve(&file, len).map_err(|e| space::refused(dir, &path, len, e)))
        .and_then(|()| {
            fs::rename(&unfinished, &path).map_err(|e| RegionError::io("naming", &path, e))
        });
    if made.is_err() {
        // What led here matters more; the next one begins with an empty file in any case.
        let _unremovable = fs::remove_file(&unfinished);
    }
    made.map_err(|error| for_broker(row, error))
}

/// Removes the unfinished payload files of these rows, so that the memory of those whose makers
/// died is free. A row is locked meanwhile, for as long as that takes.
pub(super) fn remove_unfinished(dir: &Path, rows: impl Iterator<Item = u16>) {
    for row in rows {
        let unfinished = dir.join(unfinished_payload_name(row));
        if !unfinished.exists() {
            continue;
        }
        let Ok(lock) = open_file(dir, &owner_name(row)) else {
            continue;
        };
        // The owner of the row may be making the file now.
        if owner::try_lock(&lock).unwrap_or(false) {
            // It does no harm but by its size.
            let _unremovable = fs::remove_file(&unfinished);
        }
    }
}

/// It is not the region that is too large.
fn for_broker(row: u16, error: RegionError) -> RegionError {
    match error {
        RegionError::NoSpace {
            needed,
            available,
            dir,
        } => RegionError::NoSpaceForBroker {
            row,
            needed,
            available,
            dir,
        },
        other => other,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_full_file_system_is_an_error_that_leaves_nothing_behind() {
        let tmp = tempfile::tempdir().unwrap();
        let full = |_: &File, _| Err(io::Error::from(io::ErrorKind::StorageFull));
        let refused = make_payload_file(tmp.path(), 4, 1 << 20, &full).unwrap_err();
        assert!(
            matches!(refused, RegionError::NoSpaceForBroker { row: 4, needed, .. } if needed == 1 << 20),
            "{refused:?}"
        );
        assert!(refused.to_string().contains("broker 4"), "{refused}");
        // More than there is is refused before the kernel is asked.
        let asked = |_: &File, _| panic!("it was asked");
        let refused = make_payload_file(tmp.path(), 4, 1 << 60, &asked).unwrap_err();
        assert!(matches!(refused, RegionError::NoSpaceForBroker { .. }));
        assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0);
        make_payload_file(tmp.path(), 4, 1 << 20, &space::reserve).unwrap();
        make_payload_file(tmp.path(), 4, 1 << 20, &asked).unwrap();
    }
}
