//! Which power cuts a run has.

use serde::Serialize;

use super::loop_disk::FileSystem;

/// The power cuts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PowerPlan {
    /// Of each disk.
    pub file_system: FileSystem,
    /// How many, under load; one more follows when all was published.
    pub cuts: u32,
}
