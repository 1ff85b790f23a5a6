//! A small region in simulated memory.

use std::sync::Arc;

use embar_fabric::{Device, Geometry, Layout, Region, Simulated};

/// One topic, one lane for each broker, one data broker.
pub fn small() -> Geometry {
    Geometry {
        brokers: 2,
        topics: 1,
        lanes: 1,
        lane_slots: 16,
        index_pages: 16,
        blog_bytes: 64 << 10,
        goi_pages: 64,
        sessions: 1,
        ..Geometry::default()
    }
}

/// Formatted, as one host sees it.
pub fn region(geometry: &Geometry) -> Region<Simulated> {
    let file = |bytes, seed| Arc::new(Device::blank(bytes).host(seed));
    let control = file(Layout::new(geometry).control_bytes(), 1);
    let blogs = geometry.data_rows().zip(2..);
    let blogs = blogs.map(|(_, seed)| file(geometry.blog_bytes, seed));
    Region::format(control, blogs.collect(), geometry, 9, 1).expect("a good geometry")
}
