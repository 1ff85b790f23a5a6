//! What is in the files, byte by byte. All numbers are little-endian, all checksums CRC-32C.

mod chain;
mod commit;
mod identity;
mod index;
mod kept;
mod layout;
mod segment;

pub use chain::Chain;
pub(crate) use commit::JUDGED_BYTES;
pub use commit::{
    BatchRun, COMMIT_HEADER_BYTES, CommitHeader, Damaged, RUN_BYTES, Run, RunKind, check_runs, runs,
};
pub use identity::{IDENTITY_BYTES, Identity, IdentityError};
pub use index::{INDEX_ENTRY_BYTES, IndexEntry, Part, SegmentIndex, index_name};
pub(crate) use index::{add_to, parts_of};
pub use kept::FIRST_KEPT_LAYOUT;
pub(crate) use kept::{decode_first_kept, encode_first_kept};
pub use layout::{Field, Layout};
pub use segment::{Before, SEGMENT_HEADER_BYTES, SegmentHeader, segment_name, segment_number};

/// Version of all that is in a directory. A change of any layout raises it.
pub const VERSION: u32 = 1;

/// Most disks of a log. Their numbers are below it.
pub const DISKS_MAX: u16 = 8;

/// Commits, and all that is written, begin at multiples of this and are as long: what disks write at once, whatever their
/// sectors are.
pub const ALIGN_BYTES: usize = 4096;

/// The fact that says which segment is the oldest that is kept: its number ([`FIRST_KEPT_LAYOUT`]), under the key 0. But for
/// [`ABOUT_TOPIC`] all others are about what the writer's user likes.
pub const ABOUT_SEGMENTS: u16 = u16::MAX;

/// The facts that say which topics there are: each under its id, with bytes that the writer's user likes. A chain of a topic of
/// which no fact holds any more is gone, and so may its batches be: see [`give_back`](crate::give_back).
pub const ABOUT_TOPIC: u16 = 1;

/// What lies where in the files of a directory.
pub const LAYOUTS: [Layout; 6] = {
    let [index_header, index_entry] = index::LAYOUTS;
    [
        identity::LAYOUT,
        segment::LAYOUT,
        commit::HEADER_LAYOUT,
        commit::RUN_LAYOUT,
        index_header,
        index_entry,
    ]
};

/// A checksum of `bytes` in which the four bytes at `at` count as zero: they hold it.
pub(crate) fn crc_without(bytes: &[u8], at: usize) -> u32 {
    let mut crc = embar_frame::Crc::new();
    crc.update(&bytes[..at]);
    crc.update(&[0; 4]);
    crc.update(&bytes[at + 4..]);
    crc.value()
}
