//! A region on simulated memory.

use std::sync::Arc;

use embar_fabric::{Geometry, Layout, Region};
use embar_memory::{Device, Simulated};

pub const NONCE: u32 = 0x5EED_0001;

/// The smallest rings and few pages, so that everything wraps soon: a head, two data brokers and a
/// standby.
pub fn small() -> Geometry {
    Geometry {
        disks: 0,
        brokers: 4,
        topics: 4,
        lanes: 2,
        lane_slots: 2,
        index_pages: 4,
        payload_bytes: 256 << 10,
        standbys: 1,
        spares: 0,
        goi_pages: 16,
        sessions: 4,
    }
}

/// Every host has a cache of its own.
pub struct Cluster {
    pub control: Device,
    pub payload_files: Vec<Device>,
}

impl Cluster {
    pub fn seeded(geometry: &Geometry, seed: u64) -> Self {
        let control = Device::blank(Layout::new(geometry).control_bytes());
        let payload_files = geometry
            .data_rows()
            .map(|row| Device::new(geometry.payload_bytes, seed ^ u64::from(row)));
        let cluster = Self {
            control,
            payload_files: payload_files.collect(),
        };
        let payload_files = cluster
            .payload_files
            .iter()
            .map(|payload_file| Arc::new(payload_file.host(1)))
            .collect();
        let control = Arc::new(cluster.control.host(1));
        Region::format(control, payload_files, geometry, NONCE, 1).expect("a valid geometry");
        cluster
    }

    /// The region as one more host sees it.
    pub fn host(&self, seed: u64) -> Region<Simulated> {
        let payload_files = self
            .payload_files
            .iter()
            .map(|payload_file| Arc::new(payload_file.host(seed)));
        let control = Arc::new(self.control.host(seed));
        Region::from_parts(control, payload_files.collect()).expect("formatted")
    }
}
