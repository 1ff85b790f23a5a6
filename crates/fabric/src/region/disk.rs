//! A region's readers and writers of what candidates say of disks.

use std::sync::Arc;

use embar_memory::Memory;

use super::Region;
use crate::frontier::FrontierTable;
use crate::news::{News, SharedNews};
use crate::owner::Claim;
use crate::records::{DiskRow, Frontier};
use crate::rows::RowWriter;
use crate::slot::{PAIR_BYTES, Seen};

impl<M: Memory> Region<M> {
    /// What the claimed candidate says of a disk.
    ///
    /// # Panics
    /// When there is no such disk, or the row is not a candidate's.
    pub fn disk_row_writer(&self, claim: &Claim, disk: u16) -> RowWriter<M, DiskRow> {
        self.row_writer(self.parts.layout.disk(self.area(claim), disk))
    }

    /// What an area's candidate says of a disk; nothing before it does. It says in which term.
    ///
    /// # Panics
    /// When there is no such disk.
    pub fn disk_row(&self, area: u16, disk: u16) -> Seen<DiskRow> {
        self.read_row(self.parts.layout.disk(area, disk))
    }

    /// The claimed candidate's frontiers of a disk.
    ///
    /// # Panics
    /// As [`Region::disk_row_writer`].
    pub fn frontier_table(&self, claim: &Claim, disk: u16) -> FrontierTable<M> {
        let geometry = self.geometry();
        FrontierTable::attach(
            Arc::clone(&self.parts.control),
            self.parts.layout.frontiers(self.area(claim), disk, 0),
            self.parts.nonce,
            (geometry.topics, geometry.frontiers()),
        )
    }

    /// How far the chain in a topic's record is on a disk, as an area has it; nothing before it was first stored. `row` is 0 for
    /// orders 2 and 5, and [`Geometry::frontier_of`](crate::Geometry::frontier_of) a broker's row for 0 and 1. It says of which
    /// chain and term.
    ///
    /// # Panics
    /// When there is no such disk, topic record or row.
    pub fn frontier(&self, area: u16, disk: u16, topic: u16, row: u16) -> Seen<Frontier> {
        assert!(row < self.geometry().frontiers(), "no frontier {row}");
        let first = self.parts.layout.frontiers(area, disk, topic);
        self.read_row(first + u64::from(row) * PAIR_BYTES)
    }

    /// Names the chains of which the claimed candidate has stored frontiers.
    pub fn frontier_news_writer(&self, claim: &Claim) -> SharedNews<M> {
        SharedNews::new(self.news_writer(News::Frontiers(self.area(claim))))
    }
}
