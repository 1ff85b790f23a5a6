//! How much of a disk's journal counts.

use embar_disk::format::Before;
use embar_fabric::DiskRow;
use embar_fabric::region::Region;
use embar_memory::Mapped;
use embar_order::Term;

use crate::log::disk_row;

/// What the writer of a term says; nothing before it has said it. It holds if the term lasts afterwards.
pub(super) fn counted(region: &Region<Mapped>, term: Term, disk: u16) -> Option<Before> {
    let row = disk_row(region, term, disk)?;
    let counted = Before {
        number: row.segment,
        nonce: row.nonce,
        commits: row.commits,
        crc: row.crc,
    };
    (row.nonce != 0).then_some(counted)
}

/// The segment that a region's writers have begun last on a disk, as its rows say.
pub(super) fn last_written(rows: impl Iterator<Item = DiskRow>) -> Option<u64> {
    let begun = rows.filter(|row| row.nonce != 0);
    begun.max_by_key(|row| row.epoch).map(|row| row.segment)
}
