//! Whether brokers have appended to topics on disks without the sequencer, as at orders 0 and 1.

use embar_fabric::NewsReader;
use embar_fabric::news::News;
use embar_fabric::region::Region;
use embar_memory::Mapped;

/// What all brokers announce to the disks' writer. Whoever reads this wakes it.
pub(super) struct Appended {
    brokers: Vec<NewsReader<Mapped>>,
    /// Empty between two looks; kept for its memory.
    named: Vec<u32>,
}

impl Appended {
    /// Of a region, which may have no disks.
    pub fn new(region: &Region<Mapped>) -> Self {
        let geometry = region.geometry();
        let rows = geometry.data_rows().filter(|_| geometry.disks > 0);
        Self {
            brokers: rows.map(|row| region.news(News::IndexPages(row))).collect(),
            named: Vec::new(),
        }
    }

    /// Whether there was anything since the last call.
    pub fn has_any(&mut self) -> bool {
        let mut is_complete = true;
        for news in &mut self.brokers {
            is_complete &= news.take(&mut self.named);
        }
        let has_any = !is_complete || !self.named.is_empty();
        self.named.clear();
        has_any
    }
}
