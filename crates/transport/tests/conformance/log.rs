//! A small region with one extent of payload, for tests that receive into the log or send from it.

use std::cell::RefCell;

use embar_fabric::{Coherence, Extent, Geometry, Mapped, Region, Reservation};

const EXTENT_BYTES: u32 = 1 << 20;

pub struct Log {
    extent: RefCell<Extent<Mapped>>,
    _region: Region<Mapped>,
    _directory: tempfile::TempDir,
}

impl Log {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let geometry = Geometry {
            brokers: 2,
            topics: 1,
            lanes: 1,
            lane_slots: 2,
            index_pages: 1,
            blog_bytes: u64::from(EXTENT_BYTES),
        };
        let path = directory.path().join("region");
        let region = Region::create(&path, &geometry, Coherence::Coherent).unwrap();
        let claim = region.claim(1).unwrap();
        let extent = region.blog(&claim).allocate(EXTENT_BYTES).unwrap();
        Self {
            extent: RefCell::new(extent),
            _region: region,
            _directory: directory,
        }
    }

    pub fn reserve(&self, len: usize) -> Reservation<Mapped> {
        self.extent.borrow_mut().reserve(len as u32).unwrap()
    }

    pub fn pins(&self) -> usize {
        self.extent.borrow().pins()
    }
}
