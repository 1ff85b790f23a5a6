//! A region as small as one can be, for unit tests.

use std::sync::Arc;

use embar_fabric::{Geometry, Layout, Region};
use embar_memory::{Device, Simulated};

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
