//! What a start makes in a directory, and removes again if it fails.

use std::fs;
use std::path::PathBuf;

use crate::names::{IDENTITY, NEW_IDENTITY, NO_DATA};
use crate::region_lock::LOCK;

/// Removes, when it is dropped, what a start has made in a directory; not once it is [kept](TakeBack::keep).
#[derive(Debug)]
pub(crate) struct TakeBack {
    path: PathBuf,
    made_directory: bool,
    wrote_identity: bool,
}

impl TakeBack {
    pub fn new(path: PathBuf, made_directory: bool) -> Self {
        Self {
            path,
            made_directory,
            wrote_identity: false,
        }
    }

    /// It has an identity, which nobody knows yet.
    pub fn wrote_identity(&mut self) {
        self.wrote_identity = true;
    }

    /// All that was made stays.
    pub fn keep(&mut self) {
        (self.made_directory, self.wrote_identity) = (false, false);
    }

    /// Whether a segment lies there, for which the identity is needed.
    fn has_data(&self) -> bool {
        let mut entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.any(|entry| {
            let name = entry.file_name();
            name != IDENTITY && !NO_DATA.iter().any(|it| name == *it)
        })
    }
}

impl Drop for TakeBack {
    fn drop(&mut self) {
        if !(self.made_directory || self.wrote_identity) || self.has_data() {
            return;
        }
        // The start says why it failed; what cannot be removed does no harm.
        if self.wrote_identity {
            drop(fs::remove_file(self.path.join(IDENTITY)));
        }
        if self.made_directory {
            for name in [NEW_IDENTITY, LOCK] {
                drop(fs::remove_file(self.path.join(name)));
            }
            drop(fs::remove_dir(&self.path));
        }
    }
}
