//! Bodies whose bytes lie in the logs of two brokers.

use std::cell::RefCell;

use embar_fabric::{Coherence, Extent, Foreign, Geometry, Mapped, Region, Span};
use embar_session::Plain;

const BLOG_BYTES: u64 = 1 << 20;
const OWN: u16 = 1;
const OTHER: u16 = 2;

/// Bytes of a head in a piece's header: frame header and length go before it.
pub const HEAD_BYTES: usize = 52;

/// The header of a frame whose body is a payload of `len` bytes.
pub fn piece(len: usize) -> [u8; 64] {
    let mut header = [3; 64];
    let length = 64 - 8 + len as u32;
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..6].copy_from_slice(&9u16.to_le_bytes());
    header[6..8].copy_from_slice(&Plain::BODY.to_le_bytes());
    header[8..12].copy_from_slice(&(HEAD_BYTES as u32).to_le_bytes());
    header
}

/// The logs of this broker and of another.
pub struct Logs {
    region: Region<Mapped>,
    _dir: tempfile::TempDir,
    own: RefCell<Extent<Mapped>>,
    other: RefCell<Extent<Mapped>>,
}

impl Logs {
    pub fn new() -> Self {
        let geometry = Geometry {
            brokers: 3,
            topics: 1,
            lanes: 1,
            lane_slots: 2,
            index_pages: 1,
            blog_bytes: BLOG_BYTES,
            ..Geometry::default()
        };
        let dir = tempfile::tempdir().expect("a directory");
        let region = Region::create(dir.path(), &geometry, Coherence::Coherent).expect("room");
        let there = Region::open(dir.path(), Coherence::Coherent).expect("it was made");
        let extent = |region: &Region<Mapped>, row| {
            let blog = region.blog(&region.claim(row).expect("free"));
            RefCell::new(blog.allocate(BLOG_BYTES as u32).expect("all free"))
        };
        Self {
            own: extent(&region, OWN),
            other: extent(&there, OTHER),
            region,
            _dir: dir,
        }
    }

    pub fn own(&self, bytes: &[u8]) -> Span<Mapped> {
        write(&self.own, bytes)
    }

    pub fn foreign(&self, bytes: &[u8]) -> Foreign<Mapped> {
        let span = write(&self.other, bytes);
        let foreign = self.region.foreign(OTHER, span.at(), span.len() as u32);
        foreign.expect("it is there")
    }

    /// Spans of the own log that something still holds.
    pub fn pins(&self) -> usize {
        self.own.borrow().pins()
    }
}

fn write(extent: &RefCell<Extent<Mapped>>, bytes: &[u8]) -> Span<Mapped> {
    let reservation = extent.borrow_mut().reserve(bytes.len() as u32);
    let mut reservation = reservation.expect("room");
    reservation.write(0, bytes);
    reservation.commit()
}
