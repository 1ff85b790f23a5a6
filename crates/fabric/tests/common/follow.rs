//! A broker's view of an area's order index.

use embar_fabric::goi::PAGE_RECORDS;
use embar_fabric::{GoiReader, GoiRecord, Region};
use embar_memory::Memory;

/// Follows one chain through one area: from its root, record by record, page by page.
pub struct Follower<M> {
    region: Region<M>,
    goi: GoiReader<M>,
    area: u16,
    topic: u16,
    /// The page that it reads, and its generation.
    pub at: Option<(u32, u32)>,
    slot: u32,
    next: u64,
}

impl<M: Memory> Follower<M> {
    pub fn new(region: &Region<M>, area: u16, topic: u16) -> Self {
        Self {
            region: region.clone(),
            goi: region.goi_reader(area),
            area,
            topic,
            at: None,
            slot: 0,
            next: 0,
        }
    }

    /// The next record, if it is there.
    pub fn next(&mut self) -> Option<GoiRecord> {
        let (page, generation) = match self.at {
            None => self.enter(self.head()?),
            Some((page, generation)) if self.slot == PAGE_RECORDS => {
                let next = self.goi.link(page, generation).found()?;
                let start = self.next;
                let entered = self.enter(next);
                assert_eq!(self.next, start, "a page begins where the last one ended");
                entered
            }
            Some(at) => at,
        };
        let record = self.goi.record(page, generation, self.slot).found()?;
        assert_eq!(record.base, self.next, "positions are dense");
        self.slot += 1;
        self.next = record.end();
        Some(record)
    }

    /// One above the last position that was seen.
    pub fn position(&self) -> u64 {
        self.next
    }

    fn head(&self) -> Option<u32> {
        let root = self.region.goi_root(self.area, self.topic).found()?;
        root.head.checked_sub(1)
    }

    fn enter(&mut self, page: u32) -> (u32, u32) {
        let (generation, header) = self
            .goi
            .page(page)
            .found()
            .expect("opened before it is named");
        assert_eq!(
            header.in_use, 1,
            "page {page} was given back while it was named"
        );
        self.at = Some((page, generation));
        self.slot = 0;
        self.next = header.start;
        (page, generation)
    }
}
