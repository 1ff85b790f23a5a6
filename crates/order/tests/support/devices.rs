//! A small region in simulated memory that hosts share.

use std::sync::Arc;

use embar_fabric::{Geometry, Layout, Region};
use embar_memory::{Device, Simulated};

/// Of every region here.
pub const NONCE: u32 = 9;

/// One topic, one lane for each broker, one data broker.
pub fn small() -> Geometry {
    Geometry {
        brokers: 2,
        topics: 1,
        lanes: 1,
        lane_slots: 16,
        index_pages: 16,
        payload_bytes: 64 << 10,
        goi_pages: 64,
        sessions: 1,
        ..Geometry::default()
    }
}

/// The files of a region.
pub struct Devices {
    pub control: Device,
    pub payload_files: Vec<Device>,
}

impl Devices {
    pub fn formatted(geometry: &Geometry) -> Self {
        let payload_file = |_| Device::blank(geometry.payload_bytes);
        let devices = Self {
            control: Device::blank(Layout::new(geometry).control_bytes()),
            payload_files: geometry.data_rows().map(payload_file).collect(),
        };
        let host = |device: &Device| Arc::new(device.host(1));
        let payload_files = devices.payload_files.iter().map(host).collect();
        let region = Region::format(host(&devices.control), payload_files, geometry, NONCE, 1);
        region.expect("a good geometry");
        devices
    }

    /// The region as one more host sees it.
    pub fn host(&self, seed: u64) -> Region<Simulated> {
        self.with_control(Arc::new(self.control.host(seed)), seed)
    }

    /// As [`Devices::host`], with this view of the control file.
    pub fn with_control(&self, control: Arc<Simulated>, seed: u64) -> Region<Simulated> {
        let payload_files = self
            .payload_files
            .iter()
            .map(|payload_file| Arc::new(payload_file.host(seed)));
        let region = Region::from_parts(control, payload_files.collect());
        region.expect("it was formatted")
    }
}
