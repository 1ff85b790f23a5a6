//! A small region with an extent of payload of each of two brokers, for tests that receive into the
//! log or send from it.

use std::cell::RefCell;

use embar_fabric::{Coherence, Extent, Foreign, Geometry, Mapped, Region, Reservation};

const EXTENT_BYTES: u32 = 1 << 20;

/// The row of the broker whose payload is foreign.
const OTHER: u16 = 2;

pub struct Log {
    extent: RefCell<Extent<Mapped>>,
    other: RefCell<Extent<Mapped>>,
    region: Region<Mapped>,
    _directory: tempfile::TempDir,
}

impl Log {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let geometry = Geometry {
            brokers: 3,
            topics: 1,
            lanes: 1,
            lane_slots: 2,
            index_pages: 1,
            blog_bytes: u64::from(EXTENT_BYTES),
            ..Geometry::default()
        };
        let path = directory.path().join("region");
        let region = Region::create(&path, &geometry, Coherence::Coherent).unwrap();
        let there = Region::open(&path, Coherence::Coherent).unwrap();
        let extent = |region: &Region<Mapped>, row| {
            let claim = region.claim(row).unwrap();
            let extent = region.blog(&claim).allocate(EXTENT_BYTES).unwrap();
            RefCell::new(extent)
        };
        Self {
            extent: extent(&region, 1),
            other: extent(&there, OTHER),
            region,
            _directory: directory,
        }
    }

    pub fn reserve(&self, len: usize) -> Reservation<Mapped> {
        self.extent.borrow_mut().reserve(len as u32).unwrap()
    }

    /// What the other broker has in its log.
    pub fn foreign(&self, bytes: &[u8]) -> Foreign<Mapped> {
        let mut extent = self.other.borrow_mut();
        let mut reservation = extent.reserve(bytes.len() as u32).unwrap();
        reservation.write(0, bytes);
        let span = reservation.commit();
        self.region
            .foreign(OTHER, span.at(), span.len() as u32)
            .unwrap()
    }

    pub fn pins(&self) -> usize {
        self.extent.borrow().pins()
    }
}
