//! A directory of our own on the disk that is measured, which goes when the measurement ends.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use embar_console::size::Size;
use embar_disk::{Directory, Storage};
use tempfile::TempDir;

use super::journal::SEGMENT_BYTES;

/// The directory.
pub struct Space {
    pub directory: Directory,
    _dir: TempDir,
}

impl Space {
    /// Below `data`, which is made if it is not there.
    pub fn new(data: &Path, total_bytes: u64) -> Result<Self> {
        let cannot = || format!("cannot write to {}", data.display());
        std::fs::create_dir_all(data).with_context(cannot)?;
        let dir = tempfile::Builder::new()
            .prefix(".embar-bench-")
            .tempdir_in(data);
        let dir = dir.with_context(cannot)?;
        let directory = Directory::open(dir.path()).with_context(cannot)?;
        let free = directory.free_bytes().with_context(cannot)?;
        // The file that is read, and what a trial writes: the last segment of a journal is reserved as a whole.
        let needed = 2 * (total_bytes + SEGMENT_BYTES);
        if free < needed {
            bail!(
                "{} has room for {}, and the measurement needs {}: choose a smaller --size, or another --data",
                data.display(),
                Size(free),
                Size(needed)
            );
        }
        Ok(Self {
            directory,
            _dir: dir,
        })
    }
}
