//! A region as small as one can be, for unit tests.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use embar_fabric::{Geometry, Layout, Region};
use embar_memory::file_lock::{self, Access};
use embar_memory::{Device, LentFile, PayloadFile, Simulated};

/// A head, and one broker that keeps one topic.
pub(crate) fn geometry() -> Geometry {
    Geometry {
        brokers: 2,
        topics: 1,
        lanes: 1,
        lane_slots: 16,
        index_pages: 16,
        payload_bytes: 64 << 10,
        goi_pages: 4,
        sessions: 1,
        ..Geometry::default()
    }
}

/// A new region of this shape, with payload for one broker, in simulated memory.
pub(crate) fn region(geometry: &Geometry) -> Region<Simulated> {
    let file = |bytes, seed| Arc::new(Device::blank(bytes).host(seed));
    let control = file(Layout::new(geometry).control_bytes(), 1);
    let payload_files = vec![file(geometry.payload_bytes, 2)];
    Region::format(control, payload_files, geometry, 9, 1).expect("a good geometry")
}

/// Payload memory of which a reader of a broker that died keeps these bytes while the file lives that is returned with it.
pub(crate) fn kept_payload(bytes: u64, kept: Range<u64>) -> (PayloadFile<Simulated>, File) {
    let named = tempfile::NamedTempFile::new().expect("a file");
    named.as_file().set_len(bytes).expect("room");
    let open = || File::open(named.path()).expect("it is there");
    let reader = open();
    let locked = file_lock::try_lock(&reader, Access::Shared, kept);
    assert!(locked.expect("asked"));
    let payload = PayloadFile::over_copies(&Arc::new(Device::new(bytes, 1).host(1)));
    let lent = LentFile::new(open()).expect("metadata");
    (payload.lending(lent), reader)
}
