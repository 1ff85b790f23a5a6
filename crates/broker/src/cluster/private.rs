//! Chooses the directory of a region that serves one cluster inside this process. It first removes such regions whose
//! processes were killed: nobody else does, and they occupy memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use embar_fabric::region::{Probe, Region};

const PREFIX: &str = "embar-embedded-";

/// A directory that no other cluster of this machine uses. What killed processes left beside it goes first: it
/// would take memory for ever.
pub(super) fn dir() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let shm = Path::new("/dev/shm");
    let parent = if shm.is_dir() {
        shm.to_owned()
    } else {
        std::env::temp_dir()
    };
    sweep(&parent);
    parent.join(format!("{PREFIX}{}-{count}", std::process::id()))
}

/// Removes regions whose processes are gone. Those of other users stay.
fn sweep(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let maker = maker(&entry.file_name().to_string_lossy());
        let dir = entry.path();
        if maker.is_none_or(is_alive) || Region::probe(&dir) == Probe::Absent {
            continue;
        }
        // One that a process of another container holds is refused.
        if let Err(error) = Region::remove(&dir) {
            tracing::debug!(dir = %dir.display(), "cannot remove the region of a process that is gone: {error}");
        }
    }
}

/// The process that made a region, from its name.
fn maker(name: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok()
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use embar_memory::Coherence;

    use super::*;
    use crate::test_region;

    #[test]
    fn regions_of_the_dead_go_and_all_others_stay() {
        let parent = tempfile::tempdir().expect("a directory");
        let made = |name: &str| {
            let dir = parent.path().join(name);
            fs::create_dir(&dir).expect("created");
            let region = Region::create(&dir, &test_region::geometry(), Coherence::Coherent);
            drop(region.expect("a region"));
            dir
        };
        // Above the largest id that Linux gives out.
        let dead = made("embar-embedded-4194305-0");
        let mine = made(&format!("{PREFIX}{}-7", std::process::id()));
        let other = made("default");
        let held = made("embar-embedded-4194305-1");
        let region: Region<embar_memory::Mapped> =
            Region::open(&held, Coherence::Coherent).expect("it is whole");
        let _claim = region.claim(1).expect("nobody holds it");
        sweep(parent.path());
        assert!(!dead.exists(), "its memory is taken for ever");
        assert!(mine.exists() && other.exists() && held.exists());
    }
}
