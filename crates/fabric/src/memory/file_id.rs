//! Which file bytes are of.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Tells a file from every other that exists at the same time, whatever its names are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}
