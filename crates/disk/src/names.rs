//! Names of files in the directory of a disk, beside those of its segments.

use crate::region_lock::LOCK;

/// The file that says which disk a directory is.
pub(crate) const IDENTITY: &str = "identity";
/// Its name before it is whole.
pub(crate) const NEW_IDENTITY: &str = "identity.new";
/// The file that is given up for a segment when there is no room for one.
pub const RESERVE: &str = "reserve";
/// What an empty directory may have: what file systems make, and what is left of a first start that was interrupted.
pub(crate) const NO_DATA: [&str; 3] = ["lost+found", LOCK, NEW_IDENTITY];
