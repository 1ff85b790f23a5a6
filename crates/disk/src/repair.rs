//! Puts what is damaged on a disk back as it was, from what else is known of it: from other disks of the log, which have the same
//! batches, from the checksums that are named elsewhere, and from indexes.
//!
//! This says what to write where, and does not write by itself. [`repair_segment`] is for one segment, [`repair_disk`] for all that
//! [`verify`](crate::verify::verify) has found.
//!
//! Invariants
//! - A commit is written again only with the checksum that the one behind it names, so nothing else has to change.
//! - What is put in has all its checksums. So bytes that were right are written again as they are, and a crash in the middle makes
//!   nothing worse.
//! - A commit whose bytes cannot be had again gives its place to a *stand-in* of the same number and length. It has the messages that
//!   are left, and says where each chain goes on: no position shifts.

mod copies;
mod disk;
mod header;
mod runs;
mod segment;
mod stand_in;

use std::io;

use crate::aligned::AlignedBuffer;
use crate::storage::StoredFile;
use crate::verify::Lost;

pub use copies::{Copies, Copy, OtherDisks};
pub use disk::{Action, Repair, renew_index, repair_disk};
pub use header::repair_header;
pub use segment::{SegmentDamage, repair_segment, says_all_facts};

/// Bytes to write in the place of damaged ones.
#[derive(Debug)]
pub struct Fix {
    /// Where they begin in the file.
    pub at: u64,
    bytes: AlignedBuffer,
    len: usize,
    /// Numbers of the first and the last commit, if these are commits.
    pub commits: Option<(u32, u32)>,
    /// Whether they are what was there, bit by bit.
    pub is_exact: bool,
    /// Messages that are given up.
    pub lost: Vec<Lost>,
    /// Facts that are given up, or may have been there.
    pub lost_facts: bool,
}

impl Fix {
    /// How many bytes it has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether it has none, which does not happen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes it into its file. On return it stays when the power goes.
    ///
    /// # Errors
    /// What the system says. Then nobody knows which of the bytes are there; it may be tried again in another process.
    pub fn write(&self, file: &impl StoredFile) -> io::Result<()> {
        file.write_synced(self.at, &self.bytes, self.len)
    }
}
