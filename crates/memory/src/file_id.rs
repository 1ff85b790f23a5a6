//! Identifies a file by its device and inode, so that two mappings, or two names, of one file are recognised.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// The identity of a file among all files that exist at the same time, whatever its names are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The identity of the file that this metadata was read from.
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}
