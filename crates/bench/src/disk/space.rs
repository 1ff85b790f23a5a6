//! A directory of our own on the disk that is measured, which goes when the measurement ends.

use std::path::Path;

use anyhow::{Context as _, Result};
use embar_console::context::Context;
use embar_disk::Directory;
use tempfile::TempDir;

use crate::scratch;

/// The directory.
pub struct Space {
    pub directory: Directory,
    _dir: TempDir,
}

impl Space {
    /// Below `data`, which is made if it is not there, with room for so many bytes.
    pub fn new(data: &Path, needed: u64, context: &Context) -> Result<Self> {
        let dir = scratch::make(data, needed, context)?;
        let directory = Directory::open(dir.path());
        Ok(Self {
            directory: directory.with_context(|| format!("cannot open {}", data.display()))?,
            _dir: dir,
        })
    }
}
