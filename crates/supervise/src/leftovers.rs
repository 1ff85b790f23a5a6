//! Temporary directories whose names say which process made them, so that those of killed processes are found and removed.

use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::getuid;
use tempfile::TempDir;

use crate::regions::is_alive;

/// Makes a directory in `place`, which is removed when it is dropped. Its name is the prefix, the id of the process `maker`, and a
/// part of its own.
///
/// # Errors
/// What the system says.
pub fn make(place: &Path, prefix: &str, maker: u32) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix(&format!("{prefix}{maker}."))
        .tempdir_in(place)
}

/// The directories of this user in `place` that were [made](make) with this prefix, and whose maker is gone.
pub fn find(place: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    entries
        .filter(|entry| was_left(entry, prefix))
        .map(|entry| entry.path())
        .collect()
}

fn was_left(entry: &DirEntry, prefix: &str) -> bool {
    let is_ours = |metadata: fs::Metadata| metadata.is_dir() && metadata.uid() == getuid().as_raw();
    maker(&entry.file_name().to_string_lossy(), prefix).is_some_and(|pid| !is_alive(pid))
        && entry.metadata().is_ok_and(is_ours)
}

fn maker(name: &str, prefix: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix(prefix)?.split_once('.')?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_name_their_maker() {
        let maker = |name| maker(name, "embar-disk-");
        assert_eq!(maker("embar-disk-77.ab"), Some(77));
        for other in ["embar-disk-77", "embar-logs-77.ab", "embar-disk-x.ab"] {
            assert_eq!(maker(other), None, "{other}");
        }
    }
}
