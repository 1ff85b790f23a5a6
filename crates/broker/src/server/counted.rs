//! How much of a disk's journal counts.

use embar_disk::format::Before;
use embar_fabric::region::Region;
use embar_memory::Mapped;
use embar_order::Term;

/// What the writer of a term says; nothing before it has said it. It holds if the term lasts afterwards.
pub(super) fn counted(region: &Region<Mapped>, term: Term, disk: u16) -> Option<Before> {
    let row = region.disk_row(term.area, disk).found()?;
    let counted = Before {
        number: row.segment,
        nonce: row.nonce,
        commits: row.commits,
        crc: row.crc,
    };
    (row.nonce != 0 && row.epoch == term.epoch).then_some(counted)
}
