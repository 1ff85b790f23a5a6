//! Temporary directories for the logs of a command's own brokers, and the removal of those that killed commands left.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::leftovers;

/// All names begin so; the id of the process that made the directory follows, and a part of its own.
const PREFIX: &str = "embar-logs-";
/// A directory with this file stays.
const KEPT: &str = "kept";

/// A directory for logs that is removed when it is dropped.
pub fn temporary() -> Result<TempDir> {
    temporary_in(&std::env::temp_dir(), std::process::id())
}

fn temporary_in(root: &Path, maker: u32) -> Result<TempDir> {
    leftovers::make(root, PREFIX, maker).context("cannot make a directory for the brokers' logs")
}

/// Keeps a directory for people to read: no command removes it any more.
pub fn keep(logs: TempDir) -> PathBuf {
    // Without the mark it stays until another command sweeps.
    let _marked = File::create(logs.path().join(KEPT));
    logs.keep()
}

/// Removes the directories of commands that were killed. Returns what it removed.
pub fn sweep() -> Vec<PathBuf> {
    sweep_in(&std::env::temp_dir())
}

fn sweep_in(root: &Path) -> Vec<PathBuf> {
    let left = leftovers::find(root, PREFIX).into_iter();
    left.filter(|dir| !dir.join(KEPT).exists())
        .filter(|dir| fs::remove_dir_all(dir).is_ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Above the largest id that Linux gives out.
    const DEAD: u32 = 4_194_305;

    #[test]
    fn only_unkept_directories_of_dead_processes_are_removed() {
        let root = tempfile::tempdir().expect("a directory");
        let make = |maker| temporary_in(root.path(), maker).expect("created");
        let (mine, kept) = (make(std::process::id()), keep(make(DEAD)));
        let left = make(DEAD).keep();
        for name in ["embar-logs-abc", "embar-logs-4194305", "other"] {
            fs::create_dir(root.path().join(name)).expect("created");
        }
        assert_eq!(sweep_in(root.path()), [left]);
        assert!(mine.path().exists() && kept.exists());
        assert_eq!(fs::read_dir(root.path()).map_or(0, Iterator::count), 5);
    }
}
