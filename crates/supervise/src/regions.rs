//! Where regions are kept, and the removal of those that killed commands left.

use std::fs;
use std::path::{Path, PathBuf};

use embar_fabric::region::{Probe, Region};

/// Name of the region that is used where the user names none.
pub const DEFAULT_NAME: &str = "default";

/// Names of regions that live no longer than the command that made them.
pub const TEMPORARY_PREFIXES: [&str; 3] = ["bench-", "quickstart-", "wall-"];

/// `/dev/shm/embar-<uid>`: one directory per user, since regions are private.
pub fn root() -> PathBuf {
    PathBuf::from(format!(
        "/dev/shm/embar-{}",
        rustix::process::getuid().as_raw()
    ))
}

/// The region with this name.
pub fn named(name: &str) -> PathBuf {
    root().join(name)
}

/// A region for this process alone: `<prefix><pid>`.
pub fn temporary(prefix: &str) -> PathBuf {
    debug_assert!(
        TEMPORARY_PREFIXES.contains(&prefix),
        "only known prefixes are swept"
    );
    named(&format!("{prefix}{}", std::process::id()))
}

/// Removes the temporary regions of commands that were killed. Returns what it removed.
pub fn sweep() -> Vec<PathBuf> {
    sweep_in(&root())
}

fn sweep_in(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| {
            maker(&entry.file_name().to_string_lossy()).is_some_and(|pid| !is_alive(pid))
        })
        .map(|entry| entry.path())
        .filter(|dir| remove(dir))
        .inspect(|dir| tidy(dir))
        .collect()
}

/// The process that made a temporary region, from its name.
fn maker(name: &str) -> Option<u32> {
    let pid = TEMPORARY_PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))?;
    // A name may carry a part of its own after the id: `bench-77.ab12`.
    pid.split('.').next()?.parse().ok()
}

/// Whether there is such a process.
pub fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Whether a process is gone, or was killed and the kernel is removing it (its first thread is a zombie then, while others
/// may still hold its files).
pub fn is_ending(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        Ok(stat) => state(&stat).is_some_and(|state| matches!(state, 'Z' | 'X')),
    }
}

/// The state in a line of `/proc/<pid>/stat`; it follows the name, which may hold parentheses.
fn state(stat: &str) -> Option<char> {
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Removes a region that no process uses, whole or not. Returns whether it is gone.
pub fn remove(dir: &Path) -> bool {
    match Region::probe(dir) {
        Probe::InUse { .. } | Probe::Denied => false,
        Probe::Absent => !dir.exists() || fs::remove_dir(dir).is_ok(),
        // It takes away files of a region only: a directory that holds others stays.
        Probe::Stale { .. }
        | Probe::Unfinished
        | Probe::OtherVersion { .. }
        | Probe::Damaged(_) => Region::remove(dir).is_ok(),
    }
}

/// Removes the directory of this user's regions if nothing is left in it.
pub fn tidy(dir: &Path) {
    if dir.parent() == Some(root().as_path()) {
        // It stays while it holds other regions.
        let _ = fs::remove_dir(root());
    }
}

/// Bytes that the files of `dir` take.
pub fn bytes_in(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    entries
        .flatten()
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.blocks() * 512)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_temporary_regions_name_their_maker() {
        assert_eq!(maker("bench-77"), Some(77));
        assert_eq!(maker("quickstart-9.ab"), Some(9));
        for name in ["default", "bench-", "bench-x", "77", "quickstart"] {
            assert_eq!(maker(name), None, "{name}");
        }
    }

    #[test]
    fn the_state_of_a_process() {
        assert_eq!(state("77 (a) Z (b) R 1 2"), Some('R'));
        assert_eq!(state(""), None);
        assert!(!is_ending(std::process::id()) && is_ending(4_194_305));
    }

    #[test]
    fn the_living_and_the_unknown_are_left_alone() {
        let root = tempfile::tempdir().expect("a directory");
        let mine = root.path().join(format!("bench-{}", std::process::id()));
        let other = root.path().join("default");
        // Above the largest id that Linux gives out.
        let dead = root.path().join("bench-4194305");
        for dir in [&mine, &other, &dead] {
            fs::create_dir(dir).expect("created");
        }
        assert_eq!(sweep_in(root.path()), [dead]);
        assert!(mine.exists() && other.exists());
    }
}
