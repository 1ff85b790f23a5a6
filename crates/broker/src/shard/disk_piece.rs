//! What a subscriber asks of the disks, and what it gets.

use embar_disk::Chain;
use embar_wire::share::Share;

use crate::disk_bytes::DiskBytes;

/// What a subscriber wants of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRead {
    /// Of which chain.
    pub chain: Chain,
    /// The disks that have it, or will, a bit for each number.
    pub disks: u8,
    /// Those that had it before others took their place.
    pub former_disks: u8,
    /// A position in the first batch.
    pub from: u64,
    /// Up to this position.
    pub end: u64,
    /// Which batches.
    pub share: Share,
    /// About so many bytes of a disk, unless a single run of batches is larger.
    pub bytes: usize,
}

/// What came of a read.
#[derive(Debug)]
pub enum DiskPiece {
    /// Whole batches, checked.
    Batches {
        /// Their bytes.
        bytes: DiskBytes,
        /// Position at which to go on.
        next: u64,
    },
    /// The disks do not have the position any more, but from this one on.
    Gone {
        /// That position.
        first: u64,
    },
    /// Nobody can tell at the moment: ask again.
    Later,
    /// It cannot be read.
    Failed {
        /// Why, and what to do.
        why: String,
    },
}
