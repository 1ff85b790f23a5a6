//! What a disk does alone, and what the log's journal of commits makes of it.
//!
//! Files are as the log has them: reserved, and written and read past the page cache where the file system can. Each write
//! is synced before its thread does the next.

pub mod beside;
mod journal;
pub mod measure;
pub mod plan;
pub mod recover;
mod report;
mod sealed;
pub(crate) mod space;
mod wall;
