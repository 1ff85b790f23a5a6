//! What the candidate that sequences keeps on a disk: the batches of the topics that are on it, and what has to be known to
//! go on with them after all memory was lost.
//!
//! State machines: what to write comes out of a [`Writer`], and what was synced goes in. [`crate::server`] has the threads
//! and the files.

mod age_clock;
mod chain;
pub mod facts;
mod found;
mod indexes;
mod kept;
mod level;
mod seed;
mod sessions;
mod writer;

pub use found::Found;
pub use level::{Disk, level};
pub use seed::{SeedError, Seeded, is_new, seed};
pub use sessions::{KnownSession, Sessions};
pub use writer::{COMMIT_BYTES, Gathered, IN_FLIGHT_MAX, Limits, Start, Writer};
